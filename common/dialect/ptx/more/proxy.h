/// \file
/// Fences between what threads do and what TMA does (the "async proxy") in device memory.
/// fence_proxy_async() of ../tma.h is the one for shared memory.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// Orders this thread's plain accesses to device memory before later ones of TMA. Needed between a
/// store and a TMA load or reduction that reads it in the same launch; a barrier must follow.
FA_PTX void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
/// The same for shared and device memory.
FA_PTX void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

#elif !FA_BACKEND_GPU

FA_PTX void fence_proxy_async_global() { sim::proxy_fence(sim::ProxyFence::device); }
FA_PTX void fence_proxy_async_all() { sim::proxy_fence(sim::ProxyFence::all); }

#endif

}  // namespace fa
