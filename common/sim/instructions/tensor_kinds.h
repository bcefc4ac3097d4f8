/// \file
/// What tcgen05.mma multiplies, as data: types, k, rows, columns, and where D is in tensor memory
/// (PTX ISA 9.7.16.2 "Matrix Shape", 9.7.16.4.2 "Instruction Descriptor", 9.7.16.10.5 "Data Path
/// Layout Organization"). Instructions, checks and messages read these tables. Private to
/// instructions/.
#pragma once

#include <span>
#include <string>

#include "common/dialect/instructions.h"
#include "common/sim/instructions/tensor_core.h"

namespace sim {

// --- factors -------------------------------------------------------------------------------------

/// A factor of 8 bits. The sums are MMA-Sim's, not compared with a GPU.
struct OneByte {
  using Bits = uint8_t;
  static constexpr fa::TensorSum kSum{32, 25, 23, -14, -133};
  static uint64_t offset(const fa::WgmmaOperand& o, fa::Major major, int mn, int k) {
    const bool k_major = major == fa::Major::k;
    const int inner = k_major ? k : mn;  // of wgmma_offset(), in pairs of bytes
    return fa::wgmma_offset(o, major, k_major ? mn : inner / 2, k_major ? inner / 2 : k) +
           static_cast<uint64_t>(inner % 2);
  }
};
template <class Fp8, int least_exponent>
struct TensorFp8 : OneByte {
  static constexpr fa::TensorSum kSum{32, 25, 23, least_exponent, -133};
  static float value(uint32_t bits) {
    static const std::array<float, 256> values = [] {
      std::array<float, 256> all;
      for (unsigned i = 0; i < all.size(); ++i) {
        Fp8 x;
        x.__x = static_cast<uint8_t>(i);
        all[i] = static_cast<float>(x);
      }
      return all;
    }();
    return values[bits & 0xff];
  }
};
/// Their products and sums of 32 products are exact.
template <class Integer>
struct TensorInt8 : OneByte {
  static float value(uint32_t bits) { return static_cast<Integer>(bits); }
};

/// Calls f with the struct of the type.
void with_type(Factor factor, auto&& f) {
  switch (factor) {
    case Factor::bf16:
      return f(Bf16{});
    case Factor::f16:
      return f(F16{});
    case Factor::tf32:
      return f(Tf32{});
    case Factor::e4m3:
      return f(TensorFp8<__nv_fp8_e4m3, -6>{});
    case Factor::e5m2:
      return f(TensorFp8<__nv_fp8_e5m2, -14>{});
    case Factor::s8:
      return f(TensorInt8<int8_t>{});
    case Factor::u8:
      return f(TensorInt8<uint8_t>{});
  }
}

/// A type, by its code in the instruction descriptor.
template <class T>
struct Coded {
  uint32_t code;
  T type;
  const char* name;
};
/// What D's 32-bit cells hold: an fp16 is in the low half, with zeros above it.
enum class Sums : uint8_t { fp16, fp32, s32 };

inline constexpr Coded<Factor> kFp16Factors[] = {{0, Factor::f16, "fp16"},
                                                 {1, Factor::bf16, "bf16"}};
inline constexpr Coded<Factor> kTf32Factors[] = {{2, Factor::tf32, "tf32"}};
inline constexpr Coded<Factor> kFp8Factors[] = {{0, Factor::e4m3, "e4m3"},
                                                {1, Factor::e5m2, "e5m2"}};
inline constexpr Coded<Factor> kInt8Factors[] = {{0, Factor::u8, "u8"}, {1, Factor::s8, "s8"}};
inline constexpr Coded<Sums> kFloatSums[] = {{0, Sums::fp16, "fp16"}, {1, Sums::fp32, "fp32"}};
inline constexpr Coded<Sums> kFp32Sums[] = {{1, Sums::fp32, "fp32"}};
inline constexpr Coded<Sums> kInt32Sums[] = {{2, Sums::s32, "s32"}};

struct KindOfProduct {
  int k;
  std::span<const Coded<Factor>> factors;
  std::span<const Coded<Sums>> sums;
  bool mixed;     ///< A and B may differ in type
  bool mn_major;  ///< simulated
  bool negates;   ///< the descriptor may negate A and B
  int step;       ///< of n, at least, above 8
  std::string types;
};
/// The kind's row.
inline const KindOfProduct& kind_of(TensorKind kind) {
  static const KindOfProduct kinds[] = {
      {16, kFp16Factors, kFloatSums, false, true, true, 8,
       "fp16 factors, or bf16 ones, and fp32 sums, or fp16 factors and sums"},
      {8, kTf32Factors, kFp32Sums, false, false, true, 8, "tf32 factors and fp32 sums"},
      {32, kFp8Factors, kFloatSums, true, true, true, 8,
       "e4m3 or e5m2 factors and fp32 or fp16 sums"},
      {32, kInt8Factors, kInt32Sums, true, true, false, 16, "u8 or s8 factors and s32 sums"},
  };
  return kinds[static_cast<int>(kind)];
}

// --- rows and columns ----------------------------------------------------------------------------

/// Where a block's rows of D are: `run` rows in consecutive lanes, the next `run_lanes` on. The
/// columns are in `parts` equal parts, `part_lanes` apart in lanes. In each part, row r of an A in
/// tensor memory is in the lane of D's row r.
struct RowsOfProduct {
  int m, blocks;
  bool ws;
  int step;  ///< of n, which is at most 256; with .ws 64, 128 or 256
  int rows;  ///< of a block
  int run, run_lanes, parts, part_lanes;

  bool half_lanes() const { return run < run_lanes; }  ///< 16 lanes of each 32, from 0 or 16 on
};
inline constexpr RowsOfProduct kRowsOfProducts[] = {
    {64, 1, false, 8, 64, 16, 32, 1, 0},       // layout F
    {128, 1, false, 16, 128, 128, 128, 1, 0},  // D
    {128, 2, false, 16, 64, 64, 64, 2, 64},    // B
    {256, 2, false, 16, 128, 128, 128, 1, 0},  // A
    {32, 1, true, 64, 32, 32, 32, 4, 32},      // G
    {64, 1, true, 64, 64, 64, 64, 2, 64},      // E
    {128, 1, true, 64, 128, 128, 128, 1, 0},   // D
};

constexpr int kMostColumns = 256;  ///< n

/// A decoded instruction descriptor.
struct Instruction {
  const KindOfProduct* kind;
  const RowsOfProduct* rows;
  Factor a_type, b_type;
  Sums sums;
  int n;
  fa::Major a, b;
  bool negative;  ///< - A B

  int width() const { return n / rows->parts; }  ///< columns of D in tensor memory
};
/// Finding unless the kind has these types, rows and columns.
Instruction decode_instruction(const TensorProduct&, const Where&);

}  // namespace sim
