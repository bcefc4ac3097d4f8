/// \file
/// Stands in for NVIDIA's header of this name: the fp8 functions that fp8_vocabulary.h lacks.
#pragma once

#include "common/dialect/fp8_vocabulary.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef uint8_t __nv_fp8_storage_t;
typedef uint16_t __nv_fp8x2_storage_t;
typedef uint32_t __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t kind) {
  const uint8_t bits = kind == __NV_E4M3 ? __nv_fp8_e4m3(x).__x : __nv_fp8_e5m2(x).__x;
  // Above the midpoint to the next number, which e4m3 does not have.
  const bool too_large = !(std::abs(x) <= (kind == __NV_E4M3 ? 464 : 61439.99f));
  if (saturation == __NV_SATFINITE || !too_large) return bits;
  return (std::signbit(x) ? 0x80 : 0) | (kind == __NV_E5M2 && x == x ? 0x7c : 0x7f);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(v.x, saturation, kind) | __nv_cvt_float_to_fp8(v.y, saturation, kind)
                                                            << 8;
}
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturation,
                                                 __nv_fp8_interpretation_t kind) {
  const float f = static_cast<float>(x);  // rounded to odd, so that the second rounding is correct
  const bool exact = f == x || x != x;
  const float nearer = std::abs(f) > std::abs(x) ? std::nextafter(f, 0.f) : f;
  const uint32_t odd = std::bit_cast<uint32_t>(nearer) | (exact ? 0 : 1);
  return __nv_cvt_float_to_fp8(std::bit_cast<float>(odd), saturation, kind);
}
/// Every fp8 number is an fp16 one.
inline __half __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  const auto as = [bits](auto number) { return number.__x = bits, float(number); };
  return __half(kind == __NV_E4M3 ? as(__nv_fp8_e4m3()) : as(__nv_fp8_e5m2()));
}

#define SIM_FP8(name)                                                                          \
  struct __nv_fp8x2_##name {                                                                   \
    __nv_fp8x2_storage_t __x;                                                                  \
    __nv_fp8x2_##name() = default;                                                             \
    explicit __nv_fp8x2_##name(float2 v)                                                       \
        : __x(__nv_fp8_##name(v.x).__x | __nv_fp8_##name(v.y).__x << 8) {}                     \
    explicit __nv_fp8x2_##name(__half2 h) : __nv_fp8x2_##name(__half22float2(h)) {}            \
    explicit __nv_fp8x2_##name(__nv_bfloat162 h) : __nv_fp8x2_##name(__bfloat1622float2(h)) {} \
    explicit operator float2() const {                                                         \
      const auto at = [this](int i) {                                                          \
        __nv_fp8_##name number;                                                                \
        number.__x = static_cast<uint8_t>(__x >> 8 * i);                                       \
        return float(number);                                                                  \
      };                                                                                       \
      return {at(0), at(1)};                                                                   \
    }                                                                                          \
  };                                                                                           \
  struct __nv_fp8x4_##name {                                                                   \
    __nv_fp8x4_storage_t __x;                                                                  \
    __nv_fp8x4_##name() = default;                                                             \
    explicit __nv_fp8x4_##name(float4 v)                                                       \
        : __x(__nv_fp8x2_##name(make_float2(v.x, v.y)).__x |                                   \
              static_cast<uint32_t>(__nv_fp8x2_##name(make_float2(v.z, v.w)).__x) << 16) {}    \
    template <class H2>                                                                        \
    __nv_fp8x4_##name(H2 low, H2 high)                                                         \
        : __x(__nv_fp8x2_##name(low).__x | static_cast<uint32_t>(__nv_fp8x2_##name(high).__x)  \
                                               << 16) {}                                       \
    explicit operator float4() const {                                                         \
      __nv_fp8x2_##name low, high;                                                             \
      low.__x = static_cast<uint16_t>(__x), high.__x = static_cast<uint16_t>(__x >> 16);       \
      const float2 a(low), b(high);                                                            \
      return {a.x, a.y, b.x, b.y};                                                             \
    }                                                                                          \
  };
SIM_FP8(e4m3)
SIM_FP8(e5m2)

/// A scale: the power of two 2^(__x - 127), and 255 is NaN. Rounds up.
struct __nv_fp8_e8m0 {
  __nv_fp8_storage_t __x;
  __nv_fp8_e8m0() = default;
  explicit __nv_fp8_e8m0(float f);
  explicit operator float() const {
    return std::bit_cast<float>(__x == 255 ? 0x7fc00000u : __x == 0 ? 1u << 22 : __x << 23);
  }
};
inline __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float f, __nv_saturation_t saturation,
                                                 cudaRoundMode rounding) {
  const uint32_t size = std::bit_cast<uint32_t>(f) & 0x7fffffff, exponent = size >> 23;
  if (size > 0x7f800000) return 255;
  const uint32_t above = exponent == 0 ? size > 1u << 22 : (size & 0x7fffff) != 0;
  const uint32_t power = exponent + (rounding == cudaRoundPosInf ? above : 0);
  return power < 255 || saturation == __NV_NOSAT ? power : 254;
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_e8m0x2(float2 v, __nv_saturation_t saturation,
                                                      cudaRoundMode rounding) {
  return __nv_cvt_float_to_e8m0(v.x, saturation, rounding) |
         __nv_cvt_float_to_e8m0(v.y, saturation, rounding) << 8;
}
inline __nv_fp8_e8m0::__nv_fp8_e8m0(float f)
    : __x(__nv_cvt_float_to_e8m0(f, __NV_SATFINITE, cudaRoundPosInf)) {}
SIM_FP8(e8m0)
inline __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) {
  __nv_fp8_e8m0 scale;
  scale.__x = x;
  return {static_cast<unsigned short>(std::bit_cast<uint32_t>(float(scale)) >> 16)};
}
inline __nv_bfloat162_raw __nv_cvt_e8m0x2_to_bf162raw(__nv_fp8x2_storage_t x) {
  return {__nv_cvt_e8m0_to_bf16raw(x & 0xff).x, __nv_cvt_e8m0_to_bf16raw(x >> 8).x};
}
#undef SIM_FP8
