// The part of the CUDA runtime that a step's library calls, without a GPU: memory is the host's,
// and each call is recorded with its stream. test_library_calls.py reads the list.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#define __device__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
using cudaStream_t = struct FakeStream*;

namespace fake {

inline std::string calls;                 // one per line
inline cudaError_t status = cudaSuccess;  // result of the next calls
inline bool capturing = false;
inline size_t largest = 1 << 30;  // bytes of one allocation

inline cudaError_t note(const std::string& call) {
  calls += call + "\n";
  return status;
}
inline cudaError_t note(const std::string& call, cudaStream_t stream) {
  return note(call + " on " + std::to_string(reinterpret_cast<size_t>(stream)));
}

}  // namespace fake

inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
         : e == cudaSuccess           ? "no error"
                                      : "invalid argument";
}
inline cudaError_t cudaGetLastError() { return fake::status; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* n, cudaDeviceAttr, int) {
  return *n = 132, cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return fake::note("synchronize"); }
inline cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (bytes > fake::largest) return cudaErrorMemoryAllocation;
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return fake::note("malloc");
}
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
inline cudaError_t cudaFree(void* p) {
  std::free(p);
  return p ? fake::note("free") : cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  std::memset(p, value, bytes);
  return fake::note("memset");
}
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  std::memset(p, value, bytes);
  return fake::note("memset", stream);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return fake::note("memcpy");
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  std::memcpy(to, from, bytes);
  return fake::note("memcpy", stream);
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  *s = fake::capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return fake::status;
}
