/// \file
/// mbarrier (sm_90): a barrier in shared memory, 8 bytes, that counts arrivals and bytes.
///
/// A phase is complete when `count` arrivals have occurred and every byte announced by expect_tx
/// has landed; the next phase then begins by itself. Waiting is by parity: phases 0, 2, 4, ... have
/// parity 0, phases 1, 3, 5, ... parity 1. A ring of stages waits with (use / stages) % 2. A fresh
/// barrier lets wait(bar, 1) pass, so a producer finds the stages of the first round empty.
///
/// An arrival releases, a wait acquires: what a thread did before its arrival is visible to a
/// thread after its wait. Undefined: more than `count` arrivals in a phase, use before the init is
/// visible (mbarrier_init_fence() and a barrier), a second init without mbarrier_inval. For the
/// blocks of a cluster: more/cluster.h.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// Makes `bar` a barrier of `count` arrivals per phase (1 .. 2^20 - 1). By one thread.
FA_PTX void mbarrier_init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count)
               : "memory");
}
/// Makes initialised barriers visible to TMA and to the other blocks of the cluster. By the thread
/// that initialised them; __syncthreads() (or the cluster barrier) must follow.
FA_PTX void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// The 8 bytes are ordinary memory again.
FA_PTX void mbarrier_inval(uint64_t* bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
/// One arrival.
FA_PTX void mbarrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
/// Announces `bytes` that TMA will write in this phase, then arrives once. By the thread that
/// issues the copies, before it issues them.
FA_PTX void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}
/// Waits until the last phase with this parity is complete: the current phase has the other one.
FA_PTX void mbarrier_wait(uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred complete;\n"
      "TRY:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra TRY; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX void mbarrier_init(uint64_t* bar, int count, FA_WHERE) {
  sim::mbarrier_init(bar, count, where);
}
FA_PTX void mbarrier_init_fence() { sim::mbarrier_init_fence(); }
FA_PTX void mbarrier_inval(uint64_t* bar, FA_WHERE) { sim::mbarrier_inval(bar, where); }
FA_PTX void mbarrier_arrive(uint64_t* bar, FA_WHERE) { sim::mbarrier_arrive(bar, 0, where); }
FA_PTX void mbarrier_arrive_expect_tx(uint64_t* bar, int bytes, FA_WHERE) {
  sim::mbarrier_arrive(bar, bytes, where);
}
FA_PTX void mbarrier_wait(uint64_t* bar, int parity, FA_WHERE) {
  sim::mbarrier_wait(bar, parity, where);
}

#endif

}  // namespace fa
