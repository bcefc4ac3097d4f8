// Step 15 -- Hopper's producer for packs: the ends of documents.
// Idea      A box of TMA knows no documents. Two warps of the producer's warpgroup that were idle
//           help: one zeroes V behind a document's end, one stores O by rows there
// Changed   since 10 5_scheduled: its storing thread becomes a warp; another one zeroes V
// Owns      one warp zeroes, one stores
// Still bad see 12_wgmma
#pragma once

#include "steps/15_masks/10_producer.cuh"

namespace step15_wgmma {

// Zeroes what a walk's last V has of the next document: P is 0 there, but 0 * NaN is NaN.
template <class T>
__device__ inline void clear(Tiles<T>& smem, const Shape& shape) {
  const int lane = threadIdx.x % fa::kWarp;
  unsigned loaded = 0;  // tiles of V
  Ring<2> landed;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    fa::mbarrier_wait(&smem.q_full[b][0], n / 2 & 1);  // the work tile is there, too
    const WorkTile& work = smem.work[b][0];
    if (work.tiles == 0) return;
    loaded += work.tiles;
    const int keys = keys_of_last<T>(work, shape.Nk);
    if (keys < T::Bc) {
      const int stage = (loaded - 1) % T::kStagesV;
      fa::mbarrier_wait(&smem.v_landed[landed.stage], landed.parity);
      clear_rows<T::d, T::Bc>(smem.V[stage], max(0, keys), lane, fa::kWarp);
      fa::fence_proxy_async();  // wgmma sees what this thread wrote ...
      __syncwarp();             // ... and what the other lanes have
      if (lane == 0) fa::mbarrier_arrive(&smem.v_full[stage]);
      landed.next();
    }
    __syncwarp();  // all lanes have read the work tile
    if (lane < T::kConsumers) {
      // Not before this consumer's Q is there: until then an arrival counts for the O before it.
      fa::mbarrier_wait(&smem.q_full[b][lane], n / 2 & 1);
      fa::mbarrier_arrive(&smem.q_empty[b][lane]);
    }
  }
}

// Stores O of each work tile and consumer from where its Q was. Then that buffer is free. A box
// that ends behind its document would overwrite the next one: its rows are stored one by one.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* map, bf16* O,
                             const Shape& shape) {
  const int lane = threadIdx.x % fa::kWarp;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    UNROLL_BY(1)
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // the work tile is there, too
      const WorkTile& work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
      const int row = work.row + wg * kGroupRows, rows = work.rows - wg * kGroupRows;
      if (rows < kGroupRows) {
        bf16* to = O + (size_t(work.bh) * shape.N + row) * T::d;
        store_rows<T::d>(smem.Q[b][wg], to, rows, lane, fa::kWarp);
      } else if (lane == 0) {
        fa::tma_store(map, smem.Q[b][wg], {0, row, 0, work.bh});
        fa::tma_store_commit();
        fa::tma_store_wait_read<0>();
      }
      __syncwarp();  // all lanes have read O
      if (lane == 0) fa::mbarrier_arrive(&smem.q_empty[b][wg]);
    }
  }
}

}  // namespace step15_wgmma
