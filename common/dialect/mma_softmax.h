/// \file
/// The online softmax of a warp's bands of 16 rows (sm_80), on scores as mma_tile.h leaves them.
///
/// rS[t][n][i] is number i (fragment.h) of band t and the keys 8 n .. 8 n + 7. m[t][h] and l[t][h]
/// are as in softmax.h, of row 16 t + row_of(lane) + 8 h; rO is relative to m, too.
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/mma_tile.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/softmax.h"

namespace fa {

/// Raises m to these scores' maxima and rescales O and l: lazily, as 07 4_lazy, for all rows as
/// soon as one of the warp's has grown by more than kLazyRescale. All lanes must call it.
template <int d, int bands, int n_tiles>
__device__ inline void update_maximum(const float (&rS)[bands][n_tiles][4], float scale_log2,
                                      float (&m)[bands][2], float (&l)[bands][2],
                                      float (&rO)[bands][d / 8][4]) {
  float m_new[bands][2];
  bool grown = false;
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int t = i / 2, h = i % 2;
    float s = -INFINITY;
    UNROLL
    for (int n = 0; n < n_tiles; ++n) s = fmaxf(s, fmaxf(rS[t][n][2 * h], rS[t][n][2 * h + 1]));
    m_new[t][h] = fmaxf(m[t][h], scale_log2 * quad_max(s));
    grown |= m_new[t][h] > m[t][h] + kLazyRescale;
  }
  if (!__any_sync(kFullMask, grown)) return;
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int t = i / 2, h = i % 2;
    const float alpha = exp2_approx(m[t][h] - m_new[t][h]);
    m[t][h] = m_new[t][h];
    l[t][h] *= alpha;
    UNROLL
    for (int n = 0; n < d / 8; ++n) rO[t][n][2 * h] *= alpha, rO[t][n][2 * h + 1] *= alpha;
  }
}

/// P of 16 keys, two adjacent 8-key tiles from `first` on, as an A fragment; adds it to l.
template <int bands, int n_tiles>
__device__ inline void exponentials(const float (&rS)[bands][n_tiles][4], int first,
                                    float scale_log2, const float (&m)[bands][2],
                                    float (&l)[bands][2], uint32_t (&a)[bands][4]) {
  UNROLL
  for (int i = 0; i < bands * 4; ++i) {
    const int t = i / 4, e = i % 4, n = first + e / 2, h = e % 2;
    const float p0 = exp2_approx(rS[t][n][2 * h] * scale_log2 - m[t][h]);
    const float p1 = exp2_approx(rS[t][n][2 * h + 1] * scale_log2 - m[t][h]);
    l[t][h] += p0 + p1;  // of this lane's keys
    a[t][e] = pack_bf16(p0, p1);
  }
}

/// O += P V, 16 keys at a time: their products run while the next keys' exponentials are computed.
template <int d, int bands, int n_tiles>
__device__ inline void multiply_values(const float (&rS)[bands][n_tiles][4], float scale_log2,
                                       const float (&m)[bands][2],
                                       const bf16* sV,  // [8 * n_tiles, d] swizzled
                                       float (&l)[bands][2], float (&rO)[bands][d / 8][4]) {
  const int lane = threadIdx.x % kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < 8 * n_tiles; c += 16) {
    uint32_t a[bands][4];
    exponentials(rS, c / 8, scale_log2, m, l, a);
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and 2 x 8 features
      ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

}  // namespace fa
