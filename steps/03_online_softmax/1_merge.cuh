// Step 03 -- the statistics of a row of S while its scores arrive.
// Idea      The softmax of a row needs two numbers: its maximum m and its sum l of exp(s - m). Both
//           can be computed from parts: merge() joins two of them. It is associative, commutative
//           and has an identity, so a row may be cut anywhere and its parts joined in any order.
#pragma once

#include "common/dialect/cuda.h"

namespace step03 {

// Of any set of scores: the maximum, and the sum of exp(s - m). The default: of the empty set.
struct RowStats {
  float m = -INFINITY;
  float l = 0.f;
};

// Of one score; a masked one counts as no score.
__host__ __device__ inline RowStats stats_of(float s) { return {s, s == -INFINITY ? 0.f : 1.f}; }

// Of both sets together. The sum with the smaller maximum is rescaled to the larger one; the other
// stays as it is, so one expf is enough. Where the smaller maximum is -inf there is nothing to
// rescale, and -inf - -inf, which is NaN, is not computed.
__host__ __device__ inline RowStats merge(RowStats a, RowStats b) {
  const bool a_larger = a.m >= b.m;
  const RowStats large = a_larger ? a : b, small = a_larger ? b : a;
  const float exponent = small.m == -INFINITY ? -INFINITY : small.m - large.m;
  return {large.m, large.l + small.l * expf(exponent)};
}

}  // namespace step03
