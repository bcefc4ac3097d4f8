// Step 13 -- a paged cache, with sequences of different lengths.
// Idea      A cache grows by one key per token, and nobody knows how far. It lies in pages of 16 to
//           256 keys anywhere in a pool, and a table says where: one more load before the copies of
//           16 keys. What a page holds past the last key is garbage and is never read
// Changed   since 13 5_groups: keys are looked up in the table; each batch entry has a length, and
//           as many splits as its keys need
// Traffic   requested read  as 5_groups, of each entry's own keys and splits
//                           + 8*BHkv*t*Nk B              table: by each lane, for 16 keys at once
//                           + 4 B per thread             lengths
//                     write as 5_groups
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N + 4*B*(Nk/page + 1) B
// Launch    grid (s*t, B*Hkv): blocks without keys return at once; then the merge
// Owns      as 5_groups
// Still bad two kernels, although the second has little to do: 7_once
#pragma once

#include <bit>
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/5_groups.cuh"

namespace step13_pages {

using namespace step13;

using step13_groups::Rows, step13_groups::splits_of, step13_splits::Splits, step13_warps::Shared;

// The row of the pools that holds a key, for one batch entry and head.
struct KeyRows {
  const int* pages;    // of the batch entry; null: rows are contiguous from `first` on
  int log2;            // of the keys of a page
  size_t head, heads;  // of a page
  size_t first;

  __device__ KeyRows(const fa::Cache& cache, int log2_page, int most_keys, size_t head_of_all,
                     int heads_)
      : pages(nullptr),
        log2(log2_page),
        head(head_of_all % heads_),
        heads(heads_),
        first(head_of_all * most_keys) {
    const size_t columns = (most_keys + (1 << log2) - 1) >> log2;  // of the table
    if (cache.table) pages = cache.table + head_of_all / heads * columns;
  }

  // If `key` is a multiple of 16, the next 15 keys follow it in memory.
  __device__ size_t operator[](int key) const {
    if (pages == nullptr) return first + key;
    return ((pages[key >> log2] * heads + head) << log2) + (key & ((1 << log2) - 1));
  }
};

// Two blocks per SM, if the batch has enough: while one merges, the other keeps copying.
template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode_kernel(const bf16* Q,  // [B*Hkv, rows, d], which is [B*H, N, d]
                        const bf16* K,  // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V,  // likewise
                        fa::Cache cache, int log2_page, int heads, SplitParts parts, int rows,
                        int N, int most_keys, int split_keys, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are neighbours
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int end = min(Nk, (split + 1) * split_keys);
  if (split * split_keys >= Nk && split > 0) return;  // split 0 stores even an empty part
  const KeyRows place(cache, log2_page, most_keys, head, heads);
  const size_t part = (split * gridDim.y + head) * rows + row0;
  Q += (head * rows + row0) * d;
  Tiles<d>& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d> && key < end; c += kMma) {
      const size_t from = key + c < end ? place[key + c] * d : 0;
      load_tile<d, kMma>(K + from, tiles.K[stage] + c * d, end - key - c);
      load_tile<d, kMma>(V + from, tiles.V[stage] + c * d, end - key - c);
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
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[t][h] = kNoMaximum;
      visible[t][h] = causal ? least + (row0 + t * kMma + fa::row_of(lane) + h * 8) % N : Nk;
    }
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

// A thread merges four features of one row, over the splits of its batch entry.
template <int d>
__global__ void merge_kernel(SplitParts parts, const int* lengths,  // [B], or null
                             bf16* O,                               // [B*H, N, d]
                             float* LSE,                            // [B*H, N]
                             int most_keys, int split_keys, int rows, int entry_rows) {
  const int r = (blockIdx.x * kThreads + threadIdx.x) / (d / 4), x = threadIdx.x % (d / 4) * 4;
  if (r >= rows) return;
  const int Nk = lengths ? lengths[r / entry_rows] : most_keys;
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  store_row<d>(parts.merge<d>(splits, rows, r, x), r, x, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() {
  fa::Support s = step13_groups::support();
  s.lengths = s.pages = true;
  return s;
}

inline fa::Prediction traffic_of(const fa::Problem& p, const Splits& splits) {
  const Rows rows(p);
  fa::Prediction t = step13_groups::traffic_of(p, splits);
  if (!p.cache.lengths.empty()) {
    const uint64_t blocks = splits.count * rows.blocks * p.kv_heads();
    t["lengths"].read = 4 * (blocks * kThreads + p.rows() * (p.d / 4));
    t.hbm.read += 4 * p.cache.lengths.size();
  }
  for (int b = 0; p.cache.page && b < p.B; ++b) {
    const uint64_t looked_up = fa::ceil_div(p.keys_of(b), kMma);  // 16 keys at once, by each lane
    t["table"].read += 4 * rows.blocks * p.Hkv * looked_up * fa::kWarp;
    t.hbm.read += 4 * fa::ceil_div(p.keys_of(b), p.cache.page);
  }
  return t;
}

inline fa::Prediction traffic(const fa::Problem& p) { return traffic_of(p, splits_of(p)); }

using step13_groups::workspace;

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p);
  const Splits splits = splits_of(p);
  const SplitParts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int log2_page = p.cache.page ? std::bit_width(unsigned(p.cache.page)) - 1 : 0;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared<d, bands>)},
                 t.Q, t.K, t.V, t.cache, log2_page, p.Hkv, parts, rows.count, p.N, p.Nk,
                 splits.keys, p.scale(), p.causal);
    });
    const int all = int(p.rows());
    fa::launch(merge_kernel<d>, {dim3(fa::ceil_div(all * (d / 4), kThreads)), dim3(kThreads)},
               parts, t.cache.lengths, t.O, t.LSE, p.Nk, splits.keys, all, p.H * p.N);
  });
}

}  // namespace step13_pages
