// Step 15 -- a sliding window: the first and the last tile of a walk.
// Idea      A mask is a list of tiles to visit, and a test only in the tiles that it cuts. Of a
//           window the list needs no memory: two divisions give the first and the last tile
// Changed   since 07 4_lazy: causal becomes a window; a walk has a first tile, a cut tile two edges
// Traffic   requested read  2*BH*(N*d + 2*v*d) B         v: keys visited by all N/128 tiles of rows
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; walks that grow with the row: the longest first
// Owns      block: 128 rows of O; warp: 32 of them; lane: of 4 rows every fourth pair of columns
// Still bad one sequence; a batch of different lengths needs padding: 3_packed
#pragma once

#include "common/dialect/ptx/cp_async.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/07_tensor_cores/4_lazy.cuh"

namespace step15 {

using fa::bf16;
using step07::Bc, step07::Br, step07::kBands, step07::kMma, step07::kNoMaximum, step07::kStages,
    step07::kThreads, step07::kWarpRows;
using step07::load_tile, step07::multiply_scores, step07::multiply_values, step07::swizzle,
    step07::Tiles, step07::update_maximum;

constexpr int kNoLimit = 1 << 30;  // of a window: further than any key, and no sum overflows

// What a block works on: rows of a document, and all that they may see.
struct Work {
  int row, rows;  // the first row of the tile, and how many are left in the document
  int key, keys;  // the document's
};

// A row sees the keys from `left` before its own to `right` behind it. The own key of row r of the
// tile is r + keys - rows: the document's last row has the last key.
struct Band {
  int left, right;  // 0 .. kNoLimit
};

// The tiles that a block's rows visit, and the test in those that are cut.
template <int d>
struct Walk {
  int low, high;  // row r of the tile sees the keys from r + low up to, but not including, r + high
  int keys;       // of the document: all lie in 0 .. keys - 1
  int first, last;  // tiles of the document: first .. last - 1
  __device__ Walk(const Band& band, const Work& w)
      : low(w.keys - w.rows - band.left), high(w.keys - w.rows + band.right + 1), keys(w.keys) {
    const int begin = max(0, low), end = min(keys, min(Br, w.rows) - 1 + high);
    first = begin / Bc<d>;
    last = begin < end ? (end + Bc<d> - 1) / Bc<d> : first;
  }
  __device__ int tile(int n) const { return n; }
  __device__ void start(float (&)[kBands][2], float (&)[kBands][2]) const {}  // 7_scores: a sink

