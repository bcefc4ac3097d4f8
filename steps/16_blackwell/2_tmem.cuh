// Step 16 -- Blackwell's tensor memory. Compiled for sm_100a and run in the simulator; not yet run
//            on a card.
// Idea      S, P and O leave the registers: one thread issues a product of 128 rows, and its result
//           lies in tensor memory. The second product reads P from there
// Changed   since 09 2_wgmma: products by tcgen05.mma into tensor memory; one warpgroup owns 128
//           rows, a thread one of them (1_rows); 128 keys per tile
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/128; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; warp: 32 of them, the lanes of tensor memory that it reaches;
//           thread: a row
// Still bad softmax and products alternate, and each tile moves O to the registers and back:
//           3_issuer
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/tcgen05.h"
#include "common/dialect/ptx/tma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/16_blackwell/1_rows.cuh"

namespace step16_tmem {

constexpr int kGroupThreads = 128;  // threads of a warpgroup, four warps
constexpr int kMma = 16;            // keys or features that an mma sums over
constexpr int kStages = 2;          // of K and V: one is multiplied while the other is copied
constexpr int kRowBytes = 128;      // of a panel

// The block's columns of tensor memory, 32 bits in each of 128 lanes. P overwrites S: a thread has
// all of its row of S in registers before it writes P, two keys per column.
//
//     0          64         128              256
//     | S                   | O, d columns   |
//     | P        |
constexpr int kColumns = 256, kColumnS = 0, kColumnP = 0, kColumnO = Bc;

// What a block keeps in shared memory: 81 KB when d = 64, 161 KB when d = 128. A tile is cut into
// panels of 64 features, [d / 64][rows][64]. Each begins at a multiple of 1024 bytes, the period of
// the swizzle, so that TMA, tcgen05.mma and swizzle() mean the same place.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
  uint64_t q_full, full[kStages], product;  // mbarriers
  uint32_t tmem;                            // address of the block's first column
};

// Copies tile j of K and V to its stage, without waiting. One thread calls it. `full` completes
// after one arrival, this one, and the bytes of both boxes. Rows past the end are zeros and count.
template <int d>
__device__ inline void load_tile(Tiles<d>& smem, const fa::TensorMap& K, const fa::TensorMap& V,
                                 int j, int head) {
  const int stage = j % kStages;
  fa::mbarrier_arrive_expect_tx(&smem.full[stage], sizeof smem.K[0] + sizeof smem.V[0]);
  fa::tma_load(smem.K[stage], &K, &smem.full[stage], {0, j * Bc, 0, head});
  fa::tma_load(smem.V[stage], &V, &smem.full[stage], {0, j * Bc, 0, head});
}

// S = Q K^T of 128 rows and a tile's keys, 16 features at a time. One thread issues the products,
// which run in order because they share accumulator and shape, and waits for none.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [d / 64][128][64] swizzled
                                       const bf16* sK,  // [d / 64][Bc][64] swizzled
                                       uint32_t tS) {
  // K-major, both: a row of memory is a row of Q or a key, and features are what is summed over.
  const uint64_t q = fa::tcgen05_descriptor(sQ, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  const uint64_t k = fa::tcgen05_descriptor(sK, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(Br, Bc);
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int at = x / kPanel * Br * kRowBytes + x % kPanel * 2;  // bytes, in Q and in K
    fa::tcgen05_mma(tS, fa::tcgen05_advance(q, at), fa::tcgen05_advance(k, at), kInstruction,
                    /*accumulate=*/x > 0);
  }
}

// O += P V, 16 keys at a time; the first tile's first product writes O. P is the operand A, which
// tcgen05.mma also reads from tensor memory: two keys per column, 16 in 8 columns.
template <int d>
__device__ inline void multiply_values(uint32_t tP,
                                       const bf16* sV,  // [d / 64][Bc][64] swizzled
                                       uint32_t tO, bool first) {
  // MN-major: a row of memory is a key, the index that is summed over; its features are columns.
  const uint64_t v =
      fa::tcgen05_descriptor(sV, fa::Swizzle::b128, /*panels*/ Bc * kRowBytes, 8 * kRowBytes);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(Br, d, fa::Major::k, fa::Major::mn);
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    fa::tcgen05_mma_tmem(tO, tP + c / 2, fa::tcgen05_advance(v, c * kRowBytes), kInstruction,
                         /*accumulate=*/c > 0 || !first);
  }
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
  // Causal walks have different lengths: all heads' longest ones start first, and the short ones
  // fill the gaps at the end. Else the blocks of a head follow each other and find K and V in L2.
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
    fa::mbarrier_init_fence();  // TMA sees them; this thread itself needs no barrier
    fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
    fa::tma_load(smem.Q, &map_Q, &smem.q_full, {0, i * Br, 0, bh});
    if (tiles > 0) load_tile<d>(smem, map_K, map_V, 0, kv_head);
  }
  if (warp == 0) {
    __syncwarp();  // thread 0 is back with its warp, which allocates as a whole
    fa::tcgen05_alloc(&smem.tmem, kColumns);
    fa::tcgen05_relinquish_alloc_permit();  // there will be no second allocation
    fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();  // all threads see the mbarriers and the address
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
    __syncwarp();  // thread 0 is back with its warp, which reads tensor memory as a whole
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

  // --- epilogue: O goes through the tile of Q, and leaves it as a box
  const float normalise = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  if (row < N) LSE[size_t(bh) * N + row] = (m + log2f(l)) * fa::kLn2;
  store_o<d>(lanes + kColumnO, tiles > 0, normalise, threadIdx.x, smem.Q);
  fa::tcgen05_fence_before_thread_sync();
  __syncthreads();  // the 128 rows are complete, and tensor memory is read
  if (threadIdx.x == 0) {
    fa::tma_store(&map_O, smem.Q, {0, i * Br, 0, bh});  // not the rows past the end
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
  if (warp == 0) {
    __syncwarp();
    fa::tcgen05_fence_after_thread_sync();
    fa::tcgen05_dealloc(tmem, kColumns);  // or the SM starts no block that allocates
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * Br * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

// A tensor [heads, rows, d] in boxes of `box` rows of a head, cut into panels as Tiles has them.
// Coordinates: feature in its panel, row, panel, head.
template <int d>
fa::TensorMap tensor_map(const bf16* x, uint64_t heads, uint64_t rows, uint32_t box) {
  constexpr uint32_t kPanels = d / kPanel;
  return fa::tensor_map(
      x, {{kPanel, 1, kPanel}, {rows, d, box}, {kPanels, kPanel, kPanels}, {heads, rows * d, 1}},
      fa::Swizzle::b128);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), BHkv = p.kv_heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr * BH), dim3(kGroupThreads), sizeof(Tiles<d>)},
               tensor_map<d>(t.Q, BH, p.N, Br), tensor_map<d>(t.K, BHkv, p.Nk, Bc),
               tensor_map<d>(t.V, BHkv, p.Nk, Bc), tensor_map<d>(t.O, BH, p.N, Br), t.LSE, int(BH),
               p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step16_tmem
