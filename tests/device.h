// What the tests of the PTX wrappers share: device memory and random data with exact sums.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/dialect/ptx/ptx.h"
#include "common/harness/device_memory.h"

namespace test {

using bf16 = __nv_bfloat16;

template <class T>
struct Buffer : fa::DeviceMemory<T> {
  /// All bits set: NaN for floats, -1 for integers.
  Buffer(const std::string& name, size_t n) : fa::DeviceMemory<T>(name, n) { this->fill(0xff); }
  Buffer(const std::string& name, const std::vector<T>& data) : Buffer(name, data.size()) {
    this->upload(data);
  }
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
