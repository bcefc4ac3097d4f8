// Step 12 -- rows of Q and K rotated, so that none has an outlier.
// Idea      Each row of both is multiplied by the same random signs and by Hadamard's matrix
//           (incoherent processing, as in FlashAttention-3): no score changes, and one large number
//           becomes d small ones. Tensor cores do the part of the matrix that fits an mma
// Owns      warp: 16 rows; lane: two of them, with three others
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/mma.h"

namespace step12 {

// A lane's eight neighbours in each of two rows, for each 32 features: words[r][i].
template <int d>
using Words = uint32_t[2][d / 8];

// Random signs of the 32 features in 16 of a lane's words: bits i and 16 + i are those of word i.
__device__ inline uint32_t signs_of(uint32_t lane) {
  lane = (lane + 1) * 0x9e3779b1u;
  lane = (lane ^ lane >> 15) * 0x85ebca77u;
  return lane ^ lane >> 13;
}

// Multiplies a warp's 16 rows by the signs and by Hadamard's matrix of d, which has 1 and -1. It is
// the Kronecker product of one of d / 16 and one of 16. Tensor cores multiply by the small one, and
// are exact but for the rounding of sums; the other one is log(d / 16) rounds of additions between
// a lane's registers. Without kRotate the numbers stay what they are. Either way the features have
// a new order, the same for Q and K, which no score notices.
template <int d, bool kRotate>
__device__ inline void rotate(const Words<d>& x, float (&y)[d / 16][2][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  uint32_t H[2][2];  // B of two mma, 8 columns each
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const int column = fa::row_of(lane) + i / 2 * 8, row = fa::column_of(lane) + i % 2 * 8;
    uint32_t two = 0;
    UNROLL
    for (int e = 0; e < 2; ++e) {
      const uint32_t minus = __popc(column & (row + e)) % 2, one = 0x3f80;  // in bf16
      two |= (kRotate ? one | minus << 15 : column == row + e ? one : 0) << 16 * e;
    }
    H[i / 2][i % 2] = two;
  }
  UNROLL
  for (int i = 0; i < d / 16; ++i) {
    uint32_t A[4];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const int word = 2 * i + j / 2;
      const uint32_t signs = kRotate ? signs_of(lane % 4 + word / 16 * 4) : 0;
      A[j] = x[j % 2][word] ^ (signs << (15 - word % 16) & 0x80008000);
    }
    UNROLL
    for (int n = 0; n < 2; ++n) {
      UNROLL
      for (float& sum : y[i][n]) sum = 0.f;
      fa::mma_m16n8k16(y[i][n], A, H[n]);
    }
  }
  UNROLL
  for (int step = 1; kRotate && step < d / 16; step *= 2) {
    UNROLL
    for (int i = 0; i < d / 4; ++i) {
      const int low = i / 8 / step * 2 * step + i / 8 % step;  // a bit `step` that is 0 put in
      float &a = y[low][i / 4 % 2][i % 4], &b = y[low + step][i / 4 % 2][i % 4];
      const float sum = a + b;
      b = a - b, a = sum;
    }
  }
}

}  // namespace step12
