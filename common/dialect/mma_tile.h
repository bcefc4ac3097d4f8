/// \file
/// Tiles of bf16 for a warp's mma.sync (sm_80): their swizzled layout in shared memory, and the two
/// products of attention, whose results and A operands stay in registers.
///
/// A warp multiplies `bands` bands of 16 rows, so each fragment of B that it loads serves them all.
/// Result rC[t][n][i] is number i (fragment.h) of band t and the columns 8 n .. 8 n + 7.
#pragma once

#include <cstdint>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/mma.h"

namespace fa {

using bf16 = __nv_bfloat16;

/// Where element (r, x) of a tile is stored, x a multiple of 8. A row consists of chunks of 16
/// bytes; chunk c of row r is stored as chunk c ^ (r % 8), so the eight rows of a chunk that
/// ldmatrix reads at a time cover all 32 banks. 16 features further is an XOR with 16, too. A row
/// of 32 numbers has only four chunks, and two rows fill the 32 banks: c ^ (r / 2 % 4).
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (d >= 64 ? r % 8 * 8 : r / 2 % 4 * 8));
}

/// Issues the copies of rows 0 .. tile_rows - 1 of a matrix to shared memory; rows from `rows` on
/// are zero. All `threads` threads of the block must call it.
template <int d, int tile_rows, int threads = 128>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [tile_rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;              // of 16 bytes, per row
  constexpr int kCopied = threads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < tile_rows; step += kCopied) {
    cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

/// C += A B^T of a warp's rows and a tile's rows, a sum over d features, 16 at a time: S = Q K^T
/// and dP = dO V^T, or S^T = K Q^T and dP^T = V dO^T.
template <int d, int bands, int cols>
__device__ inline void dot_rows(const bf16* sA,  // [16 * bands, d] swizzled: this warp's rows
                                const bf16* sB,  // [cols, d] swizzled
                                float (&rC)[bands][cols / 8][4]) {
  const int lane = threadIdx.x % kWarp;
  const int q = swizzle<d>(lane % 16, lane / 16 * 8);                    // left half, then right
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 rows, then 8 more
  UNROLL
  for (int x = 0; x < d; x += 16) {
    uint32_t a[bands][4];
    UNROLL
    for (int t = 0; t < bands; ++t) ldmatrix_x4(a[t], sA + t * 16 * d + (q ^ x));
    UNROLL
    for (int c = 0; c < cols; c += 16) {
      uint32_t b[2][2];  // B^T of 16 features and 2 x 8 rows
      ldmatrix_x4(b, sB + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) mma_m16n8k16(rC[t][c / 8 + n], a[t], b[n]);
      }
    }
  }
}

/// C += A B, a sum over the `depth` columns of A: dV += P^T dO, dK += dS^T Q, dQ += dS K. A is in
/// registers, as dot_rows() leaves it, and is rounded to bf16 here.
template <int d, int bands, int depth>
__device__ inline void add_product(const float (&rA)[bands][depth / 8][4],
                                   const bf16* sB,  // [depth, d] swizzled
                                   float (&rC)[bands][d / 8][4]) {
  const int lane = threadIdx.x % kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < depth; c += 16) {
    uint32_t a[bands][4];  // 16 columns of A: two adjacent 8-column tiles, rounded to bf16
    UNROLL
    for (int t = 0; t < bands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int n = c / 8 + e / 2, h = e % 2;
        a[t][e] = pack_bf16(rA[t][n][2 * h], rA[t][n][2 * h + 1]);
      }
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // 16 rows of B and 2 x 8 features
      ldmatrix_x4_trans(b, sB + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) mma_m16n8k16(rC[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

/// Stores a warp's result to its rows of a tile in shared memory, s [16 * bands, stride], from
/// `column` on: two adjacent numbers as 4 bytes, made by pack(low, high). The rows are swizzled so
/// that the 32 lanes write to all 32 banks.
template <int stride, int bands, int cols, class Pack>
__device__ inline void put_tile(float (&rC)[bands][cols / 8][4], bf16* s, int column, Pack pack) {
  const int lane = threadIdx.x % kWarp;
  const int first = swizzle<stride>(row_of(lane), column) + column_of(lane);
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int n = 0; n < cols / 8; ++n) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(s + (t * 16 + h * 8) * stride + (first ^ n * 8)) =
            pack(rC[t][n][2 * h], rC[t][n][2 * h + 1]);
      }
    }
  }
}

/// Stores a warp's result, times `scale`, in bf16, 16 bytes per lane, through its rows of a tile.
template <int d, int bands>
__device__ inline void store_tile(float (&rC)[bands][d / 8][4], float scale,
                                  bf16* s,  // [16 * bands, d] swizzled: this warp's rows
                                  bf16* g,  // [rows, d]
                                  int rows) {
  const int lane = threadIdx.x % kWarp;
  put_tile<d, bands, d>(rC, s, 0,
                        [&](float lo, float hi) { return pack_bf16(lo * scale, hi * scale); });
  __syncwarp();                           // the warp's rows are complete
  constexpr int kStored = kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < bands * 16; step += kStored) {
    const int r = step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(g + r * d + x) = *reinterpret_cast<uint4*>(s + swizzle<d>(r, x));
  }
}

}  // namespace fa
