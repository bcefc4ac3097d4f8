/// \file
/// Two fp32 operations in one instruction (sm_100): a 64-bit register pair holds both numbers. Each
/// rounds to nearest even, as the scalar operation does.
#pragma once

#include <cmath>

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// {a.x + b.x, a.y + b.y}
FA_PTX float2 add_f32x2(float2 a, float2 b) {
  float2 d;
  asm("add.rn.f32x2 %0, %1, %2;"
      : "=l"(reinterpret_cast<uint64_t&>(d))
      : "l"(reinterpret_cast<const uint64_t&>(a)), "l"(reinterpret_cast<const uint64_t&>(b)));
  return d;
}
/// {a.x * b.x, a.y * b.y}
FA_PTX float2 mul_f32x2(float2 a, float2 b) {
  float2 d;
  asm("mul.rn.f32x2 %0, %1, %2;"
      : "=l"(reinterpret_cast<uint64_t&>(d))
      : "l"(reinterpret_cast<const uint64_t&>(a)), "l"(reinterpret_cast<const uint64_t&>(b)));
  return d;
}
/// {a.x * b.x + c.x, a.y * b.y + c.y}, each rounded once
FA_PTX float2 fma_f32x2(float2 a, float2 b, float2 c) {
  float2 d;
  asm("fma.rn.f32x2 %0, %1, %2, %3;"
      : "=l"(reinterpret_cast<uint64_t&>(d))
      : "l"(reinterpret_cast<const uint64_t&>(a)), "l"(reinterpret_cast<const uint64_t&>(b)),
        "l"(reinterpret_cast<const uint64_t&>(c)));
  return d;
}

#elif !FA_BACKEND_GPU

FA_PTX float2 add_f32x2(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
FA_PTX float2 mul_f32x2(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
FA_PTX float2 fma_f32x2(float2 a, float2 b, float2 c) {
  return {std::fma(a.x, b.x, c.x), std::fma(a.y, b.y, c.y)};
}

#endif

}  // namespace fa
