// Step 12 -- 4_blocks with the norms that 6_late needs, for its tiles of keys.
// Idea      No score exceeds |q| |k| (Cauchy and Schwarz). Of the norms of 64 rows of Q, and of all
//           rows of a head of K, the largest is stored. A block has their numbers in registers, so
//           nothing more is read
// Changed   since 12 4_blocks: norms; tiles of 96 or 64 keys; no variant without rotation; d = 256,
//           too, where the kernels for V are those of 1_quantise and 3_centred
// Traffic   read  2*BH*N*d + 3*2*BHkv*Nk*d B: Q and K once, V twice
//           write BH*N*d + 2*BHkv*Nk*d B; norms 4 B per block of rows: Q's written, K's atomic
// Launch    one block per 64 rows of Q, tile of keys; V: one per part of a head, then per 128 keys
// Owns      warp: 16 rows; lane: two of them, with three others
// Still bad 2_tensor's softmax, which does not use the norms: 6_late
#pragma once

#include "steps/12_fp8/4_blocks.cuh"

namespace step12_late {

using namespace step12;  // 1_quantise to 4_blocks

constexpr int key_rows(int d) { return d == 128 ? 96 : 64; }  // of a tile of keys, in 6_late

// The largest norm of a row. What is null is not stored.
struct Norms {
  float* of_blocks = nullptr;    // Q: [heads, ceil(n / rows)]
  unsigned* of_heads = nullptr;  // K: [heads], 0 before: a non-negative float
  unsigned* zeros = nullptr;     // Q: [zero], where K's launch has of_heads
  unsigned zero = 0;
};

// A block of `rows` rows, 16 for each warp: its scale, its numbers, its largest norm.
template <int d, int rows>
__global__ __launch_bounds__(2 * rows) void quantise_block_kernel(
    const bf16* x,  // [heads, n, d]
    e4m3* out,      // [heads, n, d]
    float* scales,  // [heads, ceil(n / rows)]
    const Norms norms, int n) {
  constexpr float kOverRoot = d == 64 ? 0.125f : d == 128 ? 0.088388348f : 0.0625f;
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = blockIdx.x % blocks * rows + warp * 16 + fa::row_of(lane);
  float v[d / 16][2][4], squares[2] = {};
  const float scale = load_rows<d, rows, /*kRotate=*/true>(x, head, row, n, v);
  const float inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale * kOverRoot;
  UNROLL
  for (int i = 0; i < d / 2; ++i) {
    float& number = v[i / 8][i / 4 % 2][i % 4];
    number *= inverse, squares[fa::half_of(i)] += number * number;
  }
  if (norms.of_blocks || norms.of_heads) {  // always: else nvcc's code is not what was measured
    const float most = fmaxf(fa::quad_sum(squares[0]), fa::quad_sum(squares[1]));
    const float norm = sqrtf(block_max<2 * rows>(most)) * scale * kOverRoot;
    if (threadIdx.x == 0 && norms.of_blocks) norms.of_blocks[blockIdx.x] = norm;
    if (threadIdx.x == 0 && norms.of_heads) atomicMax(&norms.of_heads[head], __float_as_uint(norm));
    if (threadIdx.x == 0 && blockIdx.x < norms.zero) norms.zeros[blockIdx.x] = 0;
  }
  store_rows<d>(v, out, head, row, n);
}

// --- host ----------------------------------------------------------------------------------------

inline void prepare(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  unsigned* K_norm = t.scratch<unsigned>("K_norm");
  const Norms of_q = {
      .of_blocks = t.scratch<float>("Q_norm"), .zeros = K_norm, .zero = unsigned(p.kv_heads())};
  fa::dispatch_d<64, 128, 256>(p.d, [&](auto d) {
    fa::launch(quantise_block_kernel<d, kQueryRows>, {dim3(query_blocks(p)), dim3(2 * kQueryRows)},
               t.Q, t.scratch<e4m3>("Q8"), t.scratch<float>("Q_scale"), of_q, p.N);
    fa::launch(quantise_block_kernel<d, key_rows(d)>,
               {dim3(key_blocks(p, key_rows(d))), dim3(2 * key_rows(d))}, t.K,
               t.scratch<e4m3>("K8"), t.scratch<float>("K_scale"), Norms{.of_heads = K_norm}, p.Nk);
    quantise_centred_values<d>(p, t);
  });
}
inline fa::Prediction prepare_traffic(const fa::Problem& p) {
  const uint64_t k_blocks = key_blocks(p, key_rows(p.d));
  fa::Prediction t = blocks_traffic(p);
  t["K_scale"].write = sizeof(float) * k_blocks;
  t["Q_norm"].write = sizeof(float) * query_blocks(p);
  t["K_norm"] = {.write = 4 * p.kv_heads(), .atomic = 4 * k_blocks};
  return t;
}
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = workspace_blocks(p);
  for (fa::Scratch& piece : all) {
    if (piece.name == "K_scale") piece.bytes = sizeof(float) * key_blocks(p, key_rows(p.d));
  }
  all.push_back({.name = "Q_norm", .bytes = sizeof(float) * query_blocks(p)});
  all.push_back({.name = "K_norm", .bytes = sizeof(float) * p.kv_heads()});
  return all;
}

}  // namespace step12_late
