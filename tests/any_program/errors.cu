// Errors: a refused call is reported, kept as the last error, and cleared by reading it.
#include <string.h>

#include "check.h"

__global__ void set(int* out, int value) { out[threadIdx.x] = value; }
__global__ void set_with_room(int* out, int value) {
  extern __shared__ int s[];
  s[threadIdx.x] = value;
  out[threadIdx.x] = s[threadIdx.x];
}

int main() {
  int *out, host[32];
  CHECK(cudaMalloc(&out, sizeof host));
  set<<<1, 32>>>(out, 1);
  CHECK(cudaGetLastError());

  set<<<1, 2048>>>(out, 2);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaSuccess);
  set<<<0, 32>>>(out, 3);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  set<<<1, dim3(1, 1, 65)>>>(out, 4);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  set<<<dim3(1, 65536), 32>>>(out, 5);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  set_with_room<<<1, 32, 300 * 1024>>>(out, 6);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  set_with_room<<<1, 32, 48 * 1024>>>(out, 1);
  CHECK(cudaGetLastError());
  set_with_room<<<1, 32, 64 * 1024>>>(out, 6);  // more than 48 KiB, without permission
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) EXPECT(host[i] == 1);
  EXPECT(cudaFuncSetAttribute(set_with_room, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              300 << 10) == cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(set_with_room, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  set_with_room<<<1, 32, 64 * 1024>>>(out, 7);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) EXPECT(host[i] == 7);
  int value = 7;
  void* args[] = {&out, &value};
  EXPECT(cudaLaunchKernel((void*)set, dim3(1), dim3(1025), args, 0, 0) ==
         cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  set<<<1, 32>>>(out, 8);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) EXPECT(host[i] == 8);

  void* huge = (void*)1;
  EXPECT(cudaMalloc(&huge, 1ull << 46) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  EXPECT(cudaMallocManaged(&huge, ~0ull) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  EXPECT(cudaSetDevice(99) == cudaErrorInvalidDevice);
  EXPECT(cudaGetLastError() == cudaErrorInvalidDevice);

  EXPECT(strcmp(cudaGetErrorString((cudaError_t)4711), "unrecognized error code") == 0);
  EXPECT(strcmp(cudaGetErrorName((cudaError_t)4711), "unrecognized error code") == 0);
  // A successful call leaves the error unchanged; a later error replaces it.
  EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice && cudaSetDevice(0) == cudaSuccess);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  EXPECT(cudaMallocManaged(&huge, ~0ull) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  EXPECT(cudaFuncSetAttribute(set, cudaFuncAttributeMaxDynamicSharedMemorySize, -1) ==
         cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue && cudaErrorInvalidClusterSize == 912);
  CHECK(cudaFuncSetAttribute(set, cudaFuncAttributeMaxDynamicSharedMemorySize, 0));
  EXPECT(cudaErrorMemoryAllocation == 2 && cudaErrorInvalidConfiguration == 9);
  EXPECT(cudaErrorInvalidPitchValue == 12 && cudaErrorInvalidDevice == 101);
  EXPECT(cudaErrorInvalidResourceHandle == 400 && cudaErrorIllegalAddress == 700);
  EXPECT(cudaErrorCooperativeLaunchTooLarge == 720 && cudaErrorNotSupported == 801);

  EXPECT(strcmp(cudaGetErrorString(cudaSuccess), "no error") == 0);
  EXPECT(strcmp(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument") == 0);
  EXPECT(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  EXPECT(strcmp(cudaGetErrorString(cudaErrorInvalidConfiguration),
                "invalid configuration argument") == 0);
  EXPECT(strcmp(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration") ==
         0);
  EXPECT(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
  CHECK(cudaFree(out));
  return verdict();
}
