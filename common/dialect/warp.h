/// \file
/// Reductions over the lanes of a warp; a number that all lanes have.
#pragma once

#include "common/dialect/cuda.h"

namespace fa {

/// The largest x of `lanes` adjacent lanes (a power of two), the same in all. All lanes call it.
template <int lanes = kWarp>
__device__ inline float warp_max(float x) {
  for (int step = lanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
}

/// The sum of x over `lanes` adjacent lanes, the same in all of them; always added pairs first.
template <int lanes = kWarp>
__device__ inline float warp_sum(float x) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

/// Lane 0's x. Where all lanes have the same x, it tells the compiler so, which then keeps x, and
/// what follows from it, in uniform registers. All lanes call it.
template <class T>
__device__ inline T uniform(T x) {
  return __shfl_sync(kFullMask, x, 0);
}

}  // namespace fa
