// Step 15 -- the backward of any mask on Hopper: transposed lists.
// Idea      6's lists in 18_wgmma_backward's walk: who copies looks up the tile of rows, who owns
//           keys the bits of a cut one
// Changed   since 15 6_lists_backward: the order of the bits
// Traffic   requested as 18_wgmma_backward, of visited tiles; for each head of the group 4 B
//           of `row_entries` for each visited tile per thread of dQ's warpgroup and once more; for
//           each cut one 4 B per thread that owns keys and a bit for each of its scores
// Launch    as 18_wgmma_backward
// Owns      as 18_wgmma_backward
// Still bad as 18_wgmma_backward
#pragma once

#include "steps/15_masks/13_wgmma_lists.cuh"
#include "steps/15_masks/18_wgmma_backward.cuh"

namespace step15_wgmma_lists_backward {

using namespace step15_wgmma_backward;
using step15::ListMaker, step15::TileLists;

constexpr int kOwners = kGroups * kGroupThreads;  // threads that own keys
// Words of bits per thread: 16 rows of two keys each, or 32.
template <int Br>
constexpr int kWords = Br / 64;

struct KeyLists {
  const int* works;    // [blocks, 10]: KeyWork of each
  const int* entries;  // [visited tiles, 2]: the tile of rows; the place of its bits
  const int* bits;     // [places, kOwners, kWords]

  __device__ const int* entry(const KeyWork& work, int place) const {
    return entries + 2 * (work.first + place);
  }
  __device__ int tile(const KeyWork& work, int place) const { return entry(work, place)[0]; }

  template <int>
  __host__ __device__ Places places(const KeyWork& work, int) const {
    return {0, work.cut - 1, work.tiles - 1, work.tiles - 1};
  }
  template <int Br>
  __device__ void seen(const KeyWork& work, int place, int, uint32_t (&of)[2]) const {
    const size_t at = size_t(entry(work, place)[1]) * kOwners + threadIdx.x;
    if constexpr (kWords<Br> == 2) {
      const uint2 words = *reinterpret_cast<const uint2*>(bits + 2 * at);
      of[0] = words.x, of[1] = words.y;
    } else {
      const uint32_t word = bits[at];
      of[0] = word, of[1] = word >> 16;
    }
  }
};

// --- host ---------------------------------------------------------------------------------------

// The problem as the walks see it: which documents there are, the lists say.
inline fa::Problem in_one(fa::Problem p) {
  p.mask.row_starts.clear(), p.mask.key_starts.clear();
  return p;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return step15_wgmma_backward::workspace(in_one(p));
}

// Where the scores of a thread's bits lie in a tile: bits of its key k first, then of k + 8. The
// next warpgroup's threads count on, and so do its keys.
template <int Br>
std::pair<int, int> place(int w, int b) {
  const int bit = w % kWords<Br> * 32 + b, h = bit / (Br / 4), x = bit % (Br / 4);
  const auto [key, row] = fa::wgmma_d_element(w / kWords<Br>, x / 2 * 4 + h * 2 + x % 2);
  return {row, key};
}

// The lists, and the work of the blocks in order.
template <int Br>
std::pair<TileLists, std::vector<KeyWork>> lists_of(const fa::Problem& p) {
  const TileLists lists =
      ListMaker(p, {Br, Bc, /*by_keys=*/true, kOwners * kWords<Br>, place<Br>})();
  std::vector<KeyWork> tiles;
  for (size_t i = 0; i < lists.work.size(); i += 4) {
    const int key = lists.work[i] * Bc, first = lists.work[i + 1];
    tiles.push_back({0, p.N, key, p.Nk - key, 0, 0, first, lists.work[i + 3] - first, 0,
                     lists.work[i + 2] - first});
  }
  return {lists, in_order(p, {tiles})};
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_wgmma_lists::tables(p);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const auto [lists, work] = lists_of<Br<d>>(p);
    all.push_back(table_of("key_work", work));
    all.push_back({"row_entries", lists.entries}), all.push_back({"row_bits", lists.bits});
  });
  all.push_back(step15::sum_rows_of(in_one(p), rows_of_a_tile(p)));
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const auto [lists, work] = lists_of<Br<d>>(p);
    const uint64_t BH = p.heads(), lookups = kGroupThreads + 1;  // who multiplies dQ; who copies
    t = traffic_of<Br<d>>(in_one(p), work, BH * lists.rows, KeyLists{});
    t["row_entries"].read = sizeof(int) * BH * (lookups * lists.visited() + kOwners * lists.cut);
    t["row_bits"].read = BH * lists.cut * Br<d> * Bc / 8;
    t.hbm.read += sizeof(int) * (lists.entries.size() + lists.bits.size());
  });
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const KeyLists mask{t.scratch<const int>("key_work"), t.scratch<const int>("row_entries"),
                      t.scratch<const int>("row_bits")};
  launch(in_one(p), t, mask, fa::ceil_div(p.Nk, Bc) * int(p.kv_heads()));
}

}  // namespace step15_wgmma_lists_backward
