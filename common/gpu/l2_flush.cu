#include "common/gpu/l2_flush.h"

#include <string>

#include "common/dialect/errors.h"

namespace fa::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// The sum depends on every load, so none is dropped; the buffer is zero, so nothing is stored.
__global__ void sweep_kernel(const float4* buffer,  // [n]
                             size_t n,
                             float* sink) {  // [1]
  float sum = 0;
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads) {
    const float4 v = __ldcg(buffer + i);  // past the L1
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum != 0) *sink = sum;
}

}  // namespace

L2Sweep::L2Sweep() {
  int device = 0, l2 = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
  bytes_ = 4 * static_cast<size_t>(l2);
  buffer_ = {"L2 sweep", bytes_ / sizeof(float4) + 1};
  if (!buffer_) {
    throw ResourceError("no room on the device for the " + std::to_string(bytes_ >> 20) +
                        " MiB buffer that clears the L2 between runs: take a smaller problem");
  }
  buffer_.fill(0);
  (*this)();  // dirty lines of the memset
}

void L2Sweep::operator()() const {
  const size_t n = buffer_.size() - 1;
  launch(sweep_kernel, {kBlocks, kThreads}, buffer_.get(), n, &buffer_.get()[n].x);
}

bool built_for_this_gpu() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, sweep_kernel) == cudaSuccess;
  cudaGetLastError();
  return found;
}

}  // namespace fa::gpu
