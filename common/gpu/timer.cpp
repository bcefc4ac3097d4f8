#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"
#include "common/dialect/errors.h"
#include "common/gpu/l2_flush.h"
#include "common/gpu/under_tool.h"

namespace fa {

namespace {

constexpr double kAllMs = 500;  // of all timed runs, where the caller gives no number
constexpr int kMostIters = 50;

class Event {
 public:
  Event() { cuda_check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { cuda_check(cudaEventRecord(event_)); }
  double ms_since(const Event& start) const {
    cuda_check(cudaEventSynchronize(event_));
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, start.event_, event_));
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Runs until three consecutive batches agree within 1%: an idle GPU clocks low and takes a while
/// to speed up, and a busy one may slow down again to stay within its power limit.
/// \returns milliseconds per run
double warm_up(const std::function<void()>& run) {
  constexpr double kAtLeastMs = 100, kAtMostMs = 1000, kBatchMs = 20;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed_ms = [&] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  Event start, stop;
  std::array<double, 3> last{};  // ms of one run, the newest first
  int runs = 1;
  for (bool steady = false; !steady && elapsed_ms() < kAtMostMs;) {
    start.record();
    for (int i = 0; i < runs; ++i) run();
    stop.record();
    last = {stop.ms_since(start) / runs, last[0], last[1]};
    const auto [least, most] = std::minmax_element(last.begin(), last.end());
    steady = elapsed_ms() > kAtLeastMs && *least > 0 && *most <= 1.01 * *least;
    runs = static_cast<int>(std::clamp(kBatchMs / std::max(last[0], 1e-3), 1.0, 500.0));
  }
  return last[0];
}

}  // namespace

// Every run gets the same tensors. The sweep keeps a run from finding its operands in the L2, and
// gives the host time to queue the step's launches, so the events do not measure the host.
std::optional<Timing> time_gpu(const std::function<void()>& run, int iters,
                               const std::function<void()>& before_last) {
  if (iters < 0) throw UsageError("timing needs at least one run");
  if (gpu::under_tool()) return std::nullopt;
  const gpu::L2Sweep sweep;
  const double one_ms = warm_up(run);
  if (iters == 0) iters = int(std::clamp(kAllMs / std::max(one_ms, 1e-3), 3.0, double(kMostIters)));

  std::vector<Event> start(iters), stop(iters);
  for (int i = 0; i < iters; ++i) {
    if (i == iters - 1) before_last();
    sweep();
    start[i].record();
    run();
    stop[i].record();
  }
  std::vector<double> ms(iters);
  for (int i = 0; i < iters; ++i) ms[i] = stop[i].ms_since(start[i]);
  cuda_check(cudaDeviceSynchronize());
  return timing_of(std::move(ms));
}

}  // namespace fa
