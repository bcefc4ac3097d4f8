// Groups l1 and past_l1 -- what a warp's global load or store costs its SM, by width and pattern.
// Measured  clocks per request in the steady state of 32 warps with 8 independent requests each:
//           the path of the requests limits, not latency and not issue
// Groups    l1: loads that hit in L1. past_l1: the same loads with .cg, which hit in the L2, and
//           stores, which all go on to the L2
// Watch     past_l1 is one SM alone: all SMs together may reach a limit of the L2 first
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"
#include "common/clock/microbenchmarks/requests.h"

namespace fa::microbenchmarks {

namespace {

/// Independent requests. The first touch brings the lines to L1 or L2; `zero` keeps the requests in
/// the loop.
template <Space space, int words, bool stores>
struct Global {
  char* base;  // [kHotBytes]
  Lanes lanes;
  int zero;
  uint32_t sum = 0;
  __device__ void begin(char*) {
    for (int i = threadIdx.x * 4; i < kHotBytes; i += blockDim.x * 4) {
      sum ^= load<space, 1>(base + i, 0);
    }
    base += lanes.offset();
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if constexpr (stores) store<space, words>(base + u * kRequestStep, 0, sum);
      if constexpr (!stores) sum ^= load<space, words>(base + u * kRequestStep, 0);
    }
    base += zero;
  }
  __device__ uint32_t result() const { return sum; }
};

template <Space space, int words, bool stores = false>
void measure_patterns(const std::string& name, const std::string& what) {
  const Buffer<char> hot(2 * kHotBytes);
  const std::string width = std::to_string(4 * words);
  for (const Pattern& p : patterns_of(4 * words)) {
    const Global<space, words, stores> op{hot.data, Lanes(p), 0};
    report(name + "_w" + width + "_" + p.name,
           round_clocks(op, kMaxWarps, 64) / (kMaxWarps * kUnrolled), kClocks,
           "of one SM for a warp's " + what + "; " + width + " bytes per lane, lanes: " + p.name);
  }
}

}  // namespace

void measure_l1() {
  measure_patterns<Space::global, 1>("l1_load", "load from L1");
  measure_patterns<Space::global, 2>("l1_load", "load from L1");
  measure_patterns<Space::global, 4>("l1_load", "load from L1");
}

void measure_past_l1() {
  measure_patterns<Space::global_past_l1, 1>("l2_load", "load from L2");
  measure_patterns<Space::global_past_l1, 4>("l2_load", "load from L2");
  measure_patterns<Space::global, 1, true>("global_store", "global store");
  measure_patterns<Space::global, 2, true>("global_store", "global store");
  measure_patterns<Space::global, 4, true>("global_store", "global store");
}

}  // namespace fa::microbenchmarks
