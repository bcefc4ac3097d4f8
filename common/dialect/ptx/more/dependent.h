/// \file
/// Programmatic dependent launch (sm_90): launch_early() prepares the launch while the preceding
/// kernel runs. When its blocks have returned, this one's start, but wait until stores are visible.
///
/// Older GPUs run the kernels in order, and the wait does nothing. The simulator runs them in order
/// and refuses an access to device memory before the wait.
#pragma once

#include "common/dialect/ptx/wrapper.h"

#if !FA_BACKEND_GPU
namespace sim {

/// During its lifetime the launches of this host thread are early. `strict`: each access to device
/// memory before the wait is a fault; else only one to what the preceding kernel uses.
struct EarlyLaunch {
  explicit EarlyLaunch(bool strict = true);
  ~EarlyLaunch();
};
void griddep_wait();

}  // namespace sim
#endif

namespace fa {

#if defined(__CUDACC__)

/// Waits until the preceding kernel has ended and its stores are visible. By all threads of an
/// early kernel, even those that read nothing of it: the next kernel waits for this one only.
FA_PTX void griddep_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// launch() of a kernel that calls griddep_wait().
template <class... P, class... A>
void launch_early(void (*kernel)(P...), LaunchConfig c, A&&... args) {
  c.early = true;
  launch(kernel, c, static_cast<A&&>(args)...);
}

#elif !FA_BACKEND_GPU

FA_PTX void griddep_wait() { sim::griddep_wait(); }

template <class... P, class... A>
void launch_early(void (*kernel)(P...), const LaunchConfig& c, A&&... args) {
  const sim::EarlyLaunch early;
  launch(kernel, c, static_cast<A&&>(args)...);
}

#endif

}  // namespace fa
