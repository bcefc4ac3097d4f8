/// \file
/// Is a step's result right? The bound is derived, row by row, from the error of an unfused kernel
/// of the same precision (the idea of FlashAttention-2's tests).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/reference.h"

namespace fa {

/// The verdict on one tensor.
struct TensorCheck {
  std::string tensor;  ///< "O", "LSE", "dQ", "dK", "dV"
  double max_abs_err =
      0;  ///< against fp64; NaN when the result holds a NaN or an unwritten element
  double rmse = 0;
  double baseline_err = 0;  ///< the unfused baseline's largest error against fp64
  double bound = 0;         ///< the allowed error of the row that has the largest one
  double used = 0;          ///< largest error / bound of any row; above 1 it fails
  size_t rows_checked = 0;
  /// Rows whose error is above `bound` but may be due to scores with too few digits: not in `used`
  size_t rows_lost = 0;
  bool ok = false;
  bool lost = false;    ///< not checkable: neither ok nor wrong, because of lost rows
  std::string message;  ///< when wrong: the worst element with its indices, expected and got
};

/// The verdict on all tensors of one run.
struct CheckResult {
  std::vector<TensorCheck> tensors;
  std::vector<std::string> damage;  ///< guard bands
  bool complete = true;             ///< false: a sample of the rows was checked
  bool ok() const;
  bool lost() const;  ///< not ok, and only because tensors are not checkable
};

/// Compares outputs of one problem, once or again after more runs. The references, which cost far
/// more than a comparison, are computed once. A row passes when
///   |out - fp64| <= factor * (largest baseline error in that row) + floor,
/// factor 2 for O and LSE, 3 for gradients. The floor is what no kernel escapes, for rows in which
/// the baseline was lucky: the rounding of the result to its type, fp32 arithmetic on terms of the
/// row's size (O: its sum of |P||V|), the effect of errors of the scores on P (none where one key
/// has all of it), and in the gradients delta's share of the rounding of O. The baseline's scores
/// are never rounded for LSE. With Method::fp8 the baseline quantises with three scales, the worst
/// of which counts in each row, and the floor contains the usual effect of such rounding.
///
/// The sum means nothing where it is as large as the result. A row therefore passes with an error
/// of at most 3/4 of its largest element, or of what rounding does whatever the scores are; LSE
/// with 1, a factor of e in P. A row with a larger error that is still below the sum is lost: its
/// scores have too few digits to tell whether the kernel is right. A tensor with a lost row (e4m3:
/// more than one in a hundred) is not checkable. A row of O is limited further: it is an average of
/// V. A NaN, a misplaced Inf and an unwritten element always fail, except for a NaN or Inf of a
/// head whose scores may err by more than the largest exponent of e: it is lost.
class Checker {
 public:
  /// Keeps references to the problem and the inputs.
  Checker(const Problem&, const Inputs&, Sample);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  /// Checks all outputs that are present.
  CheckResult operator()(const Outputs&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Does an element of Outputs still have all bits set? NaNs of arithmetic have other bits.
bool never_written(float x);

/// Checks once.
CheckResult check(const Problem&, const Inputs&, const Outputs&, const Sample&);

}  // namespace fa
