// Step 15 -- any mask on Hopper: lists of tiles, and transposed lists for the backward.
// Idea      The producer looks up which tile it copies; a thread that owns rows, or keys, looks up
//           the bits of a cut tile while its product runs
// Changed   since lists: the order of the bits; a tile of rows that sees nothing has one tile,
//           all of it hidden, because a walk has at least one
// Traffic   requested as the formulas of 3_wgmma and wgmma_backward, of visited tiles. Forward 4 B
//           of `entries` for each; per thread of the consumers 4 B of `entries` and Bc/16 B of
//           `bits` for each cut one. Backward, per head of the group: 4 B of `row_entries` for each
//           visited tile per thread of dQ's warpgroup and once more; for each cut one 4 B per
//           thread that owns keys and a bit for each of its scores
// Launch    forward (SMs, or fewer work tiles); columns, backward (tiles of keys * B*Hkv), convert
// Owns      block: as in 3_wgmma and wgmma_backward, of the whole problem instead of a document
// Still bad a border of documents inside a tile makes one more cut tile, and lets a NaN through
#pragma once

#include "steps/15_masks/beyond/list_maker.h"
#include "steps/15_masks/beyond/wgmma_backward.cuh"
#include "steps/15_masks/beyond/wgmma_forward.cuh"

namespace step15_wgmma_lists {

using namespace step15_wgmma_forward;
using step15::ListMaker, step15::TileLists;

// Words of bits per thread: 16 of the visited tile's rows or keys for each of two, or 32.
template <int size>
constexpr int kWords = size / 64;

// A pattern's bits for a thread: those of its first row, or key, and of that plus 8.
template <int size>
__device__ inline void load_bits(const int* bits, size_t at, uint32_t (&of)[2]) {
  if constexpr (kWords<size> == 2) {
    const uint2 words = *reinterpret_cast<const uint2*>(bits + 2 * at);
    of[0] = words.x, of[1] = words.y;
  } else {
    const uint32_t word = bits[at];
    of[0] = word, of[1] = word >> 16;
  }
}

// How many of a work tile's tiles the mask cuts: the number that 3_wgmma leaves unused.
__host__ __device__ inline int cut_tiles(const WorkTile& work) { return work.unused; }

struct Lists {
  static constexpr bool kChangesScores = false;
  const int4* works;  // [count, 2]: WorkTile of each; .first: its first entry
  int count;
  const int* entries;  // [visited tiles, 2]: the tile of keys; the pattern of its bits
  const int* bits;     // [patterns, threads of the consumers, kWords]
  int threads;         // of the consumers

  __device__ WorkTile work(int t) const {
    if (t >= count) return {};
    const int4 a = works[2 * t], b = works[2 * t + 1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }

  // From the last entry to the first: entries of cut tiles are first.
  __device__ const int* entry(const WorkTile& work, int place) const {
    return entries + 2 * (work.first + work.tiles - 1 - place);
  }
  __device__ int tile(const WorkTile& work, int place) const { return entry(work, place)[0]; }

  template <int>
  __host__ __device__ TileRange visible_tiles(const WorkTile& work, int) const {
    return {0, -1, work.tiles - 1 - cut_tiles(work), work.tiles - 1};
  }
  template <int Bc>
  __device__ void seen(const WorkTile& work, int place, int, uint32_t (&of)[2]) const {
    const size_t at = size_t(entry(work, place)[1]) * threads + (threadIdx.x - kGroupThreads);
    load_bits<Bc>(bits, at, of);
  }
};

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_wgmma::support();
  s.predicate = true;
  return s;
}

// (row, key), in the tile, of bit b of word w: a thread's bits are first of row r, then of r + 8.
template <int Bc>
std::pair<int, int> score_of(int w, int b) {
  const int bit = w % kWords<Bc> * 32 + b, h = bit / (Bc / 4), x = bit % (Bc / 4);
  const auto [row, key] = fa::wgmma_d_element(w / kWords<Bc>, x / 2 * 4 + h * 2 + x % 2);
  return {row, key};
}

template <class T>
std::pair<TileLists, std::vector<WorkTile>> lists_of(const fa::Problem& p) {
  constexpr int kBits = (T::kThreads - kGroupThreads) * kWords<T::Bc>;
  TileLists lists = ListMaker(p, {T::Br, T::Bc, /*by_keys=*/false, kBits, score_of<T::Bc>})();
  int hidden = -1;  // the pattern whose bits are 0
  std::vector<std::vector<WorkTile>> tiles(lists.heads);
  const size_t of_a_head = lists.work.size() / lists.heads;
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
    const int head = int(i / of_a_head);
    tiles[head].push_back({row, p.N - row, 0, p.Nk, head, first, last - first, full - first});
  }
  return {lists, in_order(p, tiles, lists.heads)};
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) -> std::vector<fa::Table> {
    const auto [lists, work] = lists_of<Tiling<d>>(p);
    return {table_of("work_tiles", work), {"entries", lists.entries}, {"bits", lists.bits}};
  });
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_wgmma::traffic(step15::in_one(p));
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const auto [lists, work] = lists_of<T>(p);
    const uint64_t users = lists.users(p), threads = T::kThreads - kGroupThreads;
    const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, work.size());
    uint64_t tiles = blocks;  // twice the tiles of keys: a block's last Q K^T is unused
    for (const WorkTile& w : work) tiles += 2 * w.tiles;
    t["K"].read = t["V"].read = 2 * users * lists.keys * p.d;
    t["entries"].read = sizeof(int) * users * (lists.visited() + threads * lists.cut);
    t["bits"].read = users * lists.cut * T::Br * T::Bc / 8;
    t.flops = 2 * tiles * T::Br * T::Bc * p.d;
    t.hbm.read += sizeof(int) * (lists.entries.size() + lists.bits.size());
  });
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const int count = fa::ceil_div(p.N, T::Br) * int(p.heads());
    const Lists mask{t.scratch<const int4>("work_tiles"), count, t.scratch<const int>("entries"),
                     t.scratch<const int>("bits"), T::kThreads - kGroupThreads};
    step15_wgmma_forward::launch<T>(p, t, mask);
  });
}

}  // namespace step15_wgmma_lists

