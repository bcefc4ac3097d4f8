/// \file
/// Stands in for NVIDIA's header of this name: what cuda_vocabulary.h does not have of bf16.
#pragma once

#include "cuda_runtime.h"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

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
inline float __low2float(__nv_bfloat162 h) { return h.x; }
inline float __high2float(__nv_bfloat162 h) { return h.y; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }

#define SIM_BF16(name, ...)                                           \
  inline __nv_bfloat16 name(__nv_bfloat16 p, __nv_bfloat16 q) {       \
    const float a = p, b = q;                                         \
    return __nv_bfloat16(__VA_ARGS__);                                \
  }                                                                   \
  inline __nv_bfloat162 name##2(__nv_bfloat162 p, __nv_bfloat162 q) { \
    return {name(p.x, q.x), name(p.y, q.y)};                          \
  }
SIM_BF16(__hadd, a + b)
SIM_BF16(__hsub, a - b)
SIM_BF16(__hmul, a* b)
SIM_BF16(__hmax, a != a ? b : b != b ? a : a < b ? b : a)
SIM_BF16(__hmin, a != a ? b : b != b ? a : b < a ? b : a)
#undef SIM_BF16
inline __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(float{a} / float{b});
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __nv_bfloat16(std::fma(float{a}, float{b}, float{c}));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
#define SIM_BF16(name, ...)                       \
  inline __nv_bfloat16 h##name(__nv_bfloat16 h) { \
    const float x = h;                            \
    return __nv_bfloat16(__VA_ARGS__);            \
  }                                               \
  inline __nv_bfloat162 h2##name(__nv_bfloat162 h) { return {h##name(h.x), h##name(h.y)}; }
SIM_BF16(exp, std::exp(x))
SIM_BF16(exp2, std::exp2(x))
SIM_BF16(log, std::log(x))
SIM_BF16(log2, std::log2(x))
SIM_BF16(sqrt, std::sqrt(x))
SIM_BF16(rsqrt, 1 / std::sqrt(x))
SIM_BF16(rcp, 1 / x)
SIM_BF16(sin, std::sin(x))
SIM_BF16(cos, std::cos(x))
SIM_BF16(tanh, std::tanh(x))
#undef SIM_BF16
inline __nv_bfloat16 __hneg(__nv_bfloat16 h) { return __ushort_as_bfloat16(h.bits ^ 0x8000); }
inline __nv_bfloat16 __habs(__nv_bfloat16 h) { return __ushort_as_bfloat16(h.bits & 0x7fff); }
inline bool __hisnan(__nv_bfloat16 h) { return (h.bits & 0x7fff) > 0x7f80; }

#define SIM_BF16(op, name)                                                           \
  inline __nv_bfloat16 operator op(const __nv_bfloat16& a, const __nv_bfloat16& b) { \
    return name(a, b);                                                               \
  }                                                                                  \
  inline __nv_bfloat16& operator op##=(__nv_bfloat16& a, const __nv_bfloat16& b) {   \
    return a = name(a, b);                                                           \
  }
SIM_BF16(+, __hadd)
SIM_BF16(-, __hsub)
SIM_BF16(*, __hmul)
SIM_BF16(/, __hdiv)
#undef SIM_BF16
#define SIM_BF16(op, name)                                                              \
  inline __nv_bfloat162 operator op(const __nv_bfloat162& a, const __nv_bfloat162& b) { \
    return name(a, b);                                                                  \
  }                                                                                     \
  inline __nv_bfloat162& operator op##=(__nv_bfloat162& a, const __nv_bfloat162& b) {   \
    return a = name(a, b);                                                              \
  }
SIM_BF16(+, __hadd2)
SIM_BF16(-, __hsub2)
SIM_BF16(*, __hmul2)
#undef SIM_BF16
#define SIM_BF16(name, op)                                                            \
  inline bool name(__nv_bfloat16 a, __nv_bfloat16 b) { return float{a} op float{b}; } \
  inline bool operator op(const __nv_bfloat16& a, const __nv_bfloat16& b) {           \
    return float{a} op float{b};                                                      \
  }
SIM_BF16(__heq, ==)
SIM_BF16(__hne, !=)
SIM_BF16(__hlt, <)
SIM_BF16(__hle, <=)
SIM_BF16(__hgt, >)
SIM_BF16(__hge, >=)
#undef SIM_BF16

#define SIM_BF16(name, T, arg, bits)                                                  \
  inline T name(unsigned mask, T v, arg a, int width = 32, SIM_HERE) {                \
    return std::bit_cast<T>(static_cast<bits>(                                        \
        name(mask, static_cast<uint32_t>(std::bit_cast<bits>(v)), a, width, where))); \
  }
SIM_BF16(__shfl_sync, __nv_bfloat16, int, uint16_t)
SIM_BF16(__shfl_xor_sync, __nv_bfloat16, int, uint16_t)
SIM_BF16(__shfl_down_sync, __nv_bfloat16, unsigned, uint16_t)
SIM_BF16(__shfl_up_sync, __nv_bfloat16, unsigned, uint16_t)
#undef SIM_BF16
inline __nv_bfloat16 atomicAdd(__nv_bfloat16* p, __nv_bfloat16 v) {
  return sim::atomic_with(p, [v](__nv_bfloat16 old) { return old + v; });
}
inline __nv_bfloat162 atomicAdd(__nv_bfloat162* p, __nv_bfloat162 v) {
  return sim::atomic_with(p, [v](__nv_bfloat162 old) {
    return __nv_bfloat162{old.x + v.x, old.y + v.y};
  });
}
