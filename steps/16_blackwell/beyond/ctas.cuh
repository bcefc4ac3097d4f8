// Step 16 -- two SMs. Compiled for sm_100a and run in the simulator; not yet run on a card.
// Idea      The tensor cores of two SMs multiply together: a product has 256 rows, 128 of each
//           block of a cluster, and each block copies and holds half of K and V, which both read
// Changed   since 16 4_pair, whose comments are not repeated: products, commits, copies and
//           allocation of two blocks; one thread multiplies; arrivals in the other block
// Traffic   as 4_pair, with Tr = N/512
// Launch    grid (2 * Tr * B*H), clusters of 2, 512 threads; causal: the longest walks first
// Owns      cluster: 512 rows of O, two tiles of 256; block: 128 of each; threads as in 4_pair
// Still bad one work tile per block: a persistent grid would begin the next one during the epilogue
#pragma once

#include "common/dialect/ptx/more/tcgen05_2cta.h"
#include "steps/16_blackwell/4_pair.cuh"

namespace step16_ctas {

using namespace step16;  // parts.cuh: a thread's work on its row

// Columns of tensor memory as in 4_pair, in each block for its 128 rows of both tiles.
using step16_pair::kColumns, step16_pair::column_o, step16_pair::column_p, step16_pair::column_s;
using step16_pair::kStages, step16_pair::kThreads, step16_pair::kTiles;  // of a product's rows
using step16_pair::Polynomial, step16_pair::Walks;

constexpr int kBlocks = 2;           // of a cluster
constexpr uint16_t kBoth = 3;        // of them, as bits
constexpr int kLeader = 0;           // whose thread multiplies, and waits for both
constexpr int kRows = kBlocks * Br;  // of a product

template <int d>
struct alignas(1024) Tiles {
  bf16 Q[kTiles][Br * d];
  bf16 K[kStages][Bc / kBlocks * d];  // half of the keys: [d / 64][64][64]
  bf16 V[kStages][Bc * d / kBlocks];  // half of the features: [128][d / 2], one panel
  float factor[kTiles][Br];
  // mbarriers                                       arrivals by
  uint64_t q_full, k_full[kStages], v_full[kStages];   // the leader's: copies of both blocks
  uint64_t k_empty[kStages], v_empty[kStages];         // in both blocks: Q K^T and P V
  uint64_t s_full[kTiles], o_full[kTiles];             // in both blocks: Q K^T and P V
  uint64_t p_full[kTiles], o_scaled[kTiles];           // the leader's: each thread of both blocks
  uint64_t factor_full[kTiles], factor_empty[kTiles];  // in each block: softmax, correction
  uint32_t tmem;
};

// --- products of two blocks ---------------------------------------------------------------------

// S = Q K^T of 256 rows and a tile's keys. The descriptors name this block's part of them.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [d / 64][128][64] swizzled
                                       const bf16* sK,  // [d / 64][64][64] swizzled
                                       uint32_t tS) {
  const uint64_t q = fa::tcgen05_descriptor(sQ, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  const uint64_t k = fa::tcgen05_descriptor(sK, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(kRows, Bc);
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel * kRowBytes, in_panel = x % kPanel * 2;
    fa::tcgen05_mma<2>(tS, fa::tcgen05_advance(q, panel * Br + in_panel),
                       fa::tcgen05_advance(k, panel * Bc / kBlocks + in_panel), kInstruction,
                       /*accumulate=*/x > 0);
  }
}

// O += P V. A block's half of V is one panel, whose rows have d bytes.
template <int d>
__device__ inline void multiply_values(uint32_t tP,
                                       const bf16* sV,  // [Bc][d / 2] swizzled
                                       uint32_t tO, bool first) {
  const uint64_t v = fa::tcgen05_descriptor(sV, fa::Swizzle(d), /*unused*/ 16, 8 * d);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(kRows, d, fa::Major::k, fa::Major::mn);
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    fa::tcgen05_mma_tmem<2>(tO, tP + c / 2, fa::tcgen05_advance(v, c * d), kInstruction,
                            /*accumulate=*/c > 0 || !first);
  }
}

