// Step 15 -- around Hopper's backward: a document's rows in whole tiles.
// Idea      A walk adds whole tiles of dQ and copies whole tiles of 11's columns, so both have rows
//           of zeros behind each document. A table says which rows a tile has
// Changed   since 11 6_augmented: rows looked up; what converts dQ. Tiles whose rows are negative
//           have no sums: neither zeros nor a conversion
// Traffic   see 18_wgmma_backward
// Launch    columns_kernel before the walks, convert_kernel behind them
// Owns      a thread: 8 features of a row, or 16 of two
// Still bad see 18_wgmma_backward
#pragma once

#include "common/dialect/ptx/more/dependent.h"
#include "steps/11_hopper_backward/6_augmented.cuh"
#include "steps/15_masks/12_wgmma.cuh"

namespace step15_wgmma_backward {

using fa::bf16;
using step11::Bc, step11::kGroupKeys, step11::kGroups, step11::kGroupThreads, step11::kMma,
    step11::kPanel, step11::kRowBytes, step11::kRowThreads, step11::RowLanes;
using step11_columns::kColumns;

template <int d>
constexpr int Br = d == 64 ? 128 : 64;  // rows of a tile of Q and dO, as 11 5_apart

// As columns_kernel of 11; sum_rows says where the rows of a tile are.
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

// As convert_kernel of 11.
template <int d>
__global__ void convert_kernel(step11::FloatSums dQ_sum,
                               bf16* dQ,              // [B*H, N, d]
                               const int2* sum_rows,  // [tiles]
                               int N, int Np, float scale) {
  fa::griddep_wait();  // the walks have ended: their sums are in device memory
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
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
  step11::transpose_pairs(quad, low, high);
  bf16* to = dQ + (size_t(half / (Np / 64)) * N + rows.x + r) * d + (part * 4 + quad) * 8;
  if (r < rows.y) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < rows.y) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// dQ of 64 rows and 64 features, to which no other walk adds. first: row of [B*H, N].
template <int d>
__device__ inline void store_dq(const float (&rdQ)[kPanel / 2], bf16* dQ, int first, int rows,
                                int feature, float scale) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const int r = thread / fa::kWarp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(first) + r) * d + feature + lane % 4 * 8;
  UNROLL
  for (int x = 0; x < kPanel; x += 32) {
    float4 sums[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* sum = rdQ + x / 2 + 4 * i;
      sums[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    step11::put_rounded<d>(sums, scale, to + x, r, rows);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline int rows_of_a_tile(const fa::Problem& p) { return p.d == 64 ? Br<64> : Br<128>; }

// Per head: whole tiles of each document.
inline int padded_rows(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  return int(step15::count_tiles(p, &fa::Document::rows, Br)) * Br;
}

}  // namespace step15_wgmma_backward
