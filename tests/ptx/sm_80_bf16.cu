// multiply_bf16x2 against exact products in double precision, rounded explicitly.
#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/test.h"

namespace {

struct Multiply {
  FA_PTX uint32_t operator()(uint32_t a, uint32_t b) const { return fa::multiply_bf16x2(a, b); }
};

double value(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude > 0x7f80) return std::nan("");
  const int exponent = static_cast<int>(magnitude >> 7);
  const double x = magnitude == 0x7f80 ? std::numeric_limits<double>::infinity()
                   : exponent == 0     ? std::ldexp(magnitude, -133)
                                       : std::ldexp(magnitude % 128 + 128, exponent - 134);
  return bits & 0x8000 ? -x : x;
}

// To the nearest bf16, ties to even.
double rounded(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x), -126) - 7;
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::abs(y) < std::ldexp(1.0, 128)
             ? y
             : std::copysign(std::numeric_limits<double>::infinity(), x);
}

bool same(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
}

}  // namespace

// The second factors: 1, the power of two that turns e4m3 into bf16 in chapter 13, one that makes
// subnormal products of normal numbers, and some that round.
TEST_CASE("multiply_bf16x2 rounds all products to nearest even", "[ptx][bf16]") {
  const uint32_t factor =
      GENERATE(0x3f80, 0x7b80, 0x0480, 0x3f81, 0xbfff, 0x0001, 0x0000, 0x8000, 0x7f80);
  CAPTURE(factor);
  const auto a = test::each<uint32_t>(1 << 16, [](uint32_t bits) {
    return bits | (bits ^ 0x5a5a) << 16;  // in one half, with another number in the other half
  });
  const auto got =
      test::mapped<Multiply>(a, std::vector<uint32_t>(1 << 16, factor | 0x3fc0u << 16));
  int wrong = 0;
  uint32_t first = 0;
  for (uint32_t i = 0; i < a.size(); ++i) {
    const bool low = same(value(got[i] & 0xffff), rounded(value(a[i] & 0xffff) * value(factor)));
    const bool high = same(value(got[i] >> 16), rounded(value(a[i] >> 16) * 1.5));
    if (!(low && high) && wrong++ == 0) first = a[i];
  }
  CAPTURE(first);
  CHECK(wrong == 0);
}
