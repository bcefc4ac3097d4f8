// Step 03 -- what the maximum costs.
// Idea      How often must a softmax touch a score? The one of step 01, called safe, takes the
//           maximum first. The naive one leaves it out: one pass less, and it overflows.
// Changed   since 01 1_naive: softmax_kernel has no maximum; scores and output are step 02's
// Traffic   requested read  4*BH*(2*N*d*Tc + R*N*N + N*N + N*d*Tc) B   Tc = N/64; causal: visited
//                     write 4*BH*(2*N*N + N*d) B                       tiles only, but all of R*N*N
//           R = 2 naive, 3 safe: with the store of P 3 and 4 accesses per score
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), softmax (N/8, 1, B*H), output (1, N/64, B*H), 256 threads
// Owns      softmax: a warp owns a row
// Still bad the naive one is wrong for large scores, the safe one reads S three times
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step03_naive {

using step02::Br, step02::kThreads, step02::scores_kernel, step02::output_kernel;
constexpr int kBlockY = 8;  // rows of S per block: one per warp

// P = exp(S) / sum. Two loads and a store. But expf is infinite from s = 88.73 on, and a row whose
// scores are all below -104 has the sum 0.
static __global__ void softmax_kernel(const float* S,  // [B*H, N, N]
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

// --- host ---------------------------------------------------------------------------------------

// 02's prediction with `loads` loads of each score, and the softmax's accesses per score.
inline fa::Prediction traffic_of(const fa::Problem& p, int loads) {
  fa::Prediction t = step02::traffic(p);
  t["S"].read = 4 * p.scores() * loads;
  t.per_element = {{.kernel = "softmax_kernel",
                    .element = "score",
                    .elements = p.scores(),
                    .accesses = loads + 1.0}};  // P is stored once
  return t;
}
inline fa::Prediction traffic(const fa::Problem& p) { return traffic_of(p, 2); }
inline fa::Prediction safe_traffic(const fa::Problem& p) { return traffic_of(p, 3); }

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

}  // namespace step03_naive
