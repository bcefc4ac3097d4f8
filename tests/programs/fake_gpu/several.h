// The part of the CUDA runtime that ranks call to exchange messages, without GPUs: whatever is
// queued is done at once, so that events need no state. No process opens another's memory.
#pragma once

#include "cuda_runtime.h"

#define CUDART_VERSION 13000

using cudaEvent_t = struct FakeEvent*;
struct cudaIpcEventHandle_t {
  char bytes[64];
};
struct cudaIpcMemHandle_t {
  char bytes[64];
};
struct cudaDeviceProp {
  struct {
    char bytes[16];
  } uuid;
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventInterprocess = 4,
                   cudaIpcMemLazyEnablePeerAccess = 1, cudaHostRegisterDefault = 0;
constexpr unsigned long long cudaEnableDefault = 0;

inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { return *p = {}, cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  return *s = nullptr, cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = nullptr, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  return *ms = 0, cudaSuccess;
}
inline cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
inline cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* h, cudaEvent_t) {
  return *h = {}, cudaSuccess;
}
inline cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* e, cudaIpcEventHandle_t) {
  return cudaEventCreate(e);
}
inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* h, void*) {
  return *h = {}, cudaSuccess;
}
inline cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return cudaErrorInvalidValue;
}
inline cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }

/// cuMemGetAddressRange, the one function that is looked up. Each message is an allocation.
inline int fake_address_range(unsigned long long* begin, size_t*, unsigned long long at) {
  return *begin = at, 0;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult*) {
  return *function = reinterpret_cast<void*>(fake_address_range), cudaSuccess;
}
