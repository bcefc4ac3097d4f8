// What Hopper's forward and backward share: a test by bits, ends of documents, the order of work.
#pragma once

#include <algorithm>
#include <vector>

#include "steps/10_warp_specialized/2_warpgroup.cuh"

namespace step15_wgmma {

using fa::bf16;
using step10::kGroupRows, step10::kGroupThreads, step10::kPanel, step10::kRowBytes;

// Of the places 0 .. tiles - 1 of a walk a warpgroup visits first .. last. Those up to `left` and
// those behind `full` are cut.
struct Places {
  int first, left, full, last;
};

// Of a lane's columns, two of each eight, those below x: a bit for each.
__device__ inline uint32_t columns_below(int x) {
  const int n = x <= 0 ? 0 : min(x / 8 * 2 + min(x % 8, 2), 32);
  return n == 32 ? ~0u : (1u << n) - 1;
}

// Scores whose bit is 0 become -inf.
template <int n>
__device__ inline void hide(float (&rS)[n], const uint32_t (&bits)[2]) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (!(bits[fa::half_of(i)] >> (i / 4 * 2 + i % 2) & 1)) rS[i] = -INFINITY;
  }
}

// Zeroes rows `first` .. n - 1 of a tile in panels. Of `threads` threads, this is the `thread`-th.
template <int d, int n>
__device__ inline void clear_rows(bf16* tile, int first, int thread, int threads) {
  UNROLL_BY(2)
  for (int i = first * kPanel + thread * 8; i < n * kPanel; i += threads * 8) {
    for (int x = 0; x < d; x += kPanel) {
      *reinterpret_cast<uint4*>(tile + x * n + i) = make_uint4(0, 0, 0, 0);
    }
  }
}
// Stores the first `rows` rows of a tile of 64, which lie as TMA has them.
template <int d>
__device__ inline void store_rows(const bf16* tile, bf16* to, int rows, int thread, int threads) {
  constexpr int kLanes = d / 8;  // of a row, with 16 bytes each
  const int x = thread % kLanes * 8;
  UNROLL_BY(2)
  for (int r = thread / kLanes; r < rows; r += threads / kLanes) {
    const int at = (x / kPanel * kGroupRows + r) * kPanel + (x % kPanel / 8 ^ r % 8) * 8;
    *reinterpret_cast<uint4*>(to + size_t(r) * d + x) = *reinterpret_cast<const uint4*>(tile + at);
  }
}

// --- host ---------------------------------------------------------------------------------------

// Tiles of all heads in the order of their start. As in 10 the longest walks of a section come
// first, of which all that it reads stays in the L2: 16 MB, of `most` heads or fewer. Documents
// with long walks first. bytes: of a document and a head of K and V, which `group` tiles share.
template <class Tile, class Bytes>
std::vector<Tile> in_order(std::vector<std::vector<Tile>> documents, int kv_heads, int group,
                           int most, const Bytes& bytes) {
  const auto longer = [](const Tile& a, const Tile& b) { return a.tiles > b.tiles; };
  std::erase_if(documents, [](const auto& doc) { return doc.empty(); });
  for (auto& doc : documents) std::stable_sort(doc.begin(), doc.end(), longer);
  std::stable_sort(documents.begin(), documents.end(),
                   [&](const auto& a, const auto& b) { return longer(a[0], b[0]); });
  std::vector<Tile> all;
  size_t begun = 0, in_section = 0;
  int heads = 0;
  const auto end_section = [&] {
    std::stable_sort(all.begin() + begun, all.end(), longer);
    begun = all.size(), in_section = heads = 0;
  };
  for (const auto& doc : documents) {
    for (int head = 0; head < kv_heads; ++head) {
      if (in_section + bytes(doc[0]) > 16 << 20 || heads + group > most) end_section();
      for (int bh = head * group; bh < (head + 1) * group; ++bh) {
        for (Tile tile : doc) tile.bh = bh, all.push_back(tile);
      }
      in_section += bytes(doc[0]), heads += group;
    }
  }
  end_section();
  return all;
}

// A table of entries, of int alone.
template <class Entry>
fa::Table table_of(const char* name, const std::vector<Entry>& entries) {
  const int* first = reinterpret_cast<const int*>(entries.data());
  return {name, {first, first + entries.size() * sizeof(Entry) / sizeof(int)}};
}

}  // namespace step15_wgmma
