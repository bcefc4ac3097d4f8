// Step 15 -- sequences of different lengths, packed back to back.
// Idea      No row and no tile is padding. Documents are contiguous in Q, K and V; the host cuts
//           each into tiles and writes all of them to one table, the longest walk first
// Changed   since 15 1_window: a block's rows and keys are looked up instead of computed
// Traffic   requested read  2*BH*(N*d + 2*v*d) B    v: keys visited by all documents' tiles of rows
//                           2,048 B of `work` per block, 16 B per thread
//                     write 2*BH*N*d + 4*BH*N B      O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B, and the table: 16 B per tile
// Launch    grid (tiles of all documents * B*H), 128 threads; the longest walks of all heads first
// Owns      block: 128 rows of a document; warp: 32; lane: of 4 rows every 4th pair of columns
// Still bad tensor cores wait for softmax: 3_wgmma on Hopper; masks but windows: beyond/lists
#pragma once

#include <algorithm>
#include <vector>

#include "steps/15_masks/1_window.cuh"

namespace step15_packed {

using namespace step15;
using step15_window::Walk;

struct Packed {
  Window window;
  // [tiles]: the first row, rows from there on; the document's first key, and how many it has.
  const int4* works;
};

template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                     const bf16* K,  // [B*Hkv, Nk, d]
                     const bf16* V,  // [B*Hkv, Nk, d]
                     bf16* O,        // [B*H, N, d]
                     float* LSE,     // [B*H, N]
                     Packed mask, int heads, int group, int N, int Nk, float scale) {
  // --- prologue: which tile; copies of Q_i, and of K and V of the walk's first tile
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int bh = blockIdx.x % heads;
  const int4 work = mask.works[blockIdx.x / heads];
  const int row = work.x, rows = work.y, key = work.z, keys = work.w;
  const Walk<d> walk(mask.window, rows, keys);
  const size_t row0 = size_t(bh) * N + row;
  const size_t key0 = size_t(bh / group) * Nk + key;  // `group` heads share K and V
  if (threadIdx.x == 0) smem.row = row0, smem.key = key0, smem.rows = rows;
  auto load_keys = [&](int j, size_t key0) {
    const int first = j * Bc<d>, stage = j % kStages;
    load_tile<d, Bc<d>>(K + (key0 + first) * d, smem.K[stage], keys - first);
    load_tile<d, Bc<d>>(V + (key0 + first) * d, smem.V[stage], keys - first);
  };
  load_tile<d, Br>(Q + row0 * d, smem.Q, rows);
  if (walk.first < walk.end) load_keys(walk.first, key0);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const bf16* sQ = smem.Q + warp * kWarpRows * d;
  float rO[kBands][d / 8][4] = {}, l[kBands][2] = {};
  float m[kBands][2] = {{kNoMaximum, kNoMaximum}, {kNoMaximum, kNoMaximum}};
  const int first_row = warp * kWarpRows + fa::row_of(lane);  // of this lane, in the tile

  // --- mainloop
  for (int j = walk.first; j < walk.end; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j have arrived, and all warps are done with tile j - 1
    if (j + 1 < walk.end) load_keys(j + 1, smem.key);
    float rS[kBands][Bc<d> / 8][4] = {};
    dot_rows<d, kBands, Bc<d>>(sQ, smem.K[j % kStages], rS);
    walk.hide(rS, j, warp * kWarpRows);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[j % kStages], l, rO);
  }

  // --- epilogue
  store_output<d>(smem, walk.first == walk.end, first_row, warp, lane, m, l, rO, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_window::support();
  s.documents = true;
  return s;
}

// The numbers of all tiles, the longest walk first: its length, the last number, is not stored.
inline std::vector<int> longest_first(std::vector<std::vector<int>> tiles) {
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const auto& a, const auto& b) { return a.back() > b.back(); });
  std::vector<int> table;
  for (const auto& t : tiles) table.insert(table.end(), t.begin(), t.end() - 1);
  return table;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<std::vector<int>> tiles;
  for (const fa::Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      const fa::Range rows = {r, std::min(r + Br, doc.rows.last)};
      const int visits = fa::tiles_seen(p, doc, rows, p.d == 64 ? Bc<64> : Bc<128>).size();
      tiles.push_back({r, doc.rows.last - r, doc.keys.first, doc.keys.size(), visits});
    }
  }
  return {{"work", longest_first(tiles)}};
}

inline unsigned count_row_tiles(const fa::Problem& p) {
  unsigned tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div(doc.rows.size(), Br);
  return tiles;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_window::traffic(p);
  const uint64_t tiles = count_row_tiles(p);
  t["work"].read = sizeof(int4) * kThreads * tiles * p.heads();
  t.hbm.read += sizeof(int4) * tiles;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads();
  const Packed mask = {window_of(p), t.scratch<const int4>("work")};
  const dim3 grid(count_row_tiles(p) * BH);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {grid, dim3(kThreads), sizeof(Shared<d>)}, t.Q, t.K, t.V, t.O,
               t.LSE, mask, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_packed
