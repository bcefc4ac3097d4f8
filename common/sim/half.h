/// \file
/// The bits of an fp16, from a float and back.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace sim {

/// Rounds to the nearest fp16, ties to even.
inline uint16_t half_of(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
  if (size > 0x7f800000) return 0x7fff;
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (size < 0x38800000) {  // below 2^-14: multiples of 2^-24, by fp32's rounding
    const float scaled = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}
inline float float_of_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, size = h & 0x7fff;
  if (size >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
  if (size < 0x400) return std::copysign(size * 0x1p-24f, std::bit_cast<float>(sign));
  return std::bit_cast<float>(sign | ((size << 13) + 0x38000000));
}
/// a b + c, rounded once: it is exact in fp64.
inline uint16_t half_fma(float a, float b, float c) {
  const double sum = double{a} * double{b} + double{c};
  float f = static_cast<float>(sum);
  if (f != sum && !(std::bit_cast<uint32_t>(f) & 1)) {  // to odd: half_of() rounds the exact sum
    f = std::nextafter(f, sum > f ? INFINITY : -INFINITY);
  }
  return half_of(f);
}

}  // namespace sim
