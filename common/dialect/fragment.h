/// \file
/// What a lane holds of a tensor core's result: in each 8 x 8 block two adjacent numbers of a row.
///
///        columns 0 1   2 3   4 5   6 7
///   row 0   lane 0  lane 1  lane 2  lane 3     four lanes, a quad, share a row
///   row 1   lane 4  lane 5  lane 6  lane 7
///   ...
///   row 7   lane 28 lane 29 lane 30 lane 31
///
/// A result has 16 rows per warp, of which a lane has two, 8 apart. Number i of mma's D, or of
/// wgmma's, is in row row_of(lane) + 8 * half_of(i), column column_of(lane) + column_at(i). The
/// layouts of all operands: common/dialect/ptx/layouts.h.
///
/// A lane's number is passed by reference and the functions are always inlined, so nvcc generates
/// the same machine code as for the expression; for a copy it does not always.
#pragma once

#include <cstdint>

#include "common/dialect/warp.h"

namespace fa {

/// The first of a lane's two rows; the other is 8 rows below.
__device__ __forceinline__ constexpr int row_of(const int& lane) { return lane / 4; }

/// The first of a lane's two adjacent columns in each 8.
__device__ __forceinline__ constexpr int column_of(const int& lane) { return lane % 4 * 2; }

/// Which of a lane's two rows has its number i, 0 or 1.
__device__ __forceinline__ constexpr int half_of(int i) { return i / 2 % 2; }

/// The column of a lane's number i, counted from column_of(lane).
__device__ __forceinline__ constexpr int column_at(int i) { return i / 4 * 8 + i % 2; }

/// Whether this lane is the first of its quad, which stores the numbers that a row has once.
__device__ __forceinline__ constexpr bool leads_quad(const int& lane) { return lane % 4 == 0; }

/// The largest x of a quad's four lanes, the same in all of them. All lanes of the warp call it.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullMask, x, 2));
}

/// The sum of x over a quad's four lanes, the same in all of them.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kFullMask, x, 1);
  return x + __shfl_xor_sync(kFullMask, x, 2);
}

/// Transposes the 4 x 4 numbers of a quad, for two rows at once: afterwards number i of lane l is
/// what lane i had as number l. Each round exchanges one bit of the lane with one of the number's
/// index. All lanes of the warp must call it. quad: lane % 4.
__device__ inline void transpose_pairs(int quad, uint32_t (&low)[4], uint32_t (&high)[4]) {
  UNROLL
  for (int k = 1; k <= 2; k *= 2) {
    const bool upper = quad & k;
    UNROLL
    for (int x = 0; x < 4; ++x) {
      if (x & k) continue;
      const uint32_t l = __shfl_xor_sync(kFullMask, upper ? low[x] : low[x | k], k);
      const uint32_t h = __shfl_xor_sync(kFullMask, upper ? high[x] : high[x | k], k);
      (upper ? low[x] : low[x | k]) = l, (upper ? high[x] : high[x | k]) = h;
    }
  }
}

}  // namespace fa
