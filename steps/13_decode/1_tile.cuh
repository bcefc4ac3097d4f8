// Step 13 -- a warp's part of attention with few queries.
// Idea      A new token has one query per head. A tile of 128 rows would hold one row and 127
//           zeros, and three of four warps would be idle. Instead, all warps hold the same 16 rows,
//           the fewest of an mma, and share the keys: each copies its own and keeps its own m, l
//           and O
// Changed   since 07 4_lazy: 16 or 32 rows for all warps, Q in registers; a warp's tile is 16 or 32
//           keys that no other warp reads, so no warp waits for another
// Still bad only a warp's part: the kernel is 3_warps
#pragma once

#include <cfloat>
#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"

namespace step13 {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * fa::kWarp;
constexpr int kMma = 16;  // rows of an mma's A, and keys or features that it sums over
template <int d>
constexpr int kWarpKeys = 2048 / d;  // of a tile, which is 4 KB of K and 4 KB of V
template <int d>
constexpr int Bc = kWarps* kWarpKeys<d>;  // keys of a round: one tile per warp
constexpr int kStages = 3;  // per warp: one tile is multiplied while the others are copied
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

// A warp's shared memory.
template <int d>
struct Tiles {
  bf16 K[kStages][kWarpKeys<d> * d];
  bf16 V[kStages][kWarpKeys<d> * d];
};

// Where element (r, x) of a tile lies, x a multiple of 8. A row consists of chunks of 16 bytes, and
// chunk c of row r is stored at c ^ (r % 8). Eight rows of one chunk, which ldmatrix reads at a
// time, then lie in all 32 banks. A step of 16 features is an XOR, too: place ^ 16.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Copies rows of a matrix to a warp's shared memory, asynchronously; from `rows` on they are zero.
template <int d, int Rows = kWarpKeys<d>>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;                // of 16 bytes, per row
  constexpr int kCopied = fa::kWarp / kChunks;  // rows that the warp copies at once
  const int lane = threadIdx.x % fa::kWarp, x = lane % kChunks * 8;
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    const int r = lane / kChunks + step;
    fa::cp_async_16(s + swizzle<d>(r, x), g + size_t(r) * d + x, r < rows ? 16 : 0);
  }
}

// The A fragments of all bands, 16 rows each; from `rows` on they are zero.
template <int d, int bands>
__device__ inline void load_queries(const bf16* Q,  // [rows, d]
                                    int rows, uint32_t (&rQ)[bands][d / kMma][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int x = 0; x < d / kMma; ++x) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int r = t * kMma + fa::row_of(lane) + e % 2 * 8,
                  feature = x * kMma + e / 2 * 8 + fa::column_of(lane);
        rQ[t][x][e] = r < rows ? *reinterpret_cast<const uint32_t*>(Q + r * d + feature) : 0;
      }
    }
  }
}

// S = Q K^T of all rows and a warp's keys, 16 features at a time.
template <int d, int bands>
__device__ inline void multiply_scores(const uint32_t (&rQ)[bands][d / kMma][4],
                                       const bf16* sK,  // [kWarpKeys, d] swizzled
                                       float (&rS)[bands][kWarpKeys<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d>; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
      fa::ldmatrix_x4(b, sK + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rS[t][c / 8 + n], rQ[t][x / kMma], b[n]);
      }
    }
  }
}

// Sets scores that their row does not see to -inf.
template <int bands, int n_tiles>
__device__ inline void mask(float (&rS)[bands][n_tiles][4],
                            const int (&visible)[bands][2],  // keys that this lane's rows see
                            int key) {                       // the tile's first one
  const int c = key + threadIdx.x % 4 * 2;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      UNROLL
      for (int n = 0; n < n_tiles; ++n) {
        if (n * 8 + c >= visible[t][h]) rS[t][n][2 * h] = -INFINITY;
        if (n * 8 + c + 1 >= visible[t][h]) rS[t][n][2 * h + 1] = -INFINITY;
      }
    }
  }
}

// Row maxima, in powers of two; O and l are rescaled lazily, as in 07.
template <int d, int bands, int n_tiles>
__device__ inline void update_maximum(const float (&rS)[bands][n_tiles][4], float scale_log2,
                                      float (&m)[bands][2], float (&l)[bands][2],
                                      float (&rO)[bands][d / 8][4]) {
  float m_new[bands][2];
  bool grown = false;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      float s = -INFINITY;
      UNROLL
      for (int n = 0; n < n_tiles; ++n) s = fmaxf(s, fmaxf(rS[t][n][2 * h], rS[t][n][2 * h + 1]));
      m_new[t][h] = fmaxf(m[t][h], scale_log2 * fa::quad_max(s));
      grown |= m_new[t][h] > m[t][h] + kLazyRescale;
    }
  }
  if (!__any_sync(fa::kFullMask, grown)) return;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float alpha = fa::exp2_approx(m[t][h] - m_new[t][h]);
      m[t][h] = m_new[t][h];
      l[t][h] *= alpha;
      UNROLL
      for (int n = 0; n < d / 8; ++n) rO[t][n][2 * h] *= alpha, rO[t][n][2 * h + 1] *= alpha;
    }
  }
}

// P of 16 keys from their scores, as an A fragment: two neighbouring 8-key tiles, rounded to bf16.
template <int bands, int n_tiles>
__device__ inline void exponentials(const float (&rS)[bands][n_tiles][4], int first,  // 8-key tile
                                    float scale_log2, const float (&m)[bands][2],
                                    float (&l)[bands][2], uint32_t (&a)[bands][4]) {
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const int n = first + e / 2, h = e % 2;
      const float p0 = fa::exp2_approx(rS[t][n][2 * h] * scale_log2 - m[t][h]);
      const float p1 = fa::exp2_approx(rS[t][n][2 * h + 1] * scale_log2 - m[t][h]);
      l[t][h] += p0 + p1;  // of this lane's keys
      a[t][e] = fa::pack_bf16(p0, p1);
    }
  }
}

// O += P V of a warp's keys, 16 at a time.
template <int d, int bands>
__device__ inline void multiply_values(const float (&rS)[bands][kWarpKeys<d> / 8][4],
                                       float scale_log2, const float (&m)[bands][2],
                                       const bf16* sV,  // [kWarpKeys, d] swizzled
                                       float (&l)[bands][2], float (&rO)[bands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < kWarpKeys<d>; c += kMma) {
    uint32_t a[bands][4];
    exponentials(rS, c / 8, scale_log2, m, l, a);
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and two times 8 features
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

}  // namespace step13
