/// \file
/// Stands in for Thrust's header of this name: what its vectors allocate is device memory.
#pragma once

#include <thrust/detail/config.h>
#include <thrust/detail/raw_pointer_cast.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/system/cpp/pointer.h>
#include <thrust/system/detail/bad_alloc.h>

#include "cuda_runtime.h"

namespace thrust::system::cpp {

template <class Pointer, bool shared>
class Memory final : public thrust::mr::memory_resource<Pointer> {
 public:
  Pointer do_allocate(size_t bytes, size_t) override {
    void* p = nullptr;
    const cudaError_t status = shared ? cudaMallocManaged(&p, bytes) : cudaMalloc(&p, bytes);
    if (status != cudaSuccess) throw thrust::system::detail::bad_alloc(cudaGetErrorString(status));
    return Pointer(p);
  }
  void do_deallocate(Pointer p, size_t, size_t) override { cudaFree(thrust::raw_pointer_cast(p)); }
};
using memory_resource = Memory<pointer<void>, false>;
using universal_memory_resource = Memory<universal_pointer<void>, true>;
using universal_host_pinned_memory_resource = universal_memory_resource;

}  // namespace thrust::system::cpp
