// Step 15 -- what its kernels for sm_80 share: tiles, products, the softmax.
// Changed   since 07 4_lazy: copied; the epilogue is store_output(). 08 5_atomics: the backward's
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/mma_tile.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warp.h"
#include "steps/15_masks/bands.h"

namespace step15 {

using fa::add_product, fa::bf16, fa::dot_rows, fa::load_tile, fa::put_tile, fa::store_tile;
using fa::kLazyRescale, fa::kNoMaximum, fa::swizzle;

constexpr int kMma = 16;    // rows of an mma's A, and keys or features that it sums over
constexpr int kStages = 2;  // of a tile that changes on the walk: one in use, one on its way

// --- the forward's block: four warps with 32 rows each -------------------------------------------

constexpr int kWarps = 4, kThreads = kWarps * fa::kWarp;
constexpr int kBands = 2;  // of 16 rows per warp: each fragment of K and V serves both
constexpr int kWarpRows = kBands * kMma;  // of a warp
constexpr int Br = kWarps * kWarpRows;    // rows of a tile of Q
template <int d>
constexpr int Bc = d == 64 ? 128 : 64;  // keys of a tile: what the registers hold beside O

// In shared memory: tiles, and what a block needs too rarely to spend a register on.
template <int d>
struct Shared {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
  size_t row, key;  // the first, of O and LSE, and of K and V
  int rows;         // from the tile's first one to the document's last one
};

// --- the forward's softmax and output ------------------------------------------------------------

// Row maxima, in powers of two. O and l are relative to m. While no row of the warp has grown by
// more than 8 they all stay as they are: P is then at most 2^8, which costs no digit.
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

// O += P V, 16 keys at a time: their P, then their products. The tensor cores work on these while
// the next keys' exponentials are computed: only here do a warp's two kinds of work overlap.
template <int d>
__device__ inline void multiply_values(const float (&rS)[kBands][Bc<d> / 8][4], float scale_log2,
                                       const float (&m)[kBands][2],
                                       const bf16* sV,  // [Bc, d] swizzled
                                       float (&l)[kBands][2], float (&rO)[kBands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < Bc<d>; c += kMma) {
    uint32_t a[kBands][4];  // P of 16 keys: two neighbouring 8-key tiles of S, rounded to bf16
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
      uint32_t b[2][2];  // V of 16 keys and two times 8 features
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

// O and LSE of a block to device memory, O by way of the warp's rows of Q: each lane stores 16
// bytes of a whole row. empty: the walk had no tile.
template <int d>
__device__ inline void store_output(Shared<d>& smem, bool empty, int first_row, int warp, int lane,
                                    const float (&m)[kBands][2], float (&l)[kBands][2],
                                    const float (&rO)[kBands][d / 8][4],
                                    bf16* O,       // [B*H, N, d]
                                    float* LSE) {  // [B*H, N]
  if (empty) {  // no tile was waited for: the copies of Q may still be under way
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

// --- before the backward -------------------------------------------------------------------------

constexpr int kRowThreads = 256;  // of a block
// Once per row: delta = rowsum(dO * O), and LSE in powers of two. A row without a key has LSE =
// -inf; here it gets +inf, so that its P = 2^(S - LSE) is 0. d/8 lanes own a row. They also zero
// the row in dQ_sum.
template <int d>
__global__ void delta_kernel(const bf16* O,     // [B*H, N, d]
                             const bf16* dO,    // [B*H, N, d]
                             const float* LSE,  // [B*H, N]
                             float* delta,      // [B*H, N]
                             float* LSE2,       // [B*H, N]
                             float* dQ_sum,     // [B*H, Np, d], or null
                             int N, int Np) {
  constexpr int kLanes = d / 8;
  const size_t row = (size_t(blockIdx.x) * kRowThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes, r = row % Np;
  if (dQ_sum) {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + row * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  const size_t at = row / Np * N + r;
  float sum = 0.f;
  if (r < N) {
    __align__(16) bf16 o[8], g[8];
    *reinterpret_cast<uint4*>(o) = *reinterpret_cast<const uint4*>(O + at * d + lane * 8);
    *reinterpret_cast<uint4*>(g) = *reinterpret_cast<const uint4*>(dO + at * d + lane * 8);
    UNROLL
    for (int x = 0; x < 8; ++x) sum += __bfloat162float(o[x]) * __bfloat162float(g[x]);
  }
  sum = fa::warp_sum<kLanes>(sum);
  if (r >= N || lane > 0) return;
  delta[at] = sum;
  const float row_lse = LSE[at];
  LSE2[at] = row_lse == -INFINITY ? INFINITY : row_lse * fa::kLog2e;
}

}  // namespace step15
