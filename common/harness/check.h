/// \file
/// Is a step's result right? The bound comes from the error that an unfused kernel of the same
/// precision makes, row by row (the idea of FlashAttention-2's own tests).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/reference.h"
#include "common/harness/run.h"

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
  /// Whose error is above `bound`, and scores with so few digits may make it: not in `used`
  size_t rows_lost = 0;
  bool ok = false;
  bool lost = false;    ///< not checkable: neither ok nor wrong, because of such rows
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

/// Compares outputs of one problem, once or again after more runs: the references, which cost far
/// more than a comparison, are made once. A row passes when
///   |out - fp64| <= factor * (largest baseline error in that row) + floor,
/// factor 2 for O and LSE, 3 for gradients. The floor is what no kernel escapes, for rows in which
/// the baseline was lucky: the rounding of the result to its type, fp32 arithmetic on terms of the
/// row's size (O: its sum of |P||V|), what errors of the scores do to P (nothing where one key has
/// all of it), and in the gradients delta's share of the rounding of O. The
/// baseline's LSE is fp32 whatever the type: its scores are not rounded. With Method::fp8 the
/// baseline quantises, with three scales, of which the unluckiest in that row counts, and the floor
/// holds what such rounding usually does to the row.
///
/// That sum says nothing where it is as large as the result. So a row passes with at most 3/4 of
/// its largest element, or what rounding does whatever the scores are; LSE with 1, which is
/// a factor of e in P. A row that errs by more, but by less than the sum, is lost: its scores have
/// too few digits to say whether the kernel is right. A tensor with such a row, of e4m3 with more
/// than one in a hundred, is not checkable. A row of O has a limit besides: it is an average of V.
/// NaN, an Inf where none belongs and an element never written fail, always; but not a NaN or Inf
/// of a head whose scores may be off by more than the largest exponent of e: it is lost.
class Checker {
 public:
  /// Keeps references to problem and inputs.
  Checker(const Problem&, const Inputs&, Sample);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  /// All outputs that are present.
  CheckResult operator()(const Outputs&);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One comparison.
CheckResult check(const Problem&, const Inputs&, const Outputs&, const Sample&);

}  // namespace fa
