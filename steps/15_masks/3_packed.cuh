// Step 15 -- sequences of different lengths, packed behind each other.
// Idea      No row and no tile is padding. Documents lie behind each other in Q, K and V; the host
//           cuts each into tiles of its own and writes all of them to one table, the longest walk
//           first. A block reads its 16 bytes, and from there on it is a block of 1_window
// Changed   since 15 1_window: a block's rows and keys are looked up instead of computed
// Traffic   requested as 1_window, of each document's tiles; and 16 B of `work` per thread
// Launch    grid (tiles of all documents * B*H), 128 threads; the longest walks of all heads first
// Owns      as 1_window
// Still bad masks that are no band: 5_lists
#pragma once

#include "steps/15_masks/1_window.cuh"
#include "steps/15_masks/lists.h"

namespace step15_packed {

using namespace step15;

struct Packed {
  Band band;
  const int4* works;  // [tiles]: Work of each

  __device__ Work work(int heads, int* bh) const {
    *bh = blockIdx.x % heads;
    const int4 w = works[blockIdx.x / heads];
    return {w.x, w.y, w.z, w.w};
  }
  template <int d>
  __device__ Walk<d> walk(const Work& work) const {
    return {band, work};
  }
};

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_window::support();
  s.documents = true;
  return s;
}

// A tile of rows: its Work, and how many tiles of keys it visits.
struct RowTile {
  int work[4];
  int visits;
};

inline std::vector<RowTile> row_tiles(const fa::Problem& p) {
  std::vector<RowTile> tiles;
  for (const fa::Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      const fa::Range rows = {r, std::min(r + Br, doc.rows.last)};
      const int visits = fa::tiles_seen(p, doc, rows, p.d == 64 ? Bc<64> : Bc<128>).size();
      tiles.push_back({{r, doc.rows.last - r, doc.keys.first, doc.keys.size()}, visits});
    }
  }
  return tiles;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  const std::vector<RowTile> tiles = row_tiles(p);
  fa::Table work{"work", {}};
  for (const int i : longest_first(tiles.size(), [&](int i) { return tiles[i].visits; })) {
    work.values.insert(work.values.end(), tiles[i].work, tiles[i].work + 4);
  }
  return {work};
}

// Tiles of rows of all documents, per head.
inline unsigned count_row_tiles(const fa::Problem& p) {
  return count_tiles(p, &fa::Document::rows, Br);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_window::traffic(p);
  const uint64_t tiles = count_row_tiles(p);
  t["work"].read = sizeof(int4) * kThreads * tiles * p.heads();
  t.hbm.read += sizeof(int4) * tiles;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads();
  const Packed mask = {band_of(p), t.scratch<const int4>("work")};
  const dim3 grid(count_row_tiles(p) * BH);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d, Packed>, {grid, dim3(kThreads), sizeof(Shared<d>)}, t.Q, t.K,
               t.V, t.O, t.LSE, mask, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_packed
