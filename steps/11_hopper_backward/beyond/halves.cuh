// Step 11 -- two blocks for a walk.
// Idea      Where all walks run at once, the longest one decides; with the mask it is nearly twice
//           the mean. Two blocks of a cluster walk half of its rows each, so that an SM's second
//           walk is short where its first was long. At the end each sends its sums of one gradient
// Changed   since 11 3_columns: the walk's ends; one block gets dV's sums of both, the other dK's
// Traffic   as 3_columns, but K and V are copied by both blocks
// Launch    columns; backward (2 * Tc * B*Hkv), clusters of 2, 384 threads; convert
// Owns      block: half of a walk's rows, and dV or dK of 128 keys
// Still bad the last block of a cluster to end its walk delays the other
#pragma once

#include "common/dialect/ptx/more/cluster.h"
#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_halves {

using namespace step11_columns;

constexpr int d = 128, kRows = step11_columns::Br<d>;  // rows of a tile
constexpr int kBlocks = 2;                             // of a cluster

// In its cluster. Not cluster_rank(), of which nvcc does not know that it is the same in all lanes.
__device__ inline unsigned rank_of_block() { return blockIdx.x % kBlocks; }

// The sums of a block's 128 keys, where Q and dO were: as a warpgroup's registers.
using Sums = float4[kGroups][d / 8][kGroupThreads];
static_assert(sizeof(Sums) <= sizeof Tiles<d>::Q + sizeof Tiles<d>::dO);

__device__ inline void send(float4 (&to)[d / 8][kGroupThreads], const float (&sums)[d / 2]) {
  UNROLL
  for (int i = 0; i < d / 8; ++i) {
    const float* four = sums + 4 * i;
    to[i][threadIdx.x % kGroupThreads] = make_float4(four[0], four[1], four[2], four[3]);
  }
}
__device__ inline void receive(const float4 (&from)[d / 8][kGroupThreads], float (&sums)[d / 2]) {
  UNROLL
  for (int i = 0; i < d / 8; ++i) {
    const float4 four = from[i][threadIdx.x % kGroupThreads];
    sums[4 * i] += four.x, sums[4 * i + 1] += four.y;
    sums[4 * i + 2] += four.z, sums[4 * i + 3] += four.w;
  }
}

// Sends one gradient's sums to the other block, adds its sums of the other gradient, and stores it.
template <int wg>
__device__ inline void exchange(Tiles<d>& smem, const WorkTile& work, float (&kept)[d / 2],
                                const float (&sent)[d / 2], float scale, const fa::TensorMap* to,
                                int Nk) {
  Sums& mine = reinterpret_cast<Sums&>(smem.Q);
  Sums& other = *fa::map_shared(&mine, rank_of_block() ^ 1);
  fa::cluster_sync();  // Q and dO of both blocks are read
  send(other[wg], sent);
  fa::cluster_sync();  // the sums are written
  receive(mine[wg], kept);
  const float scales[2] = {scale, scale};
  put_rows<d>(kept, scales, smem.V[wg]);
  fa::fence_proxy_async();              // TMA reads what this thread has written ...
  fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
  const int key = work.j * Bc + wg * kGroupKeys;
  if (threadIdx.x % kGroupThreads > 0 || key >= Nk) return;
  fa::tma_store(to, smem.V[wg], {0, key, 0, work.bh_kv});
  fa::tma_store_commit();
  fa::tma_store_wait_read<0>();  // shared memory must outlive the copy
}

// As 3_columns' multiply_dq(), but one loop over the panels of 64 features, of two per tile: of two
// loops nvcc computes all descriptors and addresses of a tile before the inner one.
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                                   const Loader<d>& loader, const FloatSums& dQ_sum) {
  constexpr int kPanels = d / kPanel;
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const unsigned tiles = shape.group * (shape.Tr - work.first);
  RowTile at{work, shape}, ahead = at;
  if (thread == 0) {
    load_keys(smem.K, &smem.k_full, loader.K, work);
    UNROLL_BY(1)
    for (unsigned n = 0; n < min(tiles, unsigned(kStages)); ++n, ahead.next(work, shape)) {
      loader.load_rows(n, ahead);
    }
  }
  __syncwarp();
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K[0]), first_ds = tile_descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned m = 0; m < kPanels * tiles; ++m) {
    const unsigned n = m / kPanels, panel = m % kPanels, stage = n % kDsStages;
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    float rdQ[kPanel / 2];
    multiply_transposed<d, Bc>(first_ds + stage * (sizeof smem.dS[0] >> 4),
                               first_k + panel * (kGroupKeys * kRowBytes >> 4), rdQ);
    if (panel == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
      loader.load_rows(n - 1 + kStages, ahead);
      ahead.next(work, shape);
    }
    __syncwarp();
    const auto part = dQ_sum.part<d>(at.head * (shape.Np / 64) + at.i, panel * kPanel);
    wait_for<0>(rdQ);
    const bool last = panel == kPanels - 1;
    if (last && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
    part.add(rdQ);
    if (last) at.next(work, shape);
  }
}

