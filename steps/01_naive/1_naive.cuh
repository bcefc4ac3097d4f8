// Step 01 -- naive attention, the textbook's three kernels.
// Idea      S = scale * Q K^T, P = softmax(S), O = P V, one kernel each, one thread per output.
//           S and P have N * N elements per head; they are written to HBM and read back.
// Changed   this is where the ladder starts
// Traffic   requested read  4*BH*(2*n*d + 3*N*N + n*(d + d)) B   n = visible scores: N*N, or
//                     write 4*BH*(2*N*N + N*d) B                 N*(N + 1)/2 when causal
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/32, N/8, B*H), softmax (N/8, 1, B*H), output (d/32, N/8, B*H), 256 threads
// Owns      thread: one score; warp: one row of P; thread: one element of O
// Still bad each row of Q and K is requested N times; a warp's load of K touches 32 rows
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step01 {

constexpr int kBlockX = 32;  // a block of threads is kBlockX wide and kBlockY high
constexpr int kBlockY = 8;

// S = scale * Q K^T. One thread owns one score; nothing is shared: a row of Q is read N times.
template <int d>
__global__ void scores_kernel(const float* Q,  // [B*H, N, d]
                              const float* K,  // [B*H, N, d]
                              float* S,        // [B*H, N, N]
                              int N, float scale, bool causal) {
  const int c = blockIdx.x * kBlockX + threadIdx.x;  // key: the fast axis, so stores coalesce
  const int r = blockIdx.y * kBlockY + threadIdx.y;  // query
  const size_t bh = blockIdx.z;
  if (r >= N || c >= N) return;  // legal: no other thread depends on this one

  float s = -INFINITY;  // a masked score: its probability will be 0
  if (!causal || c <= r) {
    const float* q = Q + (bh * N + r) * d;
    const float* k = K + (bh * N + c) * d;
    s = 0.f;
    for (int x = 0; x < d; ++x) s += q[x] * k[x];
    s *= scale;
  }
  S[(bh * N + r) * N + c] = s;
}

// P = softmax(S), row by row. One warp owns a row and reads it three times: for the maximum,
// without which expf overflows; for the sum; for the quotient. All lanes have the same trip count:
// with one of its own per lane, the unrolled loop would split the requests of a ragged warp.
static __global__ void softmax_kernel(const float* S,  // [B*H, N, N]
                                      float* P,        // [B*H, N, N]
                                      int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t bh = blockIdx.z;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  const float* s = S + (bh * N + r) * N;
  float* p = P + (bh * N + r) * N;

  float m = -INFINITY;
  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) m = fmaxf(m, s[c0 + lane]);
  }
  m = fa::warp_max(m);  // finite: a row sees at least key 0

  float l = 0.f;
  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) l += expf(s[c0 + lane] - m);
  }
  l = fa::warp_sum(l);

  for (int c0 = 0; c0 < N; c0 += fa::kWarp) {
    if (c0 + lane < N) p[c0 + lane] = expf(s[c0 + lane] - m) / l;
  }
}

// O = P V. One thread owns one element of O. Masked keys have P = 0, so they are skipped.
template <int d>
__global__ void output_kernel(const float* P,  // [B*H, N, N]
                              const float* V,  // [B*H, N, d]
                              float* O,        // [B*H, N, d]
                              int N, bool causal) {
  const int x = blockIdx.x * kBlockX + threadIdx.x;  // feature: the fast axis
  const int r = blockIdx.y * kBlockY + threadIdx.y;  // query
  const size_t bh = blockIdx.z;
  if (r >= N) return;
  const float* p = P + (bh * N + r) * N;
  const float* v = V + bh * N * d + x;

  float o = 0.f;
  const int keys = causal ? r + 1 : N;
  for (int c = 0; c < keys; ++c) o += p[c] * v[size_t(c) * d];
  O[(bh * N + r) * d + x] = o;
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"S", 4 * p.scores()}, {"P", 4 * p.scores()}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const uint64_t n = p.visible_scores();
  fa::Prediction t;
  t["Q"].read = t["K"].read = 4 * BH * n * d;
  t["S"] = {.read = 4 * BH * 3 * N * N, .write = 4 * BH * N * N};
  t["P"] = {.read = 4 * BH * n * d, .write = 4 * BH * N * N};  // each feature rereads the row
  t["V"].read = 4 * BH * n * d;
  t["O"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (3 * N * d + 2 * N * N), .write = 4 * BH * (2 * N * N + N * d)};
  t.flops = BH * 4 * n * d;
  return t;
}

inline void softmax(const fa::Problem& p,
                    const float* S,  // [B*H, N, N]
                    float* P) {      // [B*H, N, N]
  const dim3 grid(fa::ceil_div(p.N, kBlockY), 1, p.heads());
  fa::launch(softmax_kernel, {grid, dim3(fa::kWarp, kBlockY)}, S, P, p.N);
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), rows = fa::ceil_div(p.N, kBlockY);
  const dim3 block(kBlockX, kBlockY);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(scores_kernel<d>, {dim3(fa::ceil_div(p.N, kBlockX), rows, BH), block}, t.Q, t.K, S,
               p.N, p.scale(), p.causal);
    softmax(p, S, P);
    fa::launch(output_kernel<d>, {dim3(d / kBlockX, rows, BH), block}, P, t.V, t.O, p.N, p.causal);
  });
}

}  // namespace step01
