// Step 16 -- Blackwell's tensor memory. Compiled for sm_100a and run in the simulator; not yet run
//            on a card.
// Idea      S, P and O leave the registers: one thread issues a product of 128 rows, whose result
//           is in tensor memory, 128 lanes of 512 columns, from which the second product reads P. A
//           lane is a row of the tile, and one thread owns it: maximum and sum need no shuffle
// Changed   since 09 2_wgmma: products by tcgen05.mma into tensor memory; one warpgroup owns 128
//           rows, a thread one of them; 128 keys per tile
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/128; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; warp: 32 of them, its lanes of tensor memory; thread: a row
// Still bad softmax and products alternate; each tile moves O to registers and back: 2_issuer
#pragma once

#include "common/dialect/ptx/mbarrier.h"
#include "steps/16_blackwell/parts.cuh"

namespace step16_tmem {

using namespace step16;  // parts.cuh: products, and a thread's work on its row

constexpr int kStages = 2;  // of K and V: one is multiplied while the other is copied

// The block's columns of tensor memory, 32 bits in each of 128 lanes. P overwrites S: a thread has
// loaded all of its row of S before it writes P, two keys per column.
//
//     0          64         128              256
//     | S                   | O, d columns   |
//     | P        |
constexpr int kColumns = 256, kColumnS = 0, kColumnP = 0, kColumnO = Bc;

// A block's shared memory: 81 KB when d = 64, 161 KB when d = 128. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
  uint64_t q_full, full[kStages], product;  // mbarriers
  uint32_t tmem;                            // address of the block's first column
};

// Issues the copies of tile j of K and V to its stage. Rows past the end are zeros, and count.
template <int d>
__device__ inline void load_tile(Tiles<d>& smem, const fa::TensorMap& K, const fa::TensorMap& V,
                                 int j, int head) {
  const int stage = j % kStages;
  fa::mbarrier_arrive_expect_tx(&smem.full[stage], sizeof smem.K[0] + sizeof smem.V[0]);
  fa::tma_load(smem.K[stage], &K, &smem.full[stage], {0, j * Bc, 0, head});
  fa::tma_load(smem.V[stage], &V, &smem.full[stage], {0, j * Bc, 0, head});
}

// d = 64: two blocks per SM, which share its 512 columns; d = 128: shared memory allows one.
template <int d>
__global__ void __launch_bounds__(kGroupThreads, d == 64 ? 2 : 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of Br rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of Br rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; copies of Q_i, K_0 and V_0; tensor memory
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp;
  // Causal: the longest walks of all heads first. Otherwise a head's blocks share K, V in the L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int kv_head = bh / group;                                 // `group` heads share K and V
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) fa::mbarrier_init(&smem.full[stage], 1);
    fa::mbarrier_init(&smem.product, 1);
    fa::mbarrier_init_fence();  // visible to TMA; this thread itself needs no barrier
    fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
    fa::tma_load(smem.Q, &map_Q, &smem.q_full, {0, i * Br, 0, bh});
    if (tiles > 0) load_tile<d>(smem, map_K, map_V, 0, kv_head);
  }
  if (warp == 0) {
    __syncwarp();  // reconverges thread 0 with its warp, which allocates as a whole
    allocate(&smem.tmem, kColumns);
  }
  __syncthreads();  // the mbarriers and the address are visible to all threads
  fa::tcgen05_fence_after_thread_sync();
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
    const int stage = j % kStages;
    if (threadIdx.x == 0) {
      fa::mbarrier_wait(&smem.full[stage], j / kStages & 1);
      multiply_scores<d>(smem.Q, smem.K[stage], tmem + kColumnS);
      fa::tcgen05_commit(&smem.product);  // arrives when all products so far are complete
    }
    fa::mbarrier_wait(&smem.product, j & 1);  // S, and before it P V of tile j - 1
    fa::tcgen05_fence_after_thread_sync();
    if (threadIdx.x == 0 && j + 1 < tiles) load_tile<d>(smem, map_K, map_V, j + 1, kv_head);
    __syncwarp();  // reconverges thread 0 with its warp, which reads tensor memory as a whole
    Row rS;
    load_row(lanes + kColumnS, rS);
    if (cut < (j + 1) * Bc) mask(rS, visible - j * Bc);
    const float alpha = update_maximum(rS, scale_log2, m);
    l *= alpha;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      uint32_t rP[kHalf / 2];
      l += compute_p(rS[h], scale_log2, m, rP);
      fa::tcgen05_st(lanes + kColumnP + h * kHalf / 2, rP);
    }
    fa::tcgen05_wait_st();
    if (j > 0) rescale<d>(lanes + kColumnO, alpha);
    fa::tcgen05_fence_before_thread_sync();
    __syncthreads();  // all rows of P are stored and all of O rescaled
    if (threadIdx.x == 0) {
      fa::tcgen05_fence_after_thread_sync();
      multiply_values<d>(tmem + kColumnP, smem.V[stage], tmem + kColumnO, j == 0);
    }
  }
  if (threadIdx.x == 0) fa::tcgen05_commit(&smem.product);
  fa::mbarrier_wait(&smem.product, tiles & 1);  // the last P V
  fa::tcgen05_fence_after_thread_sync();
  __syncwarp();

  // --- epilogue: O is staged in the tile of Q and stored as a box
  const float normalise = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  if (row < N) LSE[size_t(bh) * N + row] = (m + log2f(l)) * fa::kLn2;
  store_o<d>(lanes + kColumnO, tiles > 0, normalise, threadIdx.x, smem.Q);
  fa::tcgen05_fence_before_thread_sync();
  __syncthreads();  // the 128 rows are complete, and tensor memory is read
  if (threadIdx.x == 0) {
    fa::tma_store(&map_O, smem.Q, {0, i * Br, 0, bh});  // rows past the end are not written
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
  if (warp == 0) deallocate(tmem, kColumns);
}

// --- host ---------------------------------------------------------------------------------------

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    launch<d>(flash_fwd_kernel<d>, Br, kGroupThreads, sizeof(Tiles<d>), p, t);
  });
}

}  // namespace step16_tmem
