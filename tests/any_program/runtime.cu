// The runtime's memory, graphs and queries.
#include <string.h>

#include "check.h"

// Managed memory: host and device take turns, also through pointers stored in it.
namespace managed {
struct Node {
  int value;
  Node* next;
};
__global__ void add(int n, const float* x, float* y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    y[i] = x[i] + y[i];
  }
}
__global__ void walk(const Node* node, int* sum) {
  for (; node; node = node->next) *sum += node->value;
}

class Managed {
 public:
  void* operator new(size_t bytes) {
    void* p = nullptr;
    cudaMallocManaged(&p, bytes);
    return p;
  }
  void operator delete(void* p) { cudaFree(p); }
};
struct Total : Managed {
  int sum = 0;
  __device__ void take(int v) { sum += v; }
};
__global__ void into(Total* total) {
  for (int i = 1; i <= 10; ++i) total->take(i);
}

void run() {
  const int n = 3000;
  float *x, *y;
  CHECK(cudaMallocManaged(&x, n * sizeof(float)));
  CHECK(cudaMallocManaged((void**)&y, n * sizeof(float), cudaMemAttachGlobal));
  for (int i = 0; i < n; ++i) x[i] = 1.f, y[i] = i;
  add<<<4, 128>>>(n, x, y);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) EXPECT(y[i] == i + 1.f);
  for (int i = 0; i < n; ++i) x[i] = -y[i];  // the host's turn again
  add<<<4, 128>>>(n, x, y);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < n; ++i) EXPECT(y[i] == 0);

  Node* nodes;
  int* sum;
  CHECK(cudaMallocManaged(&nodes, 5 * sizeof(Node)));
  CHECK(cudaMallocManaged(&sum, sizeof(int)));
  *sum = 0;
  for (int i = 0; i < 5; ++i) nodes[i] = Node{i * i, i < 4 ? nodes + i + 1 : nullptr};
  walk<<<1, 1>>>(nodes, sum);
  CHECK(cudaDeviceSynchronize());
  EXPECT(*sum == 30);
  CHECK(cudaMemset(sum, 0, sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  EXPECT(*sum == 0);
  // It is on both sides of a copy.
  int *device, got = 0;
  CHECK(cudaMalloc(&device, sizeof(int)));
  *sum = 4;
  CHECK(cudaMemcpy(device, sum, sizeof(int), cudaMemcpyHostToDevice));
  *sum = 5;
  CHECK(cudaMemcpy(sum, device, sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&got, sum, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(*sum == 4 && got == 4);
  CHECK(cudaFree(device));

  Total* total = new Total;
  into<<<1, 1>>>(total);
  CHECK(cudaDeviceSynchronize());
  EXPECT(total->sum == 55);
  delete total;

  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, x));
  EXPECT(attributes.type == cudaMemoryTypeManaged && attributes.devicePointer == x);
  EXPECT(attributes.device == 0 && attributes.hostPointer == x);
  int* plain;
  CHECK(cudaMalloc(&plain, 4));
  CHECK(cudaPointerGetAttributes(&attributes, plain));
  EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == plain);
  EXPECT(attributes.hostPointer == nullptr);
  CHECK(cudaPointerGetAttributes(&attributes, &attributes));
  EXPECT(attributes.type == cudaMemoryTypeUnregistered && attributes.devicePointer == nullptr);
  CHECK(cudaFree(plain));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaFree(nodes));
  CHECK(cudaFree(sum));
}
}  // namespace managed

// Graphs, captured and built: everything runs at each launch, with the arguments of construction.
namespace graph {
__global__ void add(int* p, int by) { p[threadIdx.x] += by; }
static void count(void* calls) { ++*static_cast<int*>(calls); }
__device__ int symbol;

void run() {
  int *p, *q, got[32], rows[4] = {}, calls = 0;
  CHECK(cudaMalloc(&p, sizeof got));
  CHECK(cudaMalloc(&q, sizeof got));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemset(q, 0, sizeof got));
  cudaGraph_t graph;
  cudaGraphExec_t run;
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  EXPECT(cudaGetLastError() == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemsetAsync(p, 0, sizeof got, stream));
  for (int i = 1; i <= 3; ++i) add<<<1, 32, 0, stream>>>(p, i);
  add<<<1, 32, 0, stream>>>(q, 1);
  CHECK(cudaMemcpyAsync(got, p, sizeof got, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaLaunchHostFunc(stream, count, &calls));
  CHECK(cudaMemset2DAsync(q + 8, 16, 0x01, 4, 2, stream));  // q[8] and q[12]
  CHECK(cudaMemcpy2DAsync(rows, 8, q + 8, 16, 4, 2, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaMemcpyToSymbolAsync(symbol, q + 8, 4, 0, cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaMemcpyFromSymbolAsync(rows + 3, symbol, 4, 0, cudaMemcpyDeviceToHost, stream));
  EXPECT(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
  EXPECT(cudaGetLastError() == cudaErrorIllegalState);
  EXPECT(rows[0] == 0 && rows[3] == 0);
  cudaStreamCaptureStatus state;
  CHECK(cudaStreamIsCapturing(stream, &state));
  EXPECT(state == cudaStreamCaptureStatusActive && calls == 0);
  CHECK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 11);
  CHECK(cudaStreamIsCapturing(stream, &state));
  EXPECT(state == cudaStreamCaptureStatusNone);
  cudaGraphNode_t each[11] = {};
  nodes = 2;
  CHECK(cudaGraphGetNodes(graph, each, &nodes));
  EXPECT(nodes == 2 && each[0] != each[1] && !each[2]);
  CHECK(cudaGraphInstantiate(&run, graph, nullptr, nullptr, 0));
  cudaGraph_t both;
  cudaGraphExec_t run_both;
  cudaGraphNode_t child, kernel;
  CHECK(cudaGraphCreate(&both, 0));
  CHECK(cudaGraphAddChildGraphNode(&child, both, nullptr, 0, graph));
  int by = 10;
  void* args[] = {&q, &by};
  const cudaKernelNodeParams node{(void*)add, dim3(1), dim3(32), 0, args, nullptr};
  CHECK(cudaGraphAddKernelNode(&kernel, both, &child, 1, &node));
  by = 1000;
  CHECK(cudaGraphInstantiate(&run_both, both, nullptr, nullptr, 0));
  CHECK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(run, stream));
  CHECK(cudaGraphLaunch(run_both, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(got[0] == 6 && got[31] == 6 && calls == 3);
  CHECK(cudaMemcpy(got, q, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT(got[7] == 1 + 1 + 11 && got[9] == 13 && got[8] == 0x01010101 + 10);
  EXPECT(rows[0] == 0x01010101 && rows[2] == 0x01010101 && rows[1] == 0 && rows[3] == rows[0]);
  // The source of a graph may change later; a copied graph does not.
  CHECK(cudaGraphLaunch(run_both, stream));
  CHECK(cudaMemcpy(got, q, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT(got[7] == 13 + 11 && calls == 4 && child != kernel);
  CHECK(cudaGraphDestroy(both));
  CHECK(cudaGraphExecDestroy(run_both));
  CHECK(cudaGraphExecDestroy(run));
  CHECK(cudaStreamDestroy(stream));
}
}  // namespace graph

// Queries of the device: properties, attributes, limits, occupancy.
namespace device {
__global__ void kernel(int* out) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

void run() {
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
}
}  // namespace device

int main() {
  managed::run();
  graph::run();
  device::run();
  return verdict();
}
