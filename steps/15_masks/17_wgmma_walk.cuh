// Step 15 -- Hopper's backward: the warpgroup that copies and multiplies dQ.
// Idea      As the producer of 10_producer, it takes a walk's keys and rows from a table
// Changed   since 11 7_columns: its copier and third warpgroup: keys and rows from a table; dQ of
//           rows that no other walk visits is stored, as in 11 17_direct; dQ of half a tile
// Owns      dQ of a tile at a time
// Still bad see 18_wgmma_backward
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/15_masks/backward_tables.cuh"

namespace step15_wgmma_backward {

using step11::FloatSums, step11::multiply_keys;

// As 11 5_apart: three stages of Q and dO, two of dS; registers of a thread that owns keys.
constexpr int kThreads = (kGroups + 1) * kGroupThreads, kStages = 3, kDsStages = 2;
template <int d>
constexpr int kGroupRegisters = d == 64 ? 208 : 216;
template <int d>
constexpr int kThirdRegisters = 3 * 168 - 2 * kGroupRegisters<d>;

// What is the same for all blocks.
struct Shape {
  int group, N, Nk, Np;
  float scale;
};

// What a block keeps in shared memory. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // dK and dV on their way out
  bf16 V[kGroups][kGroupKeys * d];
  bf16 Q[kStages][Br<d> * d];
  bf16 dO[kStages][Br<d> * d];
  bf16 columns[kStages][Br<d> * kColumns];  // with Q
  bf16 dS[kDsStages][Bc * Br<d>];           // dS^T: [Br / 64][Bc][64]
  uint64_t k_full, v_full;                  // mbarriers
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t o_full[kStages], o_empty[kStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
  KeyWork work;
};

// --- one thread copies ---------------------------------------------------------------------------

template <int d, class Mask>
struct Copier {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const bf16* columns;  // [B*H, Np, 8]
  const Mask& mask;
  const KeyWork& work;
  int Np;

  template <int n>
  __device__ void load_keys(bf16 (&to)[kGroups][n], uint64_t* full,
                            const fa::TensorMap* from) const {
    fa::mbarrier_arrive_expect_tx(full, sizeof to);
    for (int wg = 0; wg < kGroups; ++wg) {
      fa::tma_load(to[wg], from, full, {0, work.key + wg * kGroupKeys, 0, work.bh});
    }
  }
  // A tile of rows, the n-th of the walk, once its stage is empty.
  __device__ void load_rows(unsigned n, const RowTile& at) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const int first = mask.tile(work, at.place) * Br<d>, row = work.row + first;
    const size_t padded = size_t(at.head) * Np + work.sums + first;
    uint64_t *q_full = &smem.q_full[stage], *o_full = &smem.o_full[stage];
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, row, 0, at.head});
    fa::bulk_load(smem.columns[stage], columns + padded * kColumns, sizeof smem.columns[0], q_full);
    if (n == 0) load_keys(smem.V, &smem.v_full, V);  // in the order of their use
    fa::mbarrier_wait(&smem.o_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(o_full, sizeof smem.dO[0]);
    fa::tma_load(smem.dO[stage], dO, o_full, {0, row, 0, at.head});
  }
};

// --- the third warpgroup multiplies dQ -----------------------------------------------------------

// dQ of each tile, 64 rows and 64 features at a time, once both warpgroups' dS is there. One thread
// also copies: when dS of a tile is there, the tile before it has been read.
template <int d, class Mask>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, unsigned tiles,
                                   const Copier<d, Mask>& copier, const FloatSums& dQ_sum,
                                   bf16* dQ) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const KeyWork& work = copier.work;
  RowTile at{work.bh * shape.group, 0}, ahead = at;  // ahead: the tile to copy next
  if (thread == 0) {
    copier.load_keys(smem.K, &smem.k_full, copier.K);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i, ahead.next(work)) {
      copier.load_rows(i, ahead);
    }
  }
  __syncwarp();
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = step11::descriptor(smem.K[0]);
  const uint64_t first_ds = step11::descriptor(smem.dS[0]);
  // Tiles that one warpgroup skips are multiplied by the other's keys only.
  const Mask& mask = copier.mask;
  const int ends_at = end_of_rows<Br<d>>(work, shape.N), end = work.tiles - 1;
  const bool first_is_half =
      skips_first(mask.template places<Br<d>>(work, kGroupKeys), ends_at, tiles);
  const bool last_is_half = skips_last(mask.template places<Br<d>>(work, 0), ends_at, end, tiles);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work)) {
    const unsigned stage = n % kDsStages;
    const int row = mask.tile(work, at.place) * Br<d>;  // of the document
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;  // d = 64: of rows; d = 128: of features
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      const int rows = d == 64 ? part : 0, features = d == 64 ? 0 : part;  // in units of 64
      const unsigned zero = (n + part) >> 31;                              // see 11 4_late's zero()
      const uint64_t k = first_k + zero;
      const uint64_t ds = first_ds + zero + stage * (sizeof smem.dS[0] >> 4);
      float rdQ[kPanel / 2];
      const uint64_t A = ds + (rows * Bc * kRowBytes >> 4);
      const uint64_t B = k + (features * kGroupKeys * kRowBytes >> 4);
      if (n == 0 && first_is_half) {
        multiply_keys<d, false, kGroupKeys>(A, B, rdQ);
      } else if (n + 1 == tiles && last_is_half) {
        multiply_keys<d, false, kGroupKeys>(A + (kGroupKeys * kRowBytes >> 4),
                                            B + (kGroupKeys * d * 2 >> 4), rdQ);
      } else {
        multiply_keys<d>(A, B, rdQ);
      }
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        copier.load_rows(n - 1 + kStages, ahead);
        ahead.next(work);
      }
      __syncwarp();
      const int first = row + rows * 64;
      fa::wgmma_wait<0>();
      fa::pin_registers(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      if (at.place < work.direct) {
        store_dq<d>(rdQ, dQ, at.head * shape.N + work.row + first, work.rows - first, features * 64,
                    shape.scale);
      } else {
        const int half = (at.head * shape.Np + work.sums + first) / 64;
        dQ_sum.part<d>(half, features * 64).add(rdQ);
      }
    }
  }
}

}  // namespace step15_wgmma_backward
