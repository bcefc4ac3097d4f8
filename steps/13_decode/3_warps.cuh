// Step 13 -- one query: one block per head, whose warps share the keys.
// Idea      Bandwidth is the only limit: each number of K or V is multiplied once per row, and
//           there is one row. A warp computes on one tile while two more are in flight
// Changed   since 07 4_lazy: the tiles are 1_tile's, one row for all warps; three stages per warp
//           and no barrier in the loop; the warps' parts are merged at the end
// Traffic   requested read  2*BH*(4*N*d + 2*Nk*d) B   Q by each warp
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid B*H: one block per head
// Owns      block: a head; warp: every fourth tile of 16 or 32 keys; lane: of 2 rows
//           every fourth pair of columns
// Still bad few blocks, and each walks the whole cache: 4_splits
#pragma once

#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/2_merge.cuh"

namespace step13_warps {

using namespace step13;

// A block's shared memory: 96 KB.
template <int d, int bands>
union Shared {
  Tiles<d> tiles[kWarps];
  Parts<d, bands> parts;  // after the last tile
};

// Two blocks per SM, if the batch has enough: while one merges, the other keeps copying.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode_kernel(const bf16* Q,  // [B*H, N, d]
                        const bf16* K,  // [B*Hkv, Nk, d]
                        const bf16* V,  // [B*Hkv, Nk, d]
                        bf16* O,        // [B*H, N, d]
                        float* LSE,     // [B*H, N]
                        int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: fill all stages but one
  constexpr int bands = 1;
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const size_t row0 = size_t(blockIdx.x) * N;
  const size_t key0 = size_t(blockIdx.x / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, K += key0 * d, V += key0 * d;
  Tiles<d>& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    if (key < Nk) {
      load_tile<d>(K + size_t(key) * d, tiles.K[stage], Nk - key);
      load_tile<d>(V + size_t(key) * d, tiles.V[stage], Nk - key);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, N, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const int least = causal ? Nk - N + 1 : Nk;   // keys that the first query sees
  int visible[bands][2];                        // and this lane's rows
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[t][h] = kNoMaximum;
      visible[t][h] = causal ? least + t * kMma + fa::row_of(lane) + h * 8 : Nk;
    }
  }

  // --- mainloop
  for (int key = first, stage = 0; key < Nk; key += Bc<d>, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * Bc<d>, (stage + kStages - 1) % kStages);
    float rS[bands][kWarpKeys<d> / 8][4] = {};
    multiply_scores<d>(rQ, tiles.K[stage], rS);
    if (least < key + kWarpKeys<d>) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tiles.V[stage], l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all warps are done with their tiles: the parts overwrite them
  store_part<d>(m, l, rO, N, smem.parts);
  __syncthreads();                             // all parts are complete
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < N; r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    store_row<d>(merge_warps(smem.parts, r, x), row0 + r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() {
  return {.d = {64, 128}, .gqa = true, .cross = true, .most_n = kMma};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, Nk = p.Nk, d = p.d;
  fa::Prediction t;
  t["Q"].read = 2 * BH * kWarps * N * d;
  t["K"].read = t["V"].read = 2 * BH * Nk * d;
  t["O"].write = 2 * BH * N * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  const int keys = p.d == 64 ? kWarpKeys<64> : kWarpKeys<128>;
  t.flops = BH * 4 * kMma * fa::ceil_div(p.Nk, keys) * keys * d;  // including those of zeros
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_decode_kernel<d>, {dim3(p.heads()), dim3(kThreads), sizeof(Shared<d, 1>)}, t.Q,
               t.K, t.V, t.O, t.LSE, p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step13_warps
