// Step 13 -- a paged cache, of sequences of any lengths.
// Idea      A cache grows by one key per token and nobody knows how far. So it lies in pages of 16 to
//           256 keys anywhere in a pool, and a table says where: one more load before the copies of
//           a row. What a page holds behind the last key is garbage and is never read
// Changed   since 13 5_groups: keys are looked up in the table; each batch entry has a length, and as
//           many splits as it has keys for
// Traffic   requested read  as 5_groups, of each entry's own keys and splits
//                           + 4*BHkv*t*Nk*d/8 B          table: by each thread that copies
//                           + 4 B per thread             lengths
//                     write as 5_groups
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N + 4*B*(Nk/page + 1) B
// Launch    grid (s*t, B*Hkv): blocks without keys end at once; then the merge
// Owns      block: a split for up to 32 rows; warp: 16 of a tile's 64 keys; thread: one place in rows
// Still bad two kernels, where the second one has little to do: 7_once
#pragma once

#include <bit>
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/5_groups.cuh"

namespace step13_pages {

using namespace step13;

using step13_splits::Splits, step13_splits::SplitParts;

using step13_groups::Rows, step13_groups::Shared;

// The keys of one batch entry and key head: which row of the pools each one is.
struct KeyRows {
  const int* pages;  // of the batch entry; null: the rows follow each other from `first` on
  int log2;          // of the keys of a page
  int head, heads;   // of a page
  size_t first;

  __device__ size_t operator[](int key) const {
    if (pages == nullptr) return first + key;
    const size_t page = size_t(pages[key >> log2]) * heads + head;
    return (page << log2) + (key & ((1 << log2) - 1));
  }
};

// Bc keys and values to shared memory, without waiting; from `end` on they are zero.
template <int d, int threads>
__device__ inline void load_keys(const bf16* K,  // [pages, Hkv, page, d]
                                 const bf16* V,  // [pages, Hkv, page, d]
                                 const KeyRows& rows, int first, int end, Tile<d>& tile) {
  constexpr int kChunks = d / 8;              // of 16 bytes, per row
  constexpr int kCopied = threads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8, to = swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Bc; step += kCopied) {
    const int key = first + r + step;
    const size_t from = key < end ? rows[key] * d + x : 0;
    fa::cp_async_16(tile.K + to + step * d, K + from, key < end ? 16 : 0);
    fa::cp_async_16(tile.V + to + step * d, V + from, key < end ? 16 : 0);
  }
}

// Two blocks per SM with one tile of rows: while one waits for its tiles or merges, the other one's
// copies go on. With two tiles their registers leave room for one block.
template <int d, int tiles_of_rows>
__global__ void __launch_bounds__(kThreads* tiles_of_rows, tiles_of_rows == 1 ? 2 : 1)
    flash_decode_kernel(const bf16* Q,  // [B*Hkv, rows, d]: of a group, which is [B*H, N, d]
                        const bf16* K,  // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V,  // likewise
                        fa::Cache cache, int log2_page, int heads, SplitParts parts, int rows,
                        int N, int most_keys, int split_keys, float scale, bool causal) {
  // --- prologue: copies of all tiles but one that shared memory holds
  constexpr int threads = kThreads * tiles_of_rows, block_rows = kRows * tiles_of_rows;
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp % kWarps, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + block_rows - 1) / block_rows, split = blockIdx.x / row_blocks;
  const int row0 = blockIdx.x % row_blocks * block_rows;  // blocks of the same keys are neighbours
  const int tile_row = row0 + threadIdx.x / kThreads * kRows;  // the first one of this warp
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int first = split * split_keys, end = min(Nk, first + split_keys);
  if (first >= Nk && split > 0) return;  // no keys left; without any, split 0 leaves an empty part
  const int columns = (most_keys + (1 << log2_page) - 1) >> log2_page;  // of the table
  const KeyRows keys = {cache.table ? cache.table + entry * columns : nullptr, log2_page,
                        int(head % heads), heads, head * most_keys};
  const size_t part = (size_t(split) * gridDim.y + head) * rows;
  Q += (head * rows + tile_row) * d;
  const int tiles = (end - first + Bc - 1) / Bc;
  const auto load = [&](int j) {
    Tile<d>& tile = smem.tiles[j % kStages<d>];
    if (j < tiles) load_keys<d, threads>(K, V, keys, first + j * Bc, end, tile);
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  for (int j = 0; j < kStages<d> - 1; ++j) load(j);
  uint32_t rQ[d / kMma][4];
  load_queries<d>(Q, rows - tile_row, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float rO[d / 8][4] = {}, l[2] = {}, m[2] = {kNoMaximum, kNoMaximum};

  const int least = causal ? Nk - N + 1 : Nk;  // keys that the first row sees
  const int n = tile_row + lane / 4;           // of all heads of the group
  const int visible[2] = {causal ? least + n % N : Nk, causal ? least + (n + 8) % N : Nk};

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait<kStages<d> - 2>();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    load(j + kStages<d> - 1);
    const Tile<d>& tile = smem.tiles[j % kStages<d>];
    float rS[kWarpKeys / 8][4] = {};
    multiply_scores<d>(rQ, tile.K + warp * kWarpKeys * d, rS);
    const int key = first + j * Bc + warp * kWarpKeys;
    if (key + kWarpKeys > least) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tile.V + warp * kWarpKeys * d, l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all are done with the tiles, whose place the parts take
  store_part<d>(m, l, rO, rows - tile_row, warp, smem.parts[threadIdx.x / kThreads]);
  __syncthreads();  // all parts are there
  constexpr int kStored = threads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < min(rows - row0, block_rows); r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    parts.store<d>(merge_warps(smem.parts[r / kRows], r % kRows, x), part + row0 + r, x);
  }
}

