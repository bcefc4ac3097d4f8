// Step 08 -- the products of one warp, for 2_atomics.cuh, 3_deterministic.cuh and 4_roles.cuh.
// Idea      Five products with three patterns: a sum over features of two tiles' rows (S and dP), a
//           sum over what the rows of the first product were (dV, dK and, in 3_deterministic.cuh,
//           dQ), and dQ = dS K through shared memory (2_atomics.cuh)
// Changed   since step 07: multiply_scores and multiply_values, for any pair of tiles
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/harness/step.h"

namespace step08 {

using fa::bf16;

constexpr int kMma = 16;    // rows of an mma's A, and what it sums over
constexpr int kPart = 32;   // dQ: a warp sums 32 rows x 32 features
constexpr int kStages = 2;  // tiles: one in use, one on its way

// Where element (r, x) of a tile lies, x a multiple of 8: step 07's swizzle.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Rows 0 .. Rows - 1 of a matrix to shared memory, without waiting; from `rows` on they are zero.
template <int d, int Rows, int kThreads>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;               // of 16 bytes, a row
  constexpr int kCopied = kThreads / kChunks;  // rows that the block copies at once
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    fa::cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

// C += A B^T, sums over the features: S^T = K Q^T and dP^T = V dO^T, or S = Q K^T and dP = dO V^T.
template <int d, int Bands, int Cols>
__device__ inline void dot_rows(const bf16* sA,  // [16 * Bands, d] swizzled: this warp's rows
                                const bf16* sB,  // [Cols, d] swizzled
                                float (&rC)[Bands][Cols / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int p = swizzle<d>(lane % 16, lane / 16 * 8);
  const int q = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t a[Bands][4];
    UNROLL
    for (int t = 0; t < Bands; ++t) fa::ldmatrix_x4(a[t], sA + t * kMma * d + (p ^ x));
    UNROLL
    for (int c = 0; c < Cols; c += 16) {
      uint32_t b[2][2];
      fa::ldmatrix_x4(b, sB + c * d + (q ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < Bands; ++t) fa::mma_m16n8k16(rC[t][c / 8 + n], a[t], b[n]);
      }
    }
  }
}

// C += A B: dV += P^T dO, dK += dS^T Q, dQ += dS K. A comes as dot_rows left it: rounded to bf16,
// two neighbouring 8-column tiles of C are one A operand.
template <int d, int Bands, int Depth>
__device__ inline void add_product(const float (&rA)[Bands][Depth / 8][4],
                                   const bf16* sB,  // [Depth, d] swizzled
                                   float (&rC)[Bands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int q = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int k = 0; k < Depth; k += kMma) {
    uint32_t a[Bands][4];
    UNROLL
    for (int t = 0; t < Bands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const float* two = &rA[t][k / 8 + e / 2][e % 2 * 2];
        a[t][e] = fa::pack_bf16(two[0], two[1]);
      }
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];
      fa::ldmatrix_x4_trans(b, sB + k * d + (q ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < Bands; ++t) fa::mma_m16n8k16(rC[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

// One tile's share of dQ = dS K, a sum over the block's keys. Other blocks add to the same rows
// meanwhile, so it goes to HBM by atomics: in fp32, and in the order of the registers, so that a
// warp's 32 numbers are 128 bytes in a row.
template <int d, int Br, int Bc>
__device__ inline void query_gradient(const bf16* sdS,  // [Bc, Br] swizzled: dS^T
                                      const bf16* sK,   // [Bc, d] swizzled
                                      float* dQ_sum) {  // [Br / 16, d / 8, 4, 32]
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = warp % 2 * kPart, feature = warp / 2 * kPart;  // this warp's first
  const int p = swizzle<Br>(lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8);
  const int q = swizzle<d>(lane % 16, feature + lane / 16 * 8);
  float rdQ[kPart / kMma][kPart / 8][4] = {};
  UNROLL
  for (int k = 0; k < Bc; k += kMma) {
    uint32_t a[kPart / kMma][4];
    UNROLL
    for (int t = 0; t < kPart / kMma; ++t) {
      fa::ldmatrix_x4_trans(a[t], sdS + k * Br + (p ^ t * kMma));
    }
    UNROLL
    for (int x = 0; x < kPart; x += 16) {
      uint32_t b[2][2];
      fa::ldmatrix_x4_trans(b, sK + k * d + (q ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kPart / kMma; ++t) fa::mma_m16n8k16(rdQ[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
  dQ_sum += (row / 16 * (d / 8) + feature / 8) * 128 + lane;
  UNROLL
  for (int t = 0; t < kPart / kMma; ++t) {
    UNROLL
    for (int n = 0; n < kPart / 8; ++n) {
      UNROLL  // the results are not used: each is a RED, for which nobody waits
      for (int e = 0; e < 4; ++e) {
        atomicAdd(dQ_sum + (t * (d / 8) + n) * 128 + e * fa::kWarp, rdQ[t][n][e]);
      }
    }
  }
}

// Scores that their row does not see become -inf. C holds S^T (its rows are keys) or S; row and key
// are the first ones of this lane.
template <bool kTransposed, int Bands, int Cols>
__device__ inline void mask(float (&rS)[Bands][Cols / 8][4], int row, int key, int N, int Nk,
                            bool causal) {
  UNROLL
  for (int t = 0; t < Bands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int down = t * kMma + e / 2 * 8, right = n * 8 + e % 2;
        const int r = row + (kTransposed ? right : down), c = key + (kTransposed ? down : right);
        if (c >= (causal ? min(Nk, r + 1 + Nk - N) : Nk)) rS[t][n][e] = -INFINITY;
      }
    }
  }
}

// Accumulators to shared memory, rounded to bf16, 4 bytes a lane: the chunks of 8 rows are
// swizzled, so that a warp writes to all 32 banks.
template <int kStride, int Bands, int Cols>
__device__ inline void put_tile(const float (&rC)[Bands][Cols / 8][4], float scale,
                                bf16* s,       // [16 * Bands, kStride] swizzled: this warp's rows
                                int column) {  // of the first number, a multiple of 8
  const int lane = threadIdx.x % fa::kWarp;
  const int to = swizzle<kStride>(lane / 4, column) + lane % 4 * 2;
  UNROLL
  for (int t = 0; t < Bands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(s + (t * kMma + h * 8) * kStride + (to ^ n * 8)) =
            fa::pack_bf16(rC[t][n][2 * h] * scale, rC[t][n][2 * h + 1] * scale);
      }
    }
  }
}

// Two weights for a partner warp, in 16 bits each. They are at most 1, so an fp32's sign and the
// top bit of its exponent are 0: the next 16 bits have two bits more of mantissa than bf16, which
// would be rounded once more, to dS. Rounding of s and LSE may make a weight larger: hardly, but
// beyond scores of 2^21 by so much that it would need the top bit. So there is a minimum.
__device__ inline uint32_t pack_weights(float lo, float hi) {
  const uint32_t half = 1u << 13, one = __float_as_uint(1.f);  // half: rounds to nearest
  return min(__float_as_uint(lo) + half, one) >> 14 |
         min(__float_as_uint(hi) + half, one) >> 14 << 16;
}
__device__ inline float2 unpack_weights(uint32_t two) {
  return make_float2(__uint_as_float((two & 0xffff) << 14), __uint_as_float(two >> 16 << 14));
}

// P to shared memory for the partner, where dS will stand: each lane writes the places that it
// would write to with put_tile.
template <int kStride, int Bands, int Cols>
__device__ inline void hand_over(const float (&rP)[Bands][Cols / 8][4],
                                 bf16* s) {  // [16 * Bands, kStride] swizzled: the pair's keys
  const int lane = threadIdx.x % fa::kWarp;
  const int to = swizzle<kStride>(lane / 4, 0) + lane % 4 * 2;
  UNROLL
  for (int t = 0; t < Bands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(s + (t * kMma + h * 8) * kStride + (to ^ n * 8)) =
            pack_weights(rP[t][n][2 * h], rP[t][n][2 * h + 1]);
      }
    }
  }
}
// C *= P, as the partner handed it over; each lane reads its own places.
template <int kStride, int Bands, int Cols>
__device__ inline void multiply_by(const bf16* s,  // [16 * Bands, kStride] swizzled
                                   float (&rC)[Bands][Cols / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int from = swizzle<kStride>(lane / 4, 0) + lane % 4 * 2;
  UNROLL
  for (int t = 0; t < Bands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        const float2 p = unpack_weights(
            *reinterpret_cast<const uint32_t*>(s + (t * kMma + h * 8) * kStride + (from ^ n * 8)));
        rC[t][n][2 * h] *= p.x;
        rC[t][n][2 * h + 1] *= p.y;
      }
    }
  }
}

// A warp's rows of a gradient to device memory, 16 bytes a lane, through a tile that nobody reads
// any more.
template <int d, int Bands>
__device__ inline void store_tile(const float (&rC)[Bands][d / 8][4], float scale,
                                  bf16* s,  // [16 * Bands, d] swizzled: this warp's rows
                                  bf16* g,  // [rows, d]
                                  int rows) {
  const int lane = threadIdx.x % fa::kWarp;
  put_tile<d, Bands, d>(rC, scale, s, 0);
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < Bands * kMma; step += kStored) {
    const int r = step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(g + r * d + x) = *reinterpret_cast<uint4*>(s + swizzle<d>(r, x));
  }
}

}  // namespace step08
