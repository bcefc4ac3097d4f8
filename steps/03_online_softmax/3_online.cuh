// Step 03 -- the online softmax.
// Idea      Maximum and sum in one pass: each score is merged into the statistics of its row. As
//           safe as the safe softmax, and it reads S only as often as the naive one.
// Changed   since 03 2_naive: the pass over S merges {m, l} instead of adding exp(s)
// Traffic   requested read  4*BH*(2*N*d*Tc + R*N*N + N*N + N*d*Tc) B   Tc = N/64; causal: visited
//                     write 4*BH*(2*N*N + N*d) B                       tiles only, but all of R*N*N
//           R = 2: with the store of P 3 accesses per score
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), softmax (N/8, 1, B*H), output (1, N/64, B*H), 256 threads
// Owns      softmax: a warp owns a row
// Still bad P exists: a kernel of its own must write it, and the next one read it back
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"
#include "steps/03_online_softmax/1_merge.cuh"

namespace step03_online {

using step02::Br, step02::kThreads, step02::scores_kernel, step02::output_kernel;
constexpr int kBlockY = 8;  // rows of S per block: one per warp
using step03::merge, step03::RowStats, step03::stats_of;

// P = exp(S - m) / sum. Each lane merges the scores that it reads, then the lanes merge what they
// have. Any order will do: merge() is associative and commutative.
static __global__ void softmax_kernel(const float* S,  // [B*H, N, N]
                                      float* P,        // [B*H, N, N]
                                      int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t bh = blockIdx.z;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  const float* s = S + (bh * N + r) * N;
  float* p = P + (bh * N + r) * N;

  RowStats stats;
  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    const float score = c0 + lane < N ? s[c0 + lane] : -INFINITY;
    stats = merge(stats, stats_of(score));
  }
  for (int lanes = fa::kWarp / 2; lanes > 0; lanes /= 2) {
    stats = merge(stats, {__shfl_xor_sync(fa::kFullMask, stats.m, lanes),
                          __shfl_xor_sync(fa::kFullMask, stats.l, lanes)});
  }

  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) p[c0 + lane] = expf(s[c0 + lane] - stats.m) / stats.l;
  }
}

// --- host ---------------------------------------------------------------------------------------

// 02's prediction with two loads of each score, and the softmax's accesses per score.
inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step02::traffic(p);
  t["S"].read = 4 * p.scores() * 2;
  t.per_element = {{.kernel = "softmax_kernel",
                    .element = "score",
                    .elements = p.scores(),
                    .accesses = 3.0}};  // P is stored once
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, Br);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(scores_kernel<d>, {dim3(tiles, tiles, BH), dim3(kThreads)}, t.Q, t.K, S, p.N,
               p.scale(), p.causal);
    fa::launch(softmax_kernel, {dim3(fa::ceil_div(p.N, kBlockY), 1, BH), dim3(fa::kWarp, kBlockY)},
               S, P, p.N);
    fa::launch(output_kernel<d>, {dim3(1, tiles, BH), dim3(kThreads)}, P, t.V, t.O, p.N, p.causal);
  });
}

}  // namespace step03_online
