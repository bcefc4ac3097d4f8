/// \file
/// The common parts of this folder's wrappers. A wrapper is one instruction: for nvcc one asm
/// statement, for the simulator a function of the same meaning (common/sim/instructions/). In a
/// plain .cpp of a GPU build only what the host needs is declared.
///
/// Shared-memory operands are ordinary pointers; wrappers convert them to 32-bit shared addresses.
#pragma once

#include <cstdint>

#include "common/dialect/cuda.h"

#if !FA_BACKEND_GPU
/// Last parameter of a wrapper in the simulator: the line of the call, for messages.
#define FA_WHERE sim::Where where = sim::Where::here()
#endif

/// Always inlined: a register array that is passed by reference stays in registers, and the
/// simulator sees the kernel's line as the caller.
#define FA_PTX __device__ __forceinline__

namespace fa {

#if defined(__CUDACC__)
/// The 32-bit address of `p` in the shared-memory window.
FA_PTX uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// No instruction: the compiler may move no use of these registers across this point, for example a
/// read of the accumulators to before wgmma_wait.
template <int n>
FA_PTX void pin_registers(float (&r)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
/// The same for operands and packed pairs.
template <int n>
FA_PTX void pin_registers(uint32_t (&r)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

#elif !FA_BACKEND_GPU

template <int n>
FA_PTX void pin_registers(float (&)[n]) {}
template <int n>
FA_PTX void pin_registers(uint32_t (&)[n]) {}

#endif

}  // namespace fa
