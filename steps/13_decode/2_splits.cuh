// Step 13 -- split-KV: enough blocks for all SMs, whatever B*H is.
// Idea      The cache is long and heads are few, so each split of a head's keys has a block, which
//           stores O and LSE of them alone. A second kernel merges the splits, as a block merges
//           its warps: Flash-Decoding
// Changed   since 13 1_warps: a block walks one split and stores its part; a kernel merges them
// Traffic   requested read  2*BH*(4*s*N*d + 2*Nk*d) B    s splits
//                           + 4*BH*s*N*(d + d/2) B       parts; LSE by each thread of a row, twice
//                     write 2*BH*N*d + 4*BH*N B          O, LSE
//                           + 4*BH*s*N*(d + 1) B         parts of O and LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (s, B*H): one block per split; then one thread per four features of O
// Owns      block: a split of a head; warp: every fourth tile of its keys
// Still bad query heads that share K and V each read them again
#pragma once

#include "steps/13_decode/parts.cuh"

namespace step13_splits {

using namespace step13;  // parts.cuh

template <int d>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*H, N, d]
                        const bf16* K,          // [B*Hkv, Nk, d]
                        const bf16* V,          // [B*Hkv, Nk, d]
                        SplitParts parts, int group, int N, int Nk, int split_keys, float scale,
                        bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, 1>& smem = *fa::dynamic_shared<Shared<d, 1>>();  // one band of 16 rows
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const size_t head = blockIdx.y, key0 = head / group * Nk;  // `group` heads share K and V
  const size_t part = (blockIdx.x * gridDim.y + head) * N;
  const int end = min(Nk, int(blockIdx.x + 1) * split_keys);
  Q += head * N * d, K += key0 * d, V += key0 * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    if (key < end) {
      load_tile<d, kWarpKeys<d>>(K + size_t(key) * d, tiles.K[stage], end - key);
      load_tile<d, kWarpKeys<d>>(V + size_t(key) * d, tiles.V[stage], end - key);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = blockIdx.x * split_keys + warp * kWarpKeys<d>;  // the warp's first key
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
  for (int key = first, stage = 0; key < end; key += Bc<d>, stage = (stage + 1) % kStages) {
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
    parts.store<d>(merge_warps(smem.parts, r, x), part + r, x);
  }
}

// A thread merges four features of one row.
template <int d>
__global__ void merge_kernel(SplitParts parts, bf16* O,  // [B*H, N, d]
                             float* LSE,                 // [B*H, N]
                             int splits, int rows) {     // rows: of all heads
  const int r = (blockIdx.x * kThreads + threadIdx.x) / (d / 4), x = threadIdx.x % (d / 4) * 4;
  if (r < rows) store_row<d>(parts.merge<d>(splits, rows, r, x), r, x, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, /*group=*/1);
  const Splits splits = splits_of(p, rows, rows.per_block);
  const uint64_t s = splits.count, all_rows = p.rows(), d = p.d;
  fa::Prediction t = traffic_of(p, rows, splits, kTile / p.d);
  t["O_parts"] = {.read = 4 * s * all_rows * d, .write = 4 * s * all_rows * d};
  t["LSE_parts"] = {.read = 4 * s * all_rows * 2 * (d / 4), .write = 4 * s * all_rows};
  const uint64_t parts = t["O_parts"].write + t["LSE_parts"].write;
  t.hbm += {.read = parts, .write = parts};
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const Rows rows(p, /*group=*/1);
  return workspace_of(p, rows, rows.per_block);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p, /*group=*/1);
  const Splits splits = splits_of(p, rows, rows.per_block);
  const SplitParts parts = parts_of(t);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_decode_kernel<d>,
               {dim3(splits.count, p.heads()), dim3(kThreads), sizeof(Shared<d, 1>)}, t.Q, t.K, t.V,
               parts, p.H / p.Hkv, p.N, p.Nk, splits.keys, p.scale(), p.causal);
    fa::launch(merge_kernel<d>,
               {dim3(fa::ceil_div(int(p.rows()) * (d / 4), kThreads)), dim3(kThreads)}, parts, t.O,
               t.LSE, splits.count, int(p.rows()));
  });
}

}  // namespace step13_splits
