// Queries of the device: properties, attributes, limits, occupancy.
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
      {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxBlockDimZ, 64},
      {cudaDevAttrMaxGridDimX, 0x7fffffff},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrTotalConstantMemory, 65536},
      {cudaDevAttrMaxPitch, 0x7fffffff},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrTextureAlignment, 512},
      {cudaDevAttrGpuOverlap, 1},
      {cudaDevAttrKernelExecTimeout, 0},
      {cudaDevAttrIntegrated, 0},
      {cudaDevAttrCanMapHostMemory, 1},
      {cudaDevAttrComputeMode, cudaComputeModeDefault},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrEccEnabled, p.ECCEnabled},
      {cudaDevAttrGlobalMemoryBusWidth, p.memoryBusWidth},
      {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1},
      {cudaDevAttrGlobalL1CacheSupported, 1},
      {cudaDevAttrLocalL1CacheSupported, 1},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrIsMultiGpuBoard, 0},
      {cudaDevAttrConcurrentManagedAccess, 1},
      {cudaDevAttrComputePreemptionSupported, 1},
      {cudaDevAttrHostRegisterSupported, 1},
      {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor},
      {cudaDevAttrReservedSharedMemoryPerBlock, (int)p.reservedSharedMemPerBlock},
      {cudaDevAttrMemoryPoolsSupported, 1},
  };
  for (const auto& row : rows) {
    CHECK(cudaDeviceGetAttribute(&value, row.attribute, device));
    EXPECT(value == row.expected);
  }
  EXPECT(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0) == cudaErrorInvalidValue);
  EXPECT(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 1) == cudaErrorInvalidDevice);
  EXPECT(cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice);
  EXPECT(cudaGetLastError() == cudaErrorInvalidDevice && p.warpSize == 32);
  EXPECT(p.maxThreadsDim[1] == 1024 && p.maxGridSize[2] == 65535 &&
         p.regsPerMultiprocessor == 65536);
#ifdef FA_ANY_PROGRAM  // of the H200's data sheet
  EXPECT(strcmp(p.name, "simulated H200") == 0 && p.major == 9 && p.minor == 0);
  EXPECT(p.multiProcessorCount == 132 && p.sharedMemPerBlockOptin == 227 * 1024);
  EXPECT(p.maxThreadsPerMultiProcessor == 2048 && p.maxBlocksPerMultiProcessor == 32);
  EXPECT(p.l2CacheSize >= 50000000 && p.totalGlobalMem > 140000000000ull);
  EXPECT(p.clockRate > 1900000 && p.clockRate < 2000000);  // kHz: 66.9 TFLOP/s
  const double bandwidth = 2. * p.memoryClockRate * 1000 * p.memoryBusWidth / 8;
  EXPECT(bandwidth > 4.79e12 && bandwidth < 4.81e12);
  int core = 0, memory = 0;
  CHECK(cudaDeviceGetAttribute(&core, cudaDevAttrClockRate, 0));
  CHECK(cudaDeviceGetAttribute(&memory, cudaDevAttrMemoryClockRate, 0));
  EXPECT(core == p.clockRate && memory == p.memoryClockRate);
#endif
  EXPECT(cudaDeviceCanAccessPeer(&value, 0, 1) == cudaSuccess && value == 0);
  EXPECT(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorInvalidDevice);
  EXPECT(cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
  EXPECT(cudaGetLastError() == cudaErrorPeerAccessNotEnabled);
  EXPECT(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 1) ==
         cudaErrorInvalidDevice);
  EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaInitDevice(0, cudaDeviceScheduleAuto, 0));
  size_t free = 0, total = 0, stack = 0;
  CHECK(cudaMemGetInfo(&free, &total));
  EXPECT(free > 0 && free <= total && total <= p.totalGlobalMem);
  CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  EXPECT(stack > 0);
  size_t larger = 0, fifo = 0, heap = 0;
  CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 2 * stack));
  CHECK(cudaDeviceGetLimit(&larger, cudaLimitStackSize));
  CHECK(cudaDeviceGetLimit(&fifo, cudaLimitPrintfFifoSize));
  CHECK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
  EXPECT(larger == 2 * stack && fifo == 1 << 20 && heap == 8 << 20);
  CHECK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 2 << 20));
  CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  EXPECT(stack == larger);
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  EXPECT(driver >= runtime && runtime >= 11000);

  // Blocks of 256 threads, limited by threads or by 100 KiB of shared memory.
  int blocks = 0, grid = 0, block = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
  EXPECT(blocks == p.maxThreadsPerMultiProcessor / 256);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 100 * 1024));
  EXPECT(blocks == (int)(p.sharedMemPerMultiprocessor / (101 * 1024)));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 0));
  EXPECT(blocks == p.maxBlocksPerMultiProcessor);
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, kernel, 0, 200));
  EXPECT(block <= 200 && grid >= p.multiProcessorCount * (p.maxThreadsPerMultiProcessor / 256));
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, kernel, 100 * 1024, 512));
  EXPECT(block <= 512 && grid == 2 * p.multiProcessorCount);
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
