/// \file
/// What the lanes of a warp make of their values together.
#pragma once

#include "common/dialect/cuda.h"

namespace fa {

/// The largest x of `lanes` neighbouring lanes, the same in all of them. `lanes` is a power of two;
/// all lanes of the warp must call it.
template <int lanes = kWarp>
__device__ inline float warp_max(float x) {
  for (int step = lanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
}

/// The sum of x over `lanes` neighbouring lanes, the same in all of them: pairs first, so its
/// rounding depends on no order of threads.
template <int lanes = kWarp>
__device__ inline float warp_sum(float x) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

}  // namespace fa
