// Step 15 -- around Hopper's backward: a document's rows in whole tiles, its keys in a table.
// Idea      A walk adds whole tiles of dQ and copies whole tiles of 11's columns, so both have rows
//           of zeros behind each document. A table says which rows a tile has. Tiles of keys are
//           entries of another, in the order of their start
// Changed   since 11 6_augmented: rows looked up; what converts dQ; tables
// Traffic   see 15_wgmma_backward
// Launch    columns_kernel before the walks, convert_kernel behind them
// Owns      a thread: 8 features of a row, or 16 of two
// Still bad see 15_wgmma_backward
#pragma once

#include "steps/11_hopper_backward/6_augmented.cuh"
#include "steps/15_masks/10_wgmma.cuh"

namespace step15_wgmma_backward {

using fa::bf16;
using step11::Bc, step11::kGroupKeys, step11::kGroups, step11::kGroupThreads, step11::kMma,
    step11::kPanel, step11::kRowBytes, step11::kRowThreads, step11::RowLanes;
using step11_columns::kColumns;
using step15::Band;
using step15_wgmma::Places;

template <int d>
constexpr int Br = d == 64 ? 128 : 64;  // rows of a tile of Q and dO, as 11 5_apart

// 128 keys of a document, and the tiles of its rows that see them; an entry of the table.
struct KeyWork {
  int row, rows;     // the document's first row, and how many it has
  int key, keys;     // the first key, and how many are left in the document
  int sums;          // the document's first row in dQ_sum and in the columns
  int bh;            // head of K and V
  int first, tiles;  // tiles of the document's rows, of each head; 0: nobody sees the keys
  int cut;           // in 16_wgmma_lists_backward.cuh: how many of them the mask cuts
};

// As columns_kernel of 11; sum_rows says where the rows of a tile are.
template <int d>
__global__ void columns_kernel(const bf16* O,         // [B*H, N, d]
                               const bf16* dO,        // [B*H, N, d]
                               const float* LSE,      // [B*H, N]
                               const int2* sum_rows,  // [tiles]: the first row, how many follow
                               bf16* columns,         // [B*H, Np, 8]
                               float* dQ_sum,         // [B*H, Np, d]
                               int N, int Np, float scale) {
  RowLanes<d> at(N, Np);
  const int2 rows = sum_rows[at.r / Br<d>];
  const int r = at.r % Br<d>;
  at.row = size_t(at.head) * N + rows.x + r, at.inside = r < rows.y;
  at.clear(dQ_sum);
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
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = dQ_sum.part<d>(half);
  uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
  UNROLL
  for (int x = 0; x < 4; ++x) {
    const float4 sum = from.get(part * 4 + x);
    low[x] = fa::pack_bf16(sum.x * scale, sum.y * scale);
    high[x] = fa::pack_bf16(sum.z * scale, sum.w * scale);
  }
  step11::transpose_pairs(quad, low, high);
  const int padded = half % (Np / 64) * 64 + warp * 16 + fa::row_of(lane), r = padded % Br<d>;
  const int2 rows = sum_rows[padded / Br<d>];
  bf16* to = dQ + (size_t(half / (Np / 64)) * N + rows.x + r) * d + (part * 4 + quad) * 8;
  if (r < rows.y) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < rows.y) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline int rows_of_a_tile(const fa::Problem& p) { return p.d == 64 ? Br<64> : Br<128>; }

// Per head: whole tiles of each document.
inline int padded_rows(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  int rows = 0;
  for (const fa::Document& doc : p.documents()) rows += fa::ceil_div(doc.rows.size(), Br) * Br;
  return rows;
}

inline fa::Table sum_rows_of(const fa::Problem& p) {
  fa::Table table{"sum_rows", {}};
  for (const fa::Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += rows_of_a_tile(p)) {
      table.values.insert(table.values.end(), {r, doc.rows.last - r});
    }
  }
  return table;
}

// Tiles of keys in order; of a section Q, dO and dQ_sum stay in the L2.
inline std::vector<KeyWork> in_order(const fa::Problem& p,
                                     const std::vector<std::vector<KeyWork>>& documents) {
  const int group = p.H / p.Hkv;
  return step15_wgmma::in_order(documents, int(p.kv_heads()), 1, 1 << 30,
                                [&](const KeyWork& w) { return 8 * size_t(p.d) * w.rows * group; });
}

inline std::vector<KeyWork> key_tiles(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  std::vector<std::vector<KeyWork>> documents;
  int sums = 0;
  for (const fa::Document& doc : p.documents()) {
    documents.emplace_back();
    for (int c = doc.keys.first; c < doc.keys.last; c += Bc) {
      const int first = p.seen_by(c).first - doc.rows.first;
      const int last = p.seen_by(std::min(c + Bc, doc.keys.last) - 1).last - doc.rows.first;
      const int tiles = first < last ? fa::ceil_div(last, Br) - first / Br : 0;
      documents.back().push_back(
          {doc.rows.first, doc.rows.size(), c, doc.keys.last - c, sums, 0, first / Br, tiles});
    }
    sums += fa::ceil_div(doc.rows.size(), Br) * Br;
  }
  return in_order(p, documents);
}

inline fa::Table table_of(const std::vector<KeyWork>& tiles) {
  fa::Table table{"key_work", {}};
  for (const KeyWork& w : tiles) {
    table.values.insert(table.values.end(),
                        {w.row, w.rows, w.key, w.keys, w.sums, w.bh, w.first, w.tiles, w.cut});
  }
  return table;
}

}  // namespace step15_wgmma_backward
