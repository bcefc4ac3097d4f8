/// \file
/// The rest of TMA: tensors of other than four dimensions, one copy to several blocks, additions in
/// device memory, runs of bytes without a tensor map. What ../tma.h leaves out because no step has
/// needed it so far.
#pragma once

#include "common/dialect/ptx/tma.h"

namespace fa {

#if defined(__CUDACC__)

/// Fetches the map itself ahead of its first use. By one thread.
FA_PTX void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int rank>
FA_PTX void tma_load(void* to, const TensorMap* map, uint64_t* bar,
                     const int (&at)[rank]) requires(rank != 4) {
  static_assert(rank <= 5);
  if constexpr (rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "r"(at[0])
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "r"(at[4])
        : "memory");
  }
}

/// As tma_load, to every block r of the cluster with bit r set in `blocks`, at the same place in
/// its shared memory; each of them gets the signal at the same place as `bar`. The tensor is read
/// once.
template <int rank>
FA_PTX void tma_load_multicast(void* to, const TensorMap* map, uint64_t* bar, const int (&at)[rank],
                               uint16_t blocks) {
  static_assert(rank <= 5);
  if constexpr (rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "h"(blocks), "r"(at[0])
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "h"(blocks), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "h"(blocks), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else if constexpr (rank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "h"(blocks), "r"(at[0]), "r"(at[1]), "r"(at[2]),
        "r"(at[3])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "h"(blocks), "r"(at[0]), "r"(at[1]), "r"(at[2]),
        "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

template <int rank>
FA_PTX void tma_store(const TensorMap* map, const void* from,
                      const int (&at)[rank]) requires(rank != 4) {
  static_assert(rank <= 5);
  if constexpr (rank == 1) {
    asm volatile(
        "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0])
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
        "[%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

/// As tma_store, but adds to the tensor (floats), one atomic addition an element.
template <int rank>
FA_PTX void tma_reduce_add(const TensorMap* map, const void* from, const int (&at)[rank]) {
  static_assert(rank <= 5);
  if constexpr (rank == 1) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0])
        : "memory");
  } else if constexpr (rank == 2) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (rank == 3) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3, %4}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else if constexpr (rank == 4) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    asm volatile(
        "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group "
        "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

/// Copies `bytes` bytes to shared memory, then tells `bar`. Addresses and size: multiples of 16.
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
/// to[i] += from[i], one atomic addition a float. Belongs to the thread's open group.
FA_PTX void bulk_reduce_add(float* to, const float* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}

/// Waits until at most the `pending` newest groups have not been written.
template <int pending>
FA_PTX void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
#elif !FA_BACKEND_GPU

FA_PTX void prefetch_tensor_map(const TensorMap*) {}
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
  sim::tma_store(map, at, rank, from, false, where);
}
template <int rank>
FA_PTX void tma_reduce_add(const TensorMap* map, const void* from, const int (&at)[rank],
                           FA_WHERE) {
  sim::tma_store(map, at, rank, from, true, where);
}
FA_PTX void bulk_load(void* to, const void* from, int bytes, uint64_t* bar, FA_WHERE) {
  sim::bulk_load(to, from, bytes, bar, where);
}
FA_PTX void bulk_store(void* to, const void* from, int bytes, FA_WHERE) {
  sim::bulk_store(to, from, bytes, where);
}
FA_PTX void bulk_reduce_add(float* to, const float* from, int bytes, FA_WHERE) {
  sim::bulk_add(to, from, bytes, where);
}
template <int pending>
FA_PTX void tma_store_wait() {
  sim::bulk_wait(pending, false);
}

#endif

}  // namespace fa
