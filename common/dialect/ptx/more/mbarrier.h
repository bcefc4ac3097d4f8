/// \file
/// The rest of mbarrier: the barriers of other blocks of a cluster, and what ../mbarrier.h leaves
/// out because no step has needed it so far.
#pragma once

#include "common/dialect/ptx/mbarrier.h"

namespace fa {

#if defined(__CUDACC__)

/// The 8 bytes are ordinary memory again.
FA_PTX void mbarrier_inval(uint64_t* bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}
/// One arrival at the barrier at the same place in block `rank` of the cluster, which hands over
/// what this thread wrote anywhere: on sm_90 a fence of the whole GPU stands in front of it.
FA_PTX void mbarrier_arrive_remote(uint64_t* bar, unsigned rank) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(
          shared_address(bar)),
      "r"(rank)
      : "memory");
}
/// Announces `bytes` without an arrival.
FA_PTX void mbarrier_expect_tx(uint64_t* bar, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)),
      "r"(bytes)
      : "memory");
}
/// As mbarrier_wait, and acquires what other blocks of the cluster released.
FA_PTX void mbarrier_wait_cluster(uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred complete;\n"
      "TRY:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%0], %1;\n"
      "@!complete bra TRY; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX void mbarrier_inval(uint64_t* bar, FA_WHERE) { sim::mbarrier_inval(bar, where); }
FA_PTX void mbarrier_arrive_remote(uint64_t* bar, unsigned rank, FA_WHERE) {
  sim::mbarrier_arrive(static_cast<uint64_t*>(sim::map_shared_rank(bar, rank)), 0, where);
}
FA_PTX void mbarrier_expect_tx(uint64_t* bar, int bytes, FA_WHERE) {
  sim::mbarrier_expect_tx(bar, bytes, where);
}
FA_PTX void mbarrier_wait_cluster(uint64_t* bar, int parity, FA_WHERE) {
  sim::mbarrier_wait(bar, parity, where);
}

#endif

}  // namespace fa
