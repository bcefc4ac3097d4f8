// Step 13 -- one query: one block per head, whose warps share the keys.
// Idea      A new token has one query per head. In a tile of 128 rows three of four warps would
//           idle. Instead, all warps hold the same 16 rows, the fewest of an mma, and share the
//           keys. Bandwidth is the only limit: two tiles per warp are in flight
// Changed   since 07 4_lazy: 16 rows for all warps, Q in registers; a warp copies its own tiles of
//           16 or 32 keys, without a barrier; the warps' parts are merged
// Traffic   requested read  2*BH*(4*N*d + 2*Nk*d) B   Q by each warp
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid B*H: one block per head
// Owns      block: a head; warp: every fourth tile; lane: of 2 rows every fourth pair of columns
// Still bad few blocks, and each walks the whole cache
#pragma once

#include "steps/13_decode/parts.cuh"

namespace step13_warps {

using namespace step13;  // parts.cuh

template <int d>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*H, N, d]
                        const bf16* K,          // [B*Hkv, Nk, d]
                        const bf16* V,          // [B*Hkv, Nk, d]
                        bf16* O,                // [B*H, N, d]
                        float* LSE,             // [B*H, N]
                        int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, 1>& smem = *fa::dynamic_shared<Shared<d, 1>>();  // one band of 16 rows
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const size_t row0 = size_t(blockIdx.x) * N;
  const size_t key0 = size_t(blockIdx.x / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, K += key0 * d, V += key0 * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    if (key < Nk) {
      load_tile<d, kWarpKeys<d>>(K + size_t(key) * d, tiles.K[stage], Nk - key);
      load_tile<d, kWarpKeys<d>>(V + size_t(key) * d, tiles.V[stage], Nk - key);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[1][d / kMma][4];
  load_queries<d>(Q, N, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const int least = causal ? Nk - N + 1 : Nk;   // keys that the first query sees
  int visible[1][2];                            // and this lane's rows
  float rO[1][d / 8][4] = {}, l[1][2] = {}, m[1][2];
  UNROLL
  for (int i = 0; i < 2; ++i) {
    m[0][i] = kNoMaximum;
    visible[0][i] = causal ? least + fa::row_of(lane) + 8 * i : Nk;
  }

  // --- mainloop
  for (int key = first, stage = 0; key < Nk; key += Bc<d>, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * Bc<d>, (stage + kStages - 1) % kStages);
    float rS[1][kWarpKeys<d> / 8][4] = {};
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

inline fa::Prediction traffic(const fa::Problem& p) {
  return traffic_of(p, Rows(p, /*group=*/1), {.count = 1, .keys = p.Nk}, kTile / p.d);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_decode_kernel<d>, {dim3(p.heads()), dim3(kThreads), sizeof(Shared<d, 1>)}, t.Q,
               t.K, t.V, t.O, t.LSE, p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step13_warps
