// Group launch -- the cost to the GPU of a kernel launch, and of each block of it.
// Measured  events around 1 .. 4 launches of an empty kernel, queued while an earlier kernel holds
//           the stream. Medians of 21. The slope of the least-squares line is one kernel in a
//           sequence, its offset the events' cost. block_start: slope from 1320 to 13200, per SM
// Watch     a host that needs longer than the hold (about 200 us) measures its own time
#include <algorithm>
#include <utility>

#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

__global__ void empty_kernel() {}

__global__ void hold_kernel(long long clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

double sequence_seconds(int launches, int blocks) {
  std::vector<double> seconds(21);
  for (double& x : seconds) {
    hold_kernel<<<1, 1>>>(400'000);
    x = seconds_of([&] {
      for (int i = 0; i < launches; ++i) empty_kernel<<<blocks, 128>>>();
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
Line launch_line(int blocks) {
  double sum_y = 0, sum_xy = 0;
  for (int n = 1; n <= 4; ++n) {
    const double y = sequence_seconds(n, blocks);
    sum_y += y;
    sum_xy += (n - 2.5) * y;
  }
  const double slope = sum_xy / 5;  // sum of (n - 2.5)^2 = 5
  return {slope, sum_y / 4 - 2.5 * slope};
}

}  // namespace

void measure_launch() {
  double before = 0, last = 0;  // slopes of the two largest grids
  for (const int blocks : {1, 132, 1320, 13200}) {
    const Line line = launch_line(blocks);
    before = std::exchange(last, line.slope);
    const std::string count = std::to_string(blocks);
    report("launch_" + count, line.slope * 1e6, "us",
           "for one more empty kernel in a stream; blocks of 128 threads: " + count);
    report("launch_offset_" + count, line.offset * 1e6, "us",
           "that two events add; blocks of 128 threads: " + count);
  }
  report("block_start", (last - before) * clock_hz / (13200 - 1320) * multiprocessors(), kClocks,
         "of one SM for one more block of 128 threads that returns at once");
}

}  // namespace fa::microbenchmarks
