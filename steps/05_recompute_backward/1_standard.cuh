// Step 05 -- the baseline: the standard backward, which keeps P.
// Idea      What autograd does with step 02: the forward leaves P in HBM. The backward reads it,
//           writes dP over S and then dS over dP, and computes four products.
// Changed   since 02 2_registers: the gradient of softmax and the product A^T G are new; the other
//           two products and the forward are step 02's kernels
// Traffic   requested read  4*BH*(7*N*N + 5*N*d*Tc) B   Tc = N/64; causal: visited tiles only, and
//                     write 4*BH*(2*N*N + 3*N*d) B        dP is still written whole
//           compulsory      4*BH*7*N*d B
// Launch    dP (N/64, N/64, B*H), dS (N/8, 1, B*H), dV, dQ, dK (1, N/64, B*H), 256 threads
// Owns      block: 64 x 64 of dP, or 64 rows of dV, dQ or dK; warp: one row of dS
// Still bad softmax's gradient reads each row twice: the sum of the whole row comes first
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step05_standard {

// Tiles of 64 x 64, slices of 32; 16 x 16 threads, of which each has 4 x 4 results.
using step02::Br, step02::Bc, step02::kSlice, step02::kGrid, step02::kTile, step02::kThreads;
using step02::load_tile, step02::scores_kernel, step02::output_kernel;
constexpr int kBlockY = 8;  // rows of dS per block: one warp each

// dS = scale * P * (dP - delta) with delta = rowsum(P * dP): the gradient of softmax. One warp owns
// a row and reads it twice: the sum first, then the result, over dP in place. The factor of the
// scores goes in here, once, because dQ and dK both need it.
static __global__ void softmax_backward_kernel(const float* P,  // [B*H, N, N]
                                               float* dP_dS,    // [B*H, N, N], dP in, dS out
                                               int N, float scale, bool causal) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t bh = blockIdx.z;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  const float* p = P + (bh * N + r) * N;
  float* dp = dP_dS + (bh * N + r) * N;
  const int keys = causal ? r + 1 : N;                      // that the row sees
  const int last = causal ? min((r / Br + 1) * Bc, N) : N;  // that the products' tiles hold

  float delta = 0.f;
  for (int c0 = 0; c0 < keys; c0 += fa::kWarp) {
    if (c0 + lane < keys) delta += p[c0 + lane] * dp[c0 + lane];
  }
  delta = fa::warp_sum(delta);

  for (int c0 = 0; c0 < last; c0 += fa::kWarp) {
    const int c = c0 + lane;
    const float ds = c < keys ? scale * p[c] * (dp[c] - delta) : 0.f;
    if (c < last) dp[c] = ds;
  }
}

// C += A^T G, a sum over the rows: dV += P^T dO and dK += dS^T Q. A thread owns keys and reads
// along a row of A. Keys 4 ty + a, features 2 tx + 32 b and the next one.
template <int d>
__device__ inline void add_key_gradient(const float (&sA)[kSlice][Bc], const float (&sG)[kSlice][d],
                                        float2 (&rC)[kTile][d / (2 * kGrid)]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  for (int r = 0; r < kSlice; ++r) {
    __align__(16) float p[kTile];  // of one row
    *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(&sA[r][kTile * ty]);
    UNROLL
    for (int b = 0; b < d / (2 * kGrid); ++b) {
      const float2 g = *reinterpret_cast<const float2*>(&sG[r][2 * tx + b * 2 * kGrid]);
      UNROLL
      for (int a = 0; a < kTile; ++a) {
        rC[a][b].x += p[a] * g.x;
        rC[a][b].y += p[a] * g.y;
      }
    }
  }
}

// dV = P^T dO, and with other operands dK = dS^T Q. A block owns 64 keys and walks the queries in
// slices.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) key_gradient_kernel(const float* P,   // [B*H, N, N]
                                                                   const float* dO,  // [B*H, N, d]
                                                                   float* dV,        // [B*H, N, d]
                                                                   int N, bool causal) {
  __shared__ __align__(16) float sP[kSlice][Bc];
  __shared__ __align__(
      16) float sdO[kSlice][d];            // read along a row, two features per lane: 32 banks
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int j = blockIdx.y;
  const size_t bh = blockIdx.z;

  float2 rdV[kTile][kPairs] = {};  // keys 4 ty + a, features 2 tx + 32 b and the next one
  for (int r0 = causal ? j * Br : 0; r0 < N; r0 += kSlice) {     // rows above see none of the keys
    for (int v = threadIdx.x; v < kSlice * Bc; v += kThreads) {  // N may be odd: one float per lane
      const int r = v / Bc, c = v % Bc;
      const bool inside = r0 + r < N && j * Bc + c < N;
      sP[r][c] = inside ? P[(bh * N + r0 + r) * N + j * Bc + c] : 0.f;
    }
    load_tile<d, d>(dO + bh * N * d, sdO, r0, 0, N);
    __syncthreads();  // the tiles are complete
    add_key_gradient<d>(sP, sdO, rdV);
    __syncthreads();  // all have read; the next slices may overwrite
  }
  UNROLL
  for (int a = 0; a < kTile; ++a) {
    const int c = j * Bc + kTile * ty + a;
    if (c >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(dV + (bh * N + c) * d + 2 * tx + b * 2 * kGrid) = rdV[a][b];
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, n = p.visible_scores();
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * v.rows * d;
  t["K"].read = 4 * BH * v.keys * d;
  // P: dV, and softmax twice. S: as dP, softmax twice; as dS, dQ and dK.
  t["P"].read = 4 * BH * (2 * n + v.pairs);
  t["S"] = {.read = 4 * BH * 2 * (n + v.pairs), .write = 4 * BH * (N * N + v.pairs)};
  t["V"].read = 4 * BH * v.keys * d;
  t["dO"].read = 4 * BH * 2 * v.rows * d;  // dV, dP
  t["dQ"].write = t["dK"].write = t["dV"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (5 * N * d + 5 * N * N), .write = 4 * BH * (3 * N * d + 2 * N * N)};
  t.flops = BH * 8 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

// S is not needed after the forward, so dP and then dS take its place: no backward that stores its
// matrices needs less memory.
inline void backward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, Br);
  const dim3 rows(1, tiles, BH);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, P, t.dO, t.dV, p.N, p.causal);
    fa::launch(scores_kernel<d>, {dim3(tiles, tiles, BH), dim3(kThreads)}, t.dO, t.V, S, p.N, 1.f,
               p.causal);  // dP = dO V^T multiplies rows with rows, as S = Q K^T did
    fa::launch(softmax_backward_kernel,
               {dim3(fa::ceil_div(p.N, kBlockY), 1, BH), dim3(fa::kWarp, kBlockY)}, P, S, p.N,
               p.scale(), p.causal);
    // dQ = dS K multiplies a square matrix with rows, as O = P V did
    fa::launch(output_kernel<d>, {rows, dim3(kThreads)}, S, t.K, t.dQ, p.N, p.causal);
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, S, t.Q, t.dK, p.N, p.causal);
  });
}

}  // namespace step05_standard
