/// \file
/// Stands in for NVIDIA's header of this name: e2m1, whose numbers are 0, 0.5, 1, 1.5, 2, 3, 4, 6.
#pragma once

#include "cuda_fp8.h"

typedef uint8_t __nv_fp4_storage_t;
typedef uint8_t __nv_fp4x2_storage_t;
typedef uint16_t __nv_fp4x4_storage_t;
enum __nv_fp4_interpretation_t { __NV_E2M1 };

/// Rounds to nearest even; too large: 6, as NaN is.
inline __nv_fp4_storage_t __nv_cvt_float_to_fp4(float x, __nv_fp4_interpretation_t, cudaRoundMode) {
  constexpr float kMidpoints[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  const float size = std::abs(x);
  if (x != x) return 7;
  int bits = 0;
  for (float midpoint : kMidpoints) bits += bits % 2 ? size >= midpoint : size > midpoint;
  return static_cast<__nv_fp4_storage_t>(bits | (std::signbit(x) ? 8 : 0));
}
inline __nv_fp4x2_storage_t __nv_cvt_float2_to_fp4x2(float2 v, __nv_fp4_interpretation_t kind,
                                                     cudaRoundMode rounding) {
  return __nv_cvt_float_to_fp4(v.x, kind, rounding) | __nv_cvt_float_to_fp4(v.y, kind, rounding)
                                                          << 4;
}
inline __half_raw __nv_cvt_fp4_to_halfraw(__nv_fp4_storage_t bits, __nv_fp4_interpretation_t) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float size = kNumbers[bits & 7];
  return {__half(bits & 8 ? -size : size).bits};
}
inline __half2_raw __nv_cvt_fp4x2_to_halfraw2(__nv_fp4x2_storage_t two,
                                              __nv_fp4_interpretation_t kind) {
  return {__nv_cvt_fp4_to_halfraw(two & 15, kind).x, __nv_cvt_fp4_to_halfraw(two >> 4, kind).x};
}

struct __nv_fp4_e2m1 {
  __nv_fp4_storage_t __x;
  __nv_fp4_e2m1() = default;
  explicit __nv_fp4_e2m1(float f) : __x(__nv_cvt_float_to_fp4(f, __NV_E2M1, cudaRoundNearest)) {}
  explicit operator float() const { return __half(__nv_cvt_fp4_to_halfraw(__x, __NV_E2M1)); }
};
struct __nv_fp4x2_e2m1 {
  __nv_fp4x2_storage_t __x;
  __nv_fp4x2_e2m1() = default;
  explicit __nv_fp4x2_e2m1(float2 v)
      : __x(__nv_cvt_float2_to_fp4x2(v, __NV_E2M1, cudaRoundNearest)) {}
  explicit operator float2() const {
    const __half2 h = __nv_cvt_fp4x2_to_halfraw2(__x, __NV_E2M1);
    return __half22float2(h);
  }
};
struct __nv_fp4x4_e2m1 {
  __nv_fp4x4_storage_t __x;
  __nv_fp4x4_e2m1() = default;
  explicit __nv_fp4x4_e2m1(float4 v)
      : __x(__nv_fp4x2_e2m1(make_float2(v.x, v.y)).__x | __nv_fp4x2_e2m1(make_float2(v.z, v.w)).__x
                                                             << 8) {}
  explicit operator float4() const {
    __nv_fp4x2_e2m1 low, high;
    low.__x = static_cast<uint8_t>(__x), high.__x = static_cast<uint8_t>(__x >> 8);
    const float2 a(low), b(high);
    return {a.x, a.y, b.x, b.y};
  }
};
