// A barrier of the grid: results that need it, in a cooperative launch whose blocks all fit. What
// does not fit is refused.
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

// Pointer jumping: each round reads what other blocks wrote in the one before.
__global__ void prefix_sums(int* a, int* b, int n) {
  cg::grid_group grid = cg::this_grid();
  const int i = (int)grid.thread_rank();
  for (int distance = 1; distance < n; distance *= 2) {
    if (i < n) b[i] = a[i] + (i >= distance ? a[i - distance] : 0);
    grid.sync();
    int* swap = a;
    a = b, b = swap;
  }
}
__global__ void ranks(int* out) {
  cg::grid_group grid = cg::this_grid();
  out[grid.thread_rank()] = (int)grid.size();
}

int main() {
  const int n = 500, bytes = 512 * sizeof(int);
  int *a, *b, host[512];
  CHECK(cudaMalloc(&a, bytes));
  CHECK(cudaMalloc(&b, bytes));
  for (int i = 0; i < 512; ++i) host[i] = i % 7;
  CHECK(cudaMemcpy(a, host, bytes, cudaMemcpyHostToDevice));
  int count = n;
  void* args[] = {&a, &b, &count};
  CHECK(cudaLaunchCooperativeKernel((void*)prefix_sums, dim3(8), dim3(64), args, 0, 0));
  CHECK(cudaGetLastError());
  // 9 rounds: the sums lie in b.
  CHECK(cudaMemcpy(host, b, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0, sum = 0; i < n; ++i) {
    sum += i % 7;
    EXPECT(host[i] == sum);
  }

  // Without a barrier the grid is there in a plain launch, too.
  ranks<<<4, 128>>>(a);
  CHECK(cudaMemcpy(host, a, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 512; ++i) EXPECT(host[i] == 512);

  EXPECT(cudaLaunchCooperativeKernel((void*)prefix_sums, dim3(100000), dim3(64), args, 0, 0) ==
         cudaErrorCooperativeLaunchTooLarge);
  EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaMemset(a, 0, bytes));
  CHECK(cudaFree(a));
  CHECK(cudaFree(b));
  return verdict();
}
