// Step 08 -- what the backward's kernels are made of.
// Idea      Five products, two patterns. S and dP sum over the features of two tiles, as Q K^T
//           does. dV, dK and dQ take A from the registers in which S and dP were, as P V does
// Changed   since 07 4_lazy: both products, for any pair of tiles, are in dialect/mma_tile.h:
//           dot_rows() and add_product(); no online softmax, because LSE is known; delta_kernel
//           prepares two numbers per row
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/mma_tile.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step08 {

using fa::add_product, fa::bf16, fa::dot_rows, fa::load_tile, fa::put_tile, fa::store_tile;
using fa::swizzle;

constexpr int kMma = 16;          // rows of an mma's A, and keys or features that it sums over
constexpr int kStages = 2;        // tiles of the walk: one in use, one on its way
constexpr int kRowThreads = 256;  // of a block of delta_kernel

// Scores that their row does not see become -inf: in tiles that the diagonal or the end cuts. C
// holds S, or S^T, whose rows are keys.
template <bool kTransposed, int kBands, int Cols>
__device__ inline void mask(float (&rS)[kBands][Cols / 8][4], int row, int key, int N, int Nk,
                            bool causal) {  // row, key: the first ones of this lane
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int n = 0; n < Cols / 8; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int down = t * kMma + e / 2 * 8, right = n * 8 + e % 2;
        const int r = row + (kTransposed ? right : down), c = key + (kTransposed ? down : right);
        if (c >= (causal ? min(Nk, r + 1 + Nk - N) : Nk)) rS[t][n][e] = -INFINITY;
      }
    }
  }
}

// Once per row: delta = rowsum(dO * O), and LSE in powers of two. A row without a key has LSE =
// -inf; here it gets +inf, so that its P = 2^(S - LSE) is 0. d/8 lanes own a row. They also set it
// to zero in dQ_sum, where there is one.
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

// --- host ---------------------------------------------------------------------------------------

// Calls f(d, Br, Bc) with sizes whose tiles fit the shared memory that the GPU gives to a block.
template <template <int d, int Br, int Bc> class Tiles, class F>
void dispatch_tiles(const fa::Problem& p, F&& f) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    if (d == 64 || sizeof(Tiles<128, 64, 128>) <= p.gpu.block_shared_bytes) {
      f(d, std::integral_constant<int, 64>(), std::integral_constant<int, 128>());
    } else if constexpr (d == 128) {
      f(d, std::integral_constant<int, 32>(), std::integral_constant<int, 64>());
    }
  });
}

}  // namespace step08