// The block's half: tiles of rows from work.first to shape.Tr, which it sets.
__device__ inline WorkTile half_of_walk(Shape& shape) {
  WorkTile work = work_tile_at(blockIdx.x / kBlocks, shape, kRows);
  const int middle = (work.first + shape.Tr + 1) / 2;
  (rank_of_block() == 0 ? shape.Tr : work.first) = middle;
  return work;
}

// A warpgroup's walk; then block 0 stores dV of both, block 1 dK.
template <int wg>
__device__ inline void walk(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                            const fa::TensorMap* dK, const fa::TensorMap* dV) {
  Group<d, wg> group(smem, shape, work);
  group.walk();
  wait_for<0>(group.rdK);
  if (rank_of_block() == 0) {
    exchange<wg>(smem, work, group.rdV, group.rdK, 1.f, dV, shape.Nk);
  } else {
    exchange<wg>(smem, work, group.rdK, group.rdV, shape.scale, dK, shape.Nk);
  }
}

static __global__ void __launch_bounds__(kThreads, 1)
    halves_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of 64 rows
                  const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                  const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                  const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of 64
                  const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                  const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                  const bf16* columns,                       // [B*H, Np, 8]
                  FloatSums dQ_sum, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();     // all threads see the barriers
  fa::griddep_wait();  // launched early: what the preceding kernel wrote is visible
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    const WorkTile work = half_of_walk(shape);
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    fa::cluster_arrive();  // warpgroup 0 waits for each of its copies, and arrives after that
    step11_halves::multiply_dq(smem, shape, work, loader, dQ_sum);
    fa::cluster_wait();  // its return is the second arrival
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    const WorkTile work = half_of_walk(shape);
    wg == 0 ? walk<0>(smem, shape, work, &dK, &dV) : walk<1>(smem, shape, work, &dK, &dV);
  }
}

// --- host ---------------------------------------------------------------------------------------

// Where all walks run at once, the longest is half as long again as an SM's share and worth what a
// block costs (measured), and the shortest has a tile for both blocks.
inline bool pays(const fa::Problem& p) {
  if (p.d != d || !p.causal) return false;
  const Shape shape = shape_of(p, kRows);
  int64_t tiles = 0, longest = 0, shortest = shape.Tr;
  for (int j = 0; j < shape.Tc; ++j) {
    const int64_t walk = shape.Tr - std::max(0, j * Bc - shape.shift) / kRows;
    tiles += walk, longest = std::max(longest, walk), shortest = std::min(shortest, walk);
  }
  return shape.Tc * shape.kv_heads <= p.gpu.sms && shortest >= kBlocks && longest >= 16 &&
         2 * longest * p.gpu.sms >= 3 * tiles * shape.kv_heads;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  for (const char* name : {"K", "V"}) t[name].read *= kBlocks;
  const Shape shape = shape_of(p, kRows);
  for (int j = 0; j < shape.Tc; ++j) {  // a half of one tile skips none
    const int i = std::max(0, j * Bc - shape.shift) / kRows;
    if (shape.group == 1 && shape.Tr - i == 2 &&
        j * Bc + kGroupKeys >= (i + 1) * kRows + shape.shift) {
      t.flops += p.kv_heads() * kGroupKeys * kRows * (8 * p.d + 4 * kMma);
    }
  }
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Shape shape = shape_of(p, kRows);
  step11_columns::launch_columns<d>(p, t);
  launch_mapped<d, true>(
      halves_kernel,
      {dim3(kBlocks * shape.Tc * shape.kv_heads), dim3(kThreads), sizeof(Tiles<d>), kBlocks}, p, t,
      kRows, t.scratch<bf16>("columns"), FloatSums{t.scratch<float>("dQ_sum")}, shape);
  step11_sums::launch_convert<d>(p, t);
}

}  // namespace step11_halves
