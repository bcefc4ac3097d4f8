/// \file
/// Warpgroups (sm_90): tiles of bf16 in panels of 64 features, rings of pipeline stages, products,
/// and an accumulator's conversion for the next product or for memory.
///
/// A tile of `rows` rows and d features is stored as [d / 64][rows][64]. A panel's row has 128
/// bytes, the widest swizzle, and each panel starts at a multiple of 1024 bytes, the swizzle's
/// period, so TMA, wgmma and stmatrix address the same bytes.
#pragma once

#include <cstdint>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/tma.h"
#include "common/dialect/warp.h"

namespace fa {

using bf16 = __nv_bfloat16;

constexpr int kGroupThreads = 128;  ///< of a warpgroup, four warps
constexpr int kMma = 16;            ///< bf16 elements that a wgmma sums over
constexpr int kPanel = 64;          ///< features side by side
constexpr int kRowBytes = 128;      ///< of a panel

/// A stage of a ring, and the parity of the round, for which a consumer waits.
template <int kStages>
struct Ring {
  unsigned stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

/// Initialises mbarriers whose phases are complete after `arrivals` arrivals.
template <int n>
__device__ inline void init_mbarriers(uint64_t (&bars)[n], int arrivals) {
  for (uint64_t& bar : bars) mbarrier_init(&bar, arrivals);
}

/// One arrival per warp, whose lanes have converged: at a wgmma's wait, or at a __syncwarp().
__device__ inline void arrive(uint64_t* bar) {
  if (threadIdx.x % kWarp == 0) mbarrier_arrive(bar);
}

/// One arrival per warp, after the reads and writes of all its lanes.
__device__ inline void warp_arrive(uint64_t* bar) {
  __syncwarp();
  arrive(bar);
}

/// Releases a ring's stage, by one arrival per warp, whose lanes have converged.
template <int kStages>
__device__ inline void release(Ring<kStages>& ring, uint64_t* empty) {
  arrive(&empty[ring.stage]);
  ring.next();
}

/// Releases a ring's next stage unread.
template <int kStages>
__device__ inline void skip(Ring<kStages>& ring, uint64_t* full, uint64_t* empty) {
  mbarrier_wait(&full[ring.stage], ring.parity);
  __syncwarp();  // else a late lane would find the next tile, and wait for the one after it
  release(ring, empty);
}

/// wgmma's descriptor of a tile. panel_bytes: the size of a panel, for an MN-major operand such as
/// V; a K-major one, such as Q or K, needs none.
__device__ inline uint64_t tile_descriptor(const bf16* tile, int panel_bytes = 16) {
  return wgmma_descriptor(tile, Swizzle::b128, panel_bytes, 8 * kRowBytes);
}

/// The descriptor of a tile minus that of the tile `bytes` before. panel_bytes: tile_descriptor().
constexpr uint64_t distance(size_t bytes, int panel_bytes = 16) {
  return (bytes >> 4) + (uint64_t(panel_bytes / 16 - 1) << 16);
}

/// Issues C = A B^T, a sum over d features: S = Q K^T, 64 rows of A, 2 n rows of B. Does not wait.
template <int d, int n>
__device__ inline void multiply_features(uint64_t A, uint64_t B, float (&rC)[n]) {
  wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    wgmma(rC, wgmma_advance(A, panel * 64 * kRowBytes + inside),
          wgmma_advance(B, panel * 2 * n * kRowBytes + inside), x > 0);
  }
  wgmma_commit();
}

/// Issues C += A B, a sum over the 16 * depth rows of the tile B, of d features: O += P V. Does not
/// wait. A is packed in registers, which must not be touched before the product is complete.
template <int d, int depth>
__device__ inline void multiply_rows(const uint32_t (&rA)[depth][4], uint64_t B,
                                     float (&rC)[d / 2]) {
  wgmma_fence();  // again: a wait may be between this product and the one before
  UNROLL
  for (int r = 0; r < depth; ++r) {
    wgmma<Major::mn>(rC, rA[r], wgmma_advance(B, r * kMma * kRowBytes));
  }
  wgmma_commit();
}

/// Issues C = A^T B, or with `add` C += A^T B, a sum over `keys` rows of both: dQ = dS K of 64 rows
/// of Q. Does not wait. A is a panel of dS^T, [keys][64]; B are tiles of 64 keys and d features, of
/// which C has 2 n from B's first one on. Both are MN-major.
template <int d, int keys, int n>
__device__ inline void multiply_transposed(uint64_t A, uint64_t B, float (&rC)[n],
                                           bool add = false) {
  wgmma_fence();
  UNROLL
  for (int c = 0; c < keys; c += kMma) {
    wgmma<Major::mn, Major::mn>(rC, wgmma_advance(A, c * kRowBytes),
                                wgmma_advance(B, c / 64 * 64 * d * 2 + c % 64 * kRowBytes),
                                add || c > 0);
  }
  wgmma_commit();
}

/// Waits until at most `pending` products are in flight. r: the accumulator of one then complete.
template <int pending, int n>
__device__ inline void wait_for(float (&r)[n]) {
  wgmma_wait<pending>();
  pin_registers(r);
}

/// An accumulator in bf16, as the A operand of the next product, whose layout is the same.
template <int n>
__device__ inline void pack_operand(const float (&rD)[n], uint32_t (&rA)[n / 8][4]) {
  UNROLL
  for (int i = 0; i < n; i += 2) rA[i / 8][i % 8 / 2] = pack_bf16(rD[i], rD[i + 1]);
  UNROLL
  for (int c = 0; c < n / 8; ++c) pin_registers(rA[c]);
}

/// Stores a warp's 16 rows of an accumulator [64, d], times `factor` of a lane's two rows, in bf16
/// to a tile of 64 rows in shared memory.
template <int d>
__device__ inline void put_rows(const float (&rD)[d / 2], const float (&factor)[2], bf16* tile) {
  const int warp = threadIdx.x % kGroupThreads / kWarp, lane = threadIdx.x % kWarp;
  UNROLL
  for (int x = 0; x < d; x += 16) {
    const int r = warp * 16 + lane % 16, chunk = (x % kPanel / 8 + lane / 16) ^ r % 8;
    uint32_t o[4];
    UNROLL
    for (int e = 0; e < 4; ++e) {
      o[e] = pack_bf16(rD[x / 2 + 2 * e] * factor[e % 2], rD[x / 2 + 2 * e + 1] * factor[e % 2]);
    }
    stmatrix_x4(tile + (x / kPanel * 64 + r) * kPanel + chunk * 8, o);
  }
}

/// Zeroes an accumulator.
template <int n>
__device__ inline void clear(float (&rD)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) rD[i] = 0.f;
}

