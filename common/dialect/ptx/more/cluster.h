/// \file
/// Clusters (sm_90): blocks that run at the same time and reach each other's shared memory.
/// launch(kernel, {grid, block, smem, cluster}, ...) makes them.
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// This block's number in its cluster, 0 .. cluster_size() - 1.
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
/// Where `p`, an address in this block's shared memory, is in block `rank`'s. The result is an
/// ordinary pointer: load and store through it (ld.shared::cluster, st.shared::cluster). The other
/// block must have started, and must not return before: a cluster_sync() on both sides.
template <class T>
FA_PTX T* map_shared(T* p, unsigned rank) {
  T* mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(p), "r"(rank));
  return mapped;
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

#endif

}  // namespace fa
