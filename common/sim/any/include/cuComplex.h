// Stands in for NVIDIA's header of this name: complex numbers as float2 and double2.
#pragma once
#include "cuda_runtime.h"

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

#define SIM_COMPLEX(C, T, f, make)                                                            \
  inline C make_##C(T x, T y) { return make(x, y); }                                          \
  inline T cuCreal##f(C z) { return z.x; }                                                    \
  inline T cuCimag##f(C z) { return z.y; }                                                    \
  inline C cuConj##f(C z) { return make(z.x, -z.y); }                                         \
  inline C cuCadd##f(C a, C b) { return make(a.x + b.x, a.y + b.y); }                         \
  inline C cuCsub##f(C a, C b) { return make(a.x - b.x, a.y - b.y); }                         \
  inline C cuCmul##f(C a, C b) { return make(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); } \
  inline C cuCdiv##f(C a, C b) { /* scaled, so that nothing overflows on the way */           \
    const T s = 1 / (std::abs(b.x) + std::abs(b.y));                                          \
    const T ax = a.x * s, ay = a.y * s, bx = b.x * s, by = b.y * s;                           \
    const T q = 1 / (bx * bx + by * by);                                                      \
    return make((ax * bx + ay * by) * q, (ay * bx - ax * by) * q);                            \
  }                                                                                           \
  inline T cuCabs##f(C z) { return std::hypot(z.x, z.y); }                                    \
  inline C cuCfma##f(C a, C b, C c) { return cuCadd##f(cuCmul##f(a, b), c); }
SIM_COMPLEX(cuFloatComplex, float, f, make_float2)
SIM_COMPLEX(cuDoubleComplex, double, , make_double2)
#undef SIM_COMPLEX
inline cuComplex make_cuComplex(float x, float y) { return make_float2(x, y); }
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex z) { return make_double2(z.x, z.y); }
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex z) {
  return make_float2(static_cast<float>(z.x), static_cast<float>(z.y));
}
