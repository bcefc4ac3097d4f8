// Group shared -- the cost of a warp's shared load or store to its SM, by width and pattern.
// Measured  clocks per request in the steady state of 32 warps with 8 independent requests each
// Expected  4 bytes per lane, 128 bytes apart, are a 32-way bank conflict
// Watch     ptxas merges neighbouring requests of a thread: those of a round are 1 KB apart
#include "common/gpu/microbenchmarks/measure.h"
#include "common/gpu/microbenchmarks/requests.h"

namespace fa::microbenchmarks {

namespace {

/// Independent requests of `words` words per lane.
template <int words, bool stores>
struct Shared {
  int step, zero;
  uint32_t at = 0, sum = 0;
  __device__ void begin(char* shared) {
    for (int i = threadIdx.x * 4; i < kHotBytes; i += blockDim.x * 4) {
      *reinterpret_cast<uint32_t*>(shared + i) = i;
    }
    at = shared_address(shared + lane_offset(step));
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      const uint32_t address = at + u * kRequestStep;
      if constexpr (stores) store<Space::shared, words>(nullptr, address, at);
      if constexpr (!stores) sum ^= load<Space::shared, words>(nullptr, address);
    }
    at += zero;
  }
  __device__ uint32_t result() const { return sum; }
};

template <int words, bool stores>
void measure_patterns() {
  const std::string width = std::to_string(4 * words), kind = stores ? "store" : "load";
  for (const Pattern& p : patterns_of(4 * words)) {
    const Shared<words, stores> op{p.step, 0};
    report("shared_" + kind + "_w" + width + "_" + p.name,
           round_clocks(op, kMaxWarps, 64, kHotBytes) / (kMaxWarps * kUnrolled), kClocks,
           "of one SM for a warp's shared " + kind + "; " + width +
               " bytes per lane, lanes: " + p.name);
  }
}

}  // namespace

void measure_shared() {
  measure_patterns<1, false>();
  measure_patterns<4, false>();
  measure_patterns<1, true>();
  measure_patterns<4, true>();
}

}  // namespace fa::microbenchmarks
