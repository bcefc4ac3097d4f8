#include "common/gpu/microbenchmarks/measure.h"

#include <algorithm>
#include <utility>

namespace fa::microbenchmarks {

Span* spans_memory() {
  static const Buffer<Span> spans(kMaxWarps);
  return spans.data;
}

uint32_t* sink_memory() {
  static const Buffer<uint32_t> sink(1);
  return sink.data;
}

double clocks_of(int warps, const std::function<void()>& run) {
  run();
  Span spans[kMaxWarps];
  cuda_check(cudaMemcpy(spans, spans_memory(), warps * sizeof(Span), cudaMemcpyDeviceToHost));
  long long start = spans[0].start, end = spans[0].end;
  for (int w = 1; w < warps; ++w) {
    start = std::min(start, spans[w].start);
    end = std::max(end, spans[w].end);
  }
  return static_cast<double>(end - start);
}

double seconds_of(const std::function<void()>& run) {
  static const auto events = [] {
    std::pair<cudaEvent_t, cudaEvent_t> e;
    cuda_check(cudaEventCreate(&e.first));
    cuda_check(cudaEventCreate(&e.second));
    return e;
  }();
  cuda_check(cudaEventRecord(events.first));
  run();
  cuda_check(cudaEventRecord(events.second));
  cuda_check(cudaEventSynchronize(events.second));
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, events.first, events.second));
  return ms * 1e-3;
}

double per_round(int rounds, const std::function<double(int)>& run) {
  double shorter = 1e30, longer = 1e30;
  for (int i = 0; i < kRuns; ++i) {
    shorter = std::min(shorter, run(rounds));
    longer = std::min(longer, run(4 * rounds));
  }
  return (longer - shorter) / (3.0 * rounds);
}

}  // namespace fa::microbenchmarks
