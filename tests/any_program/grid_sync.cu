// A barrier of the grid: results that need it, in a cooperative launch; a larger grid is refused.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

// Pointer jumping: each round reads what other blocks wrote in the previous one.
__global__ void prefix_sums(int* a, int* b, int n) {
  cg::grid_group grid = cg::this_grid();
  const int i = (int)grid.thread_rank();
  for (int distance = 1; distance < n; distance *= 2) {
    if (i < n) b[i] = a[i] + (i >= distance ? a[i - distance] : 0);
    grid.sync();
    if (!grid.is_valid()) return;
    int* swap = a;
    a = b, b = swap;
  }
}
__global__ void ranks(int* out) {
  cg::grid_group grid = cg::this_grid();
  out[grid.thread_rank()] = (int)grid.size();
}

int main() {
  const int n = 500;
  int *a = room<int>(512), *b = room<int>(512);
  for (int i = 0; i < 512; ++i) a[i] = i % 7;
  int count = n;
  void* args[] = {&a, &b, &count};
  CHECK(cudaLaunchCooperativeKernel((void*)prefix_sums, dim3(8), dim3(64), args, 0, 0));
  done();
  for (int i = 0, sum = 0; i < n; ++i) {
    sum += i % 7;
    EXPECT(b[i] == sum);  // after 9 rounds
  }

  // A plain launch also has a grid group, without a barrier.
  ranks<<<4, 128>>>(a);
  done();
  for (int i = 0; i < 512; ++i) EXPECT(a[i] == 512);

  EXPECT(cudaLaunchCooperativeKernel((void*)prefix_sums, dim3(100000), dim3(64), args, 0, 0) ==
         cudaErrorCooperativeLaunchTooLarge);
  EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
  return verdict();
}
