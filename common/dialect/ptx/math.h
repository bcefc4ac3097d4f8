/// \file
/// Arithmetic that one instruction approximates.
#pragma once

#include <cmath>
#include <limits>

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// 2 to the power x, by the special function unit. Scalar meaning:
///
///     y = exp2(x), wrong by up to 2 units in the last place;
///     return y < 2^-126 ? 0 : y;   // no subnormal results
///
/// exp2_approx(-inf) = +0, so a masked score gets the weight 0 without a branch. exp2f() is this
/// instruction with a multiplication on either side, which save the subnormal results.
FA_PTX float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two products of bf16 in one instruction (sm_80): of the low halves and of the high halves, each
/// rounded to nearest even. Subnormal operands and results keep their value.
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

FA_PTX float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}

#endif

}  // namespace fa
