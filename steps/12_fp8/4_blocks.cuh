// Step 12 -- a scale per block of Q and K, whose rows are rotated so that none has an outlier.
// Idea      Each 64 rows of Q and each tile of K have a scale, as in FlashAttention-3. Rows are
//           rotated first: random signs and Hadamard's matrix (incoherent processing) change no
//           score and spread a large number over d small ones
// Changed   since 12 1_quantise: quantise_kernel rotates, and finds its block's scale, of which it
//           has all numbers in registers. V is 3_centred's
// Traffic   read  2*BH*N*d + 3*2*BHkv*Nk*d B: Q and K once, V twice
//           write BH*N*d + 2*BHkv*Nk*d B
// Launch    one block per 64 rows of Q, 128 of K; V: one per part of a head, then per 128 keys
// Owns      warp: 16 rows; lane: two of them, with three others
// Still bad 2_tensor's softmax: its exponentials wait until the maximum has been checked
#pragma once

#include "common/dialect/fragment.h"
#include "common/dialect/ptx/mma.h"
#include "steps/12_fp8/3_centred.cuh"

namespace step12 {

// A lane's eight adjacent numbers in each of two rows, per 32 features: words[r][i].
template <int d>
using Words = uint32_t[2][d / 8];

// Random signs of the 32 features in 16 of a lane's words: bits i and 16 + i are those of word i.
__device__ inline uint32_t signs_of(uint32_t lane) {
  lane = (lane + 1) * 0x9e3779b1u;
  lane = (lane ^ lane >> 15) * 0x85ebca77u;
  return lane ^ lane >> 13;
}

// Multiplies a warp's 16 rows by the signs and by Hadamard's matrix of d, the Kronecker product of
// those of d / 16 and of 16. Tensor cores multiply by the latter, exactly but for the rounding of
// sums; the former is log2(d / 16) rounds of additions between a lane's registers. The features get
// a new order, the same for Q and K, which changes no score; without kRotate that is all.
template <int d, bool kRotate>
__device__ inline void rotate(const Words<d>& x, float (&y)[d / 16][2][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  uint32_t H[2][2];  // B of two mma, 8 columns each
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const int column = fa::row_of(lane) + i / 2 * 8, row = fa::column_of(lane) + i % 2 * 8;
    uint32_t two = 0;
    UNROLL
    for (int e = 0; e < 2; ++e) {
      const uint32_t minus = __popc(column & (row + e)) % 2, one = 0x3f80;  // in bf16
      two |= (kRotate ? one | minus << 15 : column == row + e ? one : 0) << 16 * e;
    }
    H[i / 2][i % 2] = two;
  }
  UNROLL
  for (int i = 0; i < d / 16; ++i) {
    uint32_t A[4];
    UNROLL
    for (int j = 0; j < 4; ++j) {
      const int word = 2 * i + j / 2;
      const uint32_t signs = kRotate ? signs_of(lane % 4 + word / 16 * 4) : 0;
      A[j] = x[j % 2][word] ^ (signs << (15 - word % 16) & 0x80008000);
    }
    UNROLL
    for (int n = 0; n < 2; ++n) {
      UNROLL
      for (float& sum : y[i][n]) sum = 0.f;
      fa::mma_m16n8k16(y[i][n], A, H[n]);
    }
  }
  UNROLL
  for (int step = 1; kRotate && step < d / 16; step *= 2) {
    UNROLL
    for (int i = 0; i < d / 4; ++i) {
      const int low = i / 8 / step * 2 * step + i / 8 % step;  // inserts a bit `step` that is 0
      float &a = y[low][i / 4 % 2][i % 4], &b = y[low + step][i / 4 % 2][i % 4];
      const float sum = a + b;
      b = a - b, a = sum;
    }
  }
}

// Loads rows `row` and row + 8 for a lane, rotated; 0 past the last one. Returns the block's scale.
template <int d, int rows, bool kRotate>
__device__ inline float load_rows(const bf16* x,  // [heads, n, d]
                                  int head, int row, int n, float (&v)[d / 16][2][4]) {
  Words<d> words = {};
  UNROLL
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= n) continue;
    const bf16* from = x + (size_t(head) * n + row + 8 * r) * d + threadIdx.x % 4 * 8;
    UNROLL
    for (int c = 0; c < d / 32; ++c) {
      const uint4 eight = load_eight(from + c * 32);
      words[r][4 * c] = eight.x, words[r][4 * c + 1] = eight.y;
      words[r][4 * c + 2] = eight.z, words[r][4 * c + 3] = eight.w;
    }
  }
  rotate<d, kRotate>(words, v);
  float most = 0.f;
  UNROLL
  for (int i = 0; i < d / 2; ++i) most = fmaxf(most, fabsf(v[i / 8][i / 4 % 2][i % 4]));
  return scale_of(block_max<2 * rows>(most));
}

template <int d>
__device__ inline void store_rows(const float (&v)[d / 16][2][4],
                                  e4m3* out,  // [heads, n, d]
                                  int head, int row, int n) {
  UNROLL
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= n) continue;
    e4m3* to = out + (size_t(head) * n + row + 8 * r) * d + threadIdx.x % 4 * 16;
    UNROLL
    for (int c = 0; c < d / 64; ++c) {
      uint32_t four[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* of = v[4 * c + i][0] + 2 * r;
        four[i] = fa::pack_e4m3(of[0], of[1], of[4], of[5]);
      }
      *reinterpret_cast<uint4*>(to + c * 64) = {four[0], four[1], four[2], four[3]};
    }
  }
}

template <int d, int rows, bool kRotate>
__global__ __launch_bounds__(2 * rows) void quantise_block_kernel(
    const bf16* x,  // [heads, n, d]
    e4m3* out,      // [heads, n, d]
    float* scales,  // [heads, ceil(n / rows)]
    int n) {
  constexpr float kOverRoot = !kRotate ? 1.f : d == 64 ? 0.125f : 0.088388348f;
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = blockIdx.x % blocks * rows + warp * 16 + fa::row_of(lane);
  float v[d / 16][2][4];
  const float scale = load_rows<d, rows, kRotate>(x, head, row, n, v), inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale * kOverRoot;
  UNROLL
  for (int i = 0; i < d / 2; ++i) v[i / 8][i / 4 % 2][i % 4] *= inverse;
  store_rows<d>(v, out, head, row, n);
}

// --- host ----------------------------------------------------------------------------------------

template <bool kRotate>
void prepare_blocks(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(quantise_block_kernel<d, kQueryRows, kRotate>,
               {dim3(query_blocks(p)), dim3(2 * kQueryRows)}, t.Q, t.scratch<e4m3>("Q8"),
               t.scratch<float>("Q_scale"), p.N);
    fa::launch(quantise_block_kernel<d, kKeyRows, kRotate>,
               {dim3(key_blocks(p, kKeyRows)), dim3(2 * kKeyRows)}, t.K, t.scratch<e4m3>("K8"),
               t.scratch<float>("K_scale"), p.Nk);
    quantise_centred_values<d>(p, t);
  });
}
inline fa::Prediction blocks_traffic(const fa::Problem& p) {
  fa::Prediction t = queries_and_keys_traffic(p, /*per_head=*/true);
  t.buffers.erase("largest");
  t["Q"].read /= 2, t["K"].read /= 2, t.hbm.read /= 2;  // once
  add_centred_values_traffic(p, t);
  return t;
}
inline std::vector<fa::Scratch> workspace_blocks(const fa::Problem& p) {
  std::vector<fa::Scratch> all = operands(p);
  add_centred_workspace(p, all);
  return all;
}

}  // namespace step12
