/// \file
/// Clusters (sm_90): blocks that run at the same time and access each other's shared memory and
/// mbarriers. launch(kernel, {grid, block, smem, cluster}, ...) makes them.
#pragma once

#include "common/dialect/ptx/mbarrier.h"

namespace fa {

#if defined(__CUDACC__)

/// This block's rank in its cluster, 0 .. cluster_size() - 1.
FA_PTX unsigned cluster_rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
/// Blocks of the cluster.
FA_PTX unsigned cluster_size() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
  return n;
}
/// First half of the cluster's barrier: releases what this thread did. All threads of all blocks
/// take part; a thread that has returned counts as arrived.
FA_PTX void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
/// Second half: waits for all arrivals and acquires what they released.
FA_PTX void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/// __syncthreads() for all blocks of the cluster.
FA_PTX void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
/// Maps `p`, an address in this block's shared memory, to block `rank`'s. The result is an ordinary
/// pointer for loads and stores (ld.shared::cluster, st.shared::cluster). The other block must have
/// started and must not return too early: a cluster_sync() before and after.
template <class T>
FA_PTX T* map_shared(T* p, unsigned rank) {
  T* mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(p), "r"(rank));
  return mapped;
}
/// One arrival at the barrier at the same offset in block `rank` of the cluster. It releases all
/// that this thread wrote: on sm_90 a fence of GPU scope precedes it.
FA_PTX void mbarrier_arrive_remote(uint64_t* bar, unsigned rank) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" ::"r"(
          shared_address(bar)),
      "r"(rank)
      : "memory");
}
/// The same, but without a fence: PTX's default releases to this block only. For a thread that
/// hands over no writes to ordinary memory: it has read what the other block may now overwrite, or
/// orders tensor memory by tcgen05's fences.
FA_PTX void mbarrier_release_remote(uint64_t* bar, unsigned rank) {
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote]; }" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}
/// Copies `bytes` bytes of this block's shared memory to where `to` is in block `rank`'s, then
/// signals `bar` there. By TMA: what threads have written first needs fence_proxy_async().
/// Addresses and size: multiples of 16. `from` may be overwritten after the signal has arrived.
FA_PTX void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, unsigned rank) {
  asm volatile(
      "{ .reg .b32 to, bar;\n"
      "mapa.shared::cluster.u32 to, %0, %4;\n"
      "mapa.shared::cluster.u32 bar, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%1], %2, "
      "[bar]; }" ::"r"(shared_address(to)),
      "r"(shared_address(from)), "r"(bytes), "r"(shared_address(bar)), "r"(rank)
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

FA_PTX unsigned cluster_rank() { return sim::cluster_rank(); }
FA_PTX unsigned cluster_size() { return sim::cluster_size(); }
FA_PTX void cluster_arrive(FA_WHERE) { sim::cluster_arrive(where); }
FA_PTX void cluster_wait(FA_WHERE) { sim::cluster_wait(where); }
FA_PTX void cluster_sync(FA_WHERE) {
  fa::cluster_arrive(where);
  fa::cluster_wait(where);
}
template <class T>
FA_PTX T* map_shared(T* p, unsigned rank) {
  return static_cast<T*>(
      sim::map_shared_rank(const_cast<void*>(static_cast<const volatile void*>(p)), rank));
}
FA_PTX void mbarrier_arrive_remote(uint64_t* bar, unsigned rank, FA_WHERE) {
  sim::mbarrier_arrive(static_cast<uint64_t*>(sim::map_shared_rank(bar, rank)), 0, where);
}
FA_PTX void mbarrier_release_remote(uint64_t* bar, unsigned rank, FA_WHERE) {
  sim::mbarrier_arrive(static_cast<uint64_t*>(sim::map_shared_rank(bar, rank)), 0, where,
                       {.relaxed = rank != sim::cluster_rank()});
}
FA_PTX void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, unsigned rank,
                      FA_WHERE) {
  sim::bulk_send(to, from, bytes, bar, rank, where);
}
FA_PTX void mbarrier_wait_cluster(uint64_t* bar, int parity, FA_WHERE) {
  sim::mbarrier_wait(bar, parity, where);
}

#endif

}  // namespace fa
