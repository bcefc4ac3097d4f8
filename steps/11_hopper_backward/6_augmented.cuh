// Step 11 -- rows with columns for LSE and delta.
// Idea      S - LSE / scale is itself a product: of K with a column of ones, and Q with a column of
//           -LSE / scale. dP - delta is one of V with ones, and dO with -delta. A bf16 has 8
//           significant bits and a float 24, so each value needs three columns
// Changed   since 11 1_products: a product that reads the columns; the kernel before writes them,
//           instead of rows.cuh's delta_kernel
#pragma once

#include "steps/11_hopper_backward/rows.cuh"

namespace step11_columns {

using namespace step11;

constexpr int kColumns =
    8;  // of a row: three of -LSE / scale, three of -delta, two of 9_deterministic

// C = A B^T of 64 keys and a tile's rows, with the columns: the sum over the features and, for each
// of the columns that `ones` chooses, the row's value.
template <int d, int half_rows>
__device__ inline void multiply_with_columns(uint64_t A, uint64_t B, const uint32_t (&ones)[4],
                                             uint64_t columns, float (&rC)[half_rows]) {
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    fa::wgmma(rC, fa::wgmma_advance(A, panel * kGroupKeys * kRowBytes + inside),
              fa::wgmma_advance(B, panel * 2 * half_rows * kRowBytes + inside), x > 0);
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

// A row's columns. Both products read all of them: an inf or a NaN in one is NaN in both. A row
// without a key, and one past the end, gets -1e30: its P is 0, and -inf times 0 would be NaN. The
// last two hold a float for 9_deterministic.cuh, or 0.
__device__ inline void put_columns(bf16* to, float scaled_lse, float delta, float last = 0.f) {
  __align__(16) bf16 row[kColumns];
  split(scaled_lse == -INFINITY ? -1e30f : -scaled_lse, row);
  split(-delta, row + 3);
  *reinterpret_cast<float*>(row + 6) = last;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

// As delta_kernel, which writes LSE2 and delta instead.
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
  if (at.lane == 0) put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

// Whether dQ's sums read the last two columns: 9_deterministic's do.
template <class Sums>
constexpr bool kReadsColumns = requires(typename Sums::Part part, const bf16* row) {
  part.read(row);
};
// Whether they round dQ at the end of a walk: 13_places' do.
template <class Sums>
constexpr bool kRoundsDq = requires(Sums sums, const Shape& shape, const WorkTile& work) {
  sums.end_walk(shape, work);
};

// --- host ----------------------------------------------------------------------------------------

template <int d>
void launch_columns(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(columns_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             t.scratch<float>("dQ_sum"), p.N, padded_rows(p), p.scale());
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"columns", 2 * kColumns * rows}, {"dQ_sum", 4 * rows * p.d}};
}

}  // namespace step11_columns
