/// \file
/// The online softmax of a warpgroup with 64 rows (sm_90), on the accumulator S of a wgmma. A lane
/// has two rows, 8 apart, and every fourth pair of keys of each (fragment.h).
///
/// The index h of m, l and alpha is a lane's row, 0 or 1. m is the row maximum so far, as an
/// exponent of two: of S * scale_log2, with scale_log2 = scale * log2(e). l, the row sum of P,
/// covers this lane's keys only; quad_sum() completes it.
#pragma once

#include <cfloat>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"

namespace fa {

constexpr float kNoMaximum = -FLT_MAX;  ///< below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     ///< P may grow to 2^8 before O, l and m follow

/// The largest score of a lane's first (h = 0) or second row, the same in the four lanes of the
/// row. All lanes of the warp must call it.
template <int n>
__device__ inline float row_max(const float (&rS)[n], int h) {
  float s = -INFINITY;
  UNROLL
  for (int i = 2 * h; i < n; i += 4) s = fmaxf(s, fmaxf(rS[i], rS[i + 1]));
  return quad_max(s);
}

/// Raises m to this tile's maxima and multiplies l by alpha = 2^(m_old - m_new); the caller
/// rescales O. All lanes of the warp must call it.
template <int n>
__device__ inline void update_max(const float (&rS)[n], float scale_log2, float (&m)[2],
                                  float (&l)[2], float (&alpha)[2]) {
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const float m_new = fmaxf(m[h], row_max(rS, h) * scale_log2);
    alpha[h] = exp2_approx(m[h] - m_new);
    m[h] = m_new;
    l[h] *= alpha[h];
  }
}

/// Whether a score of this warp exceeds its row's m by more than `threshold`, an exponent of two:
/// the vote of the lazy rescale. It compares raw scores: no scaling, no shuffles. Non-negative
/// floats sort as their bits do, so one integer maximum of three operands tests two scores, and
/// negative ones drop out. If m + threshold is below 0, the answer may be a false yes, which costs
/// time but no accuracy. All lanes of the warp must call it.
template <int n>
__device__ inline bool needs_rescale(const float (&rS)[n], const float (&m)[2], float scale_log2,
                                     float threshold) {
  int top[2] = {};
  UNROLL
  for (int i = 0; i < n; i += 2) {
    int& x = top[half_of(i)];
    x = __vimax3_s32_relu(x, __float_as_int(rS[i]), __float_as_int(rS[i + 1]));
  }
  const float to_raw = 1.f / scale_log2;
  bool grown = false;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    grown |= __int_as_float(top[h]) > fmaf(m[h], to_raw, threshold * to_raw);
  }
  return __any_sync(kFullMask, grown);
}

/// Replaces S by P = 2^(S * scale_log2 - m) and adds its row sums to l. Three passes: a warp issues
/// in order, so an addition right after its exponential would stall.
template <int n>
__device__ inline void compute_p(float (&rS)[n], float scale_log2, const float (&m)[2],
                                 float (&l)[2]) {
  UNROLL
  for (int i = 0; i < n; ++i) rS[i] = fmaf(rS[i], scale_log2, -m[half_of(i)]);
  UNROLL
  for (int i = 0; i < n; ++i) rS[i] = exp2_approx(rS[i]);
  if (n > 32) {  // shorter chains of additions, or fewer additions: measured
    UNROLL
    for (int i = 0; i < n; i += 2) l[half_of(i)] += rS[i] + rS[i + 1];
  } else {
    float odd[2] = {};
    UNROLL
    for (int i = 0; i < n; i += 2) l[half_of(i)] += rS[i], odd[half_of(i)] += rS[i + 1];
    l[0] += odd[0], l[1] += odd[1];
  }
}

/// Turns S into P: raises m only if a score exceeds it by more than kLazyRescale, which is rare.
/// True if it has: the caller must rescale O by alpha. All lanes of the warp must call it.
template <int n>
__device__ inline bool lazy_softmax(float (&rS)[n], float scale_log2, float (&m)[2], float (&l)[2],
                                    float (&alpha)[2]) {
  const bool grown = needs_rescale(rS, m, scale_log2, kLazyRescale);
  if (__builtin_expect(grown, 0)) update_max(rS, scale_log2, m, l, alpha);
  compute_p(rS, scale_log2, m, l);
  return grown;
}

/// Sets m to the maxima of a walk's first tile, and l to 0. All lanes of the warp must call it.
template <int n>
__device__ inline void first_max(const float (&rS)[n], float scale_log2, float (&m)[2],
                                 float (&l)[2]) {
  UNROLL
  for (int h = 0; h < 2; ++h) {
    m[h] = fmaxf(kNoMaximum, row_max(rS, h) * scale_log2);
    l[h] = 0.f;
  }
}

}  // namespace fa
