// Step 13 -- the query heads of a group in one tile.
// Idea      With GQA `group` query heads share keys and values, and the tile has 15 empty rows. In
//           memory the group's queries follow each other: as one matrix of group * N rows they
//           are one head, and K and V are read once for all of them
// Changed   since 13 4_splits: a head is one of K and V; row r of its group is query r % N; four more
//           warps for more than 16 rows
// Traffic   requested read  2*BHkv*s*(4*g*N*d) + 2*BHkv*t*2*Nk*d B   g = H/Hkv heads per group,
//                           + 4*BH*s*N*(d + d/2) B                   t tiles of up to 32 rows
//                     write 2*BH*N*d + 4*BH*N B          O, LSE
//                           + 4*BH*s*N*(d + 1) B         parts of O and LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (s*t, B*Hkv): one block per split and tile; then the merge
// Owns      block: a split for up to 32 rows; four warps: 16 rows; warp: 16 of a tile's 64 keys
// Still bad the cache must lie in one piece, as long as the longest sequence: 6_pages
#pragma once

#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/13_decode/4_splits.cuh"

namespace step13_groups {

using namespace step13;

using step13_splits::Splits, step13_splits::SplitParts;

constexpr int kMostTiles = 2;  // of 16 rows, per block

// What a block keeps in shared memory.
template <int d>
union Shared {
  Tile<d> tiles[kStages<d>];
  Parts<d> parts[kMostTiles];  // after the last tile
};

// Two blocks per SM with one tile of rows: while one waits for its tiles or merges, the other one's
// copies go on. With two tiles their registers leave room for one block.
template <int d, int tiles_of_rows>
__global__ void __launch_bounds__(kThreads* tiles_of_rows, tiles_of_rows == 1 ? 2 : 1)
    flash_decode_kernel(const bf16* Q,  // [B*Hkv, rows, d]: of a group, which is [B*H, N, d]
                        const bf16* K,  // [B*Hkv, Nk, d]
                        const bf16* V,  // [B*Hkv, Nk, d]
                        SplitParts parts, int rows, int N, int Nk, int split_keys, float scale,
                        bool causal) {
  // --- prologue: copies of all tiles but one that shared memory holds
  constexpr int threads = kThreads * tiles_of_rows, block_rows = kRows * tiles_of_rows;
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp % kWarps, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + block_rows - 1) / block_rows, split = blockIdx.x / row_blocks;
  const int row0 = blockIdx.x % row_blocks * block_rows;  // blocks of the same keys are neighbours
  const int tile_row = row0 + threadIdx.x / kThreads * kRows;  // the first one of this warp
  const int first = split * split_keys, end = min(Nk, first + split_keys);
  const size_t head = blockIdx.y, key0 = head * Nk + first;
  const size_t part = (size_t(split) * gridDim.y + head) * rows;
  Q += (head * rows + tile_row) * d, K += key0 * d, V += key0 * d;
  const int tiles = (end - first + Bc - 1) / Bc;
  const auto load = [&](int j) {
    if (j < tiles) {
      Tile<d>& tile = smem.tiles[j % kStages<d>];
      load_tile<d, threads>(K + size_t(j) * Bc * d, tile.K, end - first - j * Bc);
      load_tile<d, threads>(V + size_t(j) * Bc * d, tile.V, end - first - j * Bc);
    }
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

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() {
  return {.d = {64, 128}, .gqa = true, .cross = true, .most_n = kRows};
}

// Rows of Q that share a head of K and V, and how they are cut.
struct Rows {
  explicit Rows(const fa::Problem& p)
      : count(p.H / p.Hkv * p.N),
        tiles(std::min(fa::ceil_div(count, kRows), kMostTiles)),
        blocks(fa::ceil_div(count, tiles * kRows)) {}
  int count, tiles, blocks;  // tiles: of a block
};

inline Splits splits_of(const fa::Problem& p) {
  return step13_splits::splits_of(p, p.Hkv * Rows(p).blocks);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p);
  const uint64_t all_rows = p.rows(), d = p.d, splits = splits_of(p).count;
  const uint64_t parts = 4 * splits * all_rows * d, statistics = 4 * splits * all_rows;
  fa::Prediction t;
  t["Q"].read = 2 * kWarps * splits * all_rows * d;
  t["K"].read = t["V"].read = 2 * rows.blocks * p.kv_size();
  t["O"].write = 2 * all_rows * d;
  t["LSE"].write = 4 * all_rows;
  t["O_parts"] = {.read = parts, .write = parts};
  t["LSE_parts"] = {.read = statistics * 2 * (d / 4), .write = statistics};
  t.hbm = {.read = 2 * (all_rows * d + 2 * p.kv_size()) + parts + statistics,
           .write = 2 * all_rows * d + 4 * all_rows + parts + statistics};
  t.flops = p.kv_heads() * 4 * kRows * rows.tiles * rows.blocks * fa::ceil_div(p.Nk, Bc) * Bc * d;
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = splits_of(p).count * p.rows();
  return {{"O_parts", rows * p.d * sizeof(float)}, {"LSE_parts", rows * sizeof(float)}};
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p);
  const Splits splits = splits_of(p);
  const SplitParts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.tiles, [&](auto tiles) {
      fa::launch(flash_decode_kernel<d, tiles>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads * tiles),
                  sizeof(Shared<d>)},
                 t.Q, t.K, t.V, parts, rows.count, p.N, p.Nk, splits.keys, p.scale(), p.causal);
    });
    step13_splits::merge<d>(p, t, parts, splits.count);
  });
}

}  // namespace step13_groups
