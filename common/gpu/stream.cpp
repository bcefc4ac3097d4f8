// common/counts/backend.h for a GPU: the caller's stream, and its state in CUDA.
#include "common/counts/backend.h"
#include "common/dialect/cuda.h"

namespace fa {

void zero_device_memory(void* p, size_t bytes) {
  cuda_check(cudaMemsetAsync(p, 0, bytes, current_stream()));
}

// Pageable memory: CUDA stages it before the call returns.
void upload_device_memory(void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, current_stream()));
}

OnStream::OnStream(void* stream) { current_stream() = static_cast<cudaStream_t>(stream); }
OnStream::~OnStream() { current_stream() = nullptr; }

bool is_capturing() {
  cudaStreamCaptureStatus status{};
  cuda_check(cudaStreamIsCapturing(current_stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

bool is_lasting(const CudaError& e) {
  switch (e.status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace fa
