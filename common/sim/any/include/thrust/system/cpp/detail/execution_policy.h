/// \file
/// Added to Thrust's header of this name, which all its parts include: its algorithms run on the
/// host, may use device memory meanwhile, and are not counted.
#pragma once

#include_next <thrust/system/cpp/detail/execution_policy.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

THRUST_NAMESPACE_BEGIN
template <class T>
class device_ptr;
namespace detail {
template <class Pointer>
class normal_iterator;
}
THRUST_NAMESPACE_END

namespace thrust {

namespace system {
namespace cuda = cpp;  // scripts/sim chooses this system for the device
namespace cpp::detail {

template <class Policy>
using Sequential = thrust::system::detail::sequential::execution_policy<Policy>;

/// Has no unique base for thrust::name(), so a call finds the sequential system's alone.
template <class Policy>
struct Probe : Sequential<Policy>, thrust::detail::execution_policy_base<Probe<Policy>> {};

// The sequential system's algorithms, on which Thrust bases the others.
#define SIM_THRUST(name)                                          \
  template <class Policy, class... A>                             \
  requires requires(Probe<Policy> & p, A... a) { name(p, a...); } \
  auto name(execution_policy<Policy>& policy, A... a) {           \
    const sim::any::Library library("Thrust");                    \
    return name(static_cast<Sequential<Policy>&>(policy), a...);  \
  }
#define SIM_THRUSTS(a, b, c, d, e, f) \
  SIM_THRUST(a) SIM_THRUST(b) SIM_THRUST(c) SIM_THRUST(d) SIM_THRUST(e) SIM_THRUST(f)
SIM_THRUSTS(adjacent_difference, assign_value, binary_search, copy, copy_if, copy_n)
SIM_THRUSTS(exclusive_scan, exclusive_scan_by_key, find_if, for_each, for_each_n, get_value)
SIM_THRUSTS(inclusive_scan, inclusive_scan_by_key, iter_swap, lower_bound, max_element, merge)
SIM_THRUSTS(merge_by_key, min_element, minmax_element, partition, reduce_by_key, remove_copy_if)
SIM_THRUSTS(remove_if, set_difference, set_intersection, set_symmetric_difference, set_union,
            stable_partition)
SIM_THRUSTS(stable_partition_copy, unique, unique_by_key, unique_by_key_copy, unique_copy,
            upper_bound)
#undef SIM_THRUSTS
#undef SIM_THRUST

/// Pairwise: the error of a sum grows as on a GPU.
template <class Policy, class I, class T, class F>
T reduce(execution_policy<Policy>& policy, I first, I last, T init, F f) {
  const sim::any::Library library("Thrust");
  if constexpr (requires { first + (last - first) / 2; }) {
    const auto n = last - first;
    if (n >= 64) {
      const I middle = first + n / 2;
      const T left = reduce(policy, first, middle, init, f);
      return f(left, reduce(policy, middle + 1, last, static_cast<T>(*middle), f));
    }
  }
  return reduce(static_cast<Sequential<Policy>&>(policy), first, last, init, f);
}

/// A vector's iterator as a pointer, which is several times as fast.
template <class I>
I raw(I i) {
  return i;
}
template <class T>
T* raw(device_ptr<T> p) {
  return p.get();
}
template <class Pointer>
auto raw(thrust::detail::normal_iterator<Pointer> i) {
  return raw(i.base());
}
template <class I>
using Values = std::vector<typename std::iterator_traits<I>::value_type>;

// Thrust's sequential sorts take thirty times as long at the simulator's level of optimization.
template <class T, class F>
std::vector<size_t> sorted(const std::vector<T>& keys, F& less) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return less(keys[a], keys[b]); });
  return order;
}
template <class Policy, class I, class F>
void stable_sort(execution_policy<Policy>&, I first, I last, F less) {
  const sim::any::Library library("Thrust");
  auto to = raw(first);
  const Values<I> old(to, raw(last));
  for (size_t i : sorted(old, less)) *to = old[i], ++to;
}
template <class Policy, class K, class V, class F>
void stable_sort_by_key(execution_policy<Policy>&, K first, K last, V values, F less) {
  const sim::any::Library library("Thrust");
  auto to = raw(first);
  auto v = raw(values);
  const Values<K> keys(to, raw(last));
  const Values<V> old(v, v + (last - first));
  for (size_t i : sorted(keys, less)) *to = keys[i], *v = old[i], ++to, ++v;
}

template <class Policy>
void* malloc(execution_policy<Policy>&, size_t bytes) {
  void* p = nullptr;
  return cudaMalloc(&p, bytes) == cudaSuccess ? p : nullptr;
}
template <class Policy>
void free(execution_policy<Policy>&, auto p) {
  cudaFree(raw_pointer_cast(p));
}

}  // namespace cpp::detail
}  // namespace system

namespace cuda = system::cpp;

}  // namespace thrust
