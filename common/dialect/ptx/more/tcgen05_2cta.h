/// \file
/// tcgen05 of two blocks (cta_group::2): a product has 256 rows, and each block of a pair holds
/// half of both operands. A pair is the blocks 2 i and 2 i + 1 of a cluster; the even one leads.
///
///                      even block               odd block
///     A  256 x 16      rows 0 .. 127            rows 128 .. 255            at the same offsets in
///     B  16 x N        columns 0 .. N / 2 - 1   columns N / 2 .. N - 1     both shared memories
///     D  256 x N       rows 0 .. 127            rows 128 .. 255            at the same address in
///                      lane m, column d + n     lane m - 128, column d + n both tensor memories
///
/// A warp of each block allocates and frees the same columns, which synchronises the two. One
/// thread of the pair issues a product: it passes the descriptors and addresses of its block, and
/// the tensor cores of both SMs apply them to both blocks. Its commit arrives in both. All these
/// instructions of a kernel have the same group.
///
///     if (warp == 0) tcgen05_alloc<2>(&base, 128);       // a warp of each block
///     cluster_sync();
///     if (rank == 0 && thread == 0) {
///       mbarrier_wait(&full, 0);                         // signalled by both tma_load_2cta
///       tcgen05_mma<2>(base, a, b, instruction);         // m256nNk16, B's descriptor names N / 2
///       tcgen05_commit_2cta(&done, 3);                   // both blocks
///     }
///     mbarrier_wait(&done, 0);                           // in each block
///     ...
///     cluster_sync();                                    // neither reads or writes any more
///     if (warp == 0) tcgen05_dealloc<2>(base, 128);
///
/// tcgen05_fence_before_thread_sync() orders the odd block's accesses to tensor memory before the
/// leader's; mbarrier_release_remote() (cluster.h), the arrival, need not.
#pragma once

#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/tcgen05.h"
#include "common/dialect/ptx/tma.h"

namespace fa {

#if defined(__CUDACC__)

/// As tcgen05_commit(), with an arrival at the offset of `bar` in each block of the mask `blocks`.
FA_PTX void tcgen05_commit_2cta(uint64_t* bar, uint16_t blocks) {
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(shared_address(bar)),
      "h"(blocks)
      : "memory");
}
/// As tma_load(), but its bytes are signalled at the offset of `bar` in block `rank` of the pair.
template <int dims>
FA_PTX void tma_load_2cta(void* to, const TensorMap* map, uint64_t* bar, unsigned rank,
                          const int (&at)[dims]) requires(dims == 4) {
  asm volatile(
      "{ .reg .b32 bar;\n"
      "mapa.shared::cluster.u32 bar, %2, %3;\n"
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%4, %5, %6, %7}], [bar]; }" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(bar)), "r"(rank), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX void tcgen05_commit_2cta(uint64_t* bar, uint16_t blocks, FA_WHERE) {
  sim::tcgen05_commit(bar, where, sim::CtaGroup::two, blocks);
}
template <int dims>
FA_PTX void tma_load_2cta(void* to, const TensorMap* map, uint64_t* bar, unsigned rank,
                          const int (&at)[dims], FA_WHERE) requires(dims == 4) {
  sim::tma_load_of_pair(to, map, at, dims, bar, rank, where);
}

#endif

}  // namespace fa
