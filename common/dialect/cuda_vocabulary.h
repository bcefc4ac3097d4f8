/// \file
/// The words of CUDA C++ for g++. dialect/cuda.h includes it when nvcc does not compile the file; a
/// kernel never includes it itself. The implementation: scheduler/, memory/, instructions/ of
/// common/sim (README.md has the map).
#pragma once

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>

#include "common/dialect/instructions.h"

// --- qualifiers ---------------------------------------------------------------------------------

// For other programs (program/) the translator, ../../scripts/sim, supplies CUDA's qualifiers.
#ifndef FA_ANY_PROGRAM
// All that a kernel calls is inlined, as by nvcc, but recursion and indirect calls. (Not at -O0.)
#define __global__ __attribute__((flatten))
#define __device__
#define __host__
// One OS thread hosts one block at a time, so "one copy per block" is "one copy per OS thread".
// thread_local in a function implies static; constinit makes the access a plain %fs: address. Each
// array begins at the first bank. The assembler leaves a gap after it (memory/as.in).
#define __shared__ constinit thread_local __attribute__((aligned(128)))
#define __launch_bounds__(...)
#else
#define __launch_bounds__(...) __sim_launch_bounds__(__VA_ARGS__)
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

// --- vector types -------------------------------------------------------------------------------

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
__forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__forceinline__ int2 make_int2(int x, int y) { return {x, y}; }
__forceinline__ int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
__forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

// --- who am I -----------------------------------------------------------------------------------

// Constant during the life of a CUDA thread; the scheduler rewrites them at each switch. `const`
// also tells the compiler's pass that reading them is no memory access.
extern const __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// --- what the words stand for -------------------------------------------------------------------

namespace sim {

/// SMs of the modelled GPU.
int multiprocessors();
/// Bytes of shared memory that the modelled GPU gives to a block.
size_t shared_memory_per_block();

constexpr size_t kMaxDynamicSmem = 227 * 1024;  // sm_90's limit
extern constinit thread_local unsigned char dynamic_smem[kMaxDynamicSmem];

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  size_t smem = 0;
  dim3 cluster;
  bool together = false;  ///< a cooperative launch: all blocks at once, for a barrier of the grid
  bool shares_work = false;  ///< fa::LaunchConfig::shares_work
  uint64_t blocks() const { return uint64_t{grid.x} * grid.y * grid.z; }
  unsigned in_cluster() const { return cluster.x * cluster.y * cluster.z; }
  uint3 index(uint64_t number) const;  ///< of a block; those of a cluster have adjacent numbers
};
uint3 cluster_ctaid();  ///< the block's place in its cluster, of this shape:
dim3 cluster_nctaid();
/// A kernel with its arguments, type-erased: call(closure) runs one CUDA thread of it.
struct Launch {
  const void* kernel;
  LaunchConfig config;
  void (*call)(void*);
  void* closure;
  size_t closure_bytes;
  const char* name = nullptr;  ///< for messages, where `kernel` is no function
};
void run_grid(const Launch&);  // throws fa::KernelStopped when the kernel misbehaves

template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& config, A&&... args) {
  static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...),
                "kernel parameters are copied byte by byte to the device");
  struct Closure {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> args;
  } closure{kernel, {static_cast<std::decay_t<P>>(args)...}};
  auto call = [](void* p) {
    auto& c = *static_cast<Closure*>(p);
    std::apply(c.kernel, c.args);
  };
  run_grid(
      {reinterpret_cast<const void*>(kernel), config, call, &closure, sizeof closure, nullptr});
}

/// Whether the compiler turns a copy into one plain load and store, which its pass then sees.
constexpr bool is_one_access(size_t bytes) { return bytes <= 16 && std::has_single_bit(bytes); }

template <class T>
__forceinline__ T shuffle_as(Shuffle kind, uint32_t mask, T v, int arg, int width, Where where) {
  if constexpr (std::is_integral_v<T> && sizeof(T) < 4) {  // CUDA has it for int and wider
    return static_cast<T>(shuffle_as<int>(kind, mask, v, arg, width, where));
  } else {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    return std::bit_cast<T>(
        static_cast<U>(shuffle(kind, mask, std::bit_cast<U>(v), sizeof v, arg, width, where)));
  }
}

}  // namespace sim

