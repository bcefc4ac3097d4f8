/// \file
/// CUDA's vector types that cuda_vocabulary.h lacks, with make_<type>().
#pragma once

#include "common/dialect/cuda_vocabulary.h"

#define SIM_VECTOR_1(T, name) \
  struct name##1 {            \
    T x;                      \
  };                          \
  inline constexpr name##1 make_##name##1(T x) { return {x}; }
#define SIM_VECTOR_2(T, name)             \
  struct alignas(2 * sizeof(T)) name##2 { \
    T x, y;                               \
  };                                      \
  inline constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }
#define SIM_VECTOR_3(T, name) \
  struct name##3 {            \
    T x, y, z;                \
  };                          \
  inline constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define SIM_VECTOR_4(T, name)                                  \
  struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { \
    T x, y, z, w;                                              \
  };                                                           \
  inline constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define SIM_VECTORS(T, name) \
  SIM_VECTOR_1(T, name) SIM_VECTOR_2(T, name) SIM_VECTOR_3(T, name) SIM_VECTOR_4(T, name)

SIM_VECTOR_1(float, float)
SIM_VECTOR_3(float, float)
SIM_VECTOR_1(int, int)
SIM_VECTOR_3(int, int)
SIM_VECTOR_1(unsigned, uint)
inline constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
SIM_VECTORS(signed char, char)
SIM_VECTORS(unsigned char, uchar)
SIM_VECTORS(short, short)
SIM_VECTORS(unsigned short, ushort)
SIM_VECTORS(long, long)
SIM_VECTORS(unsigned long, ulong)
SIM_VECTORS(long long, longlong)
SIM_VECTORS(unsigned long long, ulonglong)
SIM_VECTORS(double, double)

#undef SIM_VECTORS
#undef SIM_VECTOR_1
#undef SIM_VECTOR_2
#undef SIM_VECTOR_3
#undef SIM_VECTOR_4
