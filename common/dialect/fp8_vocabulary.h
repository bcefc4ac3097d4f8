/// \file
/// The types of cuda_fp8.h that the steps use: 8-bit floats of E exponent and M mantissa bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace sim {

/// An 8-bit float with the bits of `__nv_fp8_e4m3` or `__nv_fp8_e5m2`. e4m3 has no inf and two NaN.
template <int exponent_bits, int mantissa_bits>
struct Fp8 {
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr bool kHasInfinity = exponent_bits == 5;
  static constexpr uint8_t kLargest = kHasInfinity ? 0x7b : 0x7e;  // 57344 or 448
  static constexpr int kShift = 23 - mantissa_bits;

  uint8_t __x;
  Fp8() = default;

  /// Rounds to nearest even. Too large or infinite: the largest number. NaN: 0x7f.
  explicit __attribute__((always_inline)) Fp8(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f), size = u & 0x7fffffff;
    uint32_t rounded;
    if (size > 0x7f800000) {
      __x = 0x7f;
      return;
    }
    if (size >= static_cast<uint32_t>(128 - kBias) << 23) {  // a normal number
      rounded = (size + (1u << (kShift - 1)) - 1 + (size >> kShift & 1)) >> kShift;
      rounded -= static_cast<uint32_t>(127 - kBias) << mantissa_bits;
    } else {  // this addition rounds to a multiple of the smallest number
      const float one = std::bit_cast<float>(static_cast<uint32_t>(128 - kBias + kShift) << 23);
      rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + one) & 0xff;
    }
    if (rounded > kLargest) rounded = kLargest;
    __x = static_cast<uint8_t>(rounded | (u >> 24 & 0x80));
  }
  explicit __attribute__((always_inline)) operator float() const {
    const int e = __x >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int m = __x & ((1 << mantissa_bits) - 1);
    const bool top = e == (1 << exponent_bits) - 1;
    float size = static_cast<float>(m) *  // subnormal
                 std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - mantissa_bits) << 23);
    if (e > 0)
      size = std::bit_cast<float>(static_cast<uint32_t>(e + 127 - kBias) << 23 | m << kShift);
    if (kHasInfinity && top) size = m == 0 ? INFINITY : NAN;
    if (!kHasInfinity && (__x & 0x7f) == 0x7f) size = NAN;
    return __x & 0x80 ? -size : size;
  }
};

}  // namespace sim

using __nv_fp8_e4m3 = sim::Fp8<4, 3>;
using __nv_fp8_e5m2 = sim::Fp8<5, 2>;
