/// \file
/// 8-bit floats, and Hopper's tensor cores on them. e4m3: 1 sign, 4 exponent, 3 mantissa bits; from
/// 2^-9 to 448, no infinity. Types: __nv_fp8_e4m3 and __nv_fp8_e5m2, as in cuda_fp8.h.
#pragma once

#include "common/dialect/ptx/more/wgmma.h"
#if FA_BACKEND_GPU
#include <cuda_fp8.h>
#else
#include "common/dialect/fp8_vocabulary.h"
#endif

namespace fa {

constexpr float kLargestE4m3 = 448;  ///< and the smallest is -448

// Of 1-byte operands, always K-major, two adjacent elements in k occupy the place of a 2-byte one.

/// Element i (0..15) of an A in registers, k = 32: byte i % 4 of register i / 4.
FA_LAYOUT RowCol wgmma_e4m3_a_element(int thread, int i) {
  const RowCol pair = wgmma_a_element(thread, i / 2);
  return {pair.row, pair.col * 2 + i % 2};
}
/// Where element (mn, k) of an operand is, as wgmma_offset() gives it for 2-byte elements.
FA_LAYOUT uint64_t wgmma_e4m3_offset(const WgmmaOperand& o, int mn, int k) {
  return wgmma_offset(o, Major::k, mn, k / 2) + static_cast<uint64_t>(k % 2);
}

#if defined(__CUDACC__)

/// Four floats as one register, x0 in the lowest byte, to nearest even; above 448: 448, NaN: 0x7f.
FA_PTX uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  uint32_t r;
  asm("{ .reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return r;
}

/// wgmma.mma_async m64nNk32 of one width N; see wgmma_e4m3() below.
template <int N>
struct E4m3OfWidth;

// in0 .. in5: the names of the operands after the N / 2 accumulators.
#define FA_WGMMA_E4M3(N, REGS, ACCS, in0, in1, in2, in3, in4, in5)                               \
  template <>                                                                                    \
  struct E4m3OfWidth<N> {                                                                        \
    static FA_PTX void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " in2                                         \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" REGS "}, " in0   \
                   ", " in1 ", p, 1, 1; }"                                                       \
                   : ACCS                                                                        \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                           \
                   : "memory");                                                                  \
    }                                                                                            \
    static FA_PTX void from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,     \
                                      bool accumulate) {                                         \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " in5                                         \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" REGS "}, {" in0  \
                   "," in1 "," in2 "," in3 "}, " in4 ", p, 1, 1; }"                              \
                   : ACCS                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                     "r"(static_cast<int>(accumulate))                                           \
                   : "memory");                                                                  \
    }                                                                                            \
  };

// clang-format off
FA_WGMMA_E4M3(32, FA_REGS_16, FA_ARGS(FA_OPERANDS_16("+f", d)), "%16", "%17", "%18", "%19", "%20", "%21")
FA_WGMMA_E4M3(64, FA_REGS_32, FA_ARGS(FA_OPERANDS_32("+f", d)), "%32", "%33", "%34", "%35", "%36", "%37")
FA_WGMMA_E4M3(96, FA_REGS_48, FA_ARGS(FA_OPERANDS_48("+f", d)), "%48", "%49", "%50", "%51", "%52", "%53")
FA_WGMMA_E4M3(128, FA_REGS_64, FA_ARGS(FA_OPERANDS_64("+f", d)), "%64", "%65", "%66", "%67", "%68", "%69")
FA_WGMMA_E4M3(160, FA_REGS_80, FA_ARGS(FA_OPERANDS_80("+f", d)), "%80", "%81", "%82", "%83", "%84", "%85")
FA_WGMMA_E4M3(192, FA_REGS_96, FA_ARGS(FA_OPERANDS_96("+f", d)), "%96", "%97", "%98", "%99", "%100", "%101")
FA_WGMMA_E4M3(224, FA_REGS_112, FA_ARGS(FA_OPERANDS_112("+f", d)), "%112", "%113", "%114", "%115", "%116", "%117")
FA_WGMMA_E4M3(256, FA_REGS_128, FA_ARGS(FA_OPERANDS_128("+f", d)), "%128", "%129", "%130", "%131", "%132", "%133")
// clang-format on

/// D[64][N] = A[64][32] B[32][N] (+ D when `accumulate`), N = 2 r: e4m3 inputs, added as in
/// tensor_sum(kE4m3Sum), which is not full fp32. Both operands are K-major, 1 byte per element:
/// A at wgmma_e4m3_offset(a, m, k), B at wgmma_e4m3_offset(b, n, k) in shared memory; d[i] = D at
/// wgmma_d_element(thread, i). Fence, commit and wait as for wgmma().
template <int r>
FA_PTX void wgmma_e4m3(float (&d)[r], uint64_t a, uint64_t b, bool accumulate = true) {
  E4m3OfWidth<2 * r>::from_shared(d, a, b, accumulate);
}
/// The same with A from registers: a[i / 4].byte[i % 4] = A at wgmma_e4m3_a_element(thread, i).
template <int r>
FA_PTX void wgmma_e4m3(float (&d)[r], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
  E4m3OfWidth<2 * r>::from_registers(d, a, b, accumulate);
}

#elif !FA_BACKEND_GPU

FA_PTX uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  const auto bits = [](float x) { return uint32_t{__nv_fp8_e4m3(x).__x}; };
  return bits(x0) | bits(x1) << 8 | bits(x2) << 16 | bits(x3) << 24;
}
template <int r>
FA_PTX void wgmma_e4m3(float (&d)[r], uint64_t a, uint64_t b, bool accumulate = true, FA_WHERE) {
  static_assert(r % 16 == 0 && r <= 128);
  sim::wgmma(d, {.factor = sim::Factor::e4m3, .n = 2 * r, .a = a, .b = b, .accumulate = accumulate},
             where);
}
template <int r>
FA_PTX void wgmma_e4m3(float (&d)[r], const uint32_t (&a)[4], uint64_t b, bool accumulate = true,
                       FA_WHERE) {
  static_assert(r % 16 == 0 && r <= 128);
  sim::wgmma(
      d,
      {.factor = sim::Factor::e4m3, .n = 2 * r, .a_registers = a, .b = b, .accumulate = accumulate},
      where);
}

#endif

}  // namespace fa
