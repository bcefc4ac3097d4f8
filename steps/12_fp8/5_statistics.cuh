// Step 12 -- what there is to know of V: each feature's mean, least and largest number.
// Idea      A block reads a part of a head's keys once, all loads of a tile in flight at once. A
//           thread keeps three numbers for each of its eight features; the block's threads then
//           merge theirs, in registers within a warp and in shared memory between warps
// Changed   since 12 1_quantise: transpose_kernel's loads; sums and extremes instead of V^T
// Traffic   read  2*BHkv*Nk*d B
// Owns      block: a part of a head, 128 KB; thread: eight features of some keys
#pragma once

#include "steps/12_fp8/1_quantise.cuh"

namespace step12 {

// A part of a head's keys: each feature's share of the mean, least, largest. All threads call.
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
  const float share = 1.f / Nk;  // not afterwards: the sum of V may exceed fp32
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

}  // namespace step12