// --- synchronisation and warp primitives ---------------------------------------------------------

#define SIM_HERE sim::Where where = sim::Where::here()
inline void __syncthreads(SIM_HERE) { sim::sync_block(where); }
inline int __syncthreads_count(int p, SIM_HERE) { return sim::count_in_block(p != 0, where); }
inline int __syncthreads_or(int p, SIM_HERE) { return sim::count_in_block(p != 0, where) != 0; }
inline int __syncthreads_and(int p, SIM_HERE) { return sim::count_in_block(p == 0, where) == 0; }
inline void __syncwarp(uint32_t mask = 0xffffffffu, SIM_HERE) { sim::sync_warp(mask, where); }
inline void __threadfence() { sim::fence(); }
inline void __threadfence_block() {}
template <class T>
T __shfl_sync(uint32_t mask, T v, int src, int width = 32, SIM_HERE) {
  return sim::shuffle_as(sim::Shuffle::idx, mask, v, src, width, where);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T v, int x, int width = 32, SIM_HERE) {
  return sim::shuffle_as(sim::Shuffle::xor_, mask, v, x, width, where);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T v, unsigned n, int width = 32, SIM_HERE) {
  return sim::shuffle_as(sim::Shuffle::down, mask, v, static_cast<int>(n), width, where);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T v, unsigned n, int width = 32, SIM_HERE) {
  return sim::shuffle_as(sim::Shuffle::up, mask, v, static_cast<int>(n), width, where);
}
inline uint32_t __ballot_sync(uint32_t mask, int p, SIM_HERE) {
  return sim::ballot(mask, p != 0, where);
}
inline int __any_sync(uint32_t mask, int p, SIM_HERE) {
  return sim::ballot(mask, p != 0, where) != 0;
}
inline int __all_sync(uint32_t mask, int p, SIM_HERE) {
  return sim::ballot(mask, p == 0, where) == 0;
}

// --- atomics -------------------------------------------------------------------------------------

__forceinline__ float atomicAdd(float* p, float v) {
  return sim::atomic_f32(sim::AtomicOp::add, p, v);
}
__forceinline__ double atomicAdd(double* p, double v) {
  return sim::atomic_f64(sim::AtomicOp::add, p, v);
}
__forceinline__ float atomicExch(float* p, float v) {
  return sim::atomic_f32(sim::AtomicOp::exch, p, v);
}
#define SIM_ATOMIC(name, op)                                                                   \
  __forceinline__ int name(int* p, int v) { return sim::atomic_s32(sim::AtomicOp::op, p, v); } \
  __forceinline__ unsigned name(unsigned* p, unsigned v) {                                     \
    return sim::atomic_u32(sim::AtomicOp::op, p, v);                                           \
  }                                                                                            \
  __forceinline__ unsigned long long name(unsigned long long* p, unsigned long long v) {       \
    return sim::atomic_u64(sim::AtomicOp::op, reinterpret_cast<uint64_t*>(p), v);              \
  }
SIM_ATOMIC(atomicAdd, add)
SIM_ATOMIC(atomicMin, min)
SIM_ATOMIC(atomicMax, max)
SIM_ATOMIC(atomicExch, exch)
SIM_ATOMIC(atomicAnd, and_)
SIM_ATOMIC(atomicOr, or_)
SIM_ATOMIC(atomicXor, xor_)
#undef SIM_ATOMIC
__forceinline__ unsigned atomicInc(unsigned* p, unsigned limit) {
  return sim::atomic_u32(sim::AtomicOp::inc, p, limit);
}
__forceinline__ int atomicCAS(int* p, int compare, int v) {
  return sim::atomic_s32(sim::AtomicOp::cas, p, v, compare);
}
__forceinline__ unsigned atomicCAS(unsigned* p, unsigned compare, unsigned v) {
  return sim::atomic_u32(sim::AtomicOp::cas, p, v, compare);
}

// --- arithmetic ----------------------------------------------------------------------------------

