/// \file
/// The one header that every kernel includes.
///
/// nvcc sees real CUDA. g++ sees the simulator's CUDA vocabulary, so that the same text also runs,
/// counted and checked, on a machine without a GPU. FA_GPU selects real CUDA for the plain .cpp
/// files of a GPU build, which nvcc does not compile.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/dialect/errors.h"

#if defined(__CUDACC__) || defined(FA_GPU)
#define FA_BACKEND_GPU 1
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#define FA_BACKEND_GPU 0
#include "common/dialect/cuda_vocabulary.h"
#endif

#if defined(__CUDACC__)
#define FA_PRAGMA(text) _Pragma(#text)  ///< a pragma from a macro's argument
/// A bare `#pragma unroll` is dragged to column 0 by clang-format; this one stays with its loop.
#define UNROLL _Pragma("unroll")
/// `UNROLL_BY(4)`: four rounds at a time.
#define UNROLL_BY(rounds) FA_PRAGMA(unroll rounds)
#else
#define UNROLL
#define UNROLL_BY(rounds)  ///< only nvcc unrolls when told
#endif

namespace fa {

constexpr int kWarp = 32;                      ///< lanes of a warp
constexpr unsigned kFullMask = 0xffffffff;     ///< all lanes take part
constexpr float kLog2e = 1.4426950408889634f;  ///< exp(x) = 2^(x * log2 e)
constexpr float kLn2 = 0.6931471805599453f;    ///< log(x) = log2(x) * ln 2

/// CUDA refused a call, or reports a fault of work queued before it.
struct CudaError : std::runtime_error {
  explicit CudaError(cudaError_t s) : std::runtime_error(cudaGetErrorString(s)), status(s) {}
  cudaError_t status;
};

/// \throws CudaError with CUDA's own sentence when `status` is not success.
inline void cuda_check(cudaError_t status) {
  if (status != cudaSuccess) throw CudaError(status);
}

#if FA_BACKEND_GPU
/// The stream of this thread's launches: the default stream in the programs; a step's library
/// (common/harness/library) sets the caller's. The simulator runs a launch at once.
inline cudaStream_t& current_stream() {
  static thread_local cudaStream_t stream = nullptr;
  return stream;
}

/// Of the current device, which a program may change.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
#endif

/// SMs of the GPU, or of the modelled one: a persistent kernel has one or a few blocks per SM.
inline int multiprocessors() {
#if FA_BACKEND_GPU
  return device_attribute(cudaDevAttrMultiProcessorCount);
#else
  return sim::multiprocessors();
#endif
}

/// Bytes of shared memory that the GPU gives to a block: 65536 on a T4, 101376 on an RTX 3090 or
/// 4090, 232448 on an H100 or H200; in the simulator that of the modelled GPU. A step's host
/// functions choose the sizes of its tiles by it.
inline size_t shared_memory_per_block() {
#if FA_BACKEND_GPU
  return static_cast<size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
#else
  return sim::shared_memory_per_block();
#endif
}

/// \throws ResourceError when the GPU cannot give a block this many bytes of shared memory.
inline void require_shared_memory(size_t bytes) {
  if (bytes <= shared_memory_per_block()) return;
  throw ResourceError("needs " + std::to_string(bytes) +
                      " bytes of shared memory for a block; this GPU has " +
                      std::to_string(shared_memory_per_block()) +
                      ": try a smaller --d, or --smem where the program has it");
}

/// Shape of a launch: what is written between <<< and >>>, and the cluster size.
struct LaunchConfig {
  dim3 grid;
  dim3 block;
  size_t smem = 0;       ///< bytes of dynamic shared memory
  unsigned cluster = 1;  ///< blocks of a cluster, along x
  /// A persistent kernel, whose blocks share the work of all heads, which the simulator times so.
  bool shares_work = false;
  bool early = false;  ///< by launch_early()
};

/// Converts an A to a P without narrowing, as between braces.
template <class P, class A>
concept PassesAs = std::is_convertible_v<A, P> && requires(A&& a) {
  P{static_cast<A&&>(a)};
};

/// Converts a kernel's argument to the type of its parameter.
template <class P, class A>
P pass_as(A&& a) {
  static_assert(PassesAs<P, A>,
                "launch: this argument may not fit the kernel's parameter (a size_t or an "
                "unsigned for an int, a double for a float, an int for a size_t): give it the "
                "parameter's type");
  return static_cast<P>(static_cast<A&&>(a));
}

#if defined(__CUDACC__)

/// `launch(kernel, {grid, block, smem, cluster}, args...)` is `kernel<<<grid, block, smem,
/// current_stream()>>>(args...)`; an argument that its parameter would narrow does not compile.
/// \throws ResourceError when a block needs more shared memory than this device has.
/// \throws CudaError when CUDA refuses the launch.
template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& c, A&&... args) {
  if (c.smem > 48 * 1024) {  // more than 48 KiB: a kernel must opt in
    require_shared_memory(c.smem);
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(c.smem)));
  }
  if (c.cluster > 8) {  // and above the portable cluster size
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = c.grid;
  config.blockDim = c.block;
  config.dynamicSmemBytes = c.smem;
  config.stream = current_stream();
  config.attrs = attributes;
  if (c.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {c.cluster, 1, 1};
  }
  if (c.early && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, pass_as<P>(static_cast<A&&>(args))...));
}

#elif !FA_BACKEND_GPU

template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& c, A&&... args) {
  require_shared_memory(c.smem);
  sim::launch(kernel, {c.grid, c.block, c.smem, c.cluster, false, c.shares_work},
              pass_as<P>(static_cast<A&&>(args))...);
}

#endif

/// `extern __shared__` with a type: the dynamic shared memory of this block, 1024-byte aligned.
template <class T>
__device__ inline T* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(1024) unsigned char fa_dynamic_smem[];
  return reinterpret_cast<T*>(fa_dynamic_smem);
#elif !FA_BACKEND_GPU
  return reinterpret_cast<T*>(sim::dynamic_smem);
#else
  return nullptr;  // a plain .cpp of a GPU build has no device code
#endif
}

}  // namespace fa