// --- a warp copies ------------------------------------------------------------------------------

// One thread of each block copies 128 rows of Q's tiles, then half of all tiles of K and V. It
// signals the leader's mbarriers, which expect the bytes of both.
template <int d>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap& Q, const fa::TensorMap& K,
                               const fa::TensorMap& V, int row, const Walks& tiles, int rank,
                               int bh, int kv_head) {
  const auto expect = [&](uint64_t* full, int bytes) {
    if (rank == kLeader) fa::mbarrier_arrive_expect_tx(full, kBlocks * bytes);
  };
  // Not a tile that sees no keys: no products would signal its arrival to the other block.
  expect(&smem.q_full, ((tiles[0] > 0) + (tiles[1] > 0)) * sizeof smem.Q[0]);
  UNROLL
  for (int t = 0; t < kTiles; ++t) {
    if (tiles[t] == 0) continue;
    fa::tma_load_2cta(smem.Q[t], &Q, &smem.q_full, kLeader, {0, row + t * kRows, 0, bh});
  }
  for (int j = 0; j < tiles.longest(); ++j) {
    const int stage = j % kStages, parity = j / kStages & 1;
    const int key = j * Bc + rank * Bc / kBlocks;
    fa::mbarrier_wait(&smem.k_empty[stage], parity ^ 1);  // passes in the first round
    expect(&smem.k_full[stage], sizeof smem.K[0]);
    fa::tma_load_2cta(smem.K[stage], &K, &smem.k_full[stage], kLeader, {0, key, 0, kv_head});
    fa::mbarrier_wait(&smem.v_empty[stage], parity ^ 1);
    expect(&smem.v_full[stage], sizeof smem.V[0]);
    fa::tma_load_2cta(smem.V[stage], &V, &smem.v_full[stage], kLeader, {0, j * Bc, rank, kv_head});
  }
}

// --- a thread of the leader multiplies ----------------------------------------------------------

template <int d>
__device__ inline void multiply(Tiles<d>& smem, const Walks& tiles) {
  const int most = tiles.longest();
  fa::mbarrier_wait(&smem.q_full, 0);
  for (int j = 0; j <= most; ++j) {
    const int before = j - 1;
    for (int t = 0; t < kTiles; ++t) {
      if (j > 0 && before < tiles[t]) {
        const int stage = before % kStages;
        fa::mbarrier_wait(&smem.v_full[stage], before / kStages & 1);
        fa::mbarrier_wait(&smem.p_full[t], before & 1);
        fa::mbarrier_wait(&smem.o_scaled[t], before & 1);
        fa::tcgen05_fence_after_thread_sync();
        multiply_values<d>(smem.tmem + column_p(t), smem.V[stage], smem.tmem + column_o(t),
                           before == 0);
        fa::tcgen05_commit_2cta(&smem.o_full[t], kBoth);
      }
      if (j < tiles[t]) {
        const int stage = j % kStages;
        fa::mbarrier_wait(&smem.k_full[stage], j / kStages & 1);
        multiply_scores<d>(smem.Q[t], smem.K[stage], smem.tmem + column_s(t));
        fa::tcgen05_commit_2cta(&smem.s_full[t], kBoth);
      }
    }
    // Only if a copy waits for it: an arrival without a waiter may be later than a block's end.
    const bool v_next = j > 0 && before + kStages < most, k_next = j + kStages < most;
    if (v_next) fa::tcgen05_commit_2cta(&smem.v_empty[before % kStages], kBoth);
    if (k_next) fa::tcgen05_commit_2cta(&smem.k_empty[j % kStages], kBoth);
  }
}

// --- a warpgroup per tile computes the softmax --------------------------------------------------

