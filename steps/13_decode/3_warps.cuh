// Step 13 -- one query: one block per head, whose warps share the keys.
// Idea      Nothing but bandwidth limits it: a number of K or V is multiplied once for each row, and
//           there is one row. So the block keeps as many tiles under way as shared memory holds
// Changed   since 07 4_lazy: the tile is 1_tile's, with one row of Q for all warps; three or six
//           tiles of K and V instead of two; the warps' parts are merged at the end
// Traffic   requested read  2*BH*(4*N*d + 2*Nk*d) B   Q by each warp
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid B*H: one block per head
// Owns      block: a head; warp: 16 of a tile's 64 keys; lane: of 2 rows every fourth pair of columns
// Still bad few blocks, and each walks the whole cache: 4_splits
#pragma once

#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/2_merge.cuh"

namespace step13_warps {

using namespace step13;

// What a block keeps in shared memory.
template <int d>
union Shared {
  Tile<d> tiles[kStages<d>];
  Parts<d> parts;  // after the last tile
};

// Two blocks per SM: while one waits for its tiles or merges, the other one's copies go on.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode_kernel(const bf16* Q,  // [B*H, N, d]
                        const bf16* K,  // [B*Hkv, Nk, d]
                        const bf16* V,  // [B*Hkv, Nk, d]
                        bf16* O,        // [B*H, N, d]
                        float* LSE,     // [B*H, N]
                        int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: copies of all tiles but one that shared memory holds
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const size_t row0 = size_t(blockIdx.x) * N;
  const size_t key0 = size_t(blockIdx.x / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, O += row0 * d, LSE += row0, K += key0 * d, V += key0 * d;
  const int tiles = (Nk + Bc - 1) / Bc;
  const auto load = [&](int j) {
    if (j < tiles) {
      Tile<d>& tile = smem.tiles[j % kStages<d>];
      load_tile<d>(K + size_t(j) * Bc * d, tile.K, Nk - j * Bc);
      load_tile<d>(V + size_t(j) * Bc * d, tile.V, Nk - j * Bc);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  for (int j = 0; j < kStages<d> - 1; ++j) load(j);
  uint32_t rQ[d / kMma][4];
  load_queries<d>(Q, N, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float rO[d / 8][4] = {}, l[2] = {}, m[2] = {kNoMaximum, kNoMaximum};

  const int least = causal ? Nk - N + 1 : Nk;  // keys that the first row sees
  const int visible[2] = {causal ? least + lane / 4 : Nk, causal ? least + lane / 4 + 8 : Nk};

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait<kStages<d> - 2>();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    load(j + kStages<d> - 1);
    const Tile<d>& tile = smem.tiles[j % kStages<d>];
    float rS[kWarpKeys / 8][4] = {};
    multiply_scores<d>(rQ, tile.K + warp * kWarpKeys * d, rS);
    const int key = j * Bc + warp * kWarpKeys;
    if (key + kWarpKeys > least) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tile.V + warp * kWarpKeys * d, l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all are done with the tiles, whose place the parts take
  store_part<d>(m, l, rO, N, warp, smem.parts);
  __syncthreads();  // all parts are there
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < N; r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    store_row<d>(merge_warps(smem.parts, r, x), r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() {
  return {.d = {64, 128}, .gqa = true, .cross = true, .most_n = kRows};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, Nk = p.Nk, d = p.d;
  fa::Prediction t;
  t["Q"].read = 2 * BH * kWarps * N * d;
  t["K"].read = t["V"].read = 2 * BH * Nk * d;
  t["O"].write = 2 * BH * N * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * kRows * fa::ceil_div(p.Nk, Bc) * Bc * d;  // of zeros, too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_decode_kernel<d>, {dim3(p.heads()), dim3(kThreads), sizeof(Shared<d>)}, t.Q,
               t.K, t.V, t.O, t.LSE, p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step13
