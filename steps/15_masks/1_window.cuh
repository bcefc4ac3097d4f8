// Step 15 -- a sliding window: the first and the last tile of a walk.
// Idea      A mask is a list of tiles to visit, and a test only in the tiles that it cuts. For a
//           window the list needs no memory: two divisions give the first and the last tile
// Changed   since 07 4_lazy: causal becomes a window; a walk has a first tile, a cut tile two
//           edges; values that a block needs once per tile or at its end are in shared memory
// Traffic   requested read  2*BH*(N*d + 2*v*d) B         v: keys visited by all N/128 tiles of rows
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; walks that grow with the row: the longest first
// Owns      block: 128 rows of O; warp: 32 of them; lane: of 4 rows every fourth pair of columns
// Still bad one sequence; a batch of different lengths needs padding: 2_packed
#pragma once

#include "steps/15_masks/parts.cuh"

namespace step15_window {

using namespace step15;

// The tiles of keys that a block's rows visit, and the test in those that are cut. rows: those left
// in the document; keys: the document's.
template <int d>
struct Walk {
  int low, high;  // row r of the tile sees the keys from r + low up to, but not including, r + high
  int keys;       // all lie in 0 .. keys - 1
  int first, end;  // tiles: first .. end - 1
  __device__ Walk(const Window& window, int rows, int keys)
      : low(keys - rows - window.left), high(keys - rows + window.right + 1), keys(keys) {
    const int first_key = max(0, low), end_key = min(keys, min(Br, rows) - 1 + high);
    first = first_key / Bc<d>;
    end = first_key < end_key ? (end_key + Bc<d> - 1) / Bc<d> : first;
  }

  // Scores that their row does not see become -inf, if an edge cuts the tile for any of the warp's
  // rows: the first one sees least on the right, the last one least on the left.
  __device__ void hide(float (&rS)[kBands][Bc<d> / 8][4], int tile, int warp_row) const {
    const int key = tile * Bc<d>, lane = threadIdx.x % fa::kWarp;
    if (warp_row + kWarpRows - 1 + low <= key && min(keys, warp_row + high) >= key + Bc<d>) return;
    const int row = warp_row + fa::row_of(lane), c = key + fa::column_of(lane);  // of this lane
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        const int r = row + t * kMma + h * 8;
        const int hidden = r + low - c, visible = min(keys, r + high) - c;
        UNROLL
        for (int n = 0; n < Bc<d> / 8; ++n) {
          if (n * 8 < hidden || n * 8 >= visible) rS[t][n][2 * h] = -INFINITY;
          if (n * 8 + 1 < hidden || n * 8 + 1 >= visible) rS[t][n][2 * h + 1] = -INFINITY;
        }
      }
    }
  }
};

struct OneDocument {
  Window window;
  int rows, keys;
  bool grows;  // window.right is limited: the first rows have the shortest walks
};

// Two blocks per SM: 255 registers per thread, and eight warps at different places in the loop.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                     const bf16* K,  // [B*Hkv, Nk, d]
                     const bf16* V,  // [B*Hkv, Nk, d]
                     bf16* O,        // [B*H, N, d]
                     float* LSE,     // [B*H, N]
                     OneDocument mask, int heads, int group, int N, int Nk, float scale) {
  // --- prologue: which tile; copies of Q_i, and of K and V of the walk's first tile
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  // If walks grow, the longest of all heads first; else a head's blocks share K and V in the L2.
  const int Tr = gridDim.x / heads, b = blockIdx.x;
  const int i = mask.grows ? Tr - 1 - b / heads : b % Tr;
  const int bh = mask.grows ? b % heads : b / Tr;
  const int rows = mask.rows - i * Br, keys = mask.keys;  // rows: from the tile's first one on
  const Walk<d> walk(mask.window, rows, keys);
  const size_t row0 = size_t(bh) * N + i * Br;
  const size_t key0 = size_t(bh / group) * Nk;  // `group` heads share K and V
  if (threadIdx.x == 0) smem.row = row0, smem.key = key0, smem.rows = rows;
  auto load_keys = [&](int j, size_t key0) {  // key0: in the loop smem.key, to save registers
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
  return {.d = {64, 128}, .gqa = true, .cross = true, .window = true};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const int keys = p.d == 64 ? Bc<64> : Bc<128>;
  const fa::TileVisits v = fa::visited_tiles(p, Br, keys);  // whose zeros are multiplied, too
  return fa::attention_traffic(p, v.keys, 4 * p.heads() * Br * keys * v.tiles * p.d);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  const bool grows = p.causal || p.mask.right != fa::Mask::kNoLimit;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr * BH), dim3(kThreads), sizeof(Shared<d>)}, t.Q, t.K,
               t.V, t.O, t.LSE, OneDocument{window_of(p), p.N, p.Nk, grows}, int(BH), p.H / p.Hkv,
               p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_window