template <int d>
__device__ inline float softmax(Tiles<d>& smem, int t, uint32_t lanes, int tiles, int visible,
                                int cut, float scale_log2) {
  const int r = threadIdx.x % kGroupThreads;
  float l = 0.f, m = kNoMaximum;
  for (int j = 0; j < tiles; ++j) {
    fa::mbarrier_wait(&smem.s_full[t], j & 1);  // and P V of the previous tile
    fa::tcgen05_fence_after_thread_sync();
    Row rS;
    load_row(lanes + column_s(t), rS);
    if (cut < (j + 1) * Bc) mask(rS, visible - j * Bc);
    const float alpha = Polynomial::maximum(rS, scale_log2, m);
    fa::mbarrier_wait(&smem.factor_empty[t], (j & 1) ^ 1);
    smem.factor[t][r] = alpha;
    fa::mbarrier_arrive(&smem.factor_full[t]);
    l *= alpha;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      uint32_t rP[kHalf / 2];
      l += Polynomial::p(rS[h], scale_log2, m, rP);
      fa::tcgen05_st(lanes + column_p(t) + h * kHalf / 2, rP);
    }
    fa::tcgen05_wait_st();
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_release_remote(&smem.p_full[t], kLeader);
  }
  fa::mbarrier_wait(&smem.factor_empty[t], (tiles & 1) ^ 1);
  smem.factor[t][r] = l > 0.f ? 1.f / l : 0.f;
  fa::mbarrier_arrive(&smem.factor_full[t]);
  return (m + log2f(l)) * fa::kLn2;
}

// --- a warpgroup corrects O ---------------------------------------------------------------------

