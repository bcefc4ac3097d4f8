// Step 13 -- merging the parts of a row.
// Idea      O, m and l of some keys are all that the other keys need to know of them. A row may
//           therefore be cut anywhere and its parts computed in parallel: step 03's merge, with O
//           beside l. Warps of a block merge in shared memory, blocks in device memory
#pragma once

#include "steps/13_decode/1_tile.cuh"

namespace step13 {

constexpr int kPad = 8;  // floats: two numbers of each of four rows lie in all 32 banks

// The results of each warp's keys: O is not normalised, m is in powers of two.
template <int d, int bands, int pad = kPad>
struct Parts {
  float O[kWarps][bands * kMma][d + pad];
  float m[kWarps][bands * kMma], l[kWarps][bands * kMma];
};

// Stores m and l of a warp's keys, summed over each quad, in shared memory.
template <int d, int bands, int pad>
__device__ inline void store_statistics(const float (&m)[bands][2], const float (&l)[bands][2],
                                        Parts<d, bands, pad>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = t * kMma + fa::row_of(lane) + h * 8;
      const float row_l = fa::quad_sum(l[t][h]);
      if (fa::leads_quad(lane)) parts.m[warp][r] = m[t][h], parts.l[warp][r] = row_l;
    }
  }
}

// Stores a warp's part, as it lies in registers, in shared memory.
template <int d, int bands>
__device__ inline void store_part(const float (&m)[bands][2], const float (&l)[bands][2],
                                  const float (&rO)[bands][d / 8][4], int rows,
                                  Parts<d, bands>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  store_statistics(m, l, parts);
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = t * kMma + fa::row_of(lane) + h * 8;
      if (r >= rows) continue;
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        *reinterpret_cast<float2*>(&parts.O[warp][r][n * 8 + fa::column_of(lane)]) =
            make_float2(rO[t][n][2 * h], rO[t][n][2 * h + 1]);
      }
    }
  }
}

// Four neighbouring features of a row, over all keys of its parts.
struct Merged {
  float O[4];  // normalised; 0 where no key was seen
  float LSE;   // in powers of two; -inf where no key was seen

  // From sums relative to m.
  __device__ void finish(float m, float l) {
    const float normalise = l > 0.f ? 1.f / l : 0.f;
    UNROLL
    for (int e = 0; e < 4; ++e) O[e] *= normalise;
    LSE = l > 0.f ? m + log2f(l) : -INFINITY;
  }
};

// m of a warp without keys is kNoMaximum. Its factor is 0, or 1 if no warp has keys; then all sums
// are 0.
template <int d, int bands, int pad>
__device__ inline Merged merge_warps(const Parts<d, bands, pad>& parts, int r, int x) {
  float m = kNoMaximum, l = 0.f;
  UNROLL
  for (int w = 0; w < kWarps; ++w) m = fmaxf(m, parts.m[w][r]);
  Merged row = {};
  UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const float factor = fa::exp2_approx(parts.m[w][r] - m);
    const float4 O = *reinterpret_cast<const float4*>(&parts.O[w][r][x]);
    l += factor * parts.l[w][r];
    row.O[0] += factor * O.x, row.O[1] += factor * O.y;
    row.O[2] += factor * O.z, row.O[3] += factor * O.w;
  }
  row.finish(m, l);
  return row;
}

// Rounds a row and stores it as row r of the results.
template <int d>
__device__ inline void store_row(const Merged& row, size_t r, int x,
                                 bf16* O,       // [rows, d]
                                 float* LSE) {  // [rows]
  *reinterpret_cast<uint2*>(O + r * d + x) =
      make_uint2(fa::pack_bf16(row.O[0], row.O[1]), fa::pack_bf16(row.O[2], row.O[3]));
  if (x == 0) LSE[r] = row.LSE * fa::kLn2;
}

// The parts of all splits, in fp32: only the final O is rounded to bf16.
struct SplitParts {
  float* O;    // [splits, B*H, N, d], normalised
  float* LSE;  // [splits, B*H, N], in powers of two; -inf where a row sees no key of the split

  template <int d>
  __device__ void store(const Merged& row, size_t r, int x) const {  // r: of all splits
    *reinterpret_cast<float4*>(O + r * d + x) = make_float4(row.O[0], row.O[1], row.O[2], row.O[3]);
    if (x == 0) LSE[r] = row.LSE;
  }

  // Merges row r of `splits` splits, `rows` apart. The maximum stays finite, which gives a split
  // without keys the factor 0: -inf - -inf would be NaN.
  template <int d>
  __device__ Merged merge(int splits, size_t rows, size_t r, int x) const {
    float m = kNoMaximum, l = 0.f;
    for (int s = 0; s < splits; ++s) m = fmaxf(m, LSE[s * rows + r]);
    Merged all = {};
    UNROLL_BY(8)
    for (int s = 0; s < splits; ++s) {
      const float factor = fa::exp2_approx(LSE[s * rows + r] - m);  // l of the split, relative to m
      const float4 part = *reinterpret_cast<const float4*>(O + (s * rows + r) * d + x);
      l += factor;
      all.O[0] += factor * part.x, all.O[1] += factor * part.y;
      all.O[2] += factor * part.z, all.O[3] += factor * part.w;
    }
    all.finish(m, l);
    return all;
  }
};

}  // namespace step13
