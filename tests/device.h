// Shared by the tests of the PTX wrappers: device memory and random data with exact sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/counts/device_memory.h"
#include "common/dialect/ptx/ptx.h"

namespace test {

using bf16 = __nv_bfloat16;

template <class T>
struct Buffer : fa::DeviceMemory<T> {
  /// All bits set: NaN for floats, -1 for integers.
  Buffer(const std::string& name, size_t n) : fa::DeviceMemory<T>(name, n) { this->fill(0xff); }
  Buffer(const std::string& name, const std::vector<T>& data) : Buffer(name, data.size()) {
    this->upload(data);
  }
  operator T*() const { return this->get(); }
};

/// An argument of a kernel: a vector becomes device memory, anything else is unchanged.
template <class T>
Buffer<T> argument(const std::vector<T>& data) {
  return {"in", data};
}
template <class T>
const T& argument(const T& x) {
  return x;
}

/// The results of a kernel, its last parameter: `n` elements, all bits of which are set before.
template <class T, class... P, class... A>
std::vector<T> results(size_t n, void (*kernel)(P...), const fa::LaunchConfig& config,
                       const A&... arguments) {
  const Buffer<T> out("out", n);
  const std::tuple<decltype(argument(arguments))...> in{argument(arguments)...};
  std::apply([&](const auto&... x) { fa::launch(kernel, config, x..., out); }, in);
  return out.download();
}

/// In a kernel: issue() starts loads of `bytes` bytes in thread 0, and all threads wait for them.
__device__ void load_and_wait(uint64_t* full, int bytes, const auto& issue) {
  if (threadIdx.x == 0) {
    fa::mbarrier_init(full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(full, bytes);
    issue();
  }
  __syncthreads();
  fa::mbarrier_wait(full, 0);
}

inline fa::LaunchConfig threads(size_t n) { return {static_cast<unsigned>((n + 127) / 128), 128}; }

/// F()(x[i]...) for each i, one thread each.
template <class F, class T, class... X>
__global__ void map_kernel(T* y, int n, const X*... x) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = F()(x[i]...);
}
template <class F, class T, class... X>
std::vector<T> mapped(const std::vector<T>& x, const std::vector<X>&... more) {
  const Buffer<T> y("out", x.size());
  fa::launch(map_kernel<F, T, T, X...>, threads(x.size()), y, static_cast<int>(x.size()),
             argument(x), argument(more)...);
  return y.download();
}

/// of(0), of(1), ...
template <class T, class F>
std::vector<T> each(size_t n, F&& of) {
  std::vector<T> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<T>(of(static_cast<int>(i)));
  return v;
}
template <class T>
std::vector<T> iota(size_t n) {
  return each<T>(n, [](int i) { return i; });
}
/// Integers from -4 to 4: products and their sums are exact in any order.
template <class T>
std::vector<T> small_integers(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  return each<T>(n, [&](int) { return static_cast<float>(static_cast<int>(rng() % 9) - 4); });
}

struct Distribution {
  const char* name;
  int least, largest;        ///< exponents
  float zeros = 0, odd = 0;  ///< shares: of zeros, and of infinities and NaNs
  int c_exponent = 0;        ///< of a product's C, which is about 2^this; -1000: 0
};
inline float number(const Distribution& of, std::mt19937& random) {
  std::uniform_real_distribution<float> share(0, 1);
  if (share(random) < of.zeros) return 0;
  const float sign = share(random) < .5f ? -1.f : 1.f;
  if (share(random) < of.odd) return share(random) < .5f ? NAN : sign * INFINITY;
  return sign *
         std::ldexp(1 + share(random), std::uniform_int_distribution(of.least, of.largest)(random));
}

}  // namespace test
