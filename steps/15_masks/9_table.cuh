// Step 15 -- Hopper's work tiles for packs: a table, and bits.
// Idea      A work tile may be rows of any document, if the host writes its entry to a table. Of
//           the tiles of keys that it visits, the first and the last ones are cut; which of their
//           keys a row sees is a bit for each, computed while the tile's product runs
// Changed   since 15 3_packed: an entry says which tiles are visited, too; a test by bits, for the
//           registers of wgmma; the order of work tiles, as in 10 5_scheduled
// Owns      an entry: 128 or 256 rows of a head's document
// Still bad see 12_wgmma
#pragma once

#include "steps/15_masks/3_packed.cuh"
#include "steps/15_masks/hopper.cuh"

namespace step15_wgmma {

using step15::Band;

template <class T>
constexpr int kSection = 4096 / T::d;  // most heads whose work tiles are mixed

// Rows of a head's document, and the tiles of keys that they visit; an entry of the table.
struct WorkTile : step15::Work {
  int bh;            // head of Q and O
  int first, tiles;  // tiles of the document's keys: at least one; 0: there is no more work
  int cut;           // in 13_wgmma_lists.cuh: how many of them the mask cuts
};

struct Table {
  const int4* works;  // [count, 2]: WorkTile of each
  int count;

  __device__ WorkTile work(int t) const {
    if (t >= count) return {};
    const int4 a = works[2 * t], b = works[2 * t + 1];
    return {{a.x, a.y, a.z, a.w}, b.x, b.y, b.z, b.w};
  }
};

// The rows of a tile see a band of the document's keys.
struct Bands : Table {
  Band band;

  // The tile of keys at a place of the walk.
  __device__ int tile(const WorkTile& work, int place) const { return work.first + place; }

  // Of 64 rows of the work tile, from r on.
  template <int Bc>
  __host__ __device__ Places places(const WorkTile& work, int r) const {
    const int end = work.tiles - 1;
    if (r >= work.rows) return {0, -1, end, end};  // no row: whatever it computes is not stored
    const int own = r + work.keys - work.rows, rows = min(kGroupRows, work.rows - r);
    const int low = max(0, own - band.left), low_of_last = max(0, own + rows - 1 - band.left);
    const int high = min(work.keys, own + band.right + 1);
    const int high_of_last = min(work.keys, own + rows + band.right);
    const int first = min(max(low / Bc - work.first, 0), end);
    const int last = min(max((high_of_last + Bc - 1) / Bc - 1 - work.first, first), end);
    return {first, min((low_of_last + Bc - 1) / Bc - 1 - work.first, last),
            min(high / Bc - 1 - work.first, last), last};
  }
  // Which keys of a cut tile a lane's rows r and r + 8 see, as columns_below().
  template <int Bc>
  __device__ void seen(const WorkTile& work, int place, int r, uint32_t (&bits)[2]) const {
    const int key = tile(work, place) * Bc + fa::column_of(threadIdx.x % fa::kWarp);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int own = r + 8 * h + work.keys - work.rows - key;
      bits[h] = columns_below(min(work.keys - key, own + band.right + 1)) &
                ~columns_below(own - band.left);
    }
  }
  // Where 14_wgmma_scores.cuh changes scores, and where it starts with a sink.
  template <int Bc>
  __device__ void change(float (&)[Bc / 2], const WorkTile&, int, int) const {}
  __device__ void start(float (&)[2], float (&)[2], const WorkTile&) const {}
};

// How many keys of V's last tile are the document's, if others follow; else all.
template <class T>
__device__ inline int keys_of_last(const WorkTile& work, int Nk) {
  const int left = work.keys - (work.first + work.tiles - 1) * T::Bc;
  return work.key + work.keys < Nk ? min(left, T::Bc) : T::Bc;
}

// --- host ---------------------------------------------------------------------------------------

// Tiles of Br rows of each document, without a head.
using Documents = std::vector<std::vector<WorkTile>>;

inline Documents row_tiles(const fa::Problem& p, int Br, int Bc) {
  Documents documents;
  for (const fa::Document& doc : p.documents()) {
    documents.emplace_back();
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      const fa::Range seen = fa::tiles_seen(p, doc, {r, std::min(r + Br, doc.rows.last)}, Bc);
      documents.back().push_back({{r, doc.rows.last - r, doc.keys.first, doc.keys.size()},
                                  0,
                                  seen.size() > 0 ? seen.first : 0,
                                  std::max(1, seen.size())});
    }
  }
  return documents;
}

template <class T>
std::vector<WorkTile> in_order(const fa::Problem& p, const Documents& documents) {
  return in_order(documents, int(p.kv_heads()), p.H / p.Hkv, kSection<T>,
                  [&](const WorkTile& w) { return 4 * size_t(p.d) * w.keys; });
}

}  // namespace step15_wgmma
