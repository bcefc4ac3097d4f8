// Step 12 -- a scale per block of Q and K.
// Idea      Every 64 rows of Q and every tile of K have a scale, as in FlashAttention-3. A block of
//           threads has all numbers of a scale in its registers, rotated or not, when it finds the
//           largest one, so it reads them once
// Changed   since 12 1_quantise: quantise_kernel finds its block's scale; it rotates; norms, for
//           9_late. V is 6_centred's, the attention 4_tensor's
// Traffic   prepare   read  2*BH*N*d + 3*2*BHkv*Nk*d B: Q and K once
//           the rest as in 6_centred
// Launch    prepare: one block per block of rows
// Still bad the softmax: its exponentials wait until the maximum has been checked
#pragma once

#include "steps/12_fp8/6_centred.cuh"
#include "steps/12_fp8/7_rotation.cuh"

namespace step12 {

// The largest norm of a row, for 9_late.cuh. What is null is not stored.
struct Norms {
  float* of_blocks = nullptr;    // [heads, ceil(n / rows)]
  unsigned* of_heads = nullptr;  // [heads], 0 before: a non-negative float
  unsigned* zeros = nullptr;     // [zero]: where a later launch has of_heads
  unsigned zero = 0;
};

// A block of `rows` rows, 16 for each warp: its scale and its numbers.
template <int d, int rows, bool kRotate>
__global__ __launch_bounds__(2 * rows) void quantise_block_kernel(
    const bf16* x,  // [heads, n, d]
    e4m3* out,      // [heads, n, d]
    float* scales,  // [heads, ceil(n / rows)]
    const Norms norms, int n) {
  constexpr float kOverRoot = !kRotate ? 1.f : d == 64 ? 0.125f : d == 128 ? 0.088388348f : 0.0625f;
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int lane = threadIdx.x % fa::kWarp, quad_lane = lane % 4;
  const int row = blockIdx.x % blocks * rows + threadIdx.x / fa::kWarp * 16 + fa::row_of(lane);
  Words<d> words = {};
  UNROLL
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= n) continue;
    const bf16* from = x + (size_t(head) * n + row + 8 * r) * d + quad_lane * 8;
    UNROLL
    for (int c = 0; c < d / 32; ++c) {
      const uint4 eight = load_eight(from + c * 32);
      words[r][4 * c] = eight.x, words[r][4 * c + 1] = eight.y;
      words[r][4 * c + 2] = eight.z, words[r][4 * c + 3] = eight.w;
    }
  }
  float v[d / 16][2][4];
  rotate<d, kRotate>(words, v);
  float most = 0.f, squares[2] = {};
  UNROLL
  for (int i = 0; i < d / 2; ++i) most = fmaxf(most, fabsf(v[i / 8][i / 4 % 2][i % 4]));
  const float scale = scale_of(block_max<2 * rows>(most)), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale * kOverRoot;
  UNROLL
  for (int i = 0; i < d / 2; ++i) {
    float& number = v[i / 8][i / 4 % 2][i % 4];
    number *= inverse, squares[fa::half_of(i)] += number * number;
  }
  if (norms.of_blocks || norms.of_heads) {
    const float most = fmaxf(fa::quad_sum(squares[0]), fa::quad_sum(squares[1]));
    const float norm = sqrtf(block_max<2 * rows>(most)) * scale * kOverRoot;
    if (threadIdx.x == 0 && norms.of_blocks) norms.of_blocks[blockIdx.x] = norm;
    if (threadIdx.x == 0 && norms.of_heads) {
      atomicMax(&norms.of_heads[head], __float_as_uint(norm));
    }
    if (threadIdx.x == 0 && blockIdx.x < norms.zero) norms.zeros[blockIdx.x] = 0;
  }
  UNROLL
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= n) continue;
    e4m3* to = out + (size_t(head) * n + row + 8 * r) * d + quad_lane * 16;
    UNROLL
    for (int c = 0; c < d / 64; ++c) {
      uint32_t four[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        float* of = v[4 * c + i][0] + 2 * r;
        four[i] = fa::pack_e4m3(of[0], of[1], of[4], of[5]);
      }
      *reinterpret_cast<uint4*>(to + c * 64) = {four[0], four[1], four[2], four[3]};
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

template <class T, bool kRotate>
void quantise_blocks(const fa::Problem& p, const fa::Tensors<bf16>& t, const Norms& q_norms,
                     const Norms& k_norms) {
  fa::launch(quantise_block_kernel<T::d, kGroupRows, kRotate>,
             {dim3(query_blocks(p, kGroupRows)), dim3(2 * kGroupRows)}, t.Q, t.scratch<e4m3>("Q8"),
             t.scratch<float>("Q_scale"), q_norms, p.N);
  fa::launch(quantise_block_kernel<T::d, T::Bc, kRotate>,
             {dim3(key_blocks(p, T::Bc)), dim3(2 * T::Bc)}, t.K, t.scratch<e4m3>("K8"),
             t.scratch<float>("K_scale"), k_norms, p.Nk);
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
  add_centred_workspace(p, all);
  return all;
}

template <bool kRotate>
void prepare_blocks(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch<Tiling>(p, [&](auto tiling) {
    using T = decltype(tiling);
    quantise_blocks<T, kRotate>(p, t, {}, {});
    quantise_centred_values<T::d>(p, t);
  });
}

}  // namespace step12
