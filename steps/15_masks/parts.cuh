// Step 15 -- what its kernels for sm_80 share: which keys a row of a window sees, the forward's
// tiles and output.
// Changed   since 07 4_lazy: the epilogue is store_output(); the products and the softmax are the
//           dialect's
#pragma once

#include "common/dialect/mma_softmax.h"
#include "common/dialect/mma_tile.h"
#include "common/harness/forward.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step15 {

using fa::bf16, fa::dot_rows, fa::kNoMaximum, fa::load_tile, fa::swizzle;
using fa::multiply_values, fa::update_maximum;

constexpr int kMma = 16;    // rows of an mma's A, and keys or features that it sums over
constexpr int kStages = 2;  // of a tile that changes on the walk: one in use, one arriving

// Row r of a document has its own key, r + keys - rows: the last row has the last key. It sees the
// keys from `left` before its own to `right` after it.
struct Window {
  int left, right;  // 0 .. kFarAway
};
constexpr int kFarAway = 1 << 30;  // no limit: further than any key, and no sum overflows

// --- the forward's block: four warps with 32 rows each -------------------------------------------

constexpr int kWarps = 4, kThreads = kWarps * fa::kWarp;
constexpr int kBands = 2;  // of 16 rows per warp: each fragment of K and V serves both
constexpr int kWarpRows = kBands * kMma;
constexpr int Br = kWarps * kWarpRows;  // rows per tile of Q
template <int d>
constexpr int Bc = d == 64 ? 128 : 64;  // keys per tile: what the registers hold besides O

// Shared memory: tiles, and values that a block needs too rarely to spend a register on.
template <int d>
struct Shared {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
  size_t row, key;  // the first, of O and LSE, and of K and V
  int rows;         // from the tile's first one to the document's last one
};

// --- the forward's output ------------------------------------------------------------------------

// Stores O and LSE of a block, O through the warp's rows of Q. empty: the walk had no tile.
template <int d>
__device__ inline void store_output(Shared<d>& smem, bool empty, int first_row, int warp, int lane,
                                    const float (&m)[kBands][2], float (&l)[kBands][2],
                                    const float (&rO)[kBands][d / 8][4],
                                    bf16* O,       // [B*H, N, d]
                                    float* LSE) {  // [B*H, N]
  if (empty) {  // no tile was waited for: the copies of Q may still be in flight
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

inline Window window_of(const fa::Problem& p) {
  const auto limit = [](int given) { return given == fa::Mask::kNoLimit ? kFarAway : given; };
  return {limit(p.mask.left), p.causal ? 0 : limit(p.mask.right)};
}

}  // namespace step15
