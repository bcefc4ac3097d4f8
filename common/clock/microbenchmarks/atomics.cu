// Group atomics -- fp32 additions in the L2: how long one takes, and how many there are.
// Measured  latency: one warp whose next address depends on the old value. red_sm: 32 warps of one
//           SM that never wait for an answer, the rate of its path to the adders. red_gpu: all SMs,
//           the rate of the L2's adders
// Addresses line: a warp adds to 128 bytes. rows8: to 32 bytes of each of 4 rows. same: all lanes
//           of all warps to one address
// Watch     additions without an answer are still under way when the kernel's clock stops; the
//           slope hides that. red_gpu is in seconds, times the clock of one busy warp
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"
#include "common/clock/microbenchmarks/requests.h"

namespace fa::microbenchmarks {

namespace {

/// Float additions of 1. With the old value: the next address depends on it (`zero`). Without:
/// nothing waits. Warp w of the grid begins at w * warp_step; those of a round are u_step apart.
template <bool returns, int u_step>
struct Atomics {
  float* base;
  Lanes lanes;
  int warp_step;
  uint32_t zero;
  uint32_t old = 0;
  char* at = nullptr;
  __device__ void begin(char*) {
    const size_t warp = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
    at = reinterpret_cast<char*>(base) + warp * warp_step + lanes.offset();
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if constexpr (returns) {
        asm volatile("atom.global.add.f32 %0, [%1], 0f3F800000;"
                     : "=r"(old)
                     : "l"(at + u * u_step)
                     : "memory");
        at += old & zero;
      } else {
        asm volatile("red.global.add.f32 [%0], 0f3F800000;" ::"l"(at + u * u_step) : "memory");
      }
    }
  }
  __device__ uint32_t result() const { return old; }
};

constexpr int kWarpBytes = 4096;  // between the addresses of two warps, unless they share them

template <int u_step>
void measure_addresses(const std::string& name, const Pattern& p, int warp_step,
                       const std::string& what) {
  const int sms = multiprocessors();
  const Buffer<float> sums(size_t{kWarpBytes} / sizeof(float) * kMaxWarps * sms);
  const Atomics<true, u_step> atom{sums.data, Lanes(p), warp_step, 0};
  const Atomics<false, u_step> red{sums.data, Lanes(p), warp_step, 0};
  report("latency_atomic_" + name, round_clocks(atom, 1, 32) / kUnrolled, kClocks,
         "of a warp's dependent fp32 atomicAdd whose result is used; " + what);
  report("red_sm_" + name, round_clocks(red, kMaxWarps, 32) / (kMaxWarps * kUnrolled), kClocks,
         "of one SM alone for a warp's fp32 RED; " + what);
  report(
      "red_gpu_" + name, round_seconds(red, 16) * clock_hz / (double{kMaxWarps} * kUnrolled * sms),
      kClocks,
      "of the whole GPU (seconds x sm_clock_hz) for one warp's fp32 RED, all SMs at it; " + what);
}

}  // namespace

void measure_atomics() {
  measure_addresses<128>("line", {"", 32, 4, 0}, kWarpBytes,
                         "32 lanes add to 128 bytes, each warp elsewhere");
  measure_addresses<32>("rows8", {"", 8, 4, 256}, kWarpBytes,
                        "4 rows 256 B apart, 8 lanes add to 32 B of each");
  measure_addresses<0>("same", {"", 32, 0, 0}, 0, "all lanes of all warps add to one address");
}

}  // namespace fa::microbenchmarks
