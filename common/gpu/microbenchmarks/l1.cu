// Group l1 -- the cost of a warp's global load or store to its SM, by width and pattern.
// Measured  clocks per request in the steady state of 32 warps with 8 independent requests each:
//           the request path limits, neither latency nor issue
// Loads     hit in L1; all stores continue to the L2
// Watch     one SM alone: stores of all SMs together may reach a limit of the L2 first
#include "common/gpu/microbenchmarks/measure.h"
#include "common/gpu/microbenchmarks/requests.h"

namespace fa::microbenchmarks {

namespace {

/// Independent requests. The first touch fills L1; `zero` keeps the requests in the loop.
template <int words, bool stores>
struct Global {
  char* base;  // [kHotBytes]
  int step;
  int zero;
  uint32_t sum = 0;
  __device__ void begin(char*) {
    for (int i = threadIdx.x * 4; i < kHotBytes; i += blockDim.x * 4) {
      sum ^= load<Space::global, 1>(base + i, 0);
    }
    base += lane_offset(step);
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      char* const at = base + u * kRequestStep;
      if constexpr (stores) store<Space::global, words>(at, 0, sum);
      if constexpr (!stores) sum ^= load<Space::global, words>(at, 0);
    }
    base += zero;
  }
  __device__ uint32_t result() const { return sum; }
};

template <int words, bool stores>
void measure_patterns() {
  const std::string name = stores ? "global_store" : "l1_load";
  const Buffer<char> hot(2 * kHotBytes);
  const std::string width = std::to_string(4 * words);
  for (const Pattern& p : patterns_of(4 * words)) {
    const Global<words, stores> op{hot.data, p.step, 0};
    report(name + "_w" + width + "_" + p.name,
           round_clocks(op, kMaxWarps, 64) / (kMaxWarps * kUnrolled), kClocks,
           std::string("of one SM for a warp's ") + (stores ? "global store" : "load from L1") +
               "; " + width + " bytes per lane, lanes: " + p.name);
  }
}

}  // namespace

void measure_l1() {
  measure_patterns<1, false>();
  measure_patterns<4, false>();
  measure_patterns<1, true>();
  measure_patterns<4, true>();
}

}  // namespace fa::microbenchmarks
