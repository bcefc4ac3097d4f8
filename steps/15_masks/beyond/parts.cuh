// Step 15 -- the parts of Hopper's backward: tiles in panels, the kernels before and after.
// Changed   since 11 3_columns, whose products, columns and sums of dQ it uses: documents' rows in
//           whole tiles, given by sum_rows; a tile whose rows are negative has no sums, neither
//           zeros nor a conversion
#pragma once

#include "common/dialect/ptx/more/dependent.h"
#include "steps/11_hopper_backward/beyond/parts.cuh"
#include "steps/15_masks/wgmma_parts.cuh"

namespace step15_wgmma_backward {

using fa::bf16, fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;
using fa::distance, fa::multiply_rows, fa::multiply_transposed, fa::wait_for, fa::warp_arrive;
using step11::Bc, step11::FloatSums, step11::kGroupKeys, step11::kGroups, step11::kRowThreads;
using step11::multiply_by_p, step11::put_ds, step11::RowLanes;
using step11_columns::Br, step11_columns::kColumns, step11_columns::multiply_with_columns;
using step15_wgmma::clear_rows, step15_wgmma::store_rows;

// Per row: its columns, and zeros for dQ_sum. sum_rows gives the rows of a tile.
template <int d>
__global__ void columns_kernel(const bf16* O,         // [B*H, N, d]
                               const bf16* dO,        // [B*H, N, d]
                               const float* LSE,      // [B*H, N]
                               const int2* sum_rows,  // [tiles]: first row, how many there are
                               bf16* columns,         // [B*H, Np, 8]
                               float* dQ_sum,         // [B*H, Np, d]
                               int N, int Np, float scale) {
  RowLanes<d> at(N, Np);
  const int2 rows = sum_rows[at.r / Br<d>];
  const int r = at.r % Br<d>;
  at.row = size_t(at.head) * N + rows.x + r, at.inside = r < abs(rows.y);
  if (rows.y > 0) at.clear(dQ_sum);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  step11_columns::put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

template <int d>
__global__ void convert_kernel(FloatSums dQ_sum,
                               bf16* dQ,              // [B*H, N, d]
                               const int2* sum_rows,  // [tiles]
                               int N, int Np, float scale) {
  fa::griddep_wait();  // the walks have ended: their sums are in device memory
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const int padded = half % (Np / 64) * 64 + warp * 16 + fa::row_of(lane), r = padded % Br<d>;
  const int2 rows = sum_rows[padded / Br<d>];
  if (rows.y < 0) return;  // its walk has stored dQ
  const auto from = dQ_sum.part<d>(half);
  uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
  UNROLL
  for (int x = 0; x < 4; ++x) {
    const float4 sum = from.get(part * 4 + x);
    low[x] = fa::pack_bf16(sum.x * scale, sum.y * scale);
    high[x] = fa::pack_bf16(sum.z * scale, sum.w * scale);
  }
  fa::transpose_pairs(quad, low, high);
  bf16* to = dQ + (size_t(half / (Np / 64)) * N + rows.x + r) * d + (part * 4 + quad) * 8;
  fa::store_features<d>(low, high, to, r, rows.y);
}

// Stores dQ of 64 rows and 64 features, to which no other walk adds. first: row of [B*H, N].
template <int d>
__device__ inline void store_dq(const float (&rdQ)[kPanel / 2], bf16* dQ, int first, int rows,
                                int feature, float scale) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const int r = thread / fa::kWarp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(first) + r) * d + feature + lane % 4 * 8;
  step11_sums::store_rounded<d>(rdQ, scale, to, r, rows);
}

}  // namespace step15_wgmma_backward