  // Scores that their row does not see become -inf, if an edge cuts tile n for any of the warp's
  // rows: the first one sees least on the right, the last one least on the left.
  __device__ void hide(float (&rS)[kBands][Bc<d> / 8][4], int n, int warp_row) const {
    const int key = tile(n) * Bc<d>, lane = threadIdx.x % fa::kWarp;
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

// All rows and keys are one document.
struct Window {
  Band band;
  int N, Nk;
  bool grows;  // the walk, with the row

  // This block's tile of rows, and its head. If walks grow, all heads' longest ones start first;
  // else the blocks of a head follow each other and find K and V in L2.
  __device__ Work work(int heads, int* bh) const {
    const int Tr = gridDim.x / heads, b = blockIdx.x;
    const int i = grows ? Tr - 1 - b / heads : b % Tr;
    *bh = grows ? b % heads : b / Tr;
    return {i * Br, N - i * Br, 0, Nk};
  }
  template <int d>
  __device__ Walk<d> walk(const Work& work) const {
    return {band, work};
  }
};

// Beside the tiles what a block needs once per tile or at the end: no register is left for it.
template <int d>
struct Shared : Tiles<d> {
  size_t row, key;  // the first, of O and LSE, and of K and V
  int rows;
};

// Two blocks per SM: 255 registers per thread, and eight warps at different places in the loop.
template <int d, class Mask>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                     const bf16* K,  // [B*Hkv, Nk, d]
                     const bf16* V,  // [B*Hkv, Nk, d]
                     bf16* O,        // [B*H, N, d]
                     float* LSE,     // [B*H, N]
                     Mask mask, int heads, int group, int N, int Nk, float scale) {
  // --- prologue: which tile; copies of Q_i, and of K and V of the walk's first tile
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  int bh;
  const auto work = mask.work(heads, &bh);
  const auto walk = mask.template walk<d>(work);
  const size_t row0 = size_t(bh) * N + work.row;
  const size_t key0 = size_t(bh / group) * Nk + work.key;  // `group` heads share K and V
  if (threadIdx.x == 0) smem.row = row0, smem.key = key0, smem.rows = work.rows;
  auto load_keys = [&](int n, size_t key0) {
    const int first = walk.tile(n) * Bc<d>, stage = n % kStages;
    load_tile<d, Bc<d>>(K + (key0 + first) * d, smem.K[stage], work.keys - first);
    load_tile<d, Bc<d>>(V + (key0 + first) * d, smem.V[stage], work.keys - first);
  };
  load_tile<d, Br>(Q + row0 * d, smem.Q, work.rows);
  if (walk.first < walk.last) load_keys(walk.first, key0);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const bf16* sQ = smem.Q + warp * kWarpRows * d;
  float rO[kBands][d / 8][4] = {}, l[kBands][2] = {};
  float m[kBands][2] = {{kNoMaximum, kNoMaximum}, {kNoMaximum, kNoMaximum}};
  walk.start(m, l);
  const int first_row = warp * kWarpRows + fa::row_of(lane);  // of this lane, in the tile

  // --- mainloop
  for (int j = walk.first; j < walk.last; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    if (j + 1 < walk.last) load_keys(j + 1, smem.key);
    float rS[kBands][Bc<d> / 8][4] = {};
    multiply_scores<d>(sQ, smem.K[j % kStages], rS);
    walk.hide(rS, j, warp * kWarpRows);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[j % kStages], l, rO);
  }

  // --- epilogue: O goes through the warp's rows of Q: 16 bytes per lane leave in whole rows
  if (walk.first == walk.last) {  // no tile was waited for: the copies of Q may still be under way
    fa::cp_async_wait_all();
    __syncthreads();  // other warps' threads copied to this warp's rows, too
  }
  __syncwarp();                // all lanes have read the warp's rows of Q
  const int rows = smem.rows;  // from the tile's first one on
  O += smem.row * d, LSE += smem.row;
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = first_row + t * kMma + h * 8;
      l[t][h] = fa::quad_sum(l[t][h]);
      const float normalise = l[t][h] > 0.f ? 1.f / l[t][h] : 0.f;  // no key seen: O = 0
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        *reinterpret_cast<uint32_t*>(smem.Q + swizzle<d>(r, n * 8) + fa::column_of(lane)) =
            fa::pack_bf16(rO[t][n][2 * h] * normalise, rO[t][n][2 * h + 1] * normalise);
      }
      if (fa::leads_quad(lane) && r < rows) LSE[r] = (m[t][h] + log2f(l[t][h])) * fa::kLn2;
    }
  }
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < kWarpRows; step += kStored) {
    const int r = warp * kWarpRows + step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(O + r * d + x) = *reinterpret_cast<uint4*>(smem.Q + swizzle<d>(r, x));
  }
}

// --- host ---------------------------------------------------------------------------------------

inline Band band_of(const fa::Problem& p) {
  const auto limit = [](int given) { return given == fa::Mask::kNoLimit ? kNoLimit : given; };
  return {limit(p.mask.left), p.causal ? 0 : limit(p.mask.right)};
}

inline Window window_of(const fa::Problem& p) {
  return {band_of(p), p.N, p.Nk, p.causal || p.mask.right != fa::Mask::kNoLimit};
}

}  // namespace step15

namespace step15_window {

using namespace step15;

// What the kernels are made for; anything else is refused.
inline fa::Support support() {
  return {.d = {64, 128}, .gqa = true, .cross = true, .window = true};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int keys = p.d == 64 ? Bc<64> : Bc<128>;
  const fa::TileVisits v = fa::visited_tiles(p, Br, keys);
  fa::Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * Br * keys * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d, Window>, {dim3(Tr * BH), dim3(kThreads), sizeof(Shared<d>)}, t.Q,
               t.K, t.V, t.O, t.LSE, window_of(p), int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_window
