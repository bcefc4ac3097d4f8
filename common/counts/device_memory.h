/// \file
/// Device memory with one owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"

namespace fa {

/// Elements in device memory, freed with this object. The caller reports a lack of room.
template <class T = std::byte>
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Allocates room for `n` elements, as cudaMalloc leaves it; empty where the device has none.
  /// \param name for the simulator's tables and messages.
  /// \throws CudaError when CUDA fails for any reason but memory.
  DeviceMemory(const std::string& name, size_t n) {
    const cudaError_t status = cudaMalloc(&data_, std::max<size_t>(1, n * sizeof(T)));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // else the next launch would report this error
      return;
    }
    cuda_check(status);
    size_ = n;
    name_device_memory(data_, name);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : size_(other.size_), data_(other.release()) {}
  DeviceMemory& operator=(DeviceMemory other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_) cudaFree(data_);  // waits for the kernels that use it
  }

  explicit operator bool() const { return data_; }
  T* get() const { return data_; }
  size_t size() const { return size_; }  ///< elements
  size_t bytes() const { return size_ * sizeof(T); }
  /// Hands the memory to the caller, who frees it.
  T* release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

  /// Sets every byte to `byte`.
  void fill(int byte) { cuda_check(cudaMemset(data_, byte, bytes())); }
  /// \param from size() elements on the host
  template <class U = T>
  void upload(const std::vector<U>& from) {
    cuda_check(cudaMemcpy(data_, from.data(), from.size() * sizeof(U), cudaMemcpyHostToDevice));
  }
  /// Waits for all earlier kernels.
  template <class U = T>
  std::vector<U> download() const {
    std::vector<U> to(bytes() / sizeof(U));
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  size_t size_ = 0;
  T* data_ = nullptr;
};

}  // namespace fa
