/// \file
/// wgmma of more widths than ../wgmma.h, multiples of 32 up to 256, and with A in either order.
#pragma once

#include "common/dialect/ptx/registers.h"
#include "common/dialect/ptx/wgmma.h"

namespace fa {

#if defined(__CUDACC__)

// One asm statement per width, which needs its registers spelled out.
#define FA_ARGS(...) __VA_ARGS__

/// wgmma.mma_async m64nNk16 of one width N; see wgmma() below.
template <int N>
struct WgmmaOfWidth;

// in0 .. in6: the names of the operands after the N / 2 accumulators.
#define FA_WGMMA(N, REGS, ACCS, in0, in1, in2, in3, in4, in5, in6)                               \
  template <>                                                                                    \
  struct WgmmaOfWidth<N> {                                                                       \
    template <Major a_major, Major b_major>                                                      \
    static FA_PTX void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " in2                                         \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGS "}, " in0   \
                   ", " in1 ", p, 1, 1, " in3 ", " in4 "; }"                                     \
                   : ACCS                                                                        \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)),                          \
                     "n"(static_cast<int>(a_major)), "n"(static_cast<int>(b_major))              \
                   : "memory");                                                                  \
    }                                                                                            \
    template <Major b_major>                                                                     \
    static FA_PTX void from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,     \
                                      bool accumulate) {                                         \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " in5                                         \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGS "}, {" in0  \
                   "," in1 "," in2 "," in3 "}, " in4 ", p, 1, 1, " in6 "; }"                     \
                   : ACCS                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                         \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(b_major))           \
                   : "memory");                                                                  \
    }                                                                                            \
  };

// clang-format off
FA_WGMMA(32, FA_REGS_16, FA_ARGS(FA_OPERANDS_16("+f", d)), "%16", "%17", "%18", "%19", "%20", "%21", "%22")
FA_WGMMA(64, FA_REGS_32, FA_ARGS(FA_OPERANDS_32("+f", d)), "%32", "%33", "%34", "%35", "%36", "%37", "%38")
FA_WGMMA(96, FA_REGS_48, FA_ARGS(FA_OPERANDS_48("+f", d)), "%48", "%49", "%50", "%51", "%52", "%53", "%54")
FA_WGMMA(128, FA_REGS_64, FA_ARGS(FA_OPERANDS_64("+f", d)), "%64", "%65", "%66", "%67", "%68", "%69", "%70")
FA_WGMMA(160, FA_REGS_80, FA_ARGS(FA_OPERANDS_80("+f", d)), "%80", "%81", "%82", "%83", "%84", "%85", "%86")
FA_WGMMA(192, FA_REGS_96, FA_ARGS(FA_OPERANDS_96("+f", d)), "%96", "%97", "%98", "%99", "%100", "%101", "%102")
FA_WGMMA(224, FA_REGS_112, FA_ARGS(FA_OPERANDS_112("+f", d)), "%112", "%113", "%114", "%115", "%116", "%117", "%118")
FA_WGMMA(256, FA_REGS_128, FA_ARGS(FA_OPERANDS_128("+f", d)), "%128", "%129", "%130", "%131", "%132", "%133", "%134")
// clang-format on

/// As wgmma() there, with N = 2 r columns; A at wgmma_offset(a, a_major, m, k).
template <Major a_major = Major::k, Major b_major = Major::k, int r>
FA_PTX void wgmma(float (&d)[r], uint64_t a, uint64_t b, bool accumulate = true) {
  WgmmaOfWidth<2 * r>::template from_shared<a_major, b_major>(d, a, b, accumulate);
}
/// As above with A from registers: a[i / 2].half[i % 2] = A at wgmma_a_element(thread, i).
template <Major b_major = Major::k, int r>
FA_PTX void wgmma(float (&d)[r], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
  WgmmaOfWidth<2 * r>::template from_registers<b_major>(d, a, b, accumulate);
}

#elif !FA_BACKEND_GPU

template <Major a_major = Major::k, Major b_major = Major::k, int r>
FA_PTX void wgmma(float (&d)[r], uint64_t a, uint64_t b, bool accumulate = true, FA_WHERE) {
  static_assert(r % 16 == 0 && r <= 128);
  sim::wgmma(d,
             {.n = 2 * r,
              .a = a,
              .b = b,
              .a_mn_major = a_major == Major::mn,
              .b_mn_major = b_major == Major::mn,
              .accumulate = accumulate},
             where);
}
template <Major b_major = Major::k, int r>
FA_PTX void wgmma(float (&d)[r], const uint32_t (&a)[4], uint64_t b, bool accumulate = true,
                  FA_WHERE) {
  static_assert(r % 16 == 0 && r <= 128);
  sim::wgmma(d,
             {.n = 2 * r,
              .a_registers = a,
              .b = b,
              .b_mn_major = b_major == Major::mn,
              .accumulate = accumulate},
             where);
}

#endif

}  // namespace fa