namespace step15_wgmma_lists_backward {

using namespace step15_wgmma_backward;
using step15::ListMaker, step15::TileLists, step15_wgmma_lists::kWords;
using step15_wgmma_lists::load_bits;

constexpr int kOwners = kGroups * kGroupThreads;  // threads that own keys
struct KeyLists {
  const int* works;    // [blocks, 10]: KeyWork of each
  const int* entries;  // [visited tiles, 2]: the tile of rows; the pattern of its bits
  const int* bits;     // [patterns, kOwners, kWords]

  __device__ const int* entry(const KeyWork& work, int place) const {
    return entries + 2 * (work.first + place);
  }
  __device__ int tile(const KeyWork& work, int place) const { return entry(work, place)[0]; }

  template <int>
  __host__ __device__ TileRange visible_tiles(const KeyWork& work, int) const {
    return {0, work.cut - 1, work.tiles - 1, work.tiles - 1};
  }
  template <int Br>
  __device__ void seen(const KeyWork& work, int place, int, uint32_t (&of)[2]) const {
    const size_t at = size_t(entry(work, place)[1]) * kOwners + threadIdx.x;
    load_bits<Br>(bits, at, of);
  }
};

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return step15_wgmma_backward::workspace(step15::in_one(p));
}

template <int Br>
std::pair<int, int> score_of(int w, int b) {
  const auto [key, row] = step15_wgmma_lists::score_of<Br>(w, b);
  return {row, key};
}

template <int Br>
std::pair<TileLists, std::vector<KeyWork>> lists_of(const fa::Problem& p) {
  const TileLists lists =
      ListMaker(p, {Br, Bc, /*by_keys=*/true, kOwners * kWords<Br>, score_of<Br>})();
  std::vector<std::vector<KeyWork>> tiles(lists.heads);
  const size_t of_a_head = lists.work.size() / lists.heads;
  for (size_t i = 0; i < lists.work.size(); i += 4) {
    const int key = lists.work[i] * Bc, first = lists.work[i + 1];
    const int head = int(i / of_a_head);
    tiles[head].push_back({0, p.N, key, p.Nk - key, 0, head, first, lists.work[i + 3] - first, 0,
                           lists.work[i + 2] - first});
  }
  return {lists, in_order(p, tiles, lists.heads)};
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_wgmma_lists::tables(p);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const auto [lists, work] = lists_of<Br<d>>(p);
    all.push_back(table_of("key_work", work));
    all.push_back({"row_entries", lists.entries}), all.push_back({"row_bits", lists.bits});
  });
  all.push_back(step15_packed_backward::sum_rows_of(step15::in_one(p), rows_of_a_tile(p)));
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const auto [lists, work] = lists_of<Br<d>>(p);
    const uint64_t users = lists.users(p),
                   lookups = kGroupThreads + 1;  // dQ's threads; the copying one
    fa::Prediction t = traffic_of<Br<d>>(step15::in_one(p), work, users * lists.rows, KeyLists{});
    t["row_entries"].read = sizeof(int) * users * (lookups * lists.visited() + kOwners * lists.cut);
    t["row_bits"].read = users * lists.cut * Br<d> * Bc / 8;
    t.hbm.read += sizeof(int) * (lists.entries.size() + lists.bits.size());
    return t;
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const KeyLists mask{t.scratch<const int>("key_work"), t.scratch<const int>("row_entries"),
                      t.scratch<const int>("row_bits")};
  launch(step15::in_one(p), t, mask, fa::ceil_div(p.Nk, Bc) * int(p.kv_heads()));
}

}  // namespace step15_wgmma_lists_backward
