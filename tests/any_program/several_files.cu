// Several files: kernels here, main() in a .cpp, a helper in a .c. Run with all three.
#include "several_files.h"

#include "check.h"

int calls = 0;

static __global__ void twice(int* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int a[40000];  // more than a simulated thread's stack has; the other files need less
  for (int k = 0; k < n; ++k) a[k] = k;
  if (i < n) p[i] += a[i];
}

void double_on_device(int* host, int n) {
  int* p;
  CHECK(cudaMalloc(&p, n * sizeof(int)));
  CHECK(cudaMemcpy(p, host, n * sizeof(int), cudaMemcpyHostToDevice));
  twice<<<(n + 31) / 32, 32>>>(p, n);
  CHECK(cudaMemcpy(host, p, n * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaFree(p));
  calls += 1 + 100 * wrong;
}
