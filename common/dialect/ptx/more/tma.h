/// \file
/// The rest of TMA: tensors of other than four dimensions, multicast, runs of bytes without a
/// tensor map, and the fence for data read back in the same launch.
#pragma once

#include "common/dialect/ptx/tma.h"

namespace fa {

#if defined(__CUDACC__)

/// As fence_proxy_async(), for accesses to device memory. Needed between a store and a TMA load
/// that reads it in the same launch; a barrier must follow.
FA_PTX void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// One asm statement serves all ranks: DIM is "1d" to "5d", and AT names as many of the five
// registers with coordinates, which follow the other operands; the rest are unused.
#define FA_FOR_EACH_RANK(STATEMENT, x0, x1, x2, x3, x4)                 \
  static_assert(1 <= rank && rank <= 5);                                \
  int x[5] = {};                                                        \
  for (int i = 0; i < rank; ++i) x[i] = at[i];                          \
  if constexpr (rank == 1) STATEMENT("1d", x0);                         \
  if constexpr (rank == 2) STATEMENT("2d", x0 ", " x1);                 \
  if constexpr (rank == 3) STATEMENT("3d", x0 ", " x1 ", " x2);         \
  if constexpr (rank == 4) STATEMENT("4d", x0 ", " x1 ", " x2 ", " x3); \
  if constexpr (rank == 5) STATEMENT("5d", x0 ", " x1 ", " x2 ", " x3 ", " x4)
#define FA_COORDINATES "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4])

/// As tma_load() in ../tma.h, of a tensor of another rank than 4.
template <int rank>
FA_PTX void tma_load(void* to, const TensorMap* map, uint64_t* bar,
                     const int (&at)[rank]) requires(rank != 4) {
#define FA_STATEMENT(DIM, AT)                                               \
  asm volatile("cp.async.bulk.tensor." DIM                                  \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes " \
               "[%0], [%1, {" AT "}], [%2];" ::"r"(shared_address(to)),     \
               "l"(map), "r"(shared_address(bar)), FA_COORDINATES           \
               : "memory")
  FA_FOR_EACH_RANK(FA_STATEMENT, "%3", "%4", "%5", "%6", "%7");
#undef FA_STATEMENT
}

/// As tma_load, to the same offset in every block r of the cluster whose bit r is set in `blocks`;
/// each receives the signal at the offset of `bar`. The tensor is read once.
template <int rank>
FA_PTX void tma_load_multicast(void* to, const TensorMap* map, uint64_t* bar, const int (&at)[rank],
                               uint16_t blocks) {
#define FA_STATEMENT(DIM, AT)                                                                   \
  asm volatile("cp.async.bulk.tensor." DIM                                                      \
               ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"                      \
               ".multicast::cluster [%0], [%1, {" AT "}], [%2], %3;" ::"r"(shared_address(to)), \
               "l"(map), "r"(shared_address(bar)), "h"(blocks), FA_COORDINATES                  \
               : "memory")
  FA_FOR_EACH_RANK(FA_STATEMENT, "%4", "%5", "%6", "%7", "%8");
#undef FA_STATEMENT
}

/// As tma_store() in ../tma.h, of a tensor of another rank than 4.
template <int rank>
FA_PTX void tma_store(const TensorMap* map, const void* from,
                      const int (&at)[rank]) requires(rank != 4) {
#define FA_STATEMENT(DIM, AT)                                                              \
  asm volatile("cp.async.bulk.tensor." DIM ".global.shared::cta.tile.bulk_group [%0, {" AT \
               "}], [%1];" ::"l"(map),                                                     \
               "r"(shared_address(from)), FA_COORDINATES                                   \
               : "memory")
  FA_FOR_EACH_RANK(FA_STATEMENT, "%2", "%3", "%4", "%5", "%6");
#undef FA_STATEMENT
}

#undef FA_COORDINATES
#undef FA_FOR_EACH_RANK

/// Copies `bytes` bytes to shared memory, then signals `bar`. Addresses and size: multiples of 16.
FA_PTX void bulk_load(void* to, const void* from, int bytes, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
/// Copies `bytes` bytes from shared to device memory. Belongs to the thread's open group.
FA_PTX void bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
/// Waits until at most the `pending` newest groups are still unwritten.
template <int pending>
FA_PTX void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX void fence_proxy_async_global() { sim::proxy_fence(sim::ProxyFence::device); }
template <int rank>
FA_PTX void tma_load(void* to, const TensorMap* map, uint64_t* bar, const int (&at)[rank],
                     FA_WHERE) requires(rank != 4) {
  sim::tma_load(to, map, at, rank, bar, 0, where);
}
template <int rank>
FA_PTX void tma_load_multicast(void* to, const TensorMap* map, uint64_t* bar, const int (&at)[rank],
                               uint16_t blocks, FA_WHERE) {
  sim::tma_load(to, map, at, rank, bar, blocks, where);
}
template <int rank>
FA_PTX void tma_store(const TensorMap* map, const void* from, const int (&at)[rank],
                      FA_WHERE) requires(rank != 4) {
  sim::tma_store(map, at, rank, from, where);
}
FA_PTX void bulk_load(void* to, const void* from, int bytes, uint64_t* bar, FA_WHERE) {
  sim::bulk_load(to, from, bytes, bar, where);
}
FA_PTX void bulk_store(void* to, const void* from, int bytes, FA_WHERE) {
  sim::bulk_store(to, from, bytes, where);
}
template <int pending>
FA_PTX void tma_store_wait() {
  sim::bulk_wait(pending, false);
}

#endif

}  // namespace fa
