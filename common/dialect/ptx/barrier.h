/// \file
/// Named barriers (bar.sync, bar.arrive), which are __syncthreads for some of the block's warps,
/// and the election of one lane of a warp.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// Waits until `threads` threads have arrived at barrier `id`, and orders their memory accesses.
/// \param id       1..15; 0 is the barrier of __syncthreads
/// \param threads  a multiple of 32; the same for all that use the barrier at this time
/// Whole warps take part; all threads of a warp must call it.
FA_PTX void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Arrives at barrier `id` without waiting, for a bar_sync of others. `threads` counts both.
FA_PTX void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// True in one lane of the warp, always the same one; all lanes must call it together (sm_90).
/// Scalar meaning: __syncwarp(), then lane == 0. ptxas knows that one thread enters
/// `if (elect_one())`. For `if (lane == 0)` it does not, and wraps each instruction whose operands
/// must be uniform in a warp, such as TMA and tcgen05.mma, in a loop.
FA_PTX bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{ .reg .pred p; elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(elected)
      :
      : "memory");
  return elected;
}

#elif !FA_BACKEND_GPU

FA_PTX bool elect_one() {
  __syncwarp();
  return threadIdx.x % kWarp == 0;
}

FA_PTX void bar_sync(int id, int threads, FA_WHERE) { sim::sync_named(id, threads, true, where); }
FA_PTX void bar_arrive(int id, int threads, FA_WHERE) {
  sim::sync_named(id, threads, false, where);
}

#endif

}  // namespace fa
