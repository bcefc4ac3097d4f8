// Step 13 -- one launch: the last block of some rows merges their splits.
// Idea      The launch of a second kernel takes longer than the merge. Instead, each block counts
//           itself after writing its part, and the last one merges. Rows with a single split need
//           no parts
// Changed   since 13 4_pages: the merge is at the end of the kernel, with one counter per 32 rows
// Traffic   as 4_pages, but parts only where s > 1, and lengths only once; there, per 32 rows, a
//           counter: 4 B written, and 4 B per block atomic
// Launch    grid (s*t, B*Hkv): one block per split and 32 rows
// Owns      block: a split for up to 32 rows; the last of them: the rows' results
// Still bad one block merges all rows of a group, while most SMs are idle
#pragma once

#include "steps/13_decode/parts.cuh"

namespace step13_once {

using namespace step13;  // parts.cuh

template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*Hkv, rows, d], which is [B*H, N, d]
                        const bf16* K,          // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V,          // the same shape
                        fa::Cache cache, int log2_page, int heads, bf16* O, float* LSE,
                        SplitParts parts, unsigned* arrived, int rows, int N, int most_keys,
                        int split_keys, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are adjacent
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int end = min(Nk, (split + 1) * split_keys);
  if (split * split_keys >= Nk && split > 0) return;  // split 0 stores even an empty part
  const size_t of_page = head % heads, first_row = head * most_keys;
  const size_t columns = (most_keys + (1 << log2_page) - 1) >> log2_page;  // of the table
  const int* pages = cache.table ? cache.table + entry * columns : nullptr;
  const auto place = [=](int key) {  // its row in the pools, for 16 keys from a multiple of 16 on
    if (pages == nullptr) return first_row + key;
    return ((pages[key >> log2_page] * size_t(heads) + of_page) << log2_page) +
           (key & ((1 << log2_page) - 1));
  };
  Q += (head * rows + row0) * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d> && key < end; c += kMma) {
      const size_t from = key + c < end ? place(key + c) * d : 0;
      load_tile<d, kMma>(K + from, tiles.K[stage] + c * d, end - key - c);
      load_tile<d, kMma>(V + from, tiles.V[stage] + c * d, end - key - c);
    }
    fa::cp_async_commit();
  };
  const int first = split * split_keys + warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e;
  const int least = causal ? Nk - N + 1 : Nk;  // keys that the first query sees
  int visible[bands][2];                       // and this lane's rows: row r is query r % N
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
  __syncthreads();  // all parts are complete
  // A block that has all keys of its rows stores results; any other stores a part.
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  const int stored = min(rows - row0, bands * kMma), x = threadIdx.x % (d / 4) * 4;
  const size_t result = head * rows + row0, all_rows = size_t(gridDim.y) * rows;
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    const Merged row = merge_warps(smem.parts, r, x);
    if (splits == 1) {
      store_row<d>(row, result + r, x, O, LSE);
    } else {
      parts.store<d>(row, split * all_rows + result + r, x);
    }
  }
  if (splits == 1) return;

  // --- the last block of these rows merges; concurrent launches need separate counters
  __threadfence();  // all threads' parts are in device memory,
  __syncthreads();  // before one thread counts the block
  __shared__ bool last;
  unsigned* counter = arrived + head * row_blocks + blockIdx.x % row_blocks;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == unsigned(splits - 1);
  __syncthreads();  // all know it
  if (!last) return;
  __threadfence();  // others' parts, written before they counted, are visible now
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    store_row<d>(parts.merge<d>(splits, all_rows, result + r, x), result + r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  fa::Prediction t = traffic_of(p, rows, splits, kTile / p.d);
  fa::add_merged_traffic(t, p, splits.keys, rows.readers);
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  return workspace_of(p, rows, rows.per_block, /*counts=*/true);
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
                 t.Q, t.K, t.V, t.cache, log2_page(p), p.Hkv, t.O, t.LSE, parts,
                 t.scratch<unsigned>("arrived"), rows.count, p.N, p.Nk, splits.keys, p.scale(),
                 p.causal);
    });
  });
}

}  // namespace step13_once
