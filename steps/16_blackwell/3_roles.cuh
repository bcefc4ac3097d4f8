// Step 16 -- roles. Compiled for sm_100a and run in the simulator; not yet run on a card.
// Idea      Each warpgroup can access all lanes of tensor memory, so another one can rescale O. The
//           softmax passes it a factor per row and continues with its exponentials
// Changed   since 16 2_issuer: a warpgroup corrects O; two mbarriers for the factors and one for O
//           rescaled; setmaxnreg gives each role its registers
// Traffic   as 1_tmem
// Launch    grid (Tr * B*H), 384 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; a thread of the softmax: a row; one of the correction: a row
// Still bad each quarter of an SM has one warp of softmax, and nothing fills its waits: 4_pair
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/16_blackwell/parts.cuh"

namespace step16_roles {

using namespace step16;  // parts.cuh: products, and a thread's work on its row

constexpr int kThreads = 3 * kGroupThreads;
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
  float factor[Br];  // of each row, from the softmax to the correction: alpha, finally 1 / l
  // mbarriers                                       arrivals by
  uint64_t q_full, k_full[kStages], v_full[kStages];  // the copies
  uint64_t k_empty[kStages], v_empty[kStages];        // Q K^T and P V
  uint64_t s_full, o_full;                            // Q K^T and P V
  uint64_t s_empty, p_full, factor_full;              // the softmax, each thread
  uint64_t o_scaled, factor_empty;                    // the correction, each thread
  uint32_t tmem;                                      // address of the block's first column
};

// --- a warp copies ------------------------------------------------------------------------------

template <int d>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap& Q, const fa::TensorMap& K,
                               const fa::TensorMap& V, int row, int tiles, int bh, int kv_head) {
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  fa::tma_load(smem.Q, &Q, &smem.q_full, {0, row, 0, bh});
  copy_keys<kStages>(smem, K, V, tiles, kv_head);
}

// --- a thread multiplies ------------------------------------------------------------------------

// S of tile j is issued before P V of tile j - 1, which waits for the softmax.
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
      fa::mbarrier_wait(&smem.o_scaled, before & 1);
      fa::tcgen05_fence_after_thread_sync();
      multiply_values<d>(smem.tmem + kColumnP, smem.V[stage], smem.tmem + kColumnO, before == 0);
      fa::tcgen05_commit(&smem.v_empty[stage]);
      fa::tcgen05_commit(&smem.o_full);
    }
  }
}

// --- a warpgroup computes the softmax -----------------------------------------------------------

// A thread's row in all tiles; returns its LSE. `lanes`: the address of its warp's lanes.
template <int d>
__device__ inline float softmax(Tiles<d>& smem, uint32_t lanes, int tiles, int visible, int cut,
                                float scale_log2) {
  const int r = threadIdx.x % kGroupThreads;
  float l = 0.f, m = kNoMaximum;
  for (int j = 0; j < tiles; ++j) {
    fa::mbarrier_wait(&smem.s_full, j & 1);
    fa::tcgen05_fence_after_thread_sync();
    Row rS;
    load_row(lanes + kColumnS, rS);
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.s_empty);  // S is in registers: the next one may be computed
    if (cut < (j + 1) * Bc) mask(rS, visible - j * Bc);
    const float alpha = update_maximum(rS, scale_log2, m);
    fa::mbarrier_wait(&smem.factor_empty, (j & 1) ^ 1);
    smem.factor[r] = alpha;
    fa::mbarrier_arrive(&smem.factor_full);
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
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.p_full);
  }
  fa::mbarrier_wait(&smem.factor_empty, (tiles & 1) ^ 1);
  smem.factor[r] = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  fa::mbarrier_arrive(&smem.factor_full);
  return (m + log2f(l)) * fa::kLn2;
}

// --- a warpgroup corrects O ---------------------------------------------------------------------

// O *= alpha before each P V but the first, and finally O / l to the place of Q.
template <int d>
__device__ inline void correct(Tiles<d>& smem, uint32_t lanes, int tiles) {
  const int r = threadIdx.x % kGroupThreads;
  for (int j = 0; j < tiles; ++j) {
    fa::mbarrier_wait(&smem.factor_full, j & 1);
    const float alpha = smem.factor[r];
    fa::mbarrier_arrive(&smem.factor_empty);
    fa::mbarrier_wait(&smem.o_full, (j & 1) ^ 1);  // P V of the previous tile
    fa::tcgen05_fence_after_thread_sync();
    if (j > 0) rescale<d>(lanes + kColumnO, alpha);
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.o_scaled);
  }
  fa::mbarrier_wait(&smem.factor_full, tiles & 1);
  fa::mbarrier_wait(&smem.q_full, 0);  // even without a tile Q's copy must be complete
  fa::mbarrier_wait(&smem.o_full, (tiles & 1) ^ 1);  // the last P V, and all Q K^T before it
  fa::tcgen05_fence_after_thread_sync();
  store_o<d>(lanes + kColumnO, tiles > 0, smem.factor[r], r, smem.Q);
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
  const int warp = fa::uniform(threadIdx.x / fa::kWarp), wg = warp / 4;
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  const auto visible = [&](int row) { return causal ? min(Nk, row + 1 + Nk - N) : Nk; };
  if (threadIdx.x == 0) {
    for (uint64_t* bar : {&smem.q_full, &smem.s_full, &smem.o_full}) fa::mbarrier_init(bar, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.k_full[stage], 1), fa::mbarrier_init(&smem.k_empty[stage], 1);
      fa::mbarrier_init(&smem.v_full[stage], 1), fa::mbarrier_init(&smem.v_empty[stage], 1);
    }
    for (uint64_t* bar :
         {&smem.s_empty, &smem.p_full, &smem.factor_full, &smem.factor_empty, &smem.o_scaled}) {
      fa::mbarrier_init(bar, kGroupThreads);
    }
    fa::mbarrier_init_fence();
  }
  if (warp == 4) allocate(&smem.tmem, kColumns);  // of the correction, which ends last
  __syncthreads();  // the mbarriers and the address are visible to all threads
  fa::tcgen05_fence_after_thread_sync();
  const uint32_t lanes = fa::tmem_address(smem.tmem, warp % 4 * fa::kWarp, 0);  // the warp's
  const int r = threadIdx.x % kGroupThreads;

  // --- the roles
  if (wg == 0) {
    fa::setmaxnreg_inc<192>();
    const int row = i * Br + r;
    const float lse = softmax<d>(smem, lanes, tiles, visible(row),
                                 visible(i * Br + warp * fa::kWarp), scale * fa::kLog2e);
    if (row < N) LSE[size_t(bh) * N + row] = lse;
  } else if (wg == 1) {
    fa::setmaxnreg_dec<80>();
    correct<d>(smem, lanes, tiles);
    fa::tcgen05_fence_before_thread_sync();
    fa::bar_sync(1, kGroupThreads);  // the rows are complete, and tensor memory is read
    if (r == 0) {
      fa::tma_store(&map_O, smem.Q, {0, i * Br, 0, bh});  // rows past the end are not written
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
    }
    if (warp == 4) deallocate(smem.tmem, kColumns);
  } else {
    fa::setmaxnreg_dec<48>();
    if (warp == 8 && fa::elect_one()) {
      produce<d>(smem, map_Q, map_K, map_V, i * Br, tiles, bh, bh / group);
    }
    if (warp == 9 && fa::elect_one()) multiply<d>(smem, tiles);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(
      p.d, [&](auto d) { launch<d>(flash_fwd_kernel<d>, Br, kThreads, sizeof(Tiles<d>), p, t); });
}

}  // namespace step16_roles
