/// \file
/// setmaxnreg (sm_90): a block's warpgroups trade registers, to make room for accumulators.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

/// What setmaxnreg accepts: registers per thread.
__host__ __device__ constexpr bool valid_register_count(int n) {
  return n % 8 == 0 && n >= 24 && n <= 256;
}

#if defined(__CUDACC__)

/// Raises the registers of each thread of this warpgroup to `n` (a multiple of 8, 24..256); waits
/// until the pool has them. All warps of the warpgroup take part.
/// The pool is what the launch gave the block, so the kernel needs __launch_bounds__(threads, 1); a
/// larger sum over all warpgroups waits for ever (the simulator finds the impossible ones).
template <int n>
FA_PTX void setmaxnreg_inc() {
  static_assert(valid_register_count(n));
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
/// Lowers the registers of each thread of this warpgroup to `n` and gives the rest to the pool.
template <int n>
FA_PTX void setmaxnreg_dec() {
  static_assert(valid_register_count(n));
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

#elif !FA_BACKEND_GPU

// A simulated thread has all the registers it wants; only the sum over the block is checked.
template <int n>
FA_PTX void setmaxnreg_inc(FA_WHERE) {
  static_assert(valid_register_count(n));
  sim::setmaxnreg(n, where);
}
template <int n>
FA_PTX void setmaxnreg_dec(FA_WHERE) {
  static_assert(valid_register_count(n));
  sim::setmaxnreg(n, where);
}

#endif

}  // namespace fa
