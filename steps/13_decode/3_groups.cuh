// Step 13 -- the query heads of a group in one tile.
// Idea      With GQA `group` query heads share keys and values, and the tile has 15 empty rows. The
//           group's queries, adjacent in memory, are a matrix of group * N rows, and K and V are
//           read once for all of them
// Changed   since 13 2_splits: a head is one of K and V; row r of its group is query r % N; two
//           bands for more than 16 rows, so that a fragment of K or V serves 32 (07 3_bands)
// Traffic   requested read  2*BHkv*s*(4*g*N*d) + 2*BHkv*t*2*Nk*d B   g = H/Hkv heads per group,
//                           + 4*BH*s*N*(d + d/2) B                   t blocks of up to 32 rows
//                     write 2*BH*N*d + 4*BH*N B          O, LSE
//                           + 4*BH*s*N*(d + 1) B         parts of O and LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (s*t, B*Hkv): one block per split and 32 rows; then the merge
// Owns      block: a split for up to 32 rows; warp: every fourth tile of its keys, all rows
// Still bad the cache must be contiguous, as long as the longest sequence
#pragma once

#include "steps/13_decode/2_splits.cuh"  // its merge

namespace step13_groups {

using namespace step13;  // parts.cuh

template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*Hkv, rows, d], which is [B*H, N, d]
                        const bf16* K,          // [B*Hkv, Nk, d]
                        const bf16* V,          // [B*Hkv, Nk, d]
                        SplitParts parts, int rows, int N, int Nk, int split_keys, float scale,
                        bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are adjacent
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, key0 = head * Nk;
  const size_t part = (split * gridDim.y + head) * rows + row0;
  const int end = min(Nk, (split + 1) * split_keys);
  Q += (head * rows + row0) * d, K += key0 * d, V += key0 * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    if (key < end) {
      load_tile<d, kWarpKeys<d>>(K + size_t(key) * d, tiles.K[stage], end - key);
      load_tile<d, kWarpKeys<d>>(V + size_t(key) * d, tiles.V[stage], end - key);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = split * split_keys + warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const int least = causal ? Nk - N + 1 : Nk;   // keys that the first query sees
  int visible[bands][2];                        // and this lane's rows: row r is query r % N
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = row0 + fa::row_of(lane) + 8 * i;
    m[i / 2][i % 2] = kNoMaximum;
    visible[i / 2][i % 2] = causal ? least + r % N : Nk;
  }

  // --- mainloop
  for (int key = first, stage = 0; key < end; key += Bc<d>, stage = (stage + 1) % kStages) {
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
  store_part<d>(m, l, rO, rows - row0, smem.parts);
  __syncthreads();                             // all parts are complete
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < min(rows - row0, bands * kMma); r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    parts.store<d>(merge_warps(smem.parts, r, x), part + r, x);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  fa::Prediction t = traffic_of(p, rows, splits, kTile / p.d);
  fa::add_parts_traffic(t, splits.count * p.rows(), p.d);
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  const SplitParts parts = parts_of(t);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared<d, bands>)},
                 t.Q, t.K, t.V, parts, rows.count, p.N, p.Nk, splits.keys, p.scale(), p.causal);
    });
    fa::launch(step13_splits::merge_kernel<d>,
               {dim3(fa::ceil_div(int(p.rows()) * (d / 4), kThreads)), dim3(kThreads)}, parts, t.O,
               t.LSE, splits.count, int(p.rows()));
  });
}

}  // namespace step13_groups
