// Step 15 -- Hopper's scheduler for packs: work tiles from a table.
// Idea      10's producer draws a number from a counter: here that of an entry in the table. The
//           last V of a walk may hold keys of the next document: 11_ends zeroes them
// Changed   since 10 5_scheduled: its producer: work tiles from a table
// Owns      one warp copies
// Still bad see 12_wgmma
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/15_masks/9_table.cuh"

namespace step15_wgmma {

using step10::compute_p, step10::descriptor, step10::has_grown, step10::init, step10::kMma,
    step10::kNoMaximum, step10::multiply_scores, step10::multiply_values, step10::pack,
    step10::put_rows, step10::raise_maximum, step10::Ring, step10::row_maximum, step10::Shape,
    step10::tensor_map;

template <int d>
using Tiling = step10::Tiling<d, true>;
constexpr int kDrawBefore = 256;  // keys before a walk's end the next work tile is drawn

template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next; O on its way out
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers], o_full[2][T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  uint64_t v_landed[2];             // V of which rows must be zeroed before it is full
  WorkTile work[2][T::kConsumers];  // comes with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
  for (int b = 0; b < 2; ++b) {  // a Q is free when O is stored, and the warp that zeroes knows V
    init(smem.q_full[b], 1), init(smem.q_empty[b], 2), init(smem.o_full[b], kWarps);
  }
  init(smem.k_full, 1), init(smem.k_empty, kAllWarps);
  init(smem.v_full, 1), init(smem.v_empty, kAllWarps), init(smem.v_landed, 1);
  fa::mbarrier_init_fence();
}

// --- the producer: one thread copies -------------------------------------------------------------

// As in 10 5_scheduled: K_0 Q K_1 V_0 K_2 V_1 ... V_n.
template <class T, class Mask>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Mask& mask, const Shape& shape,
                               unsigned* taken) {
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  Ring<2> landed;
  const auto load_k = [&](int key, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, key, 0, bh});
    k.next();
  };
  const auto load_v = [&](int key, int bh, bool whole) {
    uint64_t* full = whole ? &smem.v_full[v.stage] : &smem.v_landed[landed.stage];
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(full, sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, full, {0, key, 0, bh});
    v.next();
    if (!whole) landed.next();
  };
  int t = blockIdx.x;
  WorkTile work = mask.work(t);
  for (int n = 0;; ++n) {
    const int b = n % 2;
    const int bh_kv = work.bh / shape.group;
    int key = work.tiles > 0 ? work.key + mask.tile(work, 0) * T::Bc : 0;
    if (work.tiles > 0) load_k(key, bh_kv);
    UNROLL_BY(1)  // here and below: the producer's warpgroup has few registers
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_empty[b][wg], (n / 2 & 1) ^ 1);
      smem.work[b][wg] = work;
      if (work.tiles > 0) {
        fa::mbarrier_arrive_expect_tx(&smem.q_full[b][wg], sizeof smem.Q[b][wg]);
        fa::tma_load(smem.Q[b][wg], Q, &smem.q_full[b][wg],
                     {0, work.row + wg * kGroupRows, 0, work.bh});
      } else {
        fa::mbarrier_arrive(&smem.q_full[b][wg]);
      }
    }
    if (work.tiles == 0) break;
    const int drawn_at = max(0, work.tiles - 1 - kDrawBefore / T::Bc);
    UNROLL_BY(1)
    for (int i = 0;; ++i) {
      const int now = key;
      if (i == drawn_at) t = gridDim.x + atomicAdd(&taken[0], 1u);  // not needed until the end
      if (i + 1 == work.tiles) break;
      load_k(key = work.key + mask.tile(work, i + 1) * T::Bc, bh_kv);
      load_v(now, bh_kv, true);
    }
    const bool whole = keys_of_last<T>(work, shape.Nk) == T::Bc;
    work = mask.work(t);  // arrives while V's stage is waited for
    load_v(key, bh_kv, whole);
  }
  // The last block to leave resets the counters for the next launch. Launches that run at the same
  // time need counters of their own.
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

}  // namespace step15_wgmma
