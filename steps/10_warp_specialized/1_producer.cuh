// Step 10 -- a producer warpgroup.
// Idea      The copying thread does nothing else, so it runs ahead as far as the stages reach, and
//           no product waits for it. Its warpgroup needs few registers: setmaxnreg gives the others
//           to the consumers
// Changed   since 09 2_wgmma: one more warpgroup, of which one thread copies; one block per SM,
//           with more rows or stages
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = ceil(N/Br); causal: K and V of visited
//                     write 2*BH*N*d + 4*BH*N B        tiles; O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), longest walks first; 1 warpgroup copies, 2 (d = 128) or 4 multiply
// Owns      block: Br rows of O; consumer: 64; warp: 16; lane: of 2 rows every 4th pair of columns
// Still bad a consumer alternates products and softmax; no other block fills the gaps
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "common/harness/forward.h"
#include "steps/09_tma_wgmma/2_wgmma.cuh"

namespace step10_producer {

using fa::bf16;
using namespace step09;  // 2_wgmma.cuh: a warpgroup's work on 64 rows and a tile of keys

template <int d>
constexpr int kConsumers = d == 64 ? 4 : 2;  // warpgroups
template <int d>
constexpr int Br = kGroupRows* kConsumers<d>;
template <int d>
constexpr int kThreads = kGroupThreads*(1 + kConsumers<d>);
template <int d>
constexpr int kStages = d == 64 ? 6 : 5;  // of K and V: what fits in shared memory

// A block's shared memory: 129 KB when d = 64, 193 KB when d = 128. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[kConsumers<d>][kGroupRows * d];  // reused for O in the epilogue
  bf16 K[kStages<d>][Bc * d];
  bf16 V[kStages<d>][Bc * d];
  uint64_t q_full, full[kStages<d>], empty[kStages<d>];  // mbarriers
};

// --- the producer: one thread copies -------------------------------------------------------------

// Issues Q, then all tiles of K and V, each as soon as its stage is free.
template <int d>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap& Q, const fa::TensorMap& K,
                               const fa::TensorMap& V, int row, int tiles, int bh, int kv_head) {
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  for (int g = 0; g < kConsumers<d>; ++g) {
    fa::tma_load(smem.Q[g], &Q, &smem.q_full, {0, row + g * kGroupRows, 0, bh});
  }
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % kStages<d>;
    fa::mbarrier_wait(&smem.empty[stage], (j / kStages<d> & 1) ^ 1);  // passes in the first round
    fa::mbarrier_arrive_expect_tx(&smem.full[stage], sizeof smem.K[0] + sizeof smem.V[0]);
    fa::tma_load(smem.K[stage], &K, &smem.full[stage], {0, j * Bc, 0, kv_head});
    fa::tma_load(smem.V[stage], &V, &smem.full[stage], {0, j * Bc, 0, kv_head});
  }
}

// One block per SM: the producer and the consumers share its registers.
template <int d>
__global__ void __launch_bounds__(kThreads<d>, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of 64 rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of 64 rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; the roles
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int thread = threadIdx.x % kGroupThreads, warp = thread / fa::kWarp,
            lane = thread % fa::kWarp;
  const int wg = fa::uniform(threadIdx.x / kGroupThreads) - 1;  // -1: producer
  // Causal: the longest walks of all heads start first, and the short ones fill the gaps at the
  // end. Otherwise the blocks of a head are adjacent and find K and V in the L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int seen = causal ? min(Nk, (i + 1) * Br<d> + Nk - N) : Nk;  // keys that the last row sees
  const int tiles = seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages<d>; ++stage) {
      fa::mbarrier_init(&smem.full[stage], 1);
      fa::mbarrier_init(&smem.empty[stage], kConsumers<d> * kGroupThreads / fa::kWarp);
    }
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the mbarriers
  if (wg < 0) {
    fa::setmaxnreg_dec<d == 64 ? 32 : 40>();
    if (threadIdx.x == 0) {
      produce<d>(smem, map_Q, map_K, map_V, i * Br<d>, tiles, bh, bh / group);
    }
    return;
  }
  fa::setmaxnreg_inc<d == 64 ? 112 : 232>();
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float rO[d / 2] = {}, l[2] = {}, m[2] = {kNoMaximum, kNoMaximum};
  const int group_row = i * Br<d> + wg * kGroupRows;         // the consumer's first row,
  const int row = group_row + warp * 16 + fa::row_of(lane);  // and this lane's
  fa::mbarrier_wait(&smem.q_full, 0);

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % kStages<d>;
    fa::mbarrier_wait(&smem.full[stage], j / kStages<d> & 1);
    float rS[Bc / 2];
    multiply_scores<d>(smem.Q[wg], smem.K[stage], rS);
    const int cut = causal ? min(Nk, group_row + 1 + Nk - N) : Nk;
    if (cut < (j + 1) * Bc) {  // the warpgroup's first row does not see all of tile j
      mask(rS, row, j * Bc + fa::column_of(lane), N, Nk, causal);
    }
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[stage], l, rO);
    if (lane == 0) fa::mbarrier_arrive(&smem.empty[stage]);  // the warp's products are complete
  }

  // --- epilogue: O is staged in the warpgroup's tile of Q and stored as a box
  float normalise[2];
  UNROLL
  for (int h = 0; h < 2; ++h) {
    l[h] = fa::quad_sum(l[h]);
    normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    const int r = row + h * 8;
    if (fa::leads_quad(lane) && r < N) LSE[size_t(bh) * N + r] = (m[h] + log2f(l[h])) * fa::kLn2;
  }
  fa::bar_sync(1 + wg, kGroupThreads);  // all four warps' products have read Q
  UNROLL
  for (int x = 0; x < d; x += 16) {  // 16 rows and 16 columns of O: four 8x8 matrices in A's order
    uint32_t o[4];
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const float lo = rO[x / 2 + 2 * e], hi = rO[x / 2 + 2 * e + 1];
      o[e] = fa::pack_bf16(lo * normalise[e % 2], hi * normalise[e % 2]);
    }
    fa::stmatrix_x4(smem.Q[wg] + swizzle<kGroupRows>(warp * 16 + lane % 16, x + lane / 16 * 8), o);
  }
  fa::fence_proxy_async();  // makes this thread's writes visible to TMA, the async proxy
  fa::bar_sync(1 + wg, kGroupThreads);  // the warpgroup's 64 rows are complete
  if (thread == 0) {
    fa::tma_store(&map_O, smem.Q[wg], {0, group_row, 0, bh});  // rows past the end are not written
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const int rows = p.d == 64 ? Br<64> : Br<128>;
  const fa::TileVisits v = fa::visited_tiles(p, rows, Bc);  // whose zeros are multiplied, too
  return fa::attention_traffic(p, v.keys, 4 * p.heads() * rows * Bc * v.tiles * p.d);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const dim3 grid(unsigned(fa::ceil_div(p.N, Br<d>) * p.heads()));
    fa::launch_attention<d>(flash_fwd_kernel<d>, {grid, dim3(kThreads<d>), sizeof(Tiles<d>)}, p, t,
                            kGroupRows, Bc, t.LSE, int(p.heads()), p.H / p.Hkv, p.N, p.Nk,
                            p.scale(), p.causal);
  });
}

}  // namespace step10_producer
