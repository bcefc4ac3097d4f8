// Step 16 -- issuers. Compiled for sm_100a and run in the simulator; not yet run on a card.
// Idea      A warp copies, another multiplies, a warpgroup owns the rows. Each waits at mbarriers
//           for what it needs, and otherwise runs ahead
// Changed   since 16 1_tmem: two more warps, and mbarriers instead of __syncthreads; P has separate
//           columns, so S of the next tile is computed during the softmax; the products themselves
//           release a stage
// Traffic   as 1_tmem
// Launch    grid (Tr * B*H), 192 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; a thread of the warpgroup: a row
// Still bad the warpgroup rescales O, and computes no exponential meanwhile: 3_roles
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "steps/16_blackwell/parts.cuh"

namespace step16_issuer {

using namespace step16;  // parts.cuh: products, and a thread's work on its row

constexpr int kThreads = kGroupThreads + 2 * fa::kWarp;
constexpr int kStages = 3;  // of K and of V

// Columns of tensor memory:
//
//     0            128       192       256                384       512
//     | S          | P       |         | O, d columns     |         |
constexpr int kColumns = 512, kColumnS = 0, kColumnP = 128, kColumnO = 256;

// A block's shared memory: 113 KB when d = 64, 225 KB when d = 128. Panels as before.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
  // mbarriers                                       arrivals by
  uint64_t q_full, k_full[kStages], v_full[kStages];  // the copies
  uint64_t k_empty[kStages], v_empty[kStages];        // Q K^T and P V
  uint64_t s_full, o_full;                            // Q K^T and P V
  uint64_t s_empty, p_full;                           // the softmax, each thread
  uint32_t tmem;                                      // address of the block's first column
};

// --- a warp copies ------------------------------------------------------------------------------

// One thread copies Q, then all tiles of K and V.
template <int d>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap& Q, const fa::TensorMap& K,
                               const fa::TensorMap& V, int row, int tiles, int bh, int kv_head) {
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  fa::tma_load(smem.Q, &Q, &smem.q_full, {0, row, 0, bh});
  copy_keys<kStages>(smem, K, V, tiles, kv_head);
}

// --- a thread multiplies ------------------------------------------------------------------------

// S of tile j is issued before P V of tile j - 1, which waits for the softmax. A commit arrives
// when all earlier products of this thread are complete, and so releases a stage.
template <int d>
__device__ inline void multiply(Tiles<d>& smem, int tiles) {
  fa::mbarrier_wait(&smem.q_full, 0);
  for (int j = 0; j <= tiles; ++j) {
    if (j < tiles) {
      const int stage = j % kStages;
      fa::mbarrier_wait(&smem.k_full[stage], j / kStages & 1);
      fa::mbarrier_wait(&smem.s_empty, (j & 1) ^ 1);
      fa::tcgen05_fence_after_thread_sync();
      multiply_scores<d>(smem.Q, smem.K[stage], smem.tmem + kColumnS);
      fa::tcgen05_commit(&smem.k_empty[stage]);
      fa::tcgen05_commit(&smem.s_full);
    }
    if (j > 0) {
      const int before = j - 1, stage = before % kStages;
      fa::mbarrier_wait(&smem.v_full[stage], before / kStages & 1);
      fa::mbarrier_wait(&smem.p_full, before & 1);
      fa::tcgen05_fence_after_thread_sync();
      multiply_values<d>(smem.tmem + kColumnP, smem.V[stage], smem.tmem + kColumnO, before == 0);
      fa::tcgen05_commit(&smem.v_empty[stage]);
      fa::tcgen05_commit(&smem.o_full);
    }
  }
}

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of Br rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of Br rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; mbarriers and tensor memory
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = fa::uniform(threadIdx.x / fa::kWarp);
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int kv_head = bh / group;                                 // `group` heads share K and V
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  if (threadIdx.x == 0) {
    for (uint64_t* bar : {&smem.q_full, &smem.s_full, &smem.o_full}) fa::mbarrier_init(bar, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.k_full[stage], 1), fa::mbarrier_init(&smem.k_empty[stage], 1);
      fa::mbarrier_init(&smem.v_full[stage], 1), fa::mbarrier_init(&smem.v_empty[stage], 1);
    }
    for (uint64_t* bar : {&smem.s_empty, &smem.p_full}) fa::mbarrier_init(bar, kGroupThreads);
    fa::mbarrier_init_fence();
  }
  if (warp == 0) {
    __syncwarp();  // thread 0 is back with its warp, which allocates as a whole
    allocate(&smem.tmem, kColumns);
  }
  __syncthreads();  // the mbarriers and the address are visible to all threads
  fa::tcgen05_fence_after_thread_sync();
  if (warp >= kGroupThreads / fa::kWarp) {  // the issuers
    if (fa::elect_one()) {
      if (warp == 4) produce<d>(smem, map_Q, map_K, map_V, i * Br, tiles, bh, kv_head);
      if (warp == 5) multiply<d>(smem, tiles);
    }
    return;
  }
  const uint32_t tmem = smem.tmem;
  const uint32_t lanes = fa::tmem_address(tmem, warp * fa::kWarp, 0);  // those of this warp
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float l = 0.f, m = kNoMaximum;
  const int row = i * Br + threadIdx.x;
  const int visible = causal ? min(Nk, row + 1 + Nk - N) : Nk;  // keys that the row sees
  const int cut = causal ? min(Nk, i * Br + warp * fa::kWarp + 1 + Nk - N) : Nk;  // warp's first
  fa::mbarrier_wait(&smem.q_full, 0);

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::mbarrier_wait(&smem.s_full, j & 1);
    fa::tcgen05_fence_after_thread_sync();
    Row rS;
    load_row(lanes + kColumnS, rS);
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.s_empty);  // S is in registers: the next one may be computed
    if (cut < (j + 1) * Bc) mask(rS, visible - j * Bc);
    const float alpha = update_maximum(rS, scale_log2, m);
    l *= alpha;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      uint32_t rP[kHalf / 2];
      l += compute_p(rS[h], scale_log2, m, rP);
      if (h == 0) {
        fa::mbarrier_wait(&smem.o_full, (j & 1) ^ 1);  // P V of the previous tile has read P
        fa::tcgen05_fence_after_thread_sync();
      }
      fa::tcgen05_st(lanes + kColumnP + h * kHalf / 2, rP);
    }
    fa::tcgen05_wait_st();
    if (j > 0) rescale<d>(lanes + kColumnO, alpha);
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.p_full);  // P is stored and O rescaled
  }
  fa::mbarrier_wait(&smem.o_full, (tiles & 1) ^ 1);  // the last P V, and all Q K^T before it
  fa::tcgen05_fence_after_thread_sync();

  // --- epilogue: O is staged in the tile of Q and stored as a box
  const float normalise = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  if (row < N) LSE[size_t(bh) * N + row] = (m + log2f(l)) * fa::kLn2;
  store_o<d>(lanes + kColumnO, tiles > 0, normalise, threadIdx.x, smem.Q);
  fa::tcgen05_fence_before_thread_sync();
  fa::bar_sync(1, kGroupThreads);  // the rows are complete, and tensor memory is read
  if (threadIdx.x == 0) {
    fa::tma_store(&map_O, smem.Q, {0, i * Br, 0, bh});  // rows past the end are not written
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
  if (warp == 0) deallocate(tmem, kColumns);
}

// --- host ---------------------------------------------------------------------------------------

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(
      p.d, [&](auto d) { launch<d>(flash_fwd_kernel<d>, Br, kThreads, sizeof(Tiles<d>), p, t); });
}

}  // namespace step16_issuer
