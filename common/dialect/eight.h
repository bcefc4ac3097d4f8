/// \file
/// Eight adjacent numbers per thread: 16 bytes of bf16, or 32 of fp32, aligned to 16 bytes.
#pragma once

#include "common/dialect/cuda.h"

namespace fa {

/// Loads them as fp32.
__device__ inline void load_eight(const float* from, float (&x)[8]) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
}
/// Loads them as fp32.
__device__ inline void load_eight(const __nv_bfloat16* from, float (&x)[8]) {
  __align__(16) __nv_bfloat16 packed[8];
  *reinterpret_cast<uint4*>(packed) = *reinterpret_cast<const uint4*>(from);
  UNROLL
  for (int i = 0; i < 8; ++i) x[i] = __bfloat162float(packed[i]);
}
/// Stores them.
__device__ inline void store_eight(float* to, const float (&x)[8]) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(x);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(x + 4);
}
/// Stores them, rounded.
__device__ inline void store_eight(__nv_bfloat16* to, const float (&x)[8]) {
  __align__(16) __nv_bfloat16 packed[8];
  UNROLL
  for (int i = 0; i < 8; ++i) packed[i] = __float2bfloat16(x[i]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(packed);
}

}  // namespace fa
