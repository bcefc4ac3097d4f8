/// \file
/// Stands in for NVIDIA's header of this name: fp16, with the same rounding.
#pragma once

#include "common/sim/any/small_floats.h"
#include "common/sim/half.h"

struct __half_raw {
  unsigned short x;
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half {
  uint16_t bits;
  __half() = default;
  __half(float f) : bits(sim::half_of(f)) {}
  __half(double f) : __half(static_cast<float>(f)) {}
  __half(int i) : __half(static_cast<float>(i)) {}
  __half(unsigned i) : __half(static_cast<float>(i)) {}
  __half(long i) : __half(static_cast<float>(i)) {}
  __half(unsigned long i) : __half(static_cast<float>(i)) {}
  __half(long long i) : __half(static_cast<float>(i)) {}
  __half(unsigned long long i) : __half(static_cast<float>(i)) {}
  __half(__half_raw r) : bits(r.x) {}
  operator float() const { return sim::float_of_half(bits); }
};
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  constexpr __half2(__half a, __half b) : x(a), y(b) {}
  __half2(__half2_raw r) : x(__half_raw{r.x}), y(__half_raw{r.y}) {}
};
typedef __half half, nv_half;
typedef __half2 half2, nv_half2;

// --- conversions ---------------------------------------------------------------------------------

inline __half __float2half(float f) { return f; }
inline __half __float2half_rn(float f) { return f; }
inline __half __double2half(double f) { return f; }
inline __half __int2half_rn(int i) { return i; }
inline __half __uint2half_rn(unsigned i) { return i; }
inline float __half2float(__half h) { return h; }
inline int __half2int_rn(__half h) { return __float2int_rn(h); }
inline int __half2int_rz(__half h) { return __float2int_rz(h); }
inline short __half2short_rn(__half h) { return static_cast<short>(__float2int_rn(h)); }
inline short __half2short_rz(__half h) { return static_cast<short>(__float2int_rz(h)); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline short __half_as_short(__half h) { return static_cast<short>(h.bits); }
inline __half __ushort_as_half(unsigned short bits) { return __half(__half_raw{bits}); }
inline __half __short_as_half(short bits) {
  return __ushort_as_half(static_cast<unsigned short>(bits));
}
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
inline float2 __half22float2(__half2 h) { return {h.x, h.y}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
inline __half2 __high2half2(__half2 h) { return {h.y, h.y}; }
inline __half2 __lowhigh2highlow(__half2 h) { return {h.y, h.x}; }

// --- arithmetic, of one and of two ---------------------------------------------------------------

inline __half __hfma(__half a, __half b, __half c) {
  return __half(__half_raw{sim::half_fma(a, b, c)});
}
SIM_SMALL_FLOAT(__half, __half2)
inline __half __hneg(__half h) { return __ushort_as_half(h.bits ^ 0x8000); }
inline __half __habs(__half h) { return __ushort_as_half(h.bits & 0x7fff); }
inline __half2 __hneg2(__half2 h) { return {__hneg(h.x), __hneg(h.y)}; }
inline __half2 __habs2(__half2 h) { return {__habs(h.x), __habs(h.y)}; }
inline bool __hisnan(__half h) { return (h.bits & 0x7fff) > 0x7c00; }
inline int __hisinf(__half h) { return h.bits == 0x7c00 ? 1 : h.bits == 0xfc00 ? -1 : 0; }
inline __half operator-(const __half& h) { return __hneg(h); }
inline __half2 operator-(const __half2& h) { return __hneg2(h); }

#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fff)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bff)
#define CUDART_ZERO_FP16 __ushort_as_half(0)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00)
