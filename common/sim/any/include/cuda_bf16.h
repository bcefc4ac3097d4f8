/// \file
/// Stands in for NVIDIA's header of this name: the bf16 functions that cuda_vocabulary.h lacks.
#pragma once

#include "common/sim/any/small_floats.h"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __nv_bfloat162_raw {
  unsigned short x, y;
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 h;
  h.bits = bits;
  return h;
}
inline __nv_bfloat16 __double2bfloat16(double f) { return static_cast<float>(f); }
inline __nv_bfloat16 __int2bfloat16_rn(int i) { return static_cast<float>(i); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 h) { return {h.x, h.y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }

inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __nv_bfloat16(std::fma(float{a}, float{b}, float{c}));
}
SIM_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162)
inline __nv_bfloat16 __hneg(__nv_bfloat16 h) { return __ushort_as_bfloat16(h.bits ^ 0x8000); }
inline __nv_bfloat16 __habs(__nv_bfloat16 h) { return __ushort_as_bfloat16(h.bits & 0x7fff); }
inline __nv_bfloat162 __hneg2(__nv_bfloat162 h) { return {__hneg(h.x), __hneg(h.y)}; }
inline __nv_bfloat162 __habs2(__nv_bfloat162 h) { return {__habs(h.x), __habs(h.y)}; }
inline bool __hisnan(__nv_bfloat16 h) { return (h.bits & 0x7fff) > 0x7f80; }
