// Group atomics -- fp32 additions in the L2 per clock. A warp adds to 128 bytes.
// Measured  red_sm: 32 warps of one SM that wait for no result, the rate of its path to the adders.
//           red_gpu: all SMs, the rate of the L2's adders
// Watch     additions without a result are still in flight when the kernel's clock stops; the
//           slope hides that. red_gpu is in seconds, times the clock of one busy warp
#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kWarpBytes = 4096;  // between the addresses of two warps
constexpr int kStep = 128;        // between those of a round

/// Adds 1.f, each warp of the grid to its own addresses. Nothing waits.
struct Additions {
  float* base;
  char* at = nullptr;
  __device__ void begin(char*) {
    const size_t thread = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    at = reinterpret_cast<char*>(base) + thread / kWarp * kWarpBytes + thread % kWarp * 4;
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      asm volatile("red.global.add.f32 [%0], 0f3F800000;" ::"l"(at + u * kStep) : "memory");
    }
  }
  __device__ uint32_t result() const { return 0; }
};

}  // namespace

void measure_atomics() {
  const int sms = multiprocessors();
  const Buffer<float> sums(size_t{kWarpBytes} / sizeof(float) * kMaxWarps * sms);
  const Additions red{sums.data};
  const std::string what = "32 lanes add to 128 bytes, each warp elsewhere";
  report("red_sm_line", round_clocks(red, kMaxWarps, 32) / (kMaxWarps * kUnrolled), kClocks,
         "of one SM alone for a warp's fp32 RED; " + what);
  report(
      "red_gpu_line", round_seconds(red, 16) * clock_hz / (double{kMaxWarps} * kUnrolled * sms),
      kClocks,
      "of the whole GPU (seconds x sm_clock_hz) for one warp's fp32 RED, all SMs at it; " + what);
}

}  // namespace fa::microbenchmarks
