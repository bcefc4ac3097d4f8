// Step 03, first half -- three softmaxes.
// Idea      How often must a softmax touch a score? Three kernels that differ in nothing else:
//           naive (no maximum), safe (maximum first), online (maximum and sum in one pass).
// Changed   since 02: softmax_kernel, the safe one, has two rivals; scores and output are 02's own
// Traffic   requested read  4*BH*(2*N*d*Tc + R*N*N + N*N + N*d*Tc) B   Tc = N/64; causal: visited
//                     write 4*BH*(2*N*N + N*d) B                       tiles only, but all of R*N*N
//           R = 2 naive, 3 safe, 2 online: with the store of P 3, 4 and 3 accesses per score
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), softmax (N/8, 1, B*H), output (1, N/64, B*H), 256 threads
// Owns      softmax: a warp owns a row
// Still bad P exists: a kernel of its own must write it, and the next one read it back
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "steps/02_tiled/2_registers.cuh"
#include "steps/03_online_softmax/1_merge.cuh"

namespace step03_softmax {

constexpr int kBlockY = step01::kBlockY;  // of S, that a block owns: a warp each
using step03::merge;
using step03::RowStats;
using step03::stats_of;

// P = exp(S) / sum. Two loads and a store; but expf is infinite from s = 88.73 on, and a row in
// which every s is below -104 has the sum 0.
static __global__ void naive_softmax_kernel(const float* S,  // [B*H, N, N]
                                            float* P,        // [B*H, N, N]
                                            int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t bh = blockIdx.z;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  const float* s = S + (bh * N + r) * N;
  float* p = P + (bh * N + r) * N;

  float l = 0.f;
  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) l += expf(s[c0 + lane]);
  }
  l = fa::warp_sum(l);

  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) p[c0 + lane] = expf(s[c0 + lane]) / l;
  }
}

// P = exp(S - m) / sum from two passes, where the safe one, step 01's, has three: m and l come out
// of one. Each lane merges the scores that it meets,
// then the lanes merge what they have. Any order will do: merge() is associative and commutative.
static __global__ void online_softmax_kernel(const float* S,  // [B*H, N, N]
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

// 02's prediction with `loads` loads of each score, and what textbooks count of the kernel alone.
inline fa::Prediction traffic(const fa::Problem& p, const char* kernel, int loads) {
  fa::Prediction t = step02::traffic(p);
  t["S"].read = 4 * p.scores() * loads;
  t.per_element = {{.kernel = kernel,
                    .element = "score",
                    .elements = p.scores(),
                    .accesses = loads + 1.0}};  // P is stored once
  return t;
}
inline fa::Prediction naive_traffic(const fa::Problem& p) {
  return traffic(p, "naive_softmax_kernel", 2);
}
inline fa::Prediction safe_traffic(const fa::Problem& p) { return traffic(p, "softmax_kernel", 3); }
inline fa::Prediction online_traffic(const fa::Problem& p) {
  return traffic(p, "online_softmax_kernel", 2);
}

// 02's forward with another softmax between its two products.
inline void forward(const fa::Problem& p, const fa::Tensors<float>& t,
                    void (*softmax_kernel)(const float*, float*, int)) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, step02::Br);
  const dim3 block(step02::kThreads);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(step02::scores_kernel<d>, {dim3(tiles, tiles, BH), block}, t.Q, t.K, S, p.N,
               p.scale(), p.causal);
    fa::launch(softmax_kernel, {dim3(fa::ceil_div(p.N, kBlockY), 1, BH), dim3(fa::kWarp, kBlockY)},
               S, P, p.N);
    fa::launch(step02::output_kernel<d>, {dim3(1, tiles, BH), block}, P, t.V, t.O, p.N, p.causal);
  });
}
inline void naive_forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  forward(p, t, naive_softmax_kernel);
}
inline void safe_forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  forward(p, t, step01::softmax_kernel);
}
inline void online_forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  forward(p, t, online_softmax_kernel);
}

}  // namespace step03_softmax
