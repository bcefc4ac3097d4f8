// Step 13 -- a warp's part with a cache in 8 bits.
// Idea      e4m3 halves the bytes, and bytes are what decoding costs. The tensor cores still
//           multiply bf16: e4m3 shifted right by four bits is the same number in bf16, except for a
//           factor of 2^-120. ldmatrix moves pairs of numbers, so a lane receives four neighbouring
//           features of a key. Any order is right, provided Q and O have the same one
// Changed   since 13 1_tile: K and V are e4m3, converted after ldmatrix; the order of features;
//           twice as many keys in a tile
// Still bad only a warp's part: the kernel is 9_fp8
#pragma once

#include "common/dialect/ptx/bf16.h"
#include "common/dialect/ptx/fp8.h"
#include "steps/13_decode/2_merge.cuh"

namespace step13 {

using e4m3 = __nv_fp8_e4m3;

template <int d>
constexpr int kWarpKeys8 = 2 * kWarpKeys<d>;  // of a tile, which is as many bytes as before
template <int d>
constexpr int Bc8 = kWarps* kWarpKeys8<d>;
constexpr int kPad8 = 16;  // floats: four numbers of each of two rows lie in all 32 banks

// A warp's shared memory.
template <int d>
struct Tiles8 {
  e4m3 K[kStages][kWarpKeys8<d> * d];
  e4m3 V[kStages][kWarpKeys8<d> * d];
};

// Two numbers of e4m3, in bytes 1 and 3, as bf16. Their 4 exponent bits become the lowest of 8,
// their 3 mantissa bits the highest of 7. The exponents' biases differ by 120: hence 2^120.
__device__ inline uint32_t bf16_of_e4m3(uint32_t two) {
  const uint32_t moved = (two >> 4 & 0x07f007f0) | (two & 0x80008000);
  return fa::multiply_bf16x2(moved, 0x7b807b80);
}

// Where element (r, x) of a tile lies, x a multiple of 16: chunk c of row r is stored at
// c ^ (r % 8), or at c ^ (r / 2 % 4) where two rows share 128 bytes.
template <int d>
__device__ inline int swizzle8(int r, int x) {
  return r * d + (x ^ (d == 128 ? r % 8 * 16 : r / 2 % 4 * 16));
}

// Copies rows of a matrix to a warp's shared memory, asynchronously; from `rows` on they are zero.
template <int d, int Rows>
__device__ inline void load_tile(const e4m3* g,  // [rows, d]
                                 e4m3* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 16;               // of 16 bytes, per row
  constexpr int kCopied = fa::kWarp / kChunks;  // rows that the warp copies at once
  const int lane = threadIdx.x % fa::kWarp, x = lane % kChunks * 16;
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    const int r = lane / kChunks + step;
    fa::cp_async_16(s + swizzle8<d>(r, x), g + size_t(r) * d + x, r < rows ? 16 : 0);
  }
}

// The A fragments of all bands; from `rows` on they are zero. Out of 16 features a lane has four
// neighbours, where 1_tile has two neighbours and the two that are 8 further.
template <int d, int bands>
__device__ inline void load_queries8(const bf16* Q,  // [rows, d]
                                     int rows, uint32_t (&rQ)[bands][d / kMma][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int x = 0; x < d / kMma; ++x) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int r = t * kMma + fa::row_of(lane) + e % 2 * 8,
                  feature = x * kMma + lane % 4 * 4 + e / 2 * 2;
        rQ[t][x][e] = r < rows ? *reinterpret_cast<const uint32_t*>(Q + r * d + feature) : 0;
      }
    }
  }
}

// S = Q K^T of all rows and a warp's keys, 32 features at a time.
template <int d, int bands>
__device__ inline void multiply_scores(const uint32_t (&rQ)[bands][d / kMma][4],
                                       const e4m3* sK,  // [kWarpKeys8, d] swizzled
                                       float (&rS)[bands][kWarpKeys8<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle8<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 16);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += 2 * kMma) {
    UNROLL
    for (int c = 0; c < kWarpKeys8<d>; c += 16) {
      uint32_t four[2][2];  // of two times 8 keys and two times 16 features
      fa::ldmatrix_x4(four, sK + c * d + (k ^ x));
      UNROLL
      for (int f = 0; f < 2; ++f) {
        UNROLL
        for (int n = 0; n < 2; ++n) {
          const uint32_t b[2] = {bf16_of_e4m3(__byte_perm(four[n][f], 0, 0x1404)),   // bytes 0, 1
                                 bf16_of_e4m3(__byte_perm(four[n][f], 0, 0x3424))};  // and 2, 3
          UNROLL
          for (int t = 0; t < bands; ++t) {
            fa::mma_m16n8k16(rS[t][c / 8 + n], rQ[t][x / kMma + f], b);
          }
        }
      }
    }
  }
}

// O += P V of a warp's keys, 16 at a time. ldmatrix transposes pairs of features: bytes 0 and 2 are
// two keys' even feature, bytes 1 and 3 their odd one. Out of every 16 features a lane has four
// neighbours: the even ones in rO[t][2 g], the odd ones in rO[t][2 g + 1].
template <int d, int bands>
__device__ inline void multiply_values(const float (&rS)[bands][kWarpKeys8<d> / 8][4],
                                       float scale_log2, const float (&m)[bands][2],
                                       const e4m3* sV,  // [kWarpKeys8, d] swizzled
                                       float (&l)[bands][2], float (&rO)[bands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle8<d>(lane % 16, lane / 16 * 16);
  UNROLL
  for (int c = 0; c < kWarpKeys8<d>; c += kMma) {
    uint32_t a[bands][4];
    exponentials(rS, c / 8, scale_log2, m, l, a);
    UNROLL
    for (int x = 0; x < d; x += 32) {
      uint32_t four[2][2];  // of two times 16 features and two times 8 keys
      fa::ldmatrix_x4_trans(four, sV + c * d + (v ^ x));
      UNROLL
      for (int f = 0; f < 2; ++f) {
        const uint32_t even[2] = {bf16_of_e4m3(__byte_perm(four[f][0], 0, 0x2404)),
                                  bf16_of_e4m3(__byte_perm(four[f][1], 0, 0x2404))};
        const uint32_t odd[2] = {bf16_of_e4m3(__byte_perm(four[f][0], 0, 0x3414)),
                                 bf16_of_e4m3(__byte_perm(four[f][1], 0, 0x3414))};
        UNROLL
        for (int t = 0; t < bands; ++t) {
          fa::mma_m16n8k16(rO[t][x / 8 + 2 * f], a[t], even);
          fa::mma_m16n8k16(rO[t][x / 8 + 2 * f + 1], a[t], odd);
        }
      }
    }
  }
}

// Stores a warp's part in shared memory: four neighbouring features per lane.
template <int d, int bands>
__device__ inline void store_part8(const float (&m)[bands][2], const float (&l)[bands][2],
                                   const float (&rO)[bands][d / 8][4], int rows,
                                   Parts<d, bands, kPad8>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  store_statistics(m, l, parts);
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = t * kMma + fa::row_of(lane) + h * 8;
      if (r >= rows) continue;
      UNROLL
      for (int n = 0; n < d / 8; n += 2) {
        *reinterpret_cast<float4*>(&parts.O[warp][r][n * 8 + lane % 4 * 4]) = make_float4(
            rO[t][n][2 * h], rO[t][n + 1][2 * h], rO[t][n][2 * h + 1], rO[t][n + 1][2 * h + 1]);
      }
    }
  }
}

}  // namespace step13
