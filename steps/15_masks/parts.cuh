// Step 15 -- what its kernels for sm_80 share: which keys a row of a window sees, the forward's
// tiles, softmax and output.
// Changed   since 07 4_lazy: the epilogue is store_output(); the products are the dialect's (08)
#pragma once

#include "common/dialect/mma_tile.h"
#include "common/dialect/softmax.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step15 {

using fa::bf16, fa::dot_rows, fa::kLazyRescale, fa::kNoMaximum, fa::load_tile, fa::swizzle;

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

// --- the forward's softmax and output ------------------------------------------------------------

// Row maxima, in powers of two. O and l are relative to m, and stay unchanged while no row of the
// warp has grown by more than 8.
template <int d>
__device__ inline void update_maximum(const float (&rS)[kBands][Bc<d> / 8][4], float scale_log2,
                                      float (&m)[kBands][2], float (&l)[kBands][2],
                                      float (&rO)[kBands][d / 8][4]) {
  float m_new[kBands][2];
  bool grown = false;
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      float s = -INFINITY;
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) s = fmaxf(s, fmaxf(rS[t][n][2 * h], rS[t][n][2 * h + 1]));
      m_new[t][h] = fmaxf(m[t][h], scale_log2 * fa::quad_max(s));
      grown |= m_new[t][h] > m[t][h] + kLazyRescale;
    }
  }
  if (!__any_sync(fa::kFullMask, grown)) return;
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float alpha = fa::exp2_approx(m[t][h] - m_new[t][h]);
      m[t][h] = m_new[t][h];
      l[t][h] *= alpha;
      UNROLL
      for (int n = 0; n < d / 8; ++n) rO[t][n][2 * h] *= alpha, rO[t][n][2 * h + 1] *= alpha;
    }
  }
}

// O += P V, 16 keys at a time: their products run while the next keys' exponentials are computed.
template <int d>
__device__ inline void multiply_values(const float (&rS)[kBands][Bc<d> / 8][4], float scale_log2,
                                       const float (&m)[kBands][2],
                                       const bf16* sV,  // [Bc, d] swizzled
                                       float (&l)[kBands][2], float (&rO)[kBands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < Bc<d>; c += kMma) {
    uint32_t a[kBands][4];  // P of 16 keys
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int n = c / 8 + e / 2, h = e % 2;
        const float p0 = fa::exp2_approx(rS[t][n][2 * h] * scale_log2 - m[t][h]);
        const float p1 = fa::exp2_approx(rS[t][n][2 * h + 1] * scale_log2 - m[t][h]);
        l[t][h] += p0 + p1;  // of this lane's keys
        a[t][e] = fa::pack_bf16(p0, p1);
      }
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and 2 x 8 features
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

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
