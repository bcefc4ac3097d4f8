// Step 12 -- V without its mean.
// Idea      A sum of 13 bits loses terms that are relatively small, and P V grows with V's mean.
//           Without the mean over all keys it stays near 0, unless a row attends to keys of another
//           mean. A row of P / l sums to 1: O lacks exactly that mean, and the epilogue adds it
// Changed   since 12 1_quantise: V's sums and extremes, which give each feature a mean and a scale
// Traffic   read  2*2*(BH*N*d + 2*BHkv*Nk*d) B: V once for its means and extremes, once to quantise
//           write BH*N*d + 2*BHkv*Nk*d B; statistics 12 B per feature and part, read and written
// Launch    Q, K: blocks per head that find its largest number; one per 64 rows of Q, 128 of K
//           V: one per part of a head, 128 KB; one per 128 keys
// Owns      block: a part of a head; thread: eight features of some keys
// Still bad scores: an outlier has a large rounding error, and a large score decides a row
#pragma once

#include "steps/12_fp8/1_quantise.cuh"

namespace step12 {

// A part of a head's keys: each feature's share of the mean, least, largest. All threads call it.
// They merge their numbers in registers within a warp, in shared memory between warps.
template <int d>
__device__ inline void part_statistics(const bf16* V,      // [B*Hkv, Nk, d]
                                       float* statistics,  // [B*Hkv, parts, 3, d]
                                       int Nk, int parts) {
  constexpr int kLanes = d / 8, kRows = kQuantiseThreads / kLanes, kEach = kTileKeys / kRows;
  constexpr int kWarps = kQuantiseThreads / fa::kWarp;
  __shared__ float s[3][kWarps][d];
  const int head = blockIdx.x / parts, lane = threadIdx.x % kLanes, warp = threadIdx.x / fa::kWarp;
  const int key = blockIdx.x % parts * part_tiles(d) * kTileKeys + threadIdx.x / kLanes;
  const bf16* from = V + (size_t(head) * Nk + key) * d + lane * 8;
  int left = Nk - key;
  const float share = 1.f / Nk;  // applied first: the sum of V may exceed fp32
  float x[3][8];                 // sum, least, largest
  UNROLL
  for (int e = 0; e < 8; ++e) x[0][e] = 0.f, x[1][e] = INFINITY, x[2][e] = -INFINITY;
  UNROLL_BY(1)
  for (int tile = 0; tile < part_tiles(d); ++tile, left -= kTileKeys) {
    uint4 packed[kEach];  // all loads are in flight before the first is used
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (i * kRows < left) packed[i] = load_eight(from + i * kRows * d);
    }
    from += kTileKeys * d;
    UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (i * kRows >= left) break;
      float v[8];
      unpack(packed[i], v);
      UNROLL
      for (int e = 0; e < 8; ++e) {
        x[0][e] += v[e] * share;
        x[1][e] = fminf(x[1][e], v[e]), x[2][e] = fmaxf(x[2][e], v[e]);
      }
    }
  }
  UNROLL
  for (int e = 0; e < 8; ++e) {  // rows of one warp
    UNROLL
    for (int step = kLanes; step < fa::kWarp; step *= 2) {
      const auto other = [&](float of) { return __shfl_xor_sync(fa::kFullMask, of, step); };
      x[0][e] += other(x[0][e]);
      x[1][e] = fminf(x[1][e], other(x[1][e])), x[2][e] = fmaxf(x[2][e], other(x[2][e]));
    }
  }
  if (threadIdx.x % fa::kWarp < kLanes) {
    UNROLL
    for (int i = 0; i < 6; ++i) {
      const float* four = x[i / 2] + i % 2 * 4;
      *reinterpret_cast<float4*>(&s[i / 2][warp][lane * 8 + i % 2 * 4]) = {four[0], four[1],
                                                                           four[2], four[3]};
    }
  }
  __syncthreads();
  if (threadIdx.x < d) {
    float sum = 0.f, least = INFINITY, most = -INFINITY;
    for (int w = 0; w < kWarps; ++w) {
      sum += s[0][w][threadIdx.x], least = fminf(least, s[1][w][threadIdx.x]);
      most = fmaxf(most, s[2][w][threadIdx.x]);
    }
    float* to = statistics + size_t(blockIdx.x) * 3 * d + threadIdx.x;
    to[0] = sum, to[d] = least, to[2 * d] = most;
  }
}

