// Step 15 -- what its kernels for sm_80 share: tiles, products, the softmax.
// Changed   since 07 4_lazy: copied; the epilogue is store_output(). 08 5_atomics: the backward's
#pragma once

#include <cfloat>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/warp.h"
#include "steps/15_masks/bands.h"

namespace step15 {

using fa::bf16;

constexpr int kMma = 16;    // rows of an mma's A, and keys or features that it sums over
constexpr int kStages = 2;  // of a tile that changes on the walk: one in use, one on its way

// --- the forward's block: four warps with 32 rows each -------------------------------------------

constexpr int kWarps = 4, kThreads = kWarps * fa::kWarp;
constexpr int kBands = 2;  // of 16 rows per warp: each fragment of K and V serves both
constexpr int kWarpRows = kBands * kMma;  // of a warp
constexpr int Br = kWarps * kWarpRows;    // rows of a tile of Q
template <int d>
constexpr int Bc = d == 64 ? 128 : 64;  // keys of a tile: what the registers hold beside O
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

// In shared memory: tiles, and what a block needs too rarely to spend a register on.
template <int d>
struct Shared {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
  size_t row, key;  // the first, of O and LSE, and of K and V
  int rows;         // from the tile's first one to the document's last one
};

// --- tiles and products --------------------------------------------------------------------------

// Where element (r, x) of a tile lies, x a multiple of 8. A row is cut into chunks of 16 bytes, and
// chunk c of row r takes the place c ^ (r % 8): eight rows of one chunk, which is what ldmatrix
// reads at a time, then lie in all 32 banks. 16 features further is an XOR, too: place ^ 16.
// A row of 32 numbers has only four chunks, and two rows fill the 32 banks: c ^ (r / 2 % 4).
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (d >= 64 ? r % 8 * 8 : r / 2 % 4 * 8));
}

// Rows 0 .. Rows - 1 of a matrix to shared memory, without waiting; from `rows` on they are zero.
template <int d, int Rows, int kThreads = 128>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;               // of 16 bytes, per row
  constexpr int kCopied = kThreads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    fa::cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

// C += A B^T of a warp's rows and a tile's rows, 16 features at a time: S = Q K^T; in the backward
// S^T = K Q^T and dP^T = V dO^T.
template <int d, int kBands, int Cols>
__device__ inline void dot_rows(const bf16* sA,  // [16 * kBands, d] swizzled: this warp's rows
                                const bf16* sB,  // [Cols, d] swizzled
                                float (&rC)[kBands][Cols / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int q = swizzle<d>(lane % 16, lane / 16 * 8);                    // left half, then right
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 rows, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t a[kBands][4];
    UNROLL
    for (int t = 0; t < kBands; ++t) fa::ldmatrix_x4(a[t], sA + t * kMma * d + (q ^ x));
    UNROLL
    for (int c = 0; c < Cols; c += 16) {
      uint32_t b[2][2];  // B^T of 16 features and two times 8 rows
      fa::ldmatrix_x4(b, sB + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rC[t][c / 8 + n], a[t], b[n]);
      }
    }
  }
}

// C += A B, a sum over the columns of A: dV += P^T dO, dK += dS^T Q, dQ += dS K. A is in the
// registers as dot_rows left it, and is rounded to bf16 here.
template <int d, int kBands, int Depth>
__device__ inline void add_product(const float (&rA)[kBands][Depth / 8][4],
                                   const bf16* sB,  // [Depth, d] swizzled
                                   float (&rC)[kBands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < Depth; c += kMma) {
    uint32_t a[kBands][4];  // 16 columns of A: two neighbouring 8-column tiles, rounded to bf16
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int n = c / 8 + e / 2, h = e % 2;
        a[t][e] = fa::pack_bf16(rA[t][n][2 * h], rA[t][n][2 * h + 1]);
      }
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // 16 rows of B and two times 8 features
      fa::ldmatrix_x4_trans(b, sB + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rC[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

// A warp's accumulators to its rows of a tile in shared memory, s [16 * kBands, kStride]: two
// neighbours in 4 bytes. The rows are swizzled, so that the 32 lanes write to all 32 banks.
template <int kStride, int kBands, int Cols, class Pack>
__device__ inline void put_tile(float (&rC)[kBands][Cols / 8][4], bf16* s, int column, Pack pack) {
  const int lane = threadIdx.x % fa::kWarp;
  const int first = swizzle<kStride>(fa::row_of(lane), column) + fa::column_of(lane);
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(s + (t * kMma + h * 8) * kStride + (first ^ n * 8)) =
            pack(rC[t][n][2 * h], rC[t][n][2 * h + 1]);
      }
    }
  }
}

// A warp's rows of a gradient to device memory, 16 bytes a lane, by way of its rows of K or V.
template <int d, int kBands>
__device__ inline void store_tile(float (&rC)[kBands][d / 8][4], float scale,
                                  bf16* s,  // [16 * kBands, d] swizzled: this warp's rows
                                  bf16* g,  // [rows, d]
                                  int rows) {
  const int lane = threadIdx.x % fa::kWarp;
  put_tile<d, kBands, d>(rC, s, 0,
                         [&](float lo, float hi) { return fa::pack_bf16(lo * scale, hi * scale); });
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < kBands * kMma; step += kStored) {
    const int r = step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(g + r * d + x) = *reinterpret_cast<uint4*>(s + swizzle<d>(r, x));
  }
}

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
