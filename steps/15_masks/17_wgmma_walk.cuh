// Step 15 -- Hopper's backward: the warpgroup that copies and multiplies dQ.
// Idea      As the producer of 10_producer, it takes a walk's keys and rows from a table
// Changed   since 11 7_columns: its copier and third warpgroup: keys and rows from a table
// Owns      dQ of a tile at a time
// Still bad see 18_wgmma_backward
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/15_masks/16_wgmma_keys.cuh"

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
  RowTile ahead;            // the tile to copy next; no register is left for it
  int halves[kStages + 1];  // where dQ of the tiles on their way is added, in units of 64 rows
};

// --- one thread copies ---------------------------------------------------------------------------

template <int d, class Mask>
struct Copier {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const bf16* columns;  // [B*H, Np, 8]
  const Mask& mask;
  int Np;

  template <int n>
  __device__ void load_keys(bf16 (&to)[kGroups][n], uint64_t* full,
                            const fa::TensorMap* from) const {
    fa::mbarrier_arrive_expect_tx(full, sizeof to);
    for (int wg = 0; wg < kGroups; ++wg) {
      fa::tma_load(to[wg], from, full, {0, smem.work.key + wg * kGroupKeys, 0, smem.work.bh});
    }
  }
  __device__ void find_next(int head, int place) const {
    const int first = mask.tile(smem.work, place) * Br<d>;
    smem.ahead = {head, place, smem.work.row + first, head * Np + smem.work.sums + first};
  }
  // The next tile of rows, the n-th of the walk, once its stage is empty.
  template <bool kMayBeFirst>
  __device__ void load_next(unsigned n) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    uint64_t *q_full = &smem.q_full[stage], *o_full = &smem.o_full[stage];
    smem.halves[n % (kStages + 1)] = smem.ahead.padded / 64;
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, smem.ahead.row, 0, smem.ahead.head});
    fa::bulk_load(smem.columns[stage], columns + size_t(smem.ahead.padded) * kColumns,
                  sizeof smem.columns[0], q_full);
    if (kMayBeFirst && n == 0) load_keys(smem.V, &smem.v_full, V);  // in the order of their use
    fa::mbarrier_wait(&smem.o_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(o_full, sizeof smem.dO[0]);
    fa::tma_load(smem.dO[stage], dO, o_full, {0, smem.ahead.row, 0, smem.ahead.head});
    const int place = smem.ahead.place + 1, head = smem.ahead.head;
    place == smem.work.tiles ? find_next(head + 1, 0) : find_next(head, place);
  }
};

// --- the third warpgroup multiplies dQ -----------------------------------------------------------

// dQ of each tile, 64 rows and 64 features at a time, once both warpgroups' dS is there. One thread
// also copies: when dS of a tile is there, the tile before it has been read.
template <int d, class Mask>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, unsigned tiles,
                                   const Copier<d, Mask>& copier, const FloatSums& dQ_sum) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  if (thread == 0) {
    copier.find_next(smem.work.bh * shape.group, 0);
    copier.load_keys(smem.K, &smem.k_full, copier.K);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i) copier.template load_next<true>(i);
  }
  __syncwarp();
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = step11::descriptor(smem.K[0]);
  const uint64_t first_ds = step11::descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n) {
    const unsigned stage = n % kDsStages;
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;  // d = 64: of rows; d = 128: of features
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      const int rows = d == 64 ? part : 0, features = d == 64 ? 0 : part;  // in units of 64
      const unsigned zero = (n + part) >> 31;                              // see 11 4_late's zero()
      const uint64_t k = first_k + zero;
      const uint64_t ds = first_ds + zero + stage * (sizeof smem.dS[0] >> 4);
      float rdQ[kPanel / 2];
      multiply_keys<d>(ds + (rows * Bc * kRowBytes >> 4),
                       k + (features * kGroupKeys * kRowBytes >> 4), rdQ);
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        copier.template load_next<false>(n - 1 + kStages);
      }
      const auto dQ_part = dQ_sum.part<d>(smem.halves[n % (kStages + 1)] + rows, features * 64);
      __syncwarp();  // all lanes have read it, before one arrives below
      fa::wgmma_wait<0>();
      fa::pin_registers(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      dQ_part.add(rdQ);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

// rows: of all boxes of Q, of all heads.
template <int Br, class Mask>
fa::Prediction traffic_of(const fa::Problem& p, const std::vector<KeyWork>& work, uint64_t rows,
                          const Mask& mask) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  uint64_t keys = 0, tiles = 0, skipped = 0;
  for (const KeyWork& w : work) {
    if (w.tiles == 0) continue;
    keys += std::min(Bc, p.Nk - w.key);
    tiles += uint64_t(w.tiles) * (p.H / p.Hkv);
    for (int k = 0; k < Bc; k += kGroupKeys) {
      skipped += skips_first(mask.template places<Br>(w, k), end_of_rows<Br>(w, p.N),
                             w.tiles * (p.H / p.Hkv));
    }
  }
  fa::Prediction t;
  t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * (BH * N + rows) * d;
  t["Q"].read = 2 * rows * d;
  t["LSE"].read = 4 * BH * N;
  t["columns"] = {.read = 2 * kColumns * tiles * Br, .write = 2 * kColumns * BH * Np};
  t["K"].read = t["V"].read = 2 * keys * d;
  t["dK"].write = t["dV"].write = 2 * p.kv_size();
  t["dQ_sum"] = {.read = 4 * BH * Np * d, .write = 4 * BH * Np * d, .atomic = 4 * tiles * Br * d};
  t["key_work"].read = sizeof(KeyWork) * work.size();
  t["sum_rows"].read = sizeof(int2) * BH * Np * (d / 8 + d / 16);
  const uint64_t tables = sizeof(KeyWork) * work.size() + sizeof(int2) * Np / Br;
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (N + 2 * Np * d) +
                   2 * kColumns * BH * Np + tables,
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 2 * kColumns * BH * Np + 8 * BH * Np * d};
  // Five products, and 16 columns more in S and dP; dQ is multiplied of skipped tiles, too.
  t.flops = tiles * (10 * d + 4 * kMma) * Br * Bc - skipped * (8 * d + 4 * kMma) * Br * kGroupKeys;
  return t;
}

}  // namespace step15_wgmma_backward
