// Group launch -- what a kernel launch costs the GPU, and each block of it.
// Measured  events around 1 .. 4 launches of an empty kernel, behind a kernel that holds the stream
//           while the host queues them. Medians of 21. The slope of the least-squares line is one
//           kernel in a sequence, its offset what the events add. block_start: the slope from 1320
//           to 13200 blocks, per SM
// Watch     a host that needs longer than the hold (about 200 us) shows its own time
#include <algorithm>
#include <utility>

#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

__global__ void empty_kernel() {}

__global__ void hold_kernel(long long clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

/// Median seconds of `launches` empty kernels.
double sequence_seconds(int launches, int blocks, size_t shared_bytes) {
  std::vector<double> seconds(21);
  for (double& x : seconds) {
    hold_kernel<<<1, 1>>>(400'000);
    x = seconds_of([&] {
      for (int i = 0; i < launches; ++i) empty_kernel<<<blocks, 128, shared_bytes>>>();
      cuda_check(cudaGetLastError());
    });
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[10];
}

struct Line {
  double slope, offset;
};

/// Seconds of n launches = slope * n + offset, for n = 1 .. 4.
Line launch_line(int blocks, size_t shared_bytes) {
  double sum_y = 0, sum_xy = 0;
  for (int n = 1; n <= 4; ++n) {
    const double y = sequence_seconds(n, blocks, shared_bytes);
    sum_y += y;
    sum_xy += (n - 2.5) * y;
  }
  const double slope = sum_xy / 5;  // sum of (n - 2.5)^2 = 5
  return {slope, sum_y / 4 - 2.5 * slope};
}

/// `suffix` of the figures' names; `each`: what their blocks have besides threads.
void measure_grids(size_t shared_bytes, const std::string& suffix, const std::string& each) {
  double before = 0, last = 0;  // slopes of the two largest grids
  for (const int blocks : {1, 132, 1320, 13200}) {
    const Line line = launch_line(blocks, shared_bytes);
    before = std::exchange(last, line.slope);
    const std::string name = std::to_string(blocks) + suffix;
    const std::string what = "; blocks of 128 threads" + each + ": " + std::to_string(blocks);
    report("launch_" + name, line.slope * 1e6, "us",
           "for one more empty kernel in a stream" + what);
    report("launch_offset_" + name, line.offset * 1e6, "us", "that two events add" + what);
  }
  report("block_start" + suffix, (last - before) * clock_hz / (13200 - 1320) * multiprocessors(),
         kClocks, "of one SM for one more block of 128 threads" + each + " that returns at once");
}

}  // namespace

void measure_launch() {
  measure_grids(0, "", "");
  const int large = 100 << 10;
  if (static_cast<size_t>(large) > shared_memory_per_block()) return;  // a GPU with 64 or 99 KB
  cuda_check(
      cudaFuncSetAttribute(empty_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, large));
  measure_grids(large, "_100KB", " and 100 KB of shared memory");
}

}  // namespace fa::microbenchmarks