template <int d>
__device__ inline void correct(Tiles<d>& smem, uint32_t lanes, const Walks& tiles) {
  const int r = threadIdx.x % kGroupThreads;
  for (int j = 0; j < tiles.longest(); ++j) {
    for (int t = 0; t < kTiles; ++t) {
      if (j >= tiles[t]) continue;
      fa::mbarrier_wait(&smem.factor_full[t], j & 1);
      const float alpha = smem.factor[t][r];
      fa::mbarrier_arrive(&smem.factor_empty[t]);
      fa::mbarrier_wait(&smem.o_full[t], (j & 1) ^ 1);  // P V of the previous tile
      fa::tcgen05_fence_after_thread_sync();
      if (j > 0 && __any_sync(fa::kFullMask, alpha != 1.f)) {
        rescale<d>(lanes + column_o(t), alpha);
      }
      fa::tcgen05_fence_before_thread_sync();
      fa::mbarrier_release_remote(&smem.o_scaled[t], kLeader);
    }
  }
  for (int t = 0; t < kTiles; ++t) {
    fa::mbarrier_wait(&smem.factor_full[t], tiles[t] & 1);
    fa::mbarrier_wait(&smem.o_full[t], (tiles[t] & 1) ^ 1);  // the last P V, all Q K^T before it
    fa::tcgen05_fence_after_thread_sync();
    store_o<d>(lanes + column_o(t), tiles[t] > 0, smem.factor[t][r], r, smem.Q[t]);
  }
}

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of Br rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc / 2
                     const __grid_constant__ fa::TensorMap map_V,  // the same, of d / 2 features
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of Br rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tiles; mbarriers and tensor memory
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = fa::uniform(threadIdx.x / fa::kWarp), wg = warp / 4;
  const int Tr = gridDim.x / kBlocks / heads, cluster = blockIdx.x / kBlocks;
  const int rank = fa::cluster_rank();
  const int i = causal ? Tr - 1 - cluster / heads : cluster % Tr;
  const int bh = causal ? cluster % heads : cluster / Tr;
  const auto visible = [&](int row) { return causal ? min(Nk, row + 1 + Nk - N) : Nk; };
  const auto walk = [&](int row) {  // tiles of keys, by the 256 rows' last one; none past the end
    const int seen = row < N ? visible(row + kRows - 1) : 0;
    return seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  };
  const int first = i * kTiles * kRows;  // row of the cluster
  const Walks tiles = {walk(first), walk(first + kRows)};
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.k_full[stage], 1), fa::mbarrier_init(&smem.k_empty[stage], 1);
      fa::mbarrier_init(&smem.v_full[stage], 1), fa::mbarrier_init(&smem.v_empty[stage], 1);
    }
    for (int t = 0; t < kTiles; ++t) {
      fa::mbarrier_init(&smem.s_full[t], 1), fa::mbarrier_init(&smem.o_full[t], 1);
      for (uint64_t* bar : {&smem.factor_full[t], &smem.factor_empty[t]}) {
        fa::mbarrier_init(bar, kGroupThreads);
      }
      for (uint64_t* bar : {&smem.p_full[t], &smem.o_scaled[t]}) {
        fa::mbarrier_init(bar, kBlocks * kGroupThreads);
      }
    }
    fa::mbarrier_init_fence();
  }
  if (warp == 8) {
    fa::tcgen05_alloc<2>(&smem.tmem, kColumns);
    fa::tcgen05_relinquish_alloc_permit<2>();
    fa::tcgen05_fence_before_thread_sync();
  }
  fa::cluster_sync();  // all threads of both blocks see the mbarriers and the address
  fa::tcgen05_fence_after_thread_sync();
  const uint32_t lanes = fa::tmem_address(smem.tmem, warp % 4 * fa::kWarp, 0);
  const int r = threadIdx.x % kGroupThreads;

  // --- the roles
  if (wg < kTiles) {
    fa::setmaxnreg_inc<192>();
    const int top = first + wg * kRows + rank * Br, row = top + r;
    const float lse = softmax<d>(smem, wg, lanes, tiles[wg], visible(row),
                                 visible(top + warp % 4 * fa::kWarp), scale * fa::kLog2e);
    if (row < N) LSE[size_t(bh) * N + row] = lse;
  } else if (wg == kTiles) {
    fa::setmaxnreg_dec<80>();
    correct<d>(smem, lanes, tiles);
    fa::tcgen05_fence_before_thread_sync();
    fa::bar_sync(1, kGroupThreads);  // the rows are complete, and tensor memory is read
    if (r == 0) {
      UNROLL
      for (int t = 0; t < kTiles; ++t) {
        fa::tma_store(&map_O, smem.Q[t], {0, first + t * kRows + rank * Br, 0, bh});
      }
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
    }
  } else {
    fa::setmaxnreg_dec<48>();
    if (warp == 12 && fa::elect_one()) {
      produce<d>(smem, map_Q, map_K, map_V, first + rank * Br, tiles, rank, bh, bh / group);
    }
    if (warp == 13 && rank == kLeader && fa::elect_one()) multiply<d>(smem, tiles);
  }
  fa::cluster_sync();  // until then products read and arrivals write the other block's memory
  if (warp == 8) {
    __syncwarp();
    fa::tcgen05_fence_after_thread_sync();
    fa::tcgen05_dealloc<2>(smem.tmem, kColumns);  // else the SM starts no block that allocates
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step16::traffic(p);
  const fa::TileVisits pairs = fa::visited_tiles(p, kRows, Bc);
  t["K"].read = t["V"].read = 2 * p.heads() * fa::visited_tiles(p, kTiles * kRows, Bc).keys * p.d;
  t.flops = p.heads() * 4 * kRows * Bc * pairs.tiles * p.d;
  if (const int blind = p.causal ? (p.N - p.Nk) / kRows * kRows : 0; blind > 0) {  // no copy of Q
    t["Q"].read -= 2 * p.heads() * blind * p.d;
    t.hbm.read -= 2 * p.heads() * blind * p.d;
  }
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), BHkv = p.kv_heads(), Tr = fa::ceil_div(p.N, kTiles * kRows);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    constexpr uint32_t kHalf = d / kBlocks;  // features of V in a block
    const uint64_t rows = p.Nk;
    const auto map_V = fa::tensor_map(
        t.V, {{kHalf, 1, kHalf}, {rows, d, Bc}, {kBlocks, kHalf, 1}, {BHkv, rows * d, 1}},
        fa::Swizzle(+d));
    fa::launch(flash_fwd_kernel<d>,
               {dim3(kBlocks * Tr * BH), dim3(kThreads), sizeof(Tiles<d>), kBlocks},
               fa::tile_map<d>(t.Q, BH, p.N, Br), fa::tile_map<d>(t.K, BHkv, p.Nk, Bc / kBlocks),
               map_V, fa::tile_map<d>(t.O, BH, p.N, Br), t.LSE, int(BH), p.H / p.Hkv, p.N, p.Nk,
               p.scale(), p.causal);
  });
}

}  // namespace step16_ctas
