// Step 13 -- one launch: the last block of some rows merges their splits.
// Idea      A second kernel starts when all of the first one's blocks have ended, and takes longer to
//           start than to merge. Instead each block counts itself when its part is written, and the
//           one that is counted last merges. Rows of one split need no parts at all
// Changed   since 13 6_pages: the merge stands at the end of the kernel, behind a counter per rows
// Traffic   requested read  as 6_pages, parts of rows with more than one split only
//                     write likewise
//                    atomic 4 B per block with parts
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N + 4*B*(Nk/page + 1) B
// Launch    grid (s*t, B*Hkv): one block per split and tile
// Owns      as 6_pages; the last block of its rows: their results
// Still bad 16 bits per number of K and V: 8_fp8
#pragma once

#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/6_pages.cuh"

namespace step13_once {

using namespace step13;

using step13_splits::Splits, step13_splits::SplitParts;

using step13_groups::Rows, step13_groups::Shared;

using step13_pages::KeyRows, step13_pages::load_keys, step13_pages::Totals;

// Two blocks per SM with one tile of rows: while one waits for its tiles or merges, the other one's
// copies go on. With two tiles their registers leave room for one block.
template <int d, int tiles_of_rows>
__global__ void __launch_bounds__(kThreads* tiles_of_rows, tiles_of_rows == 1 ? 2 : 1)
    flash_decode_kernel(const bf16* Q,  // [B*Hkv, rows, d]: of a group, which is [B*H, N, d]
                        const bf16* K,  // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V,  // likewise
                        fa::Cache cache, int log2_page, int heads, bf16* O, float* LSE,
                        SplitParts parts, unsigned* arrived, int rows, int N, int most_keys, int split_keys, float scale, bool causal) {
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
  const size_t all_rows = size_t(gridDim.y) * rows;
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
  // A block that has all keys of its rows writes results, else a part.
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  const int stored = min(rows - row0, block_rows), x = threadIdx.x % (d / 4) * 4;
  const size_t result = head * rows + row0;
  constexpr int kStored = threads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    const Merged row = merge_warps(smem.parts[r / kRows], r % kRows, x);
    if (splits == 1) {
      store_row<d>(row, result + r, x, O, LSE);
    } else {
      parts.store<d>(row, split * all_rows + result + r, x);
    }
  }
  if (splits == 1) return;

  // --- the last block of these rows merges
  __threadfence();  // all threads' parts are in device memory,
  __syncthreads();  // before one thread counts the block
  __shared__ bool last;
  unsigned* counter = arrived + head * row_blocks + blockIdx.x % row_blocks;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == unsigned(splits - 1);
  __syncthreads();  // all know it
  if (!last) return;
  __threadfence();  // what the others wrote before they counted is read behind it
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    store_row<d>(parts.merge<d>(splits, all_rows, result + r, x), result + r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return step13_pages::support(); }

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p);
  const Splits splits = step13_groups::splits_of(p);
  const Totals all(p, splits.keys);
  const uint64_t H = p.H, Hkv = p.Hkv, N = p.N, d = p.d, all_rows = p.rows();
  fa::Prediction t = step13_pages::traffic(p);
  if (!p.lengths.empty()) {  // by no kernel that merges
    t["lengths"].read -= 4 * all_rows * (d / 4);
  }
  const uint64_t parts = 4 * all.merged_splits * H * N;  // one number per row
  t.hbm.read -= t["O_parts"].write + t["LSE_parts"].write - parts * (d + 1);
  t.hbm.write -= t["O_parts"].write + t["LSE_parts"].write - parts * (d + 1);
  t["O_parts"] = {.read = parts * d, .write = parts * d};
  t["LSE_parts"] = {.read = parts * 2 * (d / 4), .write = parts};
  t["arrived"] = {.write = 4 * Hkv * rows.blocks * all.merged,
                  .atomic = 4 * Hkv * rows.blocks * all.merged_splits};
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step13_pages::workspace(p);
  const size_t counters = p.kv_heads() * Rows(p).blocks;
  all.push_back({.name = "arrived", .bytes = counters * sizeof(unsigned), .zeroed = true});
  return all;
}

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
                 t.Q, t.K, t.V, t.cache, log2_page, p.Hkv, t.O, t.LSE, parts,
                 t.scratch<unsigned>("arrived"), rows.count, p.N, p.Nk, splits.keys, p.scale(),
                 p.causal);
    });
  });
}

}  // namespace step13_once
