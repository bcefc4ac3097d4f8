// Step 15 -- Hopper's backward: tiles of keys from a table, and the bytes of its kernels.
// Idea      The rows that see 128 keys of a document are adjacent, too, so a walk is two numbers.
//           dQ of rows that no other keys' walk visits needs no sums
// Changed   since 15 3_wgmma: an entry is 128 keys of a document and the tiles of rows that see
//           them, of all heads that share the keys; the places where rows end, or where a warpgroup
//           begins later
#pragma once

#include "steps/15_masks/3_wgmma.cuh"
#include "steps/15_masks/beyond/parts.cuh"
#include "steps/15_masks/beyond/window_backward.cuh"  // dQ_sum's table

namespace step15_wgmma_backward {

using step15_wgmma::columns_below, step15_wgmma::table_of, step15_wgmma::TileRange;
using step15_wgmma::Window;

// 128 keys of a document, and the tiles of its rows that see them; an entry of the table.
struct KeyWork {
  int row, rows;     // the document's first row, and how many it has
  int key, keys;     // the first key, and how many are left in the document
  int sums;          // the document's first row in dQ_sum and in the columns
  int bh;            // head of K and V
  int first, tiles;  // tiles of the document's rows, of each head; 0: no row sees the keys
  int direct;        // how many of them, the first ones, no other keys' walk visits
  int cut;           // of a list of tiles: how many of them the mask cuts
};

// The table of keys, and the window of keys that each row sees.
struct KeyTable {
  const int* works;  // [blocks, 10]: KeyWork of each
  Window window;

  __device__ int tile(const KeyWork& work, int place) const { return work.first + place; }

  // Of 64 of the keys, from k on: the first place with a row that sees one, and which are cut.
  template <int Br>
  __host__ __device__ TileRange visible_tiles(const KeyWork& work, int k) const {
    const int end = work.tiles - 1, shift = work.keys - work.rows;
    const int last_key = min(k + kGroupKeys, work.keys) - 1;
    const int first_row = max(0, k - window.right - shift);        // first that sees the first key
    const int full_row = max(0, last_key - window.right - shift);  // first that sees all
    const int last_row = k + window.left - shift;                  // last that sees any
    const int first = min(max(first_row / Br - work.first, 0), end);
    if (k + kGroupKeys > work.keys) return {first, end, end, end};
    const int last = min(end, (last_row + kGroupKeys - 1) / Br - work.first);
    return {first, (full_row + Br - 1) / Br - 1 - work.first,
            last_row + 1 >= work.rows ? end : (last_row + 1) / Br - 1 - work.first, last};
  }
  // Which rows of a cut tile see a lane's keys k and k + 8.
  template <int Br>
  __device__ void seen(const KeyWork& work, int place, int k, uint32_t (&bits)[2]) const {
    const int row = tile(work, place) * Br + fa::column_of(threadIdx.x % fa::kWarp);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int key = k + 8 * h, own = key - (work.keys - work.rows) - row;
      bits[h] = columns_below(own + window.left + 1) & ~columns_below(own - window.right);
      if (key >= work.keys) bits[h] = 0;
    }
  }
};

// The place of the tile in which a document's rows end and other rows follow; -1: there is none.
template <int Br>
__host__ __device__ int end_of_rows(const KeyWork& work, int N) {
  const int place = work.rows / Br - work.first;
  return work.rows % Br > 0 && work.row + work.rows < N && place < work.tiles ? place : -1;
}

// A warpgroup begins after the walk's first tile if none of the tile's rows sees one of its keys,
// unless it must help to zero that tile, or there is no other; it ends before the last tile by the
// same rule. end: the last place, of `tiles` in all heads.
__host__ __device__ inline bool skips_first(const TileRange& range, int ends_at, unsigned tiles) {
  return range.first > 0 && ends_at != 0 && tiles > 1;
}
__host__ __device__ inline bool skips_last(const TileRange& range, int ends_at, int end,
                                           unsigned tiles) {
  return range.last < end && ends_at != end && tiles > 2;
}

struct RowTile {
  int head, place;  // of Q; in the walk
  __device__ void next(const KeyWork& work) {
    if (++place == work.tiles) ++head, place = 0;
  }
};

// --- host: the walks of a problem's keys, its tables, its bytes ----------------------------------

using step11_columns::rows_of_a_tile;

inline int padded_rows(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  return int(step15_backward::count_tiles(p, &fa::Document::rows, Br)) * Br;
}

// All heads' tiles of keys in the order of blocks: in sections whose Q, dO, dQ_sum fit in the L2.
// Of the heads that share keys, which a walk visits in turn, a section counts one.
inline std::vector<KeyWork> in_order(const fa::Problem& p,
                                     const std::vector<std::vector<KeyWork>>& documents,
                                     int different = 1) {
  const auto bytes = [&](const KeyWork& work) { return 8 * size_t(p.d) * work.rows; };
  return step15_wgmma::in_order(p, documents, bytes, /*group=*/1, /*most=*/1 << 30, different);
}

