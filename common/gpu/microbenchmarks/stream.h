/// \file
/// Reads, writes or copies an array with all threads of a grid: the kernel of l2.cu and hbm.cu.
#pragma once

#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

enum class Access { read, write, copy };

/// All threads together walk arrays of `mask` + 1 bytes, 16 bytes each, 8 at once: 32 warps have
/// 128 KB in flight per SM, more than latency x bandwidth. Loads are .cg, which bypasses L1.
template <Access access>
struct Stream {
  const char* from;
  char* to;
  size_t mask;  // the size is a power of two
  size_t at = 0, step = 0;
  uint32_t sum = 0;
  __device__ void begin(char*) {
    at = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16;
    step = size_t{gridDim.x} * blockDim.x * 16;
  }
  __device__ void round() {
    uint4 x[kUnrolled] = {};
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if (access != Access::write) {
        const char* p = from + ((at + u * step) & mask);
        asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[u].x), "=r"(x[u].y), "=r"(x[u].z), "=r"(x[u].w)
                     : "l"(p));
      }
    }
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if (access != Access::read) {
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to + ((at + u * step) & mask)),
                     "r"(x[u].x), "r"(x[u].y), "r"(x[u].z), "r"(x[u].w)
                     : "memory");
      }
      sum ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
    }
    at += kUnrolled * step;
  }
  __device__ uint32_t result() const { return sum; }
};

/// Bytes that a block of 32 warps reads, writes or copies per round.
constexpr double kStreamBytes = 1.0 * kMaxWarps * kWarp * kUnrolled * 16;

}  // namespace fa::microbenchmarks
