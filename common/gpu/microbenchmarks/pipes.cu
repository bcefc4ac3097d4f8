// Group pipes -- the arithmetic instructions that an SM issues, and the latency of each.
// Measured  rate: 16 warps of 8 independent chains, 32 instructions in flight per scheduler, more
//           than any latency. latency: one warp with one chain of dependent instructions
// Watch     ptxas simplifies: two links of an integer chain would become one instruction, so each
//           also reads its neighbour
#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kChainSteps = 256;  // instructions per round: the loop costs about 1%
constexpr int kWarps = 16, kChains = 8;

enum class Kind { ffma, lop3, ex2, shfl };

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
  __device__ void link(int i) {
    float& x = f[i];
    uint32_t& y = u[i];
    if constexpr (kind == Kind::ffma)
      asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b));
    if constexpr (kind == Kind::lop3)
      asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(y) : "r"(u[(i + 1) % chains]), "r"(c));
    if constexpr (kind == Kind::ex2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    if constexpr (kind == Kind::shfl)
      asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, -1;" : "+r"(y));
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
  measure_rate<Kind::lop3>("lop3", "LOP3");
  measure_rate<Kind::ex2>("ex2", "MUFU.EX2");
  measure_chain<Kind::ffma>("ffma");
  measure_chain<Kind::shfl>("shfl");
}

}  // namespace fa::microbenchmarks