// The fast intrinsics compute the accurate function: a GPU's error in them is not modelled.
__forceinline__ float __expf(float x) { return std::exp(x); }
__forceinline__ float __logf(float x) { return std::log(x); }
__forceinline__ float __log2f(float x) { return std::log2(x); }
__forceinline__ float __fdividef(float a, float b) { return a / b; }
__forceinline__ float __frcp_rn(float x) { return 1.0f / x; }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
__forceinline__ float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
__forceinline__ float __int_as_float(int x) { return std::bit_cast<float>(x); }
/// To the nearest, ties to even. NaN becomes 0; values out of range become the limit of int.
__forceinline__ int __float2int_rn(float x) {
  if (!(std::abs(x) < 0x1p31f)) return x > 0 ? INT_MAX : x < 0 ? INT_MIN : 0;
  return static_cast<int>(std::nearbyint(x));
}
__forceinline__ int __float_as_int(float x) { return std::bit_cast<int>(x); }
__forceinline__ unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
__forceinline__ float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
__forceinline__ int __popc(unsigned x) { return std::popcount(x); }
__forceinline__ int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
__forceinline__ int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
template <class T>
__forceinline__ T __ldg(const T* p) {
  return *p;
}
// By value; of a NaN and a number the number, as in CUDA. max<int>(a, b) is the C++ library's.
template <class... Explicit, class T>
requires(std::is_arithmetic_v<T> && sizeof...(Explicit) == 0) __forceinline__ T max(T a, T b) {
  return a < b || a != a ? b : a;
}
template <class... Explicit, class T>
requires(std::is_arithmetic_v<T> && sizeof...(Explicit) == 0) __forceinline__ T min(T a, T b) {
  return b < a || a != a ? b : a;
}
/// The largest or smallest of three integers; with _relu also of 0. One instruction on sm_90.
__forceinline__ int __vimax3_s32(int a, int b, int c) { return max(max(a, b), c); }
__forceinline__ int __vimin3_s32(int a, int b, int c) { return min(min(a, b), c); }
__forceinline__ unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) {
  return max(max(a, b), c);
}
__forceinline__ unsigned __vimin3_u32(unsigned a, unsigned b, unsigned c) {
  return min(min(a, b), c);
}
__forceinline__ int __vimax3_s32_relu(int a, int b, int c) { return max(max(max(a, b), c), 0); }
__forceinline__ int __vimin3_s32_relu(int a, int b, int c) { return max(min(min(a, b), c), 0); }

/// Four of the eight bytes of x (0 to 3) and y (4 to 7), selected by the last four hexadecimal
/// digits of `selector`, lowest first.
__forceinline__ unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<unsigned>(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return out;
}

/// 1 sign, 8 exponent, 7 mantissa bits; rounds to nearest even, as cuda_bf16.h does.
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __forceinline__ __nv_bfloat16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? 0x7fff : (u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
  __forceinline__ operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
__forceinline__ __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
__forceinline__ __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
__forceinline__ float __bfloat162float(__nv_bfloat16 h) { return h; }
__forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__nv_bfloat16(a), __nv_bfloat16(b)};
}

// --- the small part of the runtime API that the steps use ----------------------------------------

#ifndef FA_ANY_PROGRAM
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
cudaError_t cudaMalloc(void** p, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
cudaError_t cudaFree(void* p);
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind);
cudaError_t cudaMemset(void* p, int value, size_t bytes);
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaSuccess ? "no error" : "out of memory";
}
#endif

// --- the C library in a kernel -------------------------------------------------------------------

// The compiler's pass leaves calls to these to its own library. A definition for inlining only
// overrides the C library's, as in the latter's <bits/string_fortified.h>.
#ifdef __SANITIZE_THREAD__  // not in the simulator itself
#define FA_C_LIBRARY extern "C" inline __attribute__((always_inline, gnu_inline, artificial)) void*
FA_C_LIBRARY memcpy(void* to, const void* from, size_t bytes) noexcept {
  if (__builtin_constant_p(bytes) && sim::is_one_access(bytes)) {
    return __builtin_memcpy(to, from, bytes);
  }
  return sim::copy_bytes(to, from, bytes);
}
FA_C_LIBRARY memmove(void* to, const void* from, size_t bytes) noexcept {
  return sim::copy_bytes(to, from, bytes);
}
FA_C_LIBRARY memset(void* to, int value, size_t bytes) noexcept {
  return sim::set_bytes(to, value, bytes);
}
#undef FA_C_LIBRARY
#endif
