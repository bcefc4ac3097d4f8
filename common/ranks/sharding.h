/// \file
/// How a step's variant divides one problem among ranks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/step.h"
#include "common/ranks/ranks.h"

namespace fa {

/// Rows begin .. end - 1 of the sequence, queries and keys alike.
struct Rows {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

/// What one rank holds and does. Its tensors are those of its rows, one behind the other:
/// [B, H, rows, d] and so on, on its device.
class RankAttention {
 public:
  virtual ~RankAttention() = default;
  /// O and LSE of its rows.
  virtual void forward(const Tensors<void>&) = 0;
  /// dQ, dK and dV of its rows, behind a forward; each backward needs a forward of its own.
  virtual void backward(const Tensors<void>&) = 0;
  virtual size_t workspace_bytes() const = 0;
};

/// What a rank will have sent and computed: formulas.
struct RankPrediction {
  uint64_t forward_bytes = 0;  ///< sent
  uint64_t backward_bytes = 0;
  std::vector<uint64_t> scores;  ///< that it computes, in each hop; without those that are masked
};

/// All that the program for several ranks needs of a variant.
struct Sharding {
  /// \throws UsageError when so many ranks cannot share this problem.
  std::function<void(const Problem&, int ranks)> validate;
  /// The rows of one rank, in the order in which it holds them.
  std::function<std::vector<Rows>(const Problem&, int rank, int ranks)> rows;
  std::function<std::unique_ptr<RankAttention>(const Problem&, Ranks&)> make;
  std::function<RankPrediction(const Problem&, int rank, int ranks)> predict;
};

/// The rows of all ranges together.
inline int count_rows(const std::vector<Rows>& ranges) {
  int rows = 0;
  for (const Rows& r : ranges) rows += r.size();
  return rows;
}

}  // namespace fa