// A thread merges four features of one row, of as many splits as its batch entry has.
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

// What the batch entries ask for together, each by its length.
struct Totals {
  uint64_t keys = 0, tiles = 0, pages = 0, splits = 0;
  uint64_t merged = 0, merged_splits = 0;  // entries with more than one split, and their splits
  Totals(const fa::Problem& p, int split_keys) {
    for (int b = 0; b < p.B; ++b) {
      const int of_entry = p.keys_of(b);
      keys += of_entry, tiles += fa::ceil_div(of_entry, Bc);
      const int count = std::max(1, fa::ceil_div(of_entry, split_keys));
      splits += count;
      if (count > 1) merged += 1, merged_splits += count;
      if (p.page) pages += fa::ceil_div(of_entry, p.page);
    }
  }
};

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p);
  const Splits splits = step13_groups::splits_of(p);
  const Totals all(p, splits.keys);
  const uint64_t H = p.H, Hkv = p.Hkv, N = p.N, d = p.d, all_rows = p.rows();
  const uint64_t blocks = splits.count * rows.blocks * p.kv_heads();
  fa::Prediction t;
  t["Q"].read = 2 * kWarps * all.splits * H * N * d;
  t["K"].read = t["V"].read = 2 * rows.blocks * Hkv * all.keys * d;
  t["O"].write = 2 * all_rows * d;
  t["LSE"].write = 4 * all_rows;
  const uint64_t parts = 4 * all.splits * H * N;  // one number per row
  t["O_parts"] = {.read = parts * d, .write = parts * d};
  t["LSE_parts"] = {.read = parts * 2 * (d / 4), .write = parts};
  if (p.page) t["table"].read = 4 * rows.blocks * Hkv * all.keys * (d / 8);
  if (!p.lengths.empty()) {
    t["lengths"].read = 4 * (blocks * rows.tiles * kThreads + all_rows * (d / 4));
  }
  t.hbm = {.read = 2 * (all_rows * d + 2 * Hkv * all.keys * d) + parts * (d + 1) + 4 * all.pages +
                   4 * p.lengths.size(),
           .write = 2 * all_rows * d + 4 * all_rows + parts * (d + 1)};
  t.flops = 4 * Hkv * kRows * rows.tiles * rows.blocks * all.tiles * Bc * d;
  return t;
}

using step13_groups::workspace;

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p);
  const Splits splits = step13_groups::splits_of(p);
  const SplitParts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int log2_page = p.page ? std::bit_width(unsigned(p.page)) - 1 : 0;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.tiles, [&](auto tiles) {
      fa::launch(flash_decode_kernel<d, tiles>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads * tiles),
                  sizeof(Shared<d>)},
                 t.Q, t.K, t.V, t.cache, log2_page, p.Hkv, parts, rows.count, p.N, p.Nk,
                 splits.keys, p.scale(), p.causal);
    });
    const int all = int(p.rows());
    fa::launch(merge_kernel<d>, {dim3(fa::ceil_div(all * (d / 4), kThreads)), dim3(kThreads)},
               parts, t.cache.lengths, t.O, t.LSE, p.Nk, splits.keys, all, p.H * p.N);
  });
}

}  // namespace step13_pages
