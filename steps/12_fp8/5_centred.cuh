// Step 12 -- V without its mean.
// Idea      A sum of 13 bits loses terms that are small beside it. With a V of mean 1 it grows
//           large beside each product. Without the mean over all keys it stays near 0, unless a
//           row attends to keys of another mean. Since a row of P / l sums to 1, O lacks exactly
//           that mean, and the epilogue adds it: the main loop does not change
// Changed   since 12 4_tensor: a mean and a scale for each feature of V; the attention is the same
// Traffic   prepare   read  2*2*BH*N*d + 4*2*BHkv*Nk*d B: V for its means and extremes, too
//           the rest as in 4_tensor
// Launch    prepare: one block per 128 keys, then one per head
// Still bad scores: an outlier has a large rounding error, and a large score decides a row
#pragma once

#include "steps/12_fp8/4_tensor.cuh"

namespace step12 {

// Per key tile and feature: its share of the mean, least, largest.
template <int d>
__global__ void statistics_kernel(const bf16* V,      // [B*Hkv, Nk, d]
                                  float* statistics,  // [B*Hkv, tiles, 3, d]
                                  int Nk) {
  constexpr int kLanes = d / 8, kRows = kQuantiseThreads / kLanes;
  __shared__ float s[3][kRows][d];
  const int tiles = (Nk + kTileKeys - 1) / kTileKeys, head = blockIdx.x / tiles;
  const int first = blockIdx.x % tiles * kTileKeys;
  const int row = threadIdx.x / kLanes, feature = threadIdx.x % kLanes * 8;
  const float share = 1.f / Nk;  // not afterwards: the sum of V may exceed fp32
  float sum[8] = {}, least[8], most[8];
  UNROLL
  for (int e = 0; e < 8; ++e) least[e] = INFINITY, most[e] = -INFINITY;
  for (int r = row; r < kTileKeys && first + r < Nk; r += kRows) {
    float v[8];
    load_eight(V + (size_t(head) * Nk + first + r) * d + feature, v);
    UNROLL
    for (int e = 0; e < 8; ++e) {
      sum[e] += v[e] * share, least[e] = fminf(least[e], v[e]), most[e] = fmaxf(most[e], v[e]);
    }
  }
  UNROLL
  for (int e = 0; e < 8; ++e) {
    s[0][row][feature + e] = sum[e], s[1][row][feature + e] = least[e];
    s[2][row][feature + e] = most[e];
  }
  __syncthreads();
  if (threadIdx.x >= d) return;
  float all = 0.f, low = INFINITY, high = -INFINITY;
  for (int r = 0; r < kRows; ++r) {
    all += s[0][r][threadIdx.x], low = fminf(low, s[1][r][threadIdx.x]);
    high = fmaxf(high, s[2][r][threadIdx.x]);
  }
  float* to = statistics + size_t(blockIdx.x) * 3 * d + threadIdx.x;
  to[0] = all, to[d] = low, to[2 * d] = high;
}

// Root 2 times a power of two, at least scale_of(largest). With a scale near a power of two, bf16
// numbers lie on the midpoints between those of e4m3. Minus a small mean they are all a little
// below, and all rounded down.
__device__ inline float scale_off_midpoints(float largest) {
  constexpr float kRoot2 = 1.4142136f;
  const uint32_t bits = __float_as_uint(scale_of(largest) / kRoot2);
  return kRoot2 * __uint_as_float((bits + 0x7fffff) & 0x7f800000);
}

// A head's features, one per thread.
template <int d>
__global__ void centre_kernel(const float* statistics,  // [B*Hkv, tiles, 3, d]
                              float* mean,              // [B*Hkv, d]
                              float* scale,             // [B*Hkv, d]
                              int tiles) {
  float m = 0.f, least = INFINITY, most = -INFINITY;
  for (int j = 0; j < tiles; ++j) {
    const float* from = statistics + (size_t(blockIdx.x) * tiles + j) * 3 * d + threadIdx.x;
    m += from[0], least = fminf(least, from[d]), most = fmaxf(most, from[2 * d]);
  }
  const int at = blockIdx.x * d + threadIdx.x;
  mean[at] = m, scale[at] = scale_off_midpoints(fmaxf(most - m, m - least));
}

// --- host ----------------------------------------------------------------------------------------

inline fa::Scratch statistics_of(const fa::Problem& p) {
  return {.name = "V_statistics", .bytes = 3 * sizeof(float) * key_blocks(p, kTileKeys) * p.d};
}

template <int d>
void quantise_centred_values(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float* statistics = t.scratch<float>("V_statistics");
  fa::launch(statistics_kernel<d>, {dim3(key_blocks(p, kTileKeys)), dim3(kQuantiseThreads)}, t.V,
             statistics, p.Nk);
  fa::launch(centre_kernel<d>, {dim3(p.kv_heads()), dim3(d)}, statistics,
             t.scratch<float>("V_mean"), t.scratch<float>("V_scale"),
             fa::ceil_div(p.Nk, kTileKeys));
  transpose<d>(p, t);
}
inline void add_centred_values_traffic(const fa::Problem& p, fa::Prediction& t) {
  const uint64_t bytes = statistics_of(p).bytes;
  t["V"].read += 2 * p.kv_size();
  t["V_statistics"] = {.read = bytes, .write = bytes};
  t.hbm += {.read = 2 * p.kv_size(), .write = 0};
  add_transpose_traffic(p, t);
}

inline void prepare_centred(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch<Tiling>(p, [&](auto tiling) {
    using T = decltype(tiling);
    quantise_queries_and_keys<T::d, kGroupRows, T::Bc>(p, t, /*per_head=*/true);
    quantise_centred_values<T::d>(p, t);
  });
}
inline fa::Prediction prepare_centred_traffic(const fa::Problem& p) {
  fa::Prediction t;
  add_queries_and_keys_traffic(p, /*per_head=*/true, kGroupRows, keys_of_tile<Tiling>(p), t);
  add_centred_values_traffic(p, t);
  return t;
}
inline std::vector<fa::Scratch> workspace_centred(const fa::Problem& p) {
  std::vector<fa::Scratch> all = operands<Tiling>(p);
  all.push_back(Largest(p, /*per_head=*/true).scratch());
  all.push_back(statistics_of(p));
  return all;
}

}  // namespace step12
