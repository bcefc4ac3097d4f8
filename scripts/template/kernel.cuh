// @NAME@ -- a kernel of your own.
// Idea      what it does, in three lines at most
// Launch    grid (N/kRows, B*H), block kRows
// Owns      thread: one query row
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace @NAME@ {

constexpr int kRows = 128;  // query rows per block, one per thread

// O = softmax(scale * Q K^T + mask) V
template <int d>
__global__ void attention_kernel(const float* Q,  // [B*H, N, d]
                                 const float* K,  // [B*H, N, d]
                                 const float* V,  // [B*H, N, d]
                                 float* O,        // [B*H, N, d]
                                 int N, float scale, bool causal) {
  // Your kernel. Until it writes O, the check says that O was never written.
  (void)Q, (void)K, (void)V, (void)O, (void)N, (void)scale, (void)causal;
}

// --- host ---------------------------------------------------------------------------------------

// The bytes that one run requests. The program compares them with the count, buffer by buffer.
inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, n = p.visible_scores();
  fa::Prediction t;
  t["Q"].read = 4 * BH * N * d;                // each thread its own row
  t["K"].read = t["V"].read = 4 * BH * n * d;  // and every key that the row sees
  t["O"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * 3 * N * d, .write = 4 * BH * N * d};
  t.flops = BH * 4 * n * d;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  const dim3 grid(fa::ceil_div(p.N, kRows), p.heads());
  fa::dispatch_d<32, 64>(p.d, [&](auto d) {
    fa::launch(attention_kernel<d>, {grid, kRows}, t.Q, t.K, t.V, t.O, p.N, p.scale(), p.causal);
  });
}

}  // namespace @NAME@
