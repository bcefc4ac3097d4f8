/// \file
/// What tcgen05.mma multiplies, as data: types, k, rows, columns, and where D is in tensor memory
/// (PTX ISA 9.7.16.2 "Matrix Shape", 9.7.16.4.2 "Instruction Descriptor", 9.7.16.10.5 "Data Path
/// Layout Organization"). Instructions, checks and messages read these tables. Private to
/// instructions/.
#pragma once

#include <cmath>
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
  static float value(uint32_t bits) {
    return static_cast<float>(bits);
  }  // two e2m1, to be unpacked
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
/// A float of 4 or 6 bits. In a byte of tensor memory it is in the middle (CUTLASS's
/// cp_narrow_a_to_tmem_mma.py); 16 of them begin a chunk of shared memory, whose rest is not used.
template <int exponent_bits, int mantissa_bits>
struct TensorNarrow : OneByte {
  static constexpr int kPacked = 1 + exponent_bits + mantissa_bits, kShift = (8 - kPacked) / 2;
  static constexpr fa::TensorSum kSum{32, 25, 23, 2 - (1 << (exponent_bits - 1)), -133};
  static float value(uint32_t bits) {
    const int code = bits >> kShift & ((1 << kPacked) - 1);
    const int e = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int whole = (code & ((1 << mantissa_bits) - 1)) + ((e > 0) << mantissa_bits);
    const float x = std::ldexp(float(whole), kSum.least_exponent + (e ? e - 1 : 0) - mantissa_bits);
    return code >> (kPacked - 1) ? -x : x;
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
    case Factor::e2m3:
      return f(TensorNarrow<2, 3>{});
    case Factor::e3m2:
      return f(TensorNarrow<3, 2>{});
    case Factor::e2m1:
      return f(TensorNarrow<2, 1>{});
    case Factor::e2m1x2:
      return f(OneByte{});
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
inline constexpr Coded<Factor> kSmallFactors[] = {{0, Factor::e4m3, "e4m3"},
                                                  {1, Factor::e5m2, "e5m2"},
                                                  {3, Factor::e2m3, "e2m3"},
                                                  {4, Factor::e3m2, "e3m2"},
                                                  {5, Factor::e2m1, "e2m1"}};
inline constexpr Coded<Factor> kFp4Factors[] = {{1, Factor::e2m1x2, "e2m1"}};
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
  /// Scales of a row by block: the possible n of scale_vec::nX, by bits, and the default; 0: none.
  int vectors = 0, vector = 0;
  const char* name = "";

  bool scaled() const { return vectors != 0; }
};
/// The kind's row.
inline const KindOfProduct& kind_of(TensorKind kind) {
  static const KindOfProduct kinds[] = {
      {16, kFp16Factors, kFloatSums, false, true, true, 8,
       "fp16 factors, or bf16 ones, and fp32 sums, or fp16 factors and sums"},
      {8, kTf32Factors, kFp32Sums, false, false, true, 8, "tf32 factors and fp32 sums"},
      {32, kSmallFactors, kFloatSums, true, true, true, 8,
       "e4m3, e5m2, e2m3, e3m2 or e2m1 factors and fp32 or fp16 sums"},
      {32, kInt8Factors, kInt32Sums, true, true, false, 16, "u8 or s8 factors and s32 sums"},
      {32, kSmallFactors, kFp32Sums, true, true, true, 8,
       "e4m3, e5m2, e2m3, e3m2 or e2m1 factors and ue8m0 scales", 1, 1, "mxf8f6f4"},
      {64, kFp4Factors, kFp32Sums, false, false, true, 8, "e2m1 factors and ue8m0 scales", 2, 2,
       "mxf4"},
      {64, kFp4Factors, kFp32Sums, false, false, true, 8,
       "e2m1 factors and ue8m0 scales, or ue4m3 ones with scale_vec::4X", 2 | 4, 0, "mxf4nvf4"},
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

/// What tcgen05.cp copies, by TensorCopy: `rows` of `chunks` chunks of 16 bytes, of which runs of
/// `run` rows are in consecutive lanes and the next ones `step` on, `copies` times, `every` lanes
/// apart (9.7.16.9.2; cute::Copy_Traits<SM100_UTCCP_...>).
struct CopyShape {
  const char* name;
  int rows, chunks, run, step, copies, every;
};
inline constexpr CopyShape kCopies[] = {
    {"128x256b", 128, 2, 128, 0, 1, 0},
    {"4x256b", 4, 2, 1, 32, 1, 0},
    {"128x128b", 128, 1, 128, 0, 1, 0},
    {"64x128b.warpx2::02_13", 64, 1, 64, 0, 2, 64},
    {"64x128b.warpx2::01_23", 64, 1, 32, 64, 2, 32},
    {"32x128b.warpx4", 32, 1, 32, 0, 4, 32},
};

/// The scales of an operand. That of row r of A, or of a column r of a part of B, and of block j is
/// byte id + j of column r / 32 of tensor memory, in lane r % 32 of the quarter of the lanes that
/// has the row or part of D (9.7.16.10.7 "Block Scaling"; cute::UMMA::tmem_sf_frg).
struct Scales {
  bool ue8m0;
  int id;
  float value(uint32_t byte) const {
    if (!ue8m0) return TensorFp8<__nv_fp8_e4m3, -6>::value(byte & 0x7f);
    return byte == 0xff ? NAN : std::ldexp(1.f, static_cast<int>(byte) - 127);
  }
};

/// A decoded instruction descriptor.
struct Instruction {
  const KindOfProduct* kind;
  const RowsOfProduct* rows;
  Factor a_type, b_type;
  Sums sums;
  int n;
  fa::Major a, b;
  bool negative;  ///< - A B
  int vector;     ///< scales of a row; 0: none
  Scales scales_a, scales_b;

  int width() const { return n / rows->parts; }  ///< columns of D in tensor memory
};
/// Finding unless the kind has these types, rows and columns.
Instruction decode_instruction(const TensorProduct&, const Where&);

}  // namespace sim
