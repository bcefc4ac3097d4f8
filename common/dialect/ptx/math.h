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
/// exp2_approx(-inf) = +0, so a masked score has P = 0 without a branch. exp2f() is this
/// instruction between two multiplications, which preserve subnormal results.
FA_PTX float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, by the special function unit. Scalar meaning:
///
///     y = 1 / x, wrong by up to 1 unit in the last place;
///     return |y| < 2^-126 ? 0 : y;   // with y's sign; a subnormal x counts as 0
FA_PTX float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// a + b, rounded down. Scalar meaning: the largest number that is not above the exact sum.
FA_PTX float add_round_down(float a, float b) { return __fadd_rd(a, b); }

/// The logarithm of x to base 2, by the special function unit. Scalar meaning:
///
///     y = log2(x < 2^-126 ? 0 : x);   // -inf of 0
///     wrong by up to 2^-22 where x is between 1/2 and 2, else by up to 2^-22 of y
FA_PTX float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#elif !FA_BACKEND_GPU

FA_PTX float add_round_down(float a, float b) {
  const float sum = a + b, from_b = sum - a;
  const float error = (a - (sum - from_b)) + (b - from_b);  // of the sum, exact
  return error < 0.0f ? std::nextafter(sum, -std::numeric_limits<float>::infinity()) : sum;
}

FA_PTX float log2_approx(float x) {
  return std::log2(std::fabs(x) < std::numeric_limits<float>::min() ? 0.0f : x);
}

FA_PTX float rcp_approx(float x) {
  const float least = std::numeric_limits<float>::min();
  const float y = 1.0f / (std::fabs(x) < least ? std::copysign(0.0f, x) : x);
  return std::fabs(y) < least ? std::copysign(0.0f, y) : y;
}

FA_PTX float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}

#endif

}  // namespace fa
