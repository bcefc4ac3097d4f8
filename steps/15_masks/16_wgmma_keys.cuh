// Step 15 -- Hopper's backward: tiles of keys from a table.
// Idea      The rows that see a tile of keys are a band, too. An entry of the table names the keys,
//           and the tiles of rows that they visit; a bit says which rows of a cut one see a key
// Changed   since 15 9_table: own tiles are of keys, and of all heads that share them; the places
//           where rows end, or where a warpgroup begins later
// Owns      an entry: 128 keys of a document
// Still bad see 18_wgmma_backward
#pragma once

#include "steps/15_masks/15_wgmma_rows.cuh"

namespace step15_wgmma_backward {

using step15::Band;
using step15_wgmma::columns_below, step15_wgmma::Places, step15_wgmma::table_of;

// 128 keys of a document, and the tiles of its rows that see them; an entry of the table.
struct KeyWork {
  int row, rows;     // the document's first row, and how many it has
  int key, keys;     // the first key, and how many are left in the document
  int sums;          // the document's first row in dQ_sum and in the columns
  int bh;            // head of K and V
  int first, tiles;  // tiles of the document's rows, of each head; 0: nobody sees the keys
  int cut;           // in 19_wgmma_lists_backward.cuh: how many of them the mask cuts
};

// The rows that see a tile of keys are a band, too.
struct KeyBands {
  const int* works;  // [blocks, 9]: KeyWork of each
  Band band;

  // The tile of rows at a place of the walk.
  __device__ int tile(const KeyWork& work, int place) const { return work.first + place; }

  // Of 64 of the keys, from k on: the first place with a row that sees one, and which are cut.
  template <int Br>
  __host__ __device__ Places places(const KeyWork& work, int k) const {
    const int end = work.tiles - 1, shift = work.keys - work.rows;
    const int last_key = min(k + kGroupKeys, work.keys) - 1;
    const int first_row = max(0, k - band.right - shift);        // that sees the first key,
    const int full_row = max(0, last_key - band.right - shift);  // that sees all,
    const int last_row = k + band.left - shift;                  // and the last one that does
    const int first = min(max(first_row / Br - work.first, 0), end);
    if (k + kGroupKeys > work.keys) return {first, end, end, end};
    return {first, (full_row + Br - 1) / Br - 1 - work.first,
            last_row + 1 >= work.rows ? end : (last_row + 1) / Br - 1 - work.first, end};
  }
  // Which rows of a cut tile see a lane's keys k and k + 8.
  template <int Br>
  __device__ void seen(const KeyWork& work, int place, int k, uint32_t (&bits)[2]) const {
    const int row = tile(work, place) * Br + fa::column_of(threadIdx.x % fa::kWarp);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int key = k + 8 * h, own = key - (work.keys - work.rows) - row;
      bits[h] = columns_below(own + band.left + 1) & ~columns_below(own - band.right);
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

// A warpgroup begins behind the walk's first tile if none of its rows sees one of its keys, unless
// it must help to zero that tile, or there is no other.
__host__ __device__ inline bool skips_first(const Places& places, int ends_at, unsigned tiles) {
  return places.first > 0 && ends_at != 0 && tiles > 1;
}

// A tile of rows on the walk, which visits all heads that share the keys.
struct RowTile {
  int head, place;  // of Q; in the walk
  int row, padded;  // its first row, in the tensor and in dQ_sum, there counted over all heads
};

// --- host ---------------------------------------------------------------------------------------

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

}  // namespace step15_wgmma_backward
