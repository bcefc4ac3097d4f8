/// \file
/// Factors of tensor-core instructions as bits in a register, and the product of one instruction,
/// summed as by fa::tensor_sum. Private to instructions/.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "common/dialect/ptx/fp8.h"
#include "common/dialect/ptx/tensor_sum.h"
#include "common/sim/half.h"

namespace sim {

/// The value of the bf16 whose bits are the low half of `bits`; the high half is zero.
inline float bf16_value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// The hardware drops the low 13 bits of a tf32 number.
inline float tf32_value(uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }

/// How wgmma and tcgen05.mma treat factors of one type.
struct Bf16 {
  using Bits = uint16_t;
  static constexpr fa::TensorSum kSum = fa::kBf16Sum;
  static float value(uint32_t bits) { return bf16_value(bits); }
  static fa::RowCol a_element(int thread, int i) { return fa::wgmma_a_element(thread, i); }
  static uint64_t offset(const fa::WgmmaOperand& o, fa::Major major, int mn, int k) {
    return fa::wgmma_offset(o, major, mn, k);
  }
};
/// Only for external programs: not compared with a GPU. As bf16, except for the smallest exponent.
constexpr fa::TensorSum kF16Sum{16, 25, 23, -14, -133};
struct F16 : Bf16 {
  static constexpr fa::TensorSum kSum = kF16Sum;
  static float value(uint32_t bits) { return float_of_half(static_cast<uint16_t>(bits)); }
};
/// The value of each e4m3, by its bits.
inline const std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values;
  for (unsigned bits = 0; bits < 256; ++bits) {
    __nv_fp8_e4m3 x;
    x.__x = static_cast<uint8_t>(bits);
    values[bits] = static_cast<float>(x);
  }
  return values;
}();
struct E4m3 {
  using Bits = uint8_t;
  static constexpr fa::TensorSum kSum = fa::kE4m3Sum;
  static float value(uint32_t bits) { return kE4m3Values[bits & 0xff]; }
  static fa::RowCol a_element(int thread, int i) { return fa::wgmma_e4m3_a_element(thread, i); }
  static uint64_t offset(const fa::WgmmaOperand& o, fa::Major, int mn, int k) {
    return fa::wgmma_e4m3_offset(o, mn, k);
  }
};

/// The same for tf32, by MMA-Sim. Always K-major.
constexpr fa::TensorSum kTf32Sum{8, 25, 23, -126, -133};
struct Tf32 {
  using Bits = uint32_t;
  static constexpr fa::TensorSum kSum = kTf32Sum;
  static float value(uint32_t bits) { return tf32_value(bits); }
  static uint64_t offset(const fa::WgmmaOperand& o, fa::Major major, int mn, int k) {
    return fa::wgmma_offset(o, major, mn, 2 * k);  // as for two 2-byte elements
  }
};

constexpr int kTensorProducts = 32;  // per instruction, at most

/// `n` elements of an operand.
template <int n>
struct TensorOperand {
  float value[n];
  int16_t exponent[n];
};
/// A part of an operand.
struct TensorFactors {
  const float* value;
  const int16_t* exponent;
};

/// The exponents of `n` values, for multiply_add().
void find_exponents(const fa::TensorSum&, int n, const float* value, int16_t* exponent);

/// D[rows][columns] = A B + D, one step of the rule; with `half` rounded to odd, so that half_of()
/// of it is the rule's D. A[rows][products] has a row stride of `step`
/// elements, D of `d_step`; B[products][columns]; `columns` is a multiple of 16.
void multiply_add(const fa::TensorSum&, int rows, int columns, const TensorFactors& A, int step,
                  const TensorFactors& B, float* D, int d_step);

}  // namespace sim
