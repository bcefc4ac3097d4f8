// Group clock -- the clock of the SMs: one warp busy, and all SMs busy with FFMA.
// Measured  clocks (clock64) over nanoseconds (globaltimer) of about 20 ms; the median of 5
// Watch     the globaltimer ticks at least once a microsecond: 1 in 20,000. A card at its power
//           or temperature limit is slower under real load than under FFMA
#include <algorithm>

#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

__device__ long long global_ns() {
  long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

/// Dependent FMA; writes {clocks, nanoseconds} of thread 0. Either clock ends it.
__global__ void __launch_bounds__(1024)
    clock_kernel(Span* spans, float a, uint32_t* sink) {  // [kMaxWarps], [1]
  float x = a;
  const long long ns = global_ns(), start = clock64();
  long long now = ns, end = start;
  while (now - ns < 20'000'000 && end - start < 100'000'000) {
    UNROLL
    for (int k = 0; k < 256; ++k) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(a));
    now = global_ns();
    end = clock64();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) spans[0] = {end - start, now - ns};
  if (x == -1.f) *sink = 1;  // never
}

double hz_of(int blocks, int threads) {
  std::vector<double> hz;
  for (int i = 0; i < kRuns; ++i) {
    launch(clock_kernel, {blocks, threads}, spans_memory(), 0.5f, sink_memory());
    Span span;
    cuda_check(cudaMemcpy(&span, spans_memory(), sizeof span, cudaMemcpyDeviceToHost));
    hz.push_back(1e9 * static_cast<double>(span.start) / static_cast<double>(span.end));
  }
  std::sort(hz.begin(), hz.end());
  return hz[kRuns / 2];
}

}  // namespace

void measure_clock() {
  clock_hz = hz_of(1, kWarp);
  report("sm_clock_hz", clock_hz, "Hz", "SM clock while one warp runs");
  report("sm_clock_loaded_hz", hz_of(multiprocessors(), 1024), "Hz",
         "SM clock while all SMs do FFMA");
}

}  // namespace fa::microbenchmarks
