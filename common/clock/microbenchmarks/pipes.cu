// Group pipes -- how many arithmetic instructions an SM issues, and how long one waits for another.
// Measured  rate: 16 warps of 8 independent chains, 32 instructions in flight per scheduler, more
//           than any latency. latency: one warp with one chain of dependent instructions
// Mixed     ffma_lop3 and ffma_ex2 show which instructions share an issue slot or a pipe
// Watch     ptxas simplifies: two links of an integer chain would become one instruction, so each
//           also reads its neighbour; and 1 / (1 / x) would vanish
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kChainSteps = 256;  // instructions of a round: the loop costs about 1%
constexpr int kWarps = 16, kChains = 8;

enum class Kind { ffma, fadd, fmul, iadd3, lop3, ex2, rcp, shfl, cvt, ffma_lop3, ffma_ex2 };

/// `chains` independent chains of dependent instructions, on f[] (floats) or u[] (integers).
template <Kind kind, int chains>
struct Arithmetic {
  float a, b;
  uint32_t c;
  float f[chains] = {};
  uint32_t u[chains] = {};
  __device__ void begin(char*) {
    for (int i = 0; i < chains; ++i) {
      f[i] = 1.f + static_cast<float>(threadIdx.x + i) * 1e-3f;
      u[i] = threadIdx.x * 77777u + i;
    }
  }
  __device__ void ffma(float& x) {
    asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b));
  }
  __device__ void ex2(float& x) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)); }
  __device__ void lop3(uint32_t& y, uint32_t neighbour) {
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(y) : "r"(neighbour), "r"(c));
  }
  /// The next instruction of chain i.
  __device__ void link(int i) {
    const int next = (i + 1) % chains;
    float& x = f[i];
    uint32_t& y = u[i];
    if constexpr (kind == Kind::ffma) ffma(x);
    if constexpr (kind == Kind::fadd) asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(b));
    if constexpr (kind == Kind::fmul) asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(a));
    if constexpr (kind == Kind::iadd3)
      asm volatile("{ .reg .b32 t; add.u32 t, %0, %1; add.u32 %0, t, %2; }"
                   : "+r"(y)
                   : "r"(u[next]), "r"(c));
    if constexpr (kind == Kind::lop3) lop3(y, u[next]);
    if constexpr (kind == Kind::ex2) ex2(x);
    if constexpr (kind == Kind::rcp)  // of -|x|: ptxas makes nothing of 1 / (1 / x)
      asm volatile("{ .reg .f32 t; abs.f32 t, %0; neg.f32 t, t; rcp.approx.ftz.f32 %0, t; }"
                   : "+f"(x));
    if constexpr (kind == Kind::shfl)
      asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, -1;" : "+r"(y));
    if constexpr (kind == Kind::cvt)
      asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(__uint_as_float(y)), "f"(a));
    if constexpr (kind == Kind::ffma_lop3) {
      if (i % 2 == 0) ffma(x);
      if (i % 2 == 1) lop3(y, u[(i + 2) % chains]);
    }
    if constexpr (kind == Kind::ffma_ex2) {
      if (i != 0) ffma(x);
      if (i == 0) ex2(x);
    }
  }
  __device__ void round() {
    UNROLL
    for (int k = 0; k < kChainSteps; ++k) link(k % chains);
  }
  __device__ uint32_t result() const {
    uint32_t all = 0;
    for (int i = 0; i < chains; ++i) all ^= u[i] ^ __float_as_uint(f[i]);
    return all;
  }
};

template <Kind kind>
void measure_rate(const std::string& name, const std::string& what) {
  const Arithmetic<kind, kChains> op{0.999f, 0.001f, 0x5bd1e995u};
  report("rate_" + name, kWarps * kChainSteps / round_clocks(op, kWarps, 64),
         "warp instructions per clock", "of one SM: " + what);
}

template <Kind kind>
void measure_chain(const std::string& name) {
  const Arithmetic<kind, 1> op{0.999f, 0.001f, 0x5bd1e995u};
  report("latency_" + name, round_clocks(op, 1, 64) / kChainSteps, kClocks,
         "from " + name + " to a dependent one, one warp");
}

}  // namespace

void measure_pipes() {
  measure_rate<Kind::ffma>("ffma", "FFMA");
  measure_rate<Kind::fadd>("fadd", "FADD");
  measure_rate<Kind::fmul>("fmul", "FMUL");
  measure_rate<Kind::iadd3>("iadd3", "IADD3");
  measure_rate<Kind::lop3>("lop3", "LOP3");
  measure_rate<Kind::ex2>("ex2", "MUFU.EX2");
  measure_rate<Kind::rcp>("rcp", "MUFU.RCP");
  measure_rate<Kind::shfl>("shfl", "SHFL.BFLY");
  measure_rate<Kind::cvt>("cvt_bf16x2", "F2FP.BF16 (two floats to a packed pair)");
  measure_rate<Kind::ffma_lop3>("ffma_lop3", "FFMA and LOP3 in turns, both counted");
  measure_rate<Kind::ffma_ex2>("ffma_ex2", "7 FFMA to a MUFU.EX2, both counted");
  measure_chain<Kind::ffma>("ffma");
  measure_chain<Kind::fadd>("fadd");
  measure_chain<Kind::lop3>("lop3");
  measure_chain<Kind::ex2>("ex2");
  measure_chain<Kind::rcp>("rcp");
  measure_chain<Kind::shfl>("shfl");
  measure_chain<Kind::cvt>("cvt_bf16x2");
}

}  // namespace fa::microbenchmarks
