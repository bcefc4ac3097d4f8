// Step 11 -- a warpgroup that copies.
// Idea      As many blocks as SMs take one walk after another. K and V have two places, so a thread
//           can copy the next walk's while this one's are in use, and another store dK and dV
// Changed   since 11 7_columns: who copies and who stores; two places of K and V; walks from a
//           counter that all blocks share
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/11_hopper_backward/7_columns.cuh"

namespace step11_persistent {

using namespace step11;
using step11_apart::Br, step11_apart::kDsStages;  // 128 rows (d = 64); 2
using step11_columns::kColumns, step11_columns::multiply_with_columns;

constexpr int kThreads = (kGroups + 2) * kGroupThreads;
constexpr int kPlaces = 2;                                   // of K and V
constexpr int kQStages = 3, kDoStages = 2;                   // columns come with Q
constexpr int kGroupRegisters = 208, kCopierRegisters = 32;  // setmaxnreg: of 4 x 128
constexpr int kThirdRegisters = 4 * 128 - 2 * kGroupRegisters - kCopierRegisters;

// What a block keeps in shared memory: 215 KB. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kPlaces][kGroups][kGroupKeys * d];  // dK and dV on their way out
  bf16 V[kPlaces][kGroups][kGroupKeys * d];
  bf16 Q[kQStages][Br<d> * d];
  bf16 dO[kDoStages][Br<d> * d];
  bf16 columns[kQStages][Br<d> * kColumns];       // with Q
  bf16 dS[kDsStages][Bc * Br<d>];                 // dS^T: [Br / 64][Bc][64]
  WorkTile work[kPlaces];                         // with K; after the last one j = -1
  uint64_t k_full[kPlaces], v_full[kPlaces];      // mbarriers
  uint64_t out_full[kPlaces], kv_empty[kPlaces];  // out: dK and dV
  uint64_t q_full[kQStages], q_empty[kQStages];
  uint64_t o_full[kDoStages], o_empty[kDoStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
};

// Of a walk, of all heads that share the keys.
__device__ inline unsigned tiles_of(const WorkTile& work, const Shape& shape) {
  return shape.group * (shape.Tr - work.first);
}

// --- a thread copies -----------------------------------------------------------------------------

// K, V and the tiles of rows of each walk, in the order of their use. The next walk, or head, comes
// from a counter that all blocks share, one ahead, so that nobody waits for the counter.
template <int d, class Sums>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const fa::TensorMap* dO,
                               const bf16* columns,  // [B*H, Np, 8]
                               const Shape& shape, unsigned* taken) {
  unsigned n = 0, next = blockIdx.x;
  WorkTile work{};
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned place = w % kPlaces;
    fa::mbarrier_wait(&smem.kv_empty[place], (w / kPlaces & 1) ^ 1);
    if (w == 0 || !Sums::next_walk(work, shape, Br<d>)) {
      if (next >= unsigned(Sums::units(shape))) {
        smem.work[place] = {0, -1, 0, 0};
        fa::mbarrier_arrive(&smem.k_full[place]);
        break;
      }
      work = Sums::first_walk(next, shape, Br<d>);
      next = gridDim.x + atomicAdd(&taken[0], 1u);
    }
    smem.work[place] = work;
    load_keys(smem.K[place], &smem.k_full[place], K, work);
    RowTile at = work;
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape), first = n; n < end; ++n) {
      const unsigned q = n % kQStages, o = n % kDoStages;
      const size_t row = size_t(at.head) * shape.Np + at.i * Br<d>;
      uint64_t *q_full = &smem.q_full[q], *o_full = &smem.o_full[o];
      fa::mbarrier_wait(&smem.q_empty[q], (n / kQStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
      fa::tma_load(smem.Q[q], Q, q_full, {0, at.i * Br<d>, 0, at.head});
      fa::bulk_load(smem.columns[q], columns + row * kColumns, sizeof smem.columns[0], q_full);
      if (n == first) load_keys(smem.V[place], &smem.v_full[place], V, work);
      fa::mbarrier_wait(&smem.o_empty[o], (n / kDoStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(o_full, sizeof smem.dO[0]);
      fa::tma_load(smem.dO[o], dO, o_full, {0, at.i * Br<d>, 0, at.head});
      at.next(work, shape.Tr);
    }
  }
  // The last block to leave resets the counters for the next launch. Launches that run at the same
  // time need counters of their own.
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

// --- a thread stores -----------------------------------------------------------------------------

// dK and dV of each walk, from the place of its K and V, which is free when TMA has read them.
template <int d>
__device__ inline void store(Tiles<d>& smem, const fa::TensorMap* dK, const fa::TensorMap* dV,
                             const Shape& shape) {
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned place = w % kPlaces, parity = w / kPlaces & 1;
    fa::mbarrier_wait(&smem.k_full[place], parity);
    const WorkTile work = smem.work[place];
    if (work.j < 0) return;
    fa::mbarrier_wait(&smem.out_full[place], parity);
    for (int wg = 0; wg < kGroups; ++wg) {
      const int key = work.j * Bc + wg * kGroupKeys;
      if (key >= shape.Nk) break;
      fa::tma_store(dV, smem.V[place][wg], {0, key, 0, work.bh_kv});
      fa::tma_store(dK, smem.K[place][wg], {0, key, 0, work.bh_kv});
    }
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();
    fa::mbarrier_arrive(&smem.kv_empty[place]);
  }
}

// The work tile of a place, once K is there. Lane 0 reads it, because it is lane 0 whose later
// arrivals release the place.
template <int d>
__device__ inline WorkTile wait_for_work(Tiles<d>& smem, unsigned w) {
  fa::mbarrier_wait(&smem.k_full[w % kPlaces], w / kPlaces & 1);
  WorkTile work{};
  if (threadIdx.x % fa::kWarp == 0) work = smem.work[w % kPlaces];
  const auto same = [](int x) { return __shfl_sync(fa::kFullMask, x, 0); };
  return {same(work.bh_kv), same(work.j), same(work.head), same(work.first)};
}

}  // namespace step11_persistent
