/// \file
/// Replaces Thrust's header of this name: the policies that run at once, whatever the stream.
#pragma once

#include <thrust/detail/allocator_aware_execution_policy.h>
#include <thrust/system/cpp/detail/execution_policy.h>

namespace thrust {

namespace system::cpp {
namespace detail {

template <class Policy>
struct OnStream : execution_policy<Policy> {
  Policy on(cudaStream_t) const { return static_cast<const Policy&>(*this); }
};
struct par_t : OnStream<par_t>, thrust::detail::allocator_aware_execution_policy<OnStream> {
  constexpr par_t() {}
};

}  // namespace detail
inline constexpr detail::par_t par, par_nosync;
}  // namespace system::cpp

namespace cpp {
using system::cpp::par;
}

}  // namespace thrust
