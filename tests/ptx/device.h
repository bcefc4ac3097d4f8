// What the tests of the PTX wrappers share: device memory and random data with exact sums.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/dialect/ptx/ptx.h"
#include "common/harness/backend.h"

namespace test {

using bf16 = __nv_bfloat16;

/// Device memory with a name for the simulator's messages.
template <class T>
class Buffer {
 public:
  /// All bits set: NaN for floats, -1 for integers.
  Buffer(const std::string& name, size_t n) : n_(n) {
    fa::cuda_check(cudaMalloc(&p_, n * sizeof(T)));
    fa::cuda_check(cudaMemset(p_, 0xff, n * sizeof(T)));
    fa::name_device_memory(p_, name);
  }
  Buffer(const std::string& name, const std::vector<T>& data) : Buffer(name, data.size()) {
    fa::cuda_check(cudaMemcpy(p_, data.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(p_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* get() const { return p_; }
  /// Waits for the kernels before.
  std::vector<T> download() const {
    std::vector<T> data(n_);
    fa::cuda_check(cudaDeviceSynchronize());
    fa::cuda_check(cudaMemcpy(data.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return data;
  }

 private:
  T* p_ = nullptr;
  size_t n_;
};

/// Integers from -4 to 4: products and their sums are exact in any order.
template <class T>
std::vector<T> small_integers(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<T> v(n);
  for (T& x : v) x = T(static_cast<float>(static_cast<int>(rng() % 9) - 4));
  return v;
}

/// 0, 1, 2, ...
template <class T>
std::vector<T> iota(size_t n) {
  std::vector<T> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<T>(i);
  return v;
}

}  // namespace test
