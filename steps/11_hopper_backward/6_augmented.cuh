// Step 11 -- LSE and delta as columns of the products: what rows look like.
// Idea      S - LSE / scale is a product, too: of K with a column of ones, and Q with a column of
//           -LSE / scale. So is dP - delta: V and ones, dO and -delta. A bf16 holds 8 bits, a float
//           24: three columns each
// Changed   since 11 1_products: the kernel before writes columns; a product with columns
#pragma once

#include "steps/11_hopper_backward/3_late.cuh"

namespace step11_columns {

using namespace step11;

constexpr int kColumns = 8;  // of a row: three of -LSE / scale, three of -delta, two unused

// C = A B^T of 64 keys and a tile's rows, with the columns: the sum over the features and, for each
// of the columns that `ones` chooses, the row's value.
template <int d>
__device__ inline void multiply_with_columns(uint64_t A, uint64_t B, const uint32_t (&ones)[4],
                                             uint64_t columns, float (&rC)[Br / 2]) {
  static_assert(d == kPanel);
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    fa::wgmma(rC, fa::wgmma_advance(A, x * 2), fa::wgmma_advance(B, x * 2), x > 0);
  }
  fa::wgmma(rC, ones, columns);
  fa::wgmma_commit();
}

// x as a sum of three bf16.
__device__ inline void split(float x, bf16* to) {
  UNROLL
  for (int i = 0; i < 3; ++i) {
    to[i] = __float2bfloat16(x);
    x -= __bfloat162float(to[i]);
  }
}

// As delta_kernel, but to columns. Both products read all of them: an inf or a NaN in one is NaN in
// both. A row without a key, and one behind the end, has an LSE whose P
// is 0: not inf, which times 0 would be NaN.
template <int d>
__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               float* dQ_sum,     // [B*H, Np, d]
                               int N, int Np, float scale) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  const float lse = at.lse(LSE);
  __align__(16) bf16 row[kColumns] = {};
  split(lse == -INFINITY ? -1e30f : -lse / scale, row);
  split(-delta, row + 3);
  *reinterpret_cast<uint4*>(columns + at.padded * kColumns) = *reinterpret_cast<const uint4*>(row);
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  if (p.d == 128) return step11::workspace(p);
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"columns", 2 * kColumns * rows}, {"dQ_sum", 4 * rows * p.d}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11::backward_traffic(p);
  if (p.d == 128) return t;
  const uint64_t row = 2 * kColumns, rows = p.heads() * uint64_t(padded_rows(p));
  const uint64_t tiles = fa::visited_tiles(p, Br, Bc).tiles;
  t.buffers.erase("LSE2"), t.buffers.erase("delta");
  t["columns"] = {.read = row * p.heads() * tiles * Br, .write = row * rows};
  t.hbm.read += (row - 8) * rows, t.hbm.write += (row - 8) * rows;
  t.flops += 2 * p.heads() * 2 * Br * Bc * tiles * kMma;  // 16 columns more in S and dP
  return t;
}

}  // namespace step11_columns
