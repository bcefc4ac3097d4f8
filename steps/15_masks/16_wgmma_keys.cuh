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
  int direct;        // how many of them, the first ones, no other keys' walk visits
  int cut;           // in 19_wgmma_lists_backward.cuh: how many of them the mask cuts
};

// The rows that see a tile of keys are a band, too.
struct KeyBands {
  const int* works;  // [blocks, 10]: KeyWork of each
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
// it must help to zero that tile, or there is no other; likewise it ends before the last tile. end:
// the last place, of `tiles` in all heads.
__host__ __device__ inline bool skips_first(const Places& places, int ends_at, unsigned tiles) {
  return places.first > 0 && ends_at != 0 && tiles > 1;
}
__host__ __device__ inline bool skips_last(const Places& places, int ends_at, int end,
                                           unsigned tiles) {
  return places.last < end && ends_at != end && tiles > 2;
}

// A tile of rows on the walk, which visits all heads that share the keys.
struct RowTile {
  int head, place;  // of Q; in the walk
  __device__ void next(const KeyWork& work) {
    if (++place == work.tiles) ++head, place = 0;
  }
};

}  // namespace step15_wgmma_backward
