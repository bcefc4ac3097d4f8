/// \file
/// How tensor cores add, to the bit. The simulator's mma.sync and wgmma use these functions;
/// tests/ptx/sm_80_mma.cu and sm_90a_tensor_sum.cu compare a GPU with them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace fa {

/// Some products and C, the previous D, are added in one step:
///
///  1. E is the largest exponent of all terms. A product's exponent is the sum of its factors'
///     exponents, although its significand may be close to 4. A subnormal number has the exponent
///     of the smallest normal number, a term that is 0 has `zero_exponent`.
///  2. Each term, C too, is truncated toward zero below 2^(E - aligned_bits).
///  3. The rest is added without rounding, and the sum is truncated toward zero to `kept_bits` of
///     mantissa, also where all other terms are 0.
///
/// So the order of the products does not matter, and a product that is smaller than C by more than
/// `aligned_bits` adds nothing. A longer sum is one step after another, in the order of k.
///
/// The rule and the numbers of GPUs other than Hopper are from MMA-Sim (Xie et al., "MMA-Sim:
/// Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", arXiv 2511.10909: truncated
/// fused dot-product-add), whose authors compared it with the GPUs.
struct TensorSum {
  int products;        ///< of a step: at most k of an instruction
  int aligned_bits;    ///< below the largest term
  int kept_bits;       ///< of D's mantissa
  int least_exponent;  ///< of a factor
  int zero_exponent;   ///< of a term that is 0
  bool half = false;   ///< C and D are in fp16; D is rounded to nearest even, not cut
};
/// bf16 of wgmma and mma.sync on Hopper, compared with an H200; also of Blackwell's tcgen05.mma.
constexpr TensorSum kBf16Sum{16, 25, 23, -126, -133};
/// bf16 of mma.sync on Ampere and Ada: m16n8k16 is two steps.
constexpr TensorSum kAmpereBf16Sum{8, 24, 23, -126, -132};
/// e4m3 of Hopper's wgmma.
constexpr TensorSum kE4m3Sum{32, 13, 13, -6, -133};

/// bf16 of mma.sync. \param arch 80 for sm_80
constexpr const TensorSum& mma_bf16_sum(int arch) { return arch < 90 ? kAmpereBf16Sum : kBf16Sum; }

/// x truncated toward zero to `bits` of mantissa, below 2^-126 to subnormals. A zero has no sign.
inline float cut_mantissa(double x, int bits) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1., -126 - bits);  // of subnormals
  const double cut =
      std::fabs(x) < 0x1p-126
          ? std::trunc(x / unit) * unit
          : std::bit_cast<double>(std::bit_cast<uint64_t>(x) >> (52 - bits) << (52 - bits));
  if (cut == 0) return 0;
  if (std::fabs(cut) >= 0x1p128) return cut > 0 ? INFINITY : -INFINITY;
  return static_cast<float>(cut);
}

/// x rounded to the nearest fp16, ties to even. A zero has no sign.
inline float round_to_half(double x) {
  if (x == 0) return 0;
  const double unit = std::ldexp(1., std::max(std::ilogb(x), -14) - 10);
  const double rounded = std::nearbyint(x / unit) * unit + 0.;
  return static_cast<float>(std::fabs(rounded) > 65504 ? rounded * INFINITY : rounded);
}

/// One element of D after one step.
/// \param a, b  `rule.products` factors each, which the rule's type can represent
/// \param c     the element before; 0 when the instruction does not accumulate
/// \param scale    log2 of what each product is multiplied by: scales of the two rows, in ue8m0
/// \param least_b  rule.least_exponent of b's type; 1: as a's
/// \return infinities as in IEEE arithmetic, any NaN as 0x7fffffff
inline float tensor_sum(const TensorSum& rule, const float* a, const float* b, float c,
                        int scale = 0, int least_b = 1) {
  const double factor = std::ldexp(1., scale);
  double ieee = c;
  for (int k = 0; k < rule.products; ++k) ieee += double{a[k]} * b[k] * factor;
  if (std::isnan(ieee)) return std::bit_cast<float>(0x7fffffffu);
  if (std::isinf(ieee)) return static_cast<float>(ieee);
  const auto exponent = [](float x, int least) { return std::max(std::ilogb(x), least); };
  int largest = c == 0 ? rule.zero_exponent : exponent(c, rule.half ? -14 : -126);
  for (int k = 0; k < rule.products; ++k) {
    if (double{a[k]} * b[k] == 0) continue;  // its exponent is below that of any C
    const int e = exponent(a[k], rule.least_exponent);
    largest =
        std::max(largest, e + exponent(b[k], least_b < 1 ? least_b : rule.least_exponent) + scale);
  }
  const int shift = rule.aligned_bits - largest;
  double sum = std::trunc(std::ldexp(double{c}, shift));  // of integers below 2^33: exact
  for (int k = 0; k < rule.products; ++k) {
    sum += std::trunc(std::ldexp(double{a[k]} * b[k] * factor, shift));
  }
  sum = std::ldexp(sum, -shift);
  return rule.half ? round_to_half(sum) : cut_mantissa(sum, rule.kept_bits);
}

/// A scale of a block: its exponent is not below the type's least one, as that of a factor.
struct BlockScale {
  float value;
  int exponent;
};
/// One element after a step of Blackwell's mxf4 and mxf4nvf4, also from MMA-Sim ("group-scaled"):
/// each 16 of the 64 products are added exactly. Such a sum is a term, which has the exponent of
/// its scales; 35 bits below the largest term are kept. All products of a group may be 0: then its
/// exponent is -139, and so is that of a C that is 0.
/// \param quarters  4 times each group's sum
inline float grouped_sum(const int* quarters, const bool* zero, const BlockScale* a,
                         const BlockScale* b, float c) {
  constexpr int kGroups = 4, kBits = 35, kZero = -139;
  const auto power = [](int e) { return std::bit_cast<double>(uint64_t(1023 + e) << 52); };
  double term[kGroups], ieee = c;
  int largest = c == 0 ? kZero : std::max(std::ilogb(c), -126);
  for (int g = 0; g < kGroups; ++g) {
    const double scale = double{a[g].value} * b[g].value;
    ieee += term[g] = quarters[g] * 0.25 * scale;
    if (!zero[g] && scale != 0) largest = std::max(largest, a[g].exponent + b[g].exponent);
  }
  if (std::isnan(ieee)) return std::bit_cast<float>(0x7fffffffu);
  if (std::isinf(ieee)) return static_cast<float>(ieee);
  const double up = power(kBits - largest);
  auto sum = static_cast<int64_t>(c * up);  // drops the bits below
  for (const double t : term) sum += static_cast<int64_t>(t * up);
  return cut_mantissa(static_cast<double>(sum) * power(largest - kBits), 23);
}

}  // namespace fa
