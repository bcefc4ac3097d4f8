// Step 13 -- the tile of a decoding kernel: 16 rows, and a quarter of the keys for each warp.
// Idea      A new token asks one query per head. A tile of 128 rows would hold one row and 127
//           zeros, and three of four warps would have nothing to do. So the tile has 16 rows, the
//           fewest of an mma, and its warps share the keys: each has an m, l and O of its own
// Changed   since 07 4_lazy: 16 rows in one band, Q in registers of every warp; a warp owns 16 of
//           the tile's 64 keys instead of rows
// Still bad only the tile: the kernel is 3_warps
#pragma once

#include <cfloat>
#include "common/dialect/cuda.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/warp.h"

namespace step13 {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * fa::kWarp;
constexpr int kMma = 16;             // rows of an mma's A, and keys or features that it sums over
constexpr int kRows = kMma;          // of a tile of Q
constexpr int kWarpKeys = kMma;      // of a tile, per warp
constexpr int Bc = kWarps * kWarpKeys;  // keys of a tile
template <int d>
constexpr int kStages = 384 / d;  // of K and V, 96 KB: one is multiplied while the others are copied
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

template <int d>
struct Tile {
  bf16 K[Bc * d];
  bf16 V[Bc * d];
};

// Where element (r, x) of a tile lies, x a multiple of 8. A row is cut into chunks of 16 bytes, and
// chunk c of row r takes the place c ^ (r % 8): eight rows of one chunk, which is what ldmatrix
// reads at a time, then lie in all 32 banks. 16 features further is an XOR, too: place ^ 16.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Bc rows of a matrix to shared memory, without waiting; from `rows` on they are zero.
template <int d, int threads = kThreads>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Bc, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;               // of 16 bytes, per row
  constexpr int kCopied = threads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Bc; step += kCopied) {
    fa::cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

// The A fragments of 16 rows; from `rows` on they are zero.
template <int d>
__device__ inline void load_queries(const bf16* Q,  // [rows, d]
                                    int rows, uint32_t (&rQ)[d / kMma][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int x = 0; x < d / kMma; ++x) {
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const int r = lane / 4 + e % 2 * 8, feature = x * kMma + e / 2 * 8 + lane % 4 * 2;
      rQ[x][e] = r < rows ? *reinterpret_cast<const uint32_t*>(Q + r * d + feature) : 0;
    }
  }
}

// S = Q K^T of all rows and a warp's keys, 16 features at a time.
template <int d>
__device__ inline void multiply_scores(const uint32_t (&rQ)[d / kMma][4],
                                       const bf16* sK,  // [16, d] swizzled: this warp's keys
                                       float (&rS)[kWarpKeys / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
    fa::ldmatrix_x4(b, sK + (k ^ x));
    UNROLL
    for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rS[n], rQ[x / kMma], b[n]);
  }
}

// Scores that their row does not see become -inf.
__device__ inline void mask(float (&rS)[kWarpKeys / 8][4],
                            const int (&visible)[2],  // keys that this lane's two rows see
                            int key) {                // the warp's first one
  const int c = key + threadIdx.x % 4 * 2;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    UNROLL
    for (int n = 0; n < kWarpKeys / 8; ++n) {
      if (n * 8 + c >= visible[h]) rS[n][2 * h] = -INFINITY;
      if (n * 8 + c + 1 >= visible[h]) rS[n][2 * h + 1] = -INFINITY;
    }
  }
}

// Row maxima, in powers of two: lazily, as in 07.
template <int d>
__device__ inline void update_maximum(const float (&rS)[kWarpKeys / 8][4], float scale_log2,
                                      float (&m)[2], float (&l)[2], float (&rO)[d / 8][4]) {
  float m_new[2];
  bool grown = false;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    float s = -INFINITY;
    UNROLL
    for (int n = 0; n < kWarpKeys / 8; ++n) s = fmaxf(s, fmaxf(rS[n][2 * h], rS[n][2 * h + 1]));
    m_new[h] = fmaxf(m[h], scale_log2 * fa::quad_max(s));
    grown |= m_new[h] > m[h] + kLazyRescale;
  }
  if (!__any_sync(fa::kFullMask, grown)) return;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const float alpha = fa::exp2_approx(m[h] - m_new[h]);
    m[h] = m_new[h];
    l[h] *= alpha;
    UNROLL
    for (int n = 0; n < d / 8; ++n) rO[n][2 * h] *= alpha, rO[n][2 * h + 1] *= alpha;
  }
}

// O += P V of a warp's 16 keys.
template <int d>
__device__ inline void multiply_values(const float (&rS)[kWarpKeys / 8][4], float scale_log2,
                                       const float (&m)[2],
                                       const bf16* sV,  // [16, d] swizzled: this warp's keys
                                       float (&l)[2], float (&rO)[d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  uint32_t a[4];  // P of 16 keys: two neighbouring 8-key tiles of S, rounded to bf16
  UNROLL
  for (int e = 0; e < 4; ++e) {
    const int n = e / 2, h = e % 2;
    const float p0 = fa::exp2_approx(rS[n][2 * h] * scale_log2 - m[h]);
    const float p1 = fa::exp2_approx(rS[n][2 * h + 1] * scale_log2 - m[h]);
    l[h] += p0 + p1;  // of this lane's keys
    a[e] = fa::pack_bf16(p0, p1);
  }
  UNROLL
  for (int x = 0; x < d; x += 16) {
    uint32_t b[2][2];  // V of 16 keys and two times 8 features
    fa::ldmatrix_x4_trans(b, sV + (v ^ x));
    UNROLL
    for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rO[x / 8 + n], a, b[n]);
  }
}

}  // namespace step13
