// Step 17 -- what the rungs from 2_panels on share: a block's rows and tiles, mask, O, bytes.
//
// The queries of all heads read the same keys, so they are the rows of one matrix: row r of a batch
// entry is query r % N of head r / N. Registers of a lane, for its rows r and r + 8 of the block's
// (r = 16 warp + row_of(lane)); a warpgroup has half of O's features:
//
//     rS[i]       row r + 8 half_of(i), key     column_of(lane) + column_at(i); then P
//     rO[i]       row r + 8 half_of(i), feature 256 wg + column_of(lane) + column_at(i)
//     m[h], l[h]  of row r + 8 h; l of this lane's keys only
#pragma once

#include <cmath>
#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step17 {

using fa::bf16, fa::Ring, fa::kGroupThreads, fa::kMma, fa::kNoMaximum, fa::kRowBytes;
using fa::multiply_features, fa::rescale, fa::tile_descriptor, fa::tile_map, fa::wait_for;
using fa::warp_arrive;

constexpr int d = 576, dv = 512;             // features of a key; the first of them are its value
constexpr int Br = 64, Bc = 64;              // rows of a block, keys of a tile
constexpr int kGroups = 2;                   // warpgroups that multiply
constexpr int kColumns = dv / kGroups;       // of O, in the registers of one
constexpr int kStages = 2;                   // tiles of keys; with Q they fill shared memory
constexpr int kPanelBytes = Bc * kRowBytes;  // of a tile: [d / 64][Bc][64]
constexpr int kThreads = (1 + kGroups) * kGroupThreads;  // the first warpgroup copies
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kConsumerWarps = kGroups * kGroupThreads / fa::kWarp;
constexpr uint64_t kPoolPages = uint64_t{1} << 31;  // in its tensor map: any page number

struct Shape {
  int rows, N, Nk;           // rows: H*N
  float scale_log2, to_raw;  // of S, and back
  bool causal;
};

// Keys of `keys` that a row of the entry sees.
__device__ inline int visible(const Shape& shape, int keys, int row) {
  return shape.causal ? keys - shape.N + 1 + row % shape.N : keys;
}

// Scores that their row does not see become -inf. visible0, visible1: keys that the lane's two rows
// see, counted from its first key.
template <int n>
__device__ inline void mask(float (&rS)[n], int visible0, int visible1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) >= (fa::half_of(i) ? visible1 : visible0)) rS[i] = -INFINITY;
  }
}

// Masks a tile whose first key is `key`, if one of the entry's rows does not see all of it.
__device__ inline void mask_tile(float (&rS)[Bc / 2], const Shape& shape, int keys, int row,
                                 int key) {
  const int least = shape.causal ? keys - shape.N + 1 : keys;
  if (least >= key + Bc) return;
  const int first = key + fa::column_of(threadIdx.x % fa::kWarp);
  mask(rS, visible(shape, keys, row) - first, visible(shape, keys, row + 8) - first);
}

// The value's half of a tile: V of 64 keys and 256 features, MN-major, which is "transposed".
__device__ inline uint64_t value_descriptor(const bf16* tile, int wg) {
  return tile_descriptor(tile, kPanelBytes) + uint64_t(wg * (kColumns / 64) * kPanelBytes >> 4);
}

// Stores this warpgroup's half of two rows, times `factor`, in bf16. All lanes must call it.
__device__ inline void store_rows(float (&rO)[kColumns / 2], const float (&factor)[2],
                                  bf16* O,  // [rows, dv] of the entry
                                  int row, int rows, int wg) {
  rescale(rO, factor);
  bf16* to = O + size_t(row) * dv + wg * kColumns + threadIdx.x % 4 * 8;
  UNROLL
  for (int x = 0; x < kColumns; x += 32) {
    float4 sums[4];
    UNROLL
    for (int g = 0; g < 4; ++g) {
      const float* o = &rO[x / 2 + 4 * g];
      sums[g] = make_float4(o[0], o[1], o[2], o[3]);
    }
    fa::put_rounded<dv>(sums, 1.f, to + x, row, rows);
  }
}

// --- host ---------------------------------------------------------------------------------------

// The problems that the kernels support; all others are refused.
inline fa::Support support(bool paged = false) {
  return {.d = {d},
          .gqa = true,
          .cross = true,
          .most_n = 16,
          .lengths = paged,
          .pages = paged,
          .least_page = Bc};
}

inline int row_blocks_of(const fa::Problem& p) { return fa::ceil_div(p.H * p.N, Br); }

inline Shape shape_of(const fa::Problem& p) {
  const float scale_log2 = p.scale() * fa::kLog2e;
  return {p.H * p.N, p.N, p.Nk, scale_log2, 1.f / scale_log2, p.causal};
}

// Bytes without those of pages and parts; `scores`: how often a block computes S.
inline fa::Prediction traffic_of(const fa::Problem& p, int scores) {
  const uint64_t rows = p.rows(), blocks = row_blocks_of(p);
  uint64_t keys = 0, tiles = 0;
  for (int b = 0; b < p.B; ++b) keys += p.keys_of(b), tiles += fa::ceil_div(p.keys_of(b), Bc);
  fa::Prediction t;
  t["Q"].read = 2 * rows * d, t["K"].read = 2 * blocks * keys * d;
  t["O"].write = 2 * rows * dv, t["LSE"].write = 4 * rows;
  t.hbm = {.read = 2 * d * (rows + keys), .write = rows * (2 * dv + 4)};
  t.flops = 2 * blocks * tiles * Br * Bc * (uint64_t(scores) * d + dv);
  return t;
}

}  // namespace step17
