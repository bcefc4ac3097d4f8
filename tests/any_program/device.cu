// What a program asks of the device: properties, attributes, limits, occupancy.
#include <string.h>

#include "check.h"

__global__ void kernel(int* out) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

int main() {
  int count = 0, device = -1, value = 0;
  CHECK(cudaGetDeviceCount(&count));
  EXPECT(count >= 1);
  CHECK(cudaSetDevice(0));
  CHECK(cudaGetDevice(&device));
  EXPECT(device == 0);
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, device));
  EXPECT(strlen(p.name) > 0 && p.major >= 8 && p.warpSize == 32);
  EXPECT(p.maxThreadsPerBlock == 1024 && p.maxThreadsDim[0] == 1024 && p.maxThreadsDim[2] == 64);
  EXPECT(p.maxGridSize[0] == 0x7fffffff && p.maxGridSize[1] == 65535);
  EXPECT(p.sharedMemPerBlock == 48 * 1024 && p.totalConstMem == 64 * 1024);
  EXPECT(p.sharedMemPerBlockOptin > p.sharedMemPerBlock);
  EXPECT(p.sharedMemPerMultiprocessor == p.sharedMemPerBlockOptin + p.reservedSharedMemPerBlock);
  EXPECT(p.regsPerBlock == 65536 && p.totalGlobalMem > (1ull << 30) && p.l2CacheSize > 0);
  EXPECT(p.multiProcessorCount > 0 && p.maxThreadsPerMultiProcessor % 32 == 0);
  EXPECT(p.memoryBusWidth > 0 && p.cooperativeLaunch == 1 && p.managedMemory == 1);

  const struct {
    cudaDeviceAttr attribute;
    int expected;
  } rows[] = {
      {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
      {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrComputeCapabilityMajor, p.major},
      {cudaDevAttrComputeCapabilityMinor, p.minor},
      {cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)p.sharedMemPerMultiprocessor},
      {cudaDevAttrL2CacheSize, p.l2CacheSize},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrPageableMemoryAccess, p.pageableMemoryAccess},
      {cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0},
      {cudaDevAttrClusterLaunch, p.major >= 9},
  };
  for (const auto& row : rows) {
    CHECK(cudaDeviceGetAttribute(&value, row.attribute, device));
    EXPECT(value == row.expected);
  }
  CHECK(cudaInitDevice(0, cudaDeviceScheduleAuto, 0));
  size_t free = 0, total = 0, stack = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  EXPECT(free > 0 && free <= total && total <= p.totalGlobalMem);
  CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  EXPECT(stack > 0);
  CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  EXPECT(driver >= runtime && runtime >= 11000);

  // Blocks of 256 threads: threads limit them, or 100 KiB of shared memory does.
  int blocks = 0, grid = 0, block = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
  EXPECT(blocks == p.maxThreadsPerMultiProcessor / 256);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 100 * 1024));
  EXPECT(blocks == (int)(p.sharedMemPerMultiprocessor / (101 * 1024)));
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, kernel, 0, 0));
  EXPECT(block >= 128 && block <= 1024 && block % 32 == 0 && grid % p.multiProcessorCount == 0);
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, kernel));
  EXPECT(attributes.maxThreadsPerBlock == 1024 && attributes.numRegs > 0);
  CHECK(cudaFuncSetCacheConfig(kernel, cudaFuncCachePreferL1));

  int *out, host[64];
  CHECK(cudaMalloc(&out, sizeof host));
  kernel<<<1, 64, 64 * sizeof(int)>>>(out);
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 64; ++i) EXPECT(host[i] == 63 - i);
  CHECK(cudaFree(out));
  CHECK(cudaDeviceReset());
  return verdict();
}