// Whether this block is the last of `blocks` to arrive; if so, it sees the others' stores.
__device__ inline bool is_last_block(unsigned* counter, int blocks) {
  __shared__ bool last;
  __syncthreads();  // this block's threads have stored
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(counter, 1u) == unsigned(blocks - 1);
    if (last) *counter = 0;  // for the next launch
    __threadfence();
  }
  __syncthreads();
  return last;
}

// sqrt(2) times a power of two, at least scale_of(largest). With a scale near a power of two, bf16
// numbers are midpoints between e4m3's, and minus a small mean all would be rounded down.
__device__ inline float scale_off_midpoints(float largest) {
  constexpr float kRoot2 = 1.4142136f;
  const uint32_t bits = __float_as_uint(scale_of(largest) / kRoot2);
  return kRoot2 * __uint_as_float((bits + 0x7fffff) & 0x7f800000);
}

template <int d>
__device__ inline void centre(const float* statistics,  // [parts, 3, d]
                              float* mean,              // [d]
                              float* scale,             // [d]
                              int parts) {
  float m = 0.f, least = INFINITY, most = -INFINITY;
  UNROLL_BY(8)
  for (int j = 0; j < parts; ++j) {
    const float* from = statistics + j * 3 * d + threadIdx.x;
    m += from[0], least = fminf(least, from[d]), most = fmaxf(most, from[2 * d]);
  }
  mean[threadIdx.x] = m, scale[threadIdx.x] = scale_off_midpoints(fmaxf(most - m, m - least));
}

template <int d>
__global__ __launch_bounds__(kQuantiseThreads, blocks_per_sm(d)) void statistics_kernel(
    const bf16* V,      // [B*Hkv, Nk, d]
    float* statistics,  // [B*Hkv, parts, 3, d]
    float* mean,        // [B*Hkv, d]
    float* scale,       // [B*Hkv, d]
    unsigned* arrived,  // [B*Hkv], zero
    int Nk, int parts) {
  part_statistics<d>(V, statistics, Nk, parts);
  const int head = blockIdx.x / parts;
  if (!is_last_block(&arrived[head], parts) || threadIdx.x >= d) return;
  centre<d>(statistics + size_t(head) * parts * 3 * d, mean + head * d, scale + head * d, parts);
}

// --- host ----------------------------------------------------------------------------------------

inline void add_centred_workspace(const fa::Problem& p, std::vector<fa::Scratch>& all) {
  const size_t parts = key_blocks(p, part_keys(p.d)), counters = p.kv_heads();
  all.push_back({.name = "V_statistics", .bytes = 3 * sizeof(float) * parts * p.d});
  all.push_back({.name = "arrived", .bytes = sizeof(unsigned) * counters, .zeroed = true});
}

template <int d>
void quantise_centred_values(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const int parts = fa::ceil_div(p.Nk, part_keys(d));
  fa::launch(statistics_kernel<d>, {dim3(p.kv_heads() * parts), dim3(kQuantiseThreads)}, t.V,
             t.scratch<float>("V_statistics"), t.scratch<float>("V_mean"),
             t.scratch<float>("V_scale"), t.scratch<unsigned>("arrived"), p.Nk, parts);
  transpose<d>(p, t);
}
inline void add_centred_values_traffic(const fa::Problem& p, fa::Prediction& t) {
  const uint64_t parts = key_blocks(p, part_keys(p.d)), bytes = 3 * sizeof(float) * parts * p.d;
  add_values_traffic(p, t);
  t["V_statistics"] = {.read = bytes, .write = bytes};
  t["arrived"] = {.write = 4 * p.kv_heads(), .atomic = 4 * parts};
}

inline void prepare_centred(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    quantise_queries_and_keys<d>(p, t, /*per_head=*/true);
    quantise_centred_values<d>(p, t);
  });
}
inline fa::Prediction prepare_centred_traffic(const fa::Problem& p) {
  fa::Prediction t = queries_and_keys_traffic(p, /*per_head=*/true);
  add_centred_values_traffic(p, t);
  return t;
}
inline std::vector<fa::Scratch> workspace_centred(const fa::Problem& p) {
  std::vector<fa::Scratch> all = workspace</*kPerHead=*/true>(p);
  add_centred_workspace(p, all);
  return all;
}

}  // namespace step12