inline std::vector<std::vector<KeyWork>> walks_of(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  std::vector<std::vector<KeyWork>> documents;
  int sums = 0;
  for (const fa::Document& doc : p.documents()) {
    std::vector<KeyWork>& walks = documents.emplace_back();
    for (int c = doc.keys.first; c < doc.keys.last; c += Bc) {
      const int first = p.seen_by(c).first - doc.rows.first;
      const int last = p.seen_by(std::min(c + Bc, doc.keys.last) - 1).last - doc.rows.first;
      const int tiles = first < last ? fa::ceil_div(last, Br) - first / Br : 0;
      walks.push_back({doc.rows.first, doc.rows.size(), c, doc.keys.last - c, sums, 0, first / Br,
                       tiles, tiles});
    }
    for (size_t j = 1; j < walks.size(); ++j) {  // both ends of a walk are after the previous ones
      KeyWork &before = walks[j - 1], &walk = walks[j];
      if (walk.tiles == 0) continue;
      if (walk.first < before.first + before.tiles) walk.direct = 0;
      before.direct = std::min(before.direct, std::max(0, walk.first - before.first));
    }
    sums += fa::ceil_div(doc.rows.size(), Br) * Br;
  }
  return documents;
}
inline std::vector<KeyWork> key_tiles(const fa::Problem& p) { return in_order(p, walks_of(p)); }

// Tiles without sums have negative rows.
inline fa::Table sum_rows_of(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  fa::Table table = step15_packed_backward::sum_rows_of(p, Br);
  for (const auto& walks : walks_of(p)) {
    for (const KeyWork& walk : walks) {
      for (int t = 0; t < walk.direct; ++t) {
        table.values[2 * (walk.sums / Br + walk.first + t) + 1] *= -1;
      }
    }
  }
  return table;
}

template <int Br, class Mask>
fa::Prediction traffic_of(const fa::Problem& p, const std::vector<KeyWork>& work, uint64_t rows,
                          const Mask& mask) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  uint64_t keys = 0, tiles = 0, direct = 0, skipped = 0;
  for (const KeyWork& w : work) {
    if (w.tiles == 0) continue;
    keys += std::min(Bc, p.Nk - w.key);
    tiles += uint64_t(w.tiles) * (p.H / p.Hkv), direct += uint64_t(w.direct) * (p.H / p.Hkv);
    for (int k = 0; k < Bc; k += kGroupKeys) {
      const TileRange range = mask.template visible_tiles<Br>(w, k);
      const int ends_at = end_of_rows<Br>(w, p.N), all = w.tiles * (p.H / p.Hkv);
      skipped += skips_first(range, ends_at, all) + skips_last(range, ends_at, w.tiles - 1, all);
    }
  }
  fa::Prediction t;
  t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * (BH * N + rows) * d;
  t["Q"].read = 2 * rows * d;
  t["LSE"].read = 4 * BH * N;
  t["columns"] = {.read = 2 * kColumns * tiles * Br, .write = 2 * kColumns * BH * Np};
  t["K"].read = t["V"].read = 2 * keys * d;
  t["dK"].write = t["dV"].write = 2 * p.kv_size();
  const uint64_t sums = 4 * (BH * Np - direct * Br) * d;
  if (sums > 0) {
    t["dQ_sum"] = {.read = sums, .write = sums, .atomic = 4 * (tiles - direct) * Br * d};
  }
  t["key_work"].read = sizeof(KeyWork) * work.size();
  t["sum_rows"].read = sizeof(int2) * BH * Np * (d / 8 + d / 16);
  const uint64_t tables = sizeof(KeyWork) * work.size() + sizeof(int2) * Np / Br;
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * N + 2 * sums +
                   2 * kColumns * BH * Np + tables,
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 2 * kColumns * BH * Np + 2 * sums};
  t.flops = (tiles * Bc - skipped * kGroupKeys) * (10 * d + 4 * kMma) * Br;
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  std::vector<fa::Scratch> all = step15_wgmma::workspace(p);
  all.push_back({"columns", 2 * kColumns * rows}), all.push_back({"dQ_sum", 4 * rows * p.d});
  return all;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_wgmma::tables(p);
  all.push_back(table_of("key_work", key_tiles(p)));
  all.push_back(sum_rows_of(p));
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const std::vector<KeyWork> work = key_tiles(p);
    uint64_t rows = 0;
    for (const KeyWork& w : work) {
      const int first = w.row + w.first * Br<d>;
      rows += uint64_t(std::clamp(p.N - first, 0, w.tiles * Br<d>)) * (p.H / p.Hkv);
    }
    return traffic_of<Br<d>>(p, work, rows, KeyTable{nullptr, step15_wgmma::window_of(p)});
  });
}

}  // namespace step15_wgmma_backward
