// Step 15 -- any mask on Hopper: lists of tiles.
// Idea      5's lists in 12_wgmma's kernel: the producer looks up which tile it copies, a consumer
//           the bits of those that are cut, while their product runs. Full tiles first: a cut one
//           costs less in the loop than at the seam
// Changed   since 15 5_lists: the order of the bits; a tile of rows that sees nothing has one tile,
//           all of it hidden, because a walk has at least one
// Traffic   requested as 12_wgmma, of visited tiles; and 4 B of `entries` for each; per thread of
//           the consumers 4 B of `entries` and Bc/16 B of `bits` for each cut one
// Launch    as 12_wgmma
// Owns      as 12_wgmma
// Still bad as 12_wgmma
#pragma once

#include "steps/15_masks/12_wgmma.cuh"
#include "steps/15_masks/lists.h"

namespace step15_wgmma_lists {

using namespace step15_wgmma;
using step15::ListMaker, step15::TileLists;

// Words of bits per thread: 16 keys of two rows each, or 32.
template <int Bc>
constexpr int kWords = Bc / 64;

struct Lists : Table {
  const int* entries;  // [visited tiles, 2]: the tile of keys; the place of its bits
  const int* bits;     // [places, threads of the consumers, kWords]
  int threads;         // of the consumers

  // From the last entry to the first: entries of cut tiles are in front.
  __device__ const int* entry(const WorkTile& work, int place) const {
    return entries + 2 * (work.first + work.tiles - 1 - place);
  }
  __device__ int tile(const WorkTile& work, int place) const { return entry(work, place)[0]; }

  template <int>
  __host__ __device__ Places places(const WorkTile& work, int) const {
    return {0, -1, work.tiles - 1 - work.cut, work.tiles - 1};
  }
  template <int Bc>
  __device__ void seen(const WorkTile& work, int place, int, uint32_t (&of)[2]) const {
    const size_t at = size_t(entry(work, place)[1]) * threads + (threadIdx.x - kGroupThreads);
    if constexpr (kWords<Bc> == 2) {
      const uint2 words = *reinterpret_cast<const uint2*>(bits + 2 * at);
      of[0] = words.x, of[1] = words.y;
    } else {
      const uint32_t word = bits[at];
      of[0] = word, of[1] = word >> 16;
    }
  }
  template <int Bc>
  __device__ void change(float (&)[Bc / 2], const WorkTile&, int, int) const {}
  __device__ void start(float (&)[2], float (&)[2], const WorkTile&) const {}
};

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_wgmma::support();
  s.predicate = true;
  return s;
}

// Where the scores of a thread's bits lie in a tile: bits of its row r first, then of r + 8. The
// next warpgroup's threads count on, and so do its rows.
template <int Bc>
std::pair<int, int> place(int w, int b) {
  const int bit = w % kWords<Bc> * 32 + b, h = bit / (Bc / 4), x = bit % (Bc / 4);
  const auto [row, key] = fa::wgmma_d_element(w / kWords<Bc>, x / 2 * 4 + h * 2 + x % 2);
  return {row, key};
}

// The lists, and the work tiles in order.
template <class T>
std::pair<TileLists, std::vector<WorkTile>> lists_of(const fa::Problem& p) {
  constexpr int kBits = (T::kThreads - kGroupThreads) * kWords<T::Bc>;
  TileLists lists = ListMaker(p, {T::Br, T::Bc, /*by_keys=*/false, kBits, place<T::Bc>})();
  int hidden = -1;  // the place of bits that are 0
  Documents tiles(1);
  for (size_t i = 0; i < lists.work.size(); i += 4) {
    int first = lists.work[i + 1], full = lists.work[i + 2], last = lists.work[i + 3];
    if (first == last) {
      if (hidden < 0) {
        hidden = static_cast<int>(lists.bits.size()) / kBits;
        lists.bits.resize(lists.bits.size() + kBits);
      }
      first = static_cast<int>(lists.visited()), full = last = first + 1;
      lists.entries.insert(lists.entries.end(), {0, hidden});
      ++lists.cut, lists.keys += std::min(T::Bc, p.Nk);
    }
    const int row = lists.work[i] * T::Br;
    tiles[0].push_back({{row, p.N - row, 0, p.Nk}, 0, first, last - first, full - first});
  }
  return {lists, in_order<T>(p, tiles)};
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all;
  dispatch(p, [&](auto tiling) {
    const auto [lists, work] = lists_of<decltype(tiling)>(p);
    all = {table_of("work_tiles", work), {"entries", lists.entries}, {"bits", lists.bits}};
  });
  return all;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t;
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const auto [lists, work] = lists_of<T>(p);
    const uint64_t BH = p.heads(), threads = T::kThreads - kGroupThreads;
    t = traffic_of<T>(p, work, BH * lists.keys, Lists{});
    t["entries"].read = sizeof(int) * BH * (lists.visited() + threads * lists.cut);
    t["bits"].read = BH * lists.cut * T::Br * T::Bc / 8;
    t.hbm.read += sizeof(int) * (lists.entries.size() + lists.bits.size());
  });
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const int count = fa::ceil_div(p.N, T::Br) * int(p.heads());
    const Lists mask{{t.scratch<const int4>("work_tiles"), count},
                     t.scratch<const int>("entries"),
                     t.scratch<const int>("bits"),
                     T::kThreads - kGroupThreads};
    launch<T>(p, t, mask, p.gpu.sms);
  });
}

}  // namespace step15_wgmma_lists
