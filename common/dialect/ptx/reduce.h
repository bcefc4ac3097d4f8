/// \file
/// Additions to device memory of several floats at a time (sm_90), from registers.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

/// to[i] += v[i] for i = 0 .. 3, four atomic additions in one request of 16 bytes a lane. Returns
/// nothing, so no thread waits for it. `to`: a multiple of 16 bytes.
#if defined(__CUDACC__)
FA_PTX void red_add_v4(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}
#elif !FA_BACKEND_GPU
FA_PTX void red_add_v4(float* to, float a, float b, float c, float d) {
  sim::atomic_add_v4(to, a, b, c, d);
}
#endif

/// The four floats at `from` as the L2 has them: an L1 may still hold what was there before this
/// block's additions. `from`: a multiple of 16 bytes.
FA_PTX float4 load_l2(const float* from) {
#if defined(__CUDACC__)
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
#else
  return *reinterpret_cast<const float4*>(from);
#endif
}

}  // namespace fa
