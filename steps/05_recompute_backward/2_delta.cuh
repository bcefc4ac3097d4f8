// Step 05 -- delta from dO and O.
// Idea      delta = rowsum(P * dP) is also rowsum(dO * O): 2 d numbers per row instead of 2 N, and
//           known before dP is. The gradient of softmax is elementwise now: P and dP are read once.
// Changed   since 05 1_standard: delta_kernel is new; softmax_backward_kernel loses its first loop
// Traffic   requested read  4*BH*(5*N*N + 5*N*d*Tc + 2*N*d + N) B   Tc = N/64; causal: visited
//                     write 4*BH*(2*N*N + 3*N*d + N) B                tiles only, but all of dP
//           compulsory      4*BH*8*N*d B
// Launch    delta, dS (N/8, 1, B*H), dP (N/64, N/64, B*H), dV, dQ, dK (1, N/64, B*H), 256 threads
// Owns      warp: delta and dS of one row
// Still bad P stays in HBM from forward to backward; S, dP and dS cross HBM between kernels
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/05_recompute_backward/1_standard.cuh"

namespace step05_delta {

using step02::Br, step02::Bc, step02::kThreads;  // tiles of 64 x 64, 256 threads
using step02::scores_kernel, step02::output_kernel, step05_standard::key_gradient_kernel;
constexpr int kBlockY = 8;  // rows of dS per block: one warp each

// delta = rowsum(dO * O): one value per query row. One warp owns a row.
template <int d>
__global__ void delta_kernel(const float* O,   // [B*H, N, d]
                             const float* dO,  // [B*H, N, d]
                             float* delta,     // [B*H, N]
                             int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t row = size_t(blockIdx.z) * N + r;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  float sum = 0.f;
  UNROLL
  for (int x = lane; x - lane < d; x += fa::kWarp) sum += dO[row * d + x] * O[row * d + x];
  sum = fa::warp_sum(sum);
  if (lane == 0) delta[row] = sum;
}

// dS = scale * P * (dP - delta): the gradient of softmax, over dP in place. One warp owns a row.
// The factor of the scores goes in here, once, because dQ and dK both need it.
static __global__ void softmax_backward_kernel(const float* P,      // [B*H, N, N]
                                               float* dP_dS,        // [B*H, N, N], dP in, dS out
                                               const float* delta,  // [B*H, N]
                                               int N, float scale, bool causal) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t bh = blockIdx.z;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  const float* p = P + (bh * N + r) * N;
  float* dp = dP_dS + (bh * N + r) * N;
  const int keys = causal ? r + 1 : N;                      // that the row sees
  const int last = causal ? min((r / Br + 1) * Bc, N) : N;  // that the products' tiles hold

  const float row_delta = __shfl_sync(fa::kFullMask, lane == 0 ? delta[bh * N + r] : 0.f, 0);
  for (int c0 = 0; c0 < last; c0 += fa::kWarp) {
    const int c = c0 + lane;
    const float ds = c < keys ? scale * p[c] * (dp[c] - row_delta) : 0.f;
    if (c < last) dp[c] = ds;
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"S", 4 * p.scores()}, {"P", 4 * p.scores()}, {"delta", 4 * p.rows()}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, n = p.visible_scores();
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * v.rows * d;
  t["K"].read = 4 * BH * v.keys * d;
  // P: dV and softmax. S: as dP, softmax; as dS, dQ and dK.
  t["P"].read = 4 * BH * (n + v.pairs);
  t["S"] = {.read = 4 * BH * (n + 2 * v.pairs), .write = 4 * BH * (N * N + v.pairs)};
  t["V"].read = 4 * BH * v.keys * d;
  t["O"].read = 4 * BH * N * d;
  t["dO"].read = 4 * BH * (N + 2 * v.rows) * d;  // delta, dV, dP
  t["delta"] = {.read = 4 * BH * N, .write = 4 * BH * N};
  t["dQ"].write = t["dK"].write = t["dV"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (7 * N * d + 5 * N * N + N),
           .write = 4 * BH * (3 * N * d + 2 * N * N + N)};
  t.flops = BH * 8 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  float* delta = t.scratch<float>("delta");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, Br);
  const dim3 rows(1, tiles, BH), few_rows(fa::ceil_div(p.N, kBlockY), 1, BH);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(delta_kernel<d>, {few_rows, dim3(fa::kWarp, kBlockY)}, t.O, t.dO, delta, p.N);
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, P, t.dO, t.dV, p.N, p.causal);
    fa::launch(scores_kernel<d>, {dim3(tiles, tiles, BH), dim3(kThreads)}, t.dO, t.V, S, p.N, 1.f,
               p.causal);  // dP = dO V^T multiplies rows with rows, as S = Q K^T did
    fa::launch(softmax_backward_kernel, {few_rows, dim3(fa::kWarp, kBlockY)}, P, S, delta, p.N,
               p.scale(), p.causal);
    // dQ = dS K multiplies a square matrix with rows, as O = P V did
    fa::launch(output_kernel<d>, {rows, dim3(kThreads)}, S, t.K, t.dQ, p.N, p.causal);
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, S, t.Q, t.dK, p.N, p.causal);
  });
}

}  // namespace step05_delta