/// Multiplies an accumulator by `factor` of a lane's two rows.
template <int n>
__device__ inline void rescale(float (&rD)[n], const float (&factor)[2]) {
  UNROLL
  for (int i = 0; i < n; ++i) rD[i] *= factor[half_of(i)];
}

/// Rounds 32 features of an accumulator [64, d], times `factor`, to bf16, for a lane's rows r (low)
/// and r + 8 (high). sums: the lane's numbers of four groups of 8 features, four each. The four
/// lanes of a row exchange pairs until each has 8 adjacent features: lane `quad`, which is
/// lane % 4, those from 8 * quad on. All lanes of the warp must call it.
__device__ inline void round_features(const float4 (&sums)[4], float factor, int quad,
                                      uint32_t (&low)[4], uint32_t (&high)[4]) {
  UNROLL
  for (int x = 0; x < 4; ++x) {
    low[x] = pack_bf16(sums[x].x * factor, sums[x].y * factor);
    high[x] = pack_bf16(sums[x].z * factor, sums[x].w * factor);
  }
  transpose_pairs(quad, low, high);
}

/// Stores the result of round_features() to device memory, 16 bytes each, for the rows below
/// `rows`. to: row r of [rows, d], the lane's first feature.
template <int d>
__device__ inline void store_features(const uint32_t (&low)[4], const uint32_t (&high)[4], bf16* to,
                                      int r, int rows) {
  if (r < rows) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < rows) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

/// round_features(), then store_features().
template <int d>
__device__ inline void put_rounded(const float4 (&sums)[4], float factor, bf16* to, int r,
                                   int rows) {
  uint32_t low[4], high[4];
  round_features(sums, factor, threadIdx.x % 4, low, high);
  store_features<d>(low, high, to, r, rows);
}

/// The tensor map of [heads, rows, d] in tiles of `box` rows and box_d features, at coordinates
/// {0, row, panel, head}. head_rows: from one head to the next, more than `rows` where x is a part.
template <int d, int box_d = d>
TensorMap tile_map(const bf16* x, uint64_t heads, uint64_t rows, uint32_t box,
                   uint64_t head_rows = 0) {
  const uint64_t stride = (head_rows ? head_rows : rows) * d;
  return tensor_map(x,
                    {{kPanel, 1, kPanel},
                     {rows, d, box},
                     {d / kPanel, kPanel, box_d / kPanel},
                     {heads, stride, 1}},
                    Swizzle::b128);
}

}  // namespace fa
