// Step 12 -- a scale per block of Q and K, and no outliers.
// Idea      Every 64 rows of Q and every tile of K have a scale, as in FlashAttention-3. Each row
//           of both is multiplied by the same random signs and Hadamard's matrix (incoherent
//           processing): no score changes, and one large number becomes d small ones
// Changed   since 12 5_centred: the scales of Q and K; their rotation. The attention is the same
// Traffic   prepare   read  2*BH*N*d + 3*2*BHkv*Nk*d B: Q and K once
//           the rest as in 5_centred
// Launch    prepare: one block per block of rows
// Still bad the softmax: its exponentials wait until the maximum has been checked
#pragma once

#include "steps/12_fp8/5_centred.cuh"

namespace step12 {

// Feature f's sign: one bit of a hash.
__device__ constexpr float sign_of(uint32_t f) {
  f = (f + 1) * 0x9e3779b1u;
  f = (f ^ f >> 15) * 0x85ebca77u;
  return (f ^ f >> 13) & 1 ? -1.f : 1.f;
}

// Multiplies a row of Q or K, of which each of d / 8 lanes has eight features, by the signs and by
// Hadamard's matrix over root d, with d log d additions (the fast Walsh-Hadamard transform).
template <int d>
__device__ inline void rotate(float (&x)[8], int lane) {
  constexpr float kOverRoot = d == 64 ? 0.125f : d == 128 ? 0.088388348f : 0.0625f;
  UNROLL
  for (int e = 0; e < 8; ++e) x[e] *= kOverRoot * sign_of(lane * 8 + e);
  UNROLL
  for (int step = 1; step < 8; step *= 2) {
    UNROLL
    for (int e = 0; e < 8; ++e) {
      if (e & step) continue;
      const float a = x[e], b = x[e + step];
      x[e] = a + b, x[e + step] = a - b;
    }
  }
  UNROLL
  for (int step = 1; step < d / 8; step *= 2) {
    UNROLL
    for (int e = 0; e < 8; ++e) {
      const float other = __shfl_xor_sync(fa::kFullMask, x[e], step);
      x[e] = lane & step ? other - x[e] : x[e] + other;
    }
  }
}

// A block of `rows` rows: its scale and its numbers. norms: the largest of a row, for 7_late.cuh.
template <int d, int rows, bool kRotate>
__global__ void quantise_block_kernel(const bf16* x,  // [heads, n, d]
                                      e4m3* out,      // [heads, n, d]
                                      float* scales,  // [heads, ceil(n / rows)]
                                      float* norms,   // [heads, ceil(n / rows)], or null
                                      int n) {
  constexpr int kLanes = d / 8, kEach = rows * kLanes / kQuantiseThreads;
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int first = blockIdx.x % blocks * rows, lane = threadIdx.x % kLanes;
  const auto row_of = [&](int i) {
    return first + (i * kQuantiseThreads + int(threadIdx.x)) / kLanes;
  };
  const auto place_of = [&](int i) { return (size_t(head) * n + row_of(i)) * d + lane * 8; };
  float v[kEach][8] = {}, most = 0.f, norm = 0.f;
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (row_of(i) < n) load_eight(x + place_of(i), v[i]);
    if (kRotate) rotate<d>(v[i], lane);
    most = largest_of(v[i], most);
    if (norms) {
      float squares = 0.f;
      UNROLL
      for (int e = 0; e < 8; ++e) squares += v[i][e] * v[i][e];
      UNROLL
      for (int step = 1; step < kLanes; step *= 2) {
        squares += __shfl_xor_sync(fa::kFullMask, squares, step);
      }
      norm = fmaxf(norm, sqrtf(squares));
    }
  }
  const float scale = scale_of(block_max(most)), inverse = 1.f / scale;
  if (norms) norm = block_max(norm);
  if (threadIdx.x == 0) {
    scales[blockIdx.x] = scale;
    if (norms) norms[blockIdx.x] = norm;
  }
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (row_of(i) >= n) continue;
    UNROLL
    for (int e = 0; e < 8; ++e) v[i][e] *= inverse;
    *reinterpret_cast<uint2*>(out + place_of(i)) = pack_eight(v[i]);
  }
}

// --- host ----------------------------------------------------------------------------------------

template <class T, bool kRotate>
void quantise_blocks(const fa::Problem& p, const fa::Tensors<bf16>& t, float* q_norms,
                     float* k_norms) {
  const dim3 threads(kQuantiseThreads);
  fa::launch(quantise_block_kernel<T::d, kGroupRows, kRotate>,
             {dim3(query_blocks(p, kGroupRows)), threads}, t.Q, t.scratch<e4m3>("Q8"),
             t.scratch<float>("Q_scale"), q_norms, p.N);
  fa::launch(quantise_block_kernel<T::d, T::Bc, kRotate>, {dim3(key_blocks(p, T::Bc)), threads},
             t.K, t.scratch<e4m3>("K8"), t.scratch<float>("K_scale"), k_norms, p.Nk);
}
template <template <int, bool> class Tiling>
fa::Prediction blocks_traffic(const fa::Problem& p) {
  const uint64_t q = p.q_size(), kv = p.kv_size();
  fa::Prediction t;
  t["Q"].read = 2 * q, t["K"].read = 2 * kv;
  t["Q8"].write = q, t["K8"].write = kv;
  t["Q_scale"].write = sizeof(float) * query_blocks(p, kGroupRows);
  t["K_scale"].write = sizeof(float) * key_blocks(p, keys_of_tile<Tiling>(p));
  t.hbm = {.read = 2 * (q + kv), .write = q + kv};
  add_centred_values_traffic(p, t);
  return t;
}
template <template <int, bool> class Tiling>
std::vector<fa::Scratch> workspace_blocks(const fa::Problem& p) {
  std::vector<fa::Scratch> all = operands<Tiling>(p);
  all.push_back(statistics_of(p));
  return all;
}

template <bool kRotate>
void prepare_blocks(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch<Tiling>(p, [&](auto tiling) {
    using T = decltype(tiling);
    quantise_blocks<T, kRotate>(p, t, nullptr, nullptr);
    quantise_centred_values<T::d>(p, t);
  });
}

}  // namespace step12
