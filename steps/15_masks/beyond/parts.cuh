// Step 15 -- the parts of Hopper's backward: products, dQ's sums, the kernels before and after.
// Changed   since 11 3_columns: copied. Documents' rows in whole tiles, given by sum_rows; a tile
//           whose rows are negative has no sums, neither zeros nor a conversion. Its comments are
//           not repeated
//
// Registers of a lane, for its keys k and k + 8 (k = 16 warp + row_of(lane)):
//
//     rX[i]       key k + 8 half_of(i), row     column_of(lane) + column_at(i); S, P, dP, dS
//     rdK[i]      key k + 8 half_of(i), feature column_of(lane) + column_at(i); rdV, too
//     rP[r]       rows 16 r .. 16 r + 15, packed as wgmma's A: P, then dS
//     rdQ[i]      as rdK, but of rows of Q instead of keys
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/reduce.h"
#include "common/dialect/warp.h"
#include "steps/15_masks/wgmma_parts.cuh"

namespace step15_wgmma_backward {

using fa::bf16, fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;
using fa::distance, fa::multiply_rows, fa::multiply_transposed, fa::wait_for, fa::warp_arrive;

constexpr int kGroups = 2;  // warpgroups
constexpr int kGroupKeys = 64;
constexpr int Bc = kGroups * kGroupKeys;
constexpr int kRowThreads = 256;  // of a block of the kernels before and after
constexpr int kColumns = 8;       // of a row: three of -LSE / scale, three of -delta, two of 0
template <int d>
constexpr int Br = d == 64 ? 128 : 64;  // rows of a tile of Q and dO

// --- products, issued without waiting ------------------------------------------------------------

// C = A B^T of 64 keys and a tile's rows, with the columns: the sum over the features and, for each
// of the columns that `ones` selects, the row's value.
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

// --- between the products ------------------------------------------------------------------------

// rX = P rX, two elements. pair: their P in bf16, the first in the lower half.
__device__ inline void multiply_by_p(uint32_t pair, float& first, float& second) {
  first *= __uint_as_float(pair << 16);
  second *= __uint_as_float(pair & 0xffff0000u);
}

template <int depth>
__device__ inline void put_ds(const uint32_t (&rdS)[depth][4], bf16* sdS) {
  const int lane = threadIdx.x % fa::kWarp;
  const int key = threadIdx.x / fa::kWarp * 16 + lane % 16;
  const int at = key * kPanel + (lane / 16 ^ key % 8) * 8;
  UNROLL
  for (int r = 0; r < depth * kMma; r += kMma) {
    fa::stmatrix_x4(sdS + r / kPanel * Bc * kPanel + (at ^ r % kPanel), rdS[r / kMma]);
  }
}

// Zeroes rows `first` .. n - 1 of a tile in panels. By a warpgroup.
template <int d, int n>
__device__ inline void clear_rows(bf16* tile, int first, int thread) {
  UNROLL_BY(2)
  for (int i = first * kPanel + thread * 8; i < n * kPanel; i += kGroupThreads * 8) {
    for (int x = 0; x < d; x += kPanel) {
      *reinterpret_cast<uint4*>(tile + x * n + i) = make_uint4(0, 0, 0, 0);
    }
  }
}
// Stores the first `rows` rows of a tile of 64 in TMA's layout. By a warpgroup.
template <int d>
__device__ inline void store_rows(const bf16* tile, bf16* to, int rows, int thread) {
  constexpr int kLanes = d / 8;  // per row, with 16 bytes each
  const int x = thread % kLanes * 8;
  UNROLL_BY(2)
  for (int r = thread / kLanes; r < rows; r += kGroupThreads / kLanes) {
    const int at = (x / kPanel * kGroupKeys + r) * kPanel + (x % kPanel / 8 ^ r % 8) * 8;
    *reinterpret_cast<uint4*>(to + size_t(r) * d + x) = *reinterpret_cast<const uint4*>(tile + at);
  }
}

// --- dQ's sums -----------------------------------------------------------------------------------

// dQ's sums over the tiles of keys, in HBM, in the order of the registers.
struct FloatSums {
  float* sums;  // [B*H * Np / 64, 4, d / 8, 32, 4]

  struct Part {
    float* at;

    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      UNROLL
      for (int x = 0; x < n / 4; ++x) {
        fa::red_add_v4(at + x * fa::kWarp * 4, rdQ[4 * x], rdQ[4 * x + 1], rdQ[4 * x + 2],
                       rdQ[4 * x + 3]);
      }
    }
    __device__ float4 get(int x) const {
      return *reinterpret_cast<const float4*>(at + x * fa::kWarp * 4);
    }
  };
  // half: which 64 rows, counted over all heads. feature: the first, a multiple of 8.
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int group = (warp * d + feature) / 8;
    return {sums + size_t(half) * kGroupKeys * d + (group * fa::kWarp + lane) * 4};
  }
};

// --- before and after the walks ------------------------------------------------------------------

template <int d>
struct RowLanes {
  static constexpr int kLanes = d / 8, kRows = kRowThreads / kLanes;
  int head, r, lane;
  size_t padded, row;
  bool inside;

  __device__ RowLanes(int N, int Np)
      : head((gridDim.x - 1 - blockIdx.x) / (Np / kRows)),
        r(blockIdx.x % (Np / kRows) * kRows + threadIdx.x / kLanes),
        lane(threadIdx.x % kLanes),
        padded(size_t(head) * Np + r),
        row(size_t(head) * N + r),
        inside(r < N) {}
  __device__ float delta(const bf16* O, const bf16* dO) const {
    float sum = 0.f;
    if (inside) {
      __align__(16) bf16 o[8], g[8];
      *reinterpret_cast<uint4*>(o) = reinterpret_cast<const uint4*>(O + row * d)[lane];
      *reinterpret_cast<uint4*>(g) = reinterpret_cast<const uint4*>(dO + row * d)[lane];
      UNROLL
      for (int x = 0; x < 8; ++x) sum += __bfloat162float(o[x]) * __bfloat162float(g[x]);
    }
    return fa::warp_sum<kLanes>(sum);
  }
  // LSE; -inf for a row without a key and for a padded one.
  __device__ float lse(const float* LSE) const { return inside ? LSE[row] : -INFINITY; }
  __device__ void clear(float* dQ_sum) const {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + padded * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
};

// x as a sum of three bf16.
__device__ inline void split(float x, bf16* to) {
  UNROLL
  for (int i = 0; i < 3; ++i) {
    to[i] = __float2bfloat16(x);
    x -= __bfloat162float(to[i]);
  }
}

// Writes a row's columns, the last two 0. Both products read all: an inf or NaN in one is NaN in
// both. A row without a key, or past the end, gets -1e30: P is 0, and -inf times 0 would be NaN.
__device__ inline void put_columns(bf16* to, float scaled_lse, float delta) {
  __align__(16) bf16 row[kColumns];
  split(scaled_lse == -INFINITY ? -1e30f : -scaled_lse, row);
  split(-delta, row + 3);
  *reinterpret_cast<float*>(row + 6) = 0.f;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

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
  put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

// dQ = scale * dQ_sum, rounded and in order, as step 11's.
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
  UNROLL
  for (int x = 0; x < kPanel; x += 32) {
    float4 sums[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* sum = rdQ + x / 2 + 4 * i;
      sums[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    fa::put_rounded<d>(sums, scale, to + x, r, rows);
  }
}

}  // namespace step15_wgmma_backward
