// Streams and events: queued work runs in order, and the times of events are between it.
#include <stdlib.h>

#include "check.h"

__global__ void times(float* x, int n, float by) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    x[i] *= by;
  }
}
__global__ void plus(float* x, const float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[i];
}
static int called = 0;
static void CUDART_CB on_stream(cudaStream_t, cudaError_t status, void* data) {
  called += status == cudaSuccess ? *static_cast<int*>(data) : 1000;
}
static void on_host(void* data) { called += *static_cast<int*>(data); }

int main() {
  const int n = 4096;
  float *x, *y, *host;
  CHECK(cudaMallocHost(&host, n * sizeof(float)));
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  CHECK(cudaMalloc(&y, n * sizeof(float)));
  for (int i = 0; i < n; ++i) host[i] = i;
  cudaStream_t a, b, c;
  CHECK(cudaStreamCreate(&a));
  CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  int least, greatest;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT(least >= greatest);
  CHECK(cudaStreamCreateWithPriority(&c, cudaStreamDefault, greatest));
  cudaEvent_t start, middle, stop, ready;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&middle));
  CHECK(cudaEventCreate(&stop));
  CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));

  CHECK(cudaEventRecord(start, a));
  CHECK(cudaMemcpyAsync(x, host, n * sizeof(float), cudaMemcpyHostToDevice, a));
  times<<<4, 128, 0, a>>>(x, n, 2.f);
  CHECK(cudaEventRecord(ready, a));
  CHECK(cudaEventRecord(middle, a));
  CHECK(cudaStreamWaitEvent(b, ready, 0));
  CHECK(cudaMemcpyAsync(y, x, n * sizeof(float), cudaMemcpyDeviceToDevice, b));
  times<<<4, 128, 0, b>>>(y, n, 3.f);
  CHECK(cudaStreamSynchronize(b));
  plus<<<n / 256, 256, 0, a>>>(x, y, n);
  CHECK(cudaEventRecord(stop, a));
  CHECK(cudaMemcpyAsync(host, x, n * sizeof(float), cudaMemcpyDeviceToHost, a));
  int two = 2, three = 3;
  CHECK(cudaStreamAddCallback(a, on_stream, &two, 0));
  CHECK(cudaLaunchHostFunc(a, on_host, &three));
  CHECK(cudaStreamSynchronize(a));
  EXPECT(called == 5);
  for (int i = 0; i < n; ++i) EXPECT(host[i] == 8.f * i);

  CHECK(cudaEventSynchronize(stop));
  EXPECT(cudaEventQuery(stop) == cudaSuccess);
  EXPECT(cudaStreamQuery(a) == cudaSuccess);
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, start, stop));
  EXPECT(ms > 0);
  float back = 1;
  CHECK(cudaEventElapsedTime(&back, stop, stop));
  EXPECT(back == 0);
  float forth = 0, half = 0, rest = 0;  // the way back takes as long; parts add up to the whole
  CHECK(cudaEventElapsedTime(&back, stop, start));
  CHECK(cudaEventElapsedTime(&half, start, middle));
  CHECK(cudaEventElapsedTime(&rest, middle, stop));
  CHECK(cudaEventElapsedTime(&forth, start, stop));
  EXPECT(back == -forth && half > 0 && rest > half && half + rest > 0.999f * forth);
  EXPECT(half > 0.001f && forth < 1 && half + rest < 1.001f * forth);  // milliseconds
  CHECK(cudaEventRecord(middle, a));                                   // again: later than before
  CHECK(cudaEventElapsedTime(&half, start, middle));
  EXPECT(half == forth);
  EXPECT(cudaEventSynchronize(nullptr) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventElapsedTime(&ms, nullptr, stop) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventElapsedTime(&ms, start, ready) == cudaErrorInvalidResourceHandle);  // untimed
  EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle && least == 0 && greatest == -5);
  cudaEvent_t never;
  CHECK(cudaEventCreate(&never));
  EXPECT(cudaEventElapsedTime(&ms, never, start) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaEventElapsedTime(&ms, start, never) == cudaErrorInvalidResourceHandle);
  EXPECT(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(never));
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  CHECK(cudaEventDestroy(ready));
  CHECK(cudaStreamDestroy(a));
  CHECK(cudaStreamDestroy(b));
  CHECK(cudaStreamDestroy(c));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
  CHECK(cudaFreeHost(host));
  return verdict();
}
