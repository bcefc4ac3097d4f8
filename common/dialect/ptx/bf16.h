/// \file
/// Arithmetic on two bf16 at a time (sm_80).
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// Two products of bf16 (sm_80), of the low halves and of the high halves, each rounded to nearest
/// even. Subnormal operands and results keep their value. Scalar meaning:
///
///     for (h = 0..1) r.half[h] = a.half[h] * b.half[h];
FA_PTX uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000));  // + -0
  return r;
}

#elif !FA_BACKEND_GPU

FA_PTX uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t x, int h) {
    __nv_bfloat16 number;
    number.bits = static_cast<uint16_t>(x >> 16 * h);
    return static_cast<float>(number);
  };
  const auto product = [&](int h) {
    return static_cast<uint32_t>(__nv_bfloat16(half(a, h) * half(b, h)).bits);
  };
  return product(0) | product(1) << 16;
}

#endif

}  // namespace fa
