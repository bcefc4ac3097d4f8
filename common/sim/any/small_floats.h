/// \file
/// CUDA's functions for both fp16 and bf16: H is __half or __nv_bfloat16, H2 two of them.
/// Arithmetic is in fp32 and rounded once, which gives the same bits.
#pragma once

#include "common/sim/any/include/cuda_runtime.h"

#define SIM_OF_TWO(H, H2, name, ...) \
  inline H name(H p, H q) {          \
    const float a = p, b = q;        \
    return H(__VA_ARGS__);           \
  }                                  \
  inline H2 name##2(H2 p, H2 q) { return {name(p.x, q.x), name(p.y, q.y)}; }
#define SIM_OF_ONE(H, H2, name, ...) \
  inline H h##name(H h) {            \
    const float x = h;               \
    return H(__VA_ARGS__);           \
  }                                  \
  inline H2 h2##name(H2 h) { return {h##name(h.x), h##name(h.y)}; }
#define SIM_COMPARISON(H, name, op)                           \
  inline bool name(H a, H b) { return float{a} op float{b}; } \
  inline bool operator op(const H& a, const H& b) { return float{a} op float{b}; }
#define SIM_OPERATOR(T, op, name)                                     \
  inline T operator op(const T& a, const T& b) { return name(a, b); } \
  inline T& operator op##=(T& a, const T& b) { return a = name(a, b); }
#define SIM_SHUFFLE(T, bits, name, arg)                                               \
  inline T name(unsigned mask, T v, arg a, int width = 32, SIM_HERE) {                \
    return std::bit_cast<T>(static_cast<bits>(                                        \
        name(mask, static_cast<uint32_t>(std::bit_cast<bits>(v)), a, width, where))); \
  }
#define SIM_SHUFFLES(T, bits)                                   \
  SIM_SHUFFLE(T, bits, __shfl_sync, int)                        \
  SIM_SHUFFLE(T, bits, __shfl_xor_sync, int)                    \
  SIM_SHUFFLE(T, bits, __shfl_down_sync, unsigned)              \
  SIM_SHUFFLE(T, bits, __shfl_up_sync, unsigned)                \
  inline T atomicAdd(T* p, T v) {                               \
    return sim::atomic_with(p, [v](T old) { return old + v; }); \
  }

#define SIM_SMALL_FLOAT(H, H2)                                                                   \
  SIM_OF_TWO(H, H2, __hadd, a + b)                                                               \
  SIM_OF_TWO(H, H2, __hsub, a - b)                                                               \
  SIM_OF_TWO(H, H2, __hmul, a* b)                                                                \
  SIM_OF_TWO(H, H2, __hmax, a != a ? b : b != b ? a : a < b ? b : a)                             \
  SIM_OF_TWO(H, H2, __hmin, a != a ? b : b != b ? a : b < a ? b : a)                             \
  inline H __hdiv(H a, H b) { return H(float{a} / float{b}); }                                   \
  inline H2 __h2div(H2 a, H2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                 \
  SIM_OF_ONE(H, H2, exp, std::exp(x))                                                            \
  SIM_OF_ONE(H, H2, exp2, std::exp2(x))                                                          \
  SIM_OF_ONE(H, H2, exp10, std::pow(10.f, x))                                                    \
  SIM_OF_ONE(H, H2, log, std::log(x))                                                            \
  SIM_OF_ONE(H, H2, log2, std::log2(x))                                                          \
  SIM_OF_ONE(H, H2, log10, std::log10(x))                                                        \
  SIM_OF_ONE(H, H2, sqrt, std::sqrt(x))                                                          \
  SIM_OF_ONE(H, H2, rsqrt, 1 / std::sqrt(x))                                                     \
  SIM_OF_ONE(H, H2, rcp, 1 / x)                                                                  \
  SIM_OF_ONE(H, H2, sin, std::sin(x))                                                            \
  SIM_OF_ONE(H, H2, cos, std::cos(x))                                                            \
  SIM_OF_ONE(H, H2, tanh, std::tanh(x))                                                          \
  SIM_OF_ONE(H, H2, floor, std::floor(x))                                                        \
  SIM_OF_ONE(H, H2, ceil, std::ceil(x))                                                          \
  SIM_OF_ONE(H, H2, trunc, std::trunc(x))                                                        \
  SIM_OF_ONE(H, H2, rint, std::nearbyint(x))                                                     \
  SIM_COMPARISON(H, __heq, ==)                                                                   \
  SIM_COMPARISON(H, __hne, !=)                                                                   \
  SIM_COMPARISON(H, __hlt, <)                                                                    \
  SIM_COMPARISON(H, __hle, <=)                                                                   \
  SIM_COMPARISON(H, __hgt, >)                                                                    \
  SIM_COMPARISON(H, __hge, >=)                                                                   \
  SIM_OPERATOR(H, +, __hadd)                                                                     \
  SIM_OPERATOR(H, -, __hsub)                                                                     \
  SIM_OPERATOR(H, *, __hmul)                                                                     \
  SIM_OPERATOR(H, /, __hdiv)                                                                     \
  SIM_OPERATOR(H2, +, __hadd2)                                                                   \
  SIM_OPERATOR(H2, -, __hsub2)                                                                   \
  SIM_OPERATOR(H2, *, __hmul2)                                                                   \
  SIM_OPERATOR(H2, /, __h2div)                                                                   \
  SIM_SHUFFLES(H, uint16_t)                                                                      \
  SIM_SHUFFLES(H2, uint32_t)                                                                     \
  inline H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline float __low2float(H2 h) { return h.x; }                                                 \
  inline float __high2float(H2 h) { return h.y; }
