// printf in a kernel: its text and the program's appear in the order of the synchronisation.
#include "check.h"

__global__ void hello(const char* name, float x) {
  if (threadIdx.x == 2) {
    printf("block %d, thread %d: %s %5.2f %lu %c%%\n", blockIdx.x, threadIdx.x, name, x,
           (unsigned long)gridDim.x, 'z');
  }
}
__device__ const char text[] = "from the device";

__global__ void from_device() { printf("%s\n", text); }

int main() {
  char* name;
  CHECK(cudaMallocManaged(&name, 8));
  snprintf(name, 8, "hello");
  printf("before\n");
  hello<<<1, 4>>>(name, 1.25f);
  CHECK(cudaDeviceSynchronize());
  printf("between\n");
  from_device<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(name));
  return verdict();
}
