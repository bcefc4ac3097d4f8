// Step 15 -- the backward of changed scores, and of sinks.
// Idea      P is recomputed with the same change. The cap's derivative 1 - tanh^2 needs the score,
//           log P + LSE. A sink has no value, so its dP is 0 and its gradient a sum of -P delta
// Changed   since 15 7_scores: scores are transposed; dS takes the cap's derivative; sink_kernel
// Traffic   requested as 4_packed_backward; sinks: 8 B per row, 4 B per thread of sink_kernel
// Launch    delta; backward; sinks (B*H); convert
// Owns      as 4_packed_backward; a block of sink_kernel: a head
// Still bad as 7_scores
#pragma once

#include "common/dialect/warp.h"
#include "steps/15_masks/4_packed_backward.cuh"
#include "steps/15_masks/7_scores.cuh"

namespace step15_scores_backward {

using namespace step15_backward;
using step15_scores::ScoreMod;

struct ScoredWork : KeyWork {
  int head;  // of its batch entry's queries: the group's first
};

template <int Br, int Bc>
struct ScoredWalk : Walk<Br, Bc> {
  ScoreMod mod;
  int head, left;

  __device__ ScoredWalk(const Band& band, const ScoredWork& work, const ScoreMod& of)
      : Walk<Br, Bc>(band, work), mod(of), head(work.head), left(band.left) {}

  // Row q's own key less the lane's first key, of tile n.
  __device__ float back(int n, int q, int key) const {
    const int lane = threadIdx.x % fa::kWarp;
    const int own = this->tile(n) * Br + q + fa::column_of(lane) + this->low + left;
    return own - (key + fa::row_of(lane));
  }
  // That of element e of fragment (t, n), less back().
  __device__ static constexpr float step(int t, int n, int e) {
    return n * 8 + e % 2 - t * kMma - e / 2 * 8;
  }

  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int n, int q, int key, int h) const {
    const float first = back(n, q, key), line = mod.alibi > 0.f ? mod.slope(head + h) : 0.f;
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Cols / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          float& s = rS[t][n][e];
          if (mod.cap > 0.f) s = mod.capped(s);
          if (mod.alibi > 0.f) s -= line * fabsf(first + step(t, n, e));
        }
      }
    }
    Walk<Br, Bc>::template hide<kBands, Cols>(rS, n, q, key, h);
  }

  // dS times the cap's derivative. What P was made of is log P + LSE, and ALiBi's line.
  template <int kBands, int Cols>
  __device__ void chain_rule(const float (&rP)[kBands][Cols / 8][4], const float* sLSE2,  // [Cols]
                             float (&rdS)[kBands][Cols / 8][4], int n, int q, int c, int h) const {
    if (mod.cap == 0.f) return;
    const int tx = fa::column_of(threadIdx.x % fa::kWarp);
    const float first = back(n, q, c);
    const float line = mod.alibi > 0.f ? mod.slope(head + h) / mod.scale * fa::kLog2e : 0.f;
    UNROLL
    for (int m = 0; m < Cols / 8; ++m) {
      const float2 row_lse = *reinterpret_cast<const float2*>(&sLSE2[m * 8 + tx]);
      UNROLL
      for (int t = 0; t < kBands; ++t) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          float s = fa::log2_approx(rP[t][m][e]) + (e % 2 ? row_lse.y : row_lse.x);
          if (mod.alibi > 0.f) s += line * fabsf(first + step(t, m, e));
          const float tanh = fminf(fmaxf(s * mod.per_cap, -1.f), 1.f);  // of P = 0: -1
          rdS[t][m][e] *= 1.f - tanh * tanh;
        }
      }
    }
  }
};

struct Scored : step15_packed_backward::Packed {
  ScoreMod mod;
  int group;

  template <int Bc>
  __device__ ScoredWork key_work(int kv_heads, int* kv_head) const {
    return {Packed::key_work<Bc>(kv_heads, kv_head), *kv_head * group % mod.H};
  }
  template <int Br, int Bc>
  __device__ ScoredWalk<Br, Bc> row_walk(const ScoredWork& work) const {
    return {band, work, mod};
  }
};

constexpr int kSinkThreads = 256;

// dsinks = -sum of P delta over a head's rows, where P = e^(sink - LSE).
static __global__ void sink_kernel(const float* LSE2,   // [B*H, N]
                                   const float* delta,  // [B*H, N]
                                   const float* sinks,  // [H]
                                   float* dsinks,       // [B*H]
                                   int H, int N) {
  __shared__ float parts[kSinkThreads / fa::kWarp];
  const size_t bh = blockIdx.x;
  const float sink = sinks[bh % H] * fa::kLog2e;
  float sum = 0.f;
  for (int r = threadIdx.x; r < N; r += kSinkThreads) {
    sum -= fa::exp2_approx(sink - LSE2[bh * N + r]) * delta[bh * N + r];
  }
  sum = fa::warp_sum(sum);
  if (threadIdx.x % fa::kWarp == 0) parts[threadIdx.x / fa::kWarp] = sum;
  __syncthreads();  // all parts are there
  if (threadIdx.x > 0) return;
  sum = 0.f;
  for (const float part : parts) sum += part;
  dsinks[bh] = sum;
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step15_packed_backward::backward_traffic(p);
  if (!p.score_mod.sinks) return t;
  const uint64_t BH = p.heads(), rows = p.rows();
  t["LSE2"].read += 4 * rows, t["delta"].read += 4 * rows;
  t["sinks"].read = 4 * BH * kSinkThreads, t["dsinks"].write = 4 * BH;
  t.hbm += {.read = 8 * rows + 4 * p.H, .write = 4 * BH};
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const step15_packed_backward::Packed packed{step15::band_of(p), t.scratch<const int>("key_work")};
  const ScoreMod mod = step15_scores::score_mod_of(p, t.sinks);
  step15_packed_backward::launch(p, t, Scored{packed, mod, p.H / p.Hkv});
  if (!p.score_mod.sinks) return;
  fa::launch(sink_kernel, {dim3(p.heads()), dim3(kSinkThreads)}, t.scratch<float>("LSE2"),
             t.scratch<float>("delta"), t.sinks, t.dsinks, p.H, p.N);
}

}  // namespace step15_scores_backward
