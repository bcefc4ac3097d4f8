// Step 15 -- lists of tiles for any mask, computed on the host.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/harness/parallel.h"
#include "common/harness/tiles.h"

namespace step15 {

// How many heads of K and V have tiles of their own; the query heads that share one see the same.
inline int different_heads(const fa::Problem& p) {
  return p.mask.tiles.heads > 1 ? int(p.mask.tiles.heads) / (p.H / p.Hkv) : 1;
}

// A block owns a tile, of rows in the forward, of keys in the backward, and visits the others.
struct TileLists {
  int heads = 1;          // of K and V that differ; head j of B*Hkv has the lists of j % heads
  std::vector<int> work;  // [heads, own tiles, 4]: the tile; its first entry, first full one, end
  std::vector<int> entries;     // [visited tiles, 2]: the other tile; its pattern of bits, or -1
  std::vector<int> bits;        // [patterns, words]: equal tiles share one
  uint64_t cut = 0;             // visited tiles that the mask, or the end of the keys, cuts
  uint64_t rows = 0, keys = 0;  // that exist, summed over all visited tiles

  uint64_t visited() const { return entries.size() / 2; }
  // How many query heads have each list.
  uint64_t users(const fa::Problem& p) const { return p.heads() / heads; }
};

// The problem without its documents, which the lists contain.
inline fa::Problem in_one(fa::Problem p) {
  p.mask.row_starts.clear(), p.mask.key_starts.clear();
  return p;
}

// A kernel's test of a cut tile of Br rows and Bc keys: the score of each bit.
struct Test {
  int Br, Bc;
  bool by_keys;  // own tiles are of keys
  int words;     // per tile
  // (row, key), in the tile, of bit b of word w; (-1, -1) if no score has this bit
  std::pair<int, int> (*score_of)(int w, int b);
};

class ListMaker {
 public:
  ListMaker(const fa::Problem& p, const Test& test)
      : p_(p), test_(test), Tr_(fa::ceil_div(p.N, test.Br)), Tc_(fa::ceil_div(p.Nk, test.Bc)) {}

  TileLists operator()() {
    lists_.heads = different_heads(p_);
    for (int head = 0; head < lists_.heads; ++head) {
      bh_ = size_t(head) * (p_.H / p_.Hkv);
      count();
      add_lists();
    }
    return std::move(lists_);
  }

 private:
  void add_lists() {
    const int own = test_.by_keys ? Tc_ : Tr_, other = test_.by_keys ? Tr_ : Tc_;
    std::vector<std::array<int, 4>> work;
    for (int a = 0; a < own; ++a) {
      const int first = static_cast<int>(lists_.visited());
      std::vector<int> whole;
      for (int b = 0; b < other; ++b) {
        const int i = test_.by_keys ? b : a, j = test_.by_keys ? a : b;
        const int visible = visible_[size_t(i) * Tc_ + j];
        if (visible == 0) continue;
        const int rows = std::min(test_.Br, p_.N - i * test_.Br);
        lists_.rows += rows;
        lists_.keys += std::min(test_.Bc, p_.Nk - j * test_.Bc);
        // Rows past the end are never stored, but keys past the end must not count.
        if (visible == rows * test_.Bc) {
          whole.push_back(b);
        } else {
          ++lists_.cut;
          add(b, pattern_of(i, j));
        }
      }
      const int full = static_cast<int>(lists_.visited());
      for (const int b : whole) add(b, -1);
      work.push_back({a, first, full, static_cast<int>(lists_.visited())});
    }
    std::stable_sort(work.begin(), work.end(),  // the longest first
                     [](const auto& x, const auto& y) { return x[3] - x[1] > y[3] - y[1]; });
    for (const auto& one : work) lists_.work.insert(lists_.work.end(), one.begin(), one.end());
  }

  // Counts the visible scores of each tile, one thread per tile of rows.
  void count() {
    visible_.assign(size_t(Tr_) * Tc_, 0);
    fa::parallel_for(Tr_,
                     [this] { return [this](size_t i) { count_tiles(static_cast<int>(i)); }; });
  }

  void count_tiles(int i) {
    const int Bc = test_.Bc;
    const auto sees = p_.mask.predicate.sees;
    int* tiles = &visible_[size_t(i) * Tc_];
    std::vector<int> more(Tc_ + 1);  // rows that see some of tile j, less those of j - 1
    const int last_row = std::min(p_.N, (i + 1) * test_.Br);
    for (int r = i * test_.Br, rows = 0; r < last_row; r += rows) {
      rows = sees ? 1 : equal_rows(r, last_row);
      p_.for_runs(r, bh_, [&](const fa::Range& keys) {
        const int first = keys.first / Bc, end = fa::ceil_div(keys.last, Bc);
        if (!sees) {  // whole tiles are counted below; here what the first and the last lack
          more[first] += rows, more[end] -= rows;
          tiles[first] -= rows * (keys.first - first * Bc);
          tiles[end - 1] -= rows * (end * Bc - keys.last);
        }
        for (int j = first; sees && j < end; ++j) {
          const int last = std::min(keys.last, (j + 1) * Bc);
          int n = 0;
          for (int c = std::max(keys.first, j * Bc); c < last; ++c) n += sees(p_, r, c);
          tiles[j] += n;
        }
      });
    }
    for (int j = 0, rows = 0; j < Tc_; ++j) rows += more[j], tiles[j] += rows * Bc;
  }

  // How many rows from r on see the same keys, without a predicate.
  int equal_rows(int r, int last) const {
    last = std::min(last, (r / fa::TileMask::kSize + 1) * fa::TileMask::kSize);
    int n = 1;
    while (r + n < last && p_.seen(r + n) == p_.seen(r)) ++n;
    return n;
  }

  void add(int other, int pattern) {
    lists_.entries.push_back(other);
    lists_.entries.push_back(pattern);
  }

  // Of 32 bits, those below the n-th.
  static uint32_t below(int n) { return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1; }

  // The number of the cut tile's pattern of bits, which is stored if it is new.
  int pattern_of(int i, int j) {
    const auto sees = p_.mask.predicate.sees;
    const int words = fa::ceil_div(test_.Bc, 32);  // per row: bit c of all tells whether it sees c
    std::vector<uint32_t> seen(test_.Br * words);
    for (int row = 0; row < std::min(test_.Br, p_.N - i * test_.Br); ++row) {
      const int r = i * test_.Br + row;
      const fa::Range all = p_.seen(r), keys = {all.first, std::min(all.last, (j + 1) * test_.Bc)};
      for (int w = 0; w < words; ++w) {
        const int key = j * test_.Bc + 32 * w;
        uint32_t in_range = below(keys.last - key) & ~below(keys.first - key);
        if (in_range && p_.mask.has_tiles() && !p_.mask.tiles.has(bh_, r, key)) in_range = 0;
        uint32_t bits = in_range;
        for (uint32_t left = sees ? in_range : 0; left != 0; left &= left - 1) {
          if (!sees(p_, r, key + std::countr_zero(left))) bits &= ~(left & -left);
        }
        seen[row * words + w] = bits;
      }
    }
    const auto [at, is_new] = patterns_.try_emplace(std::move(seen), int(patterns_.size()));
    for (int w = 0; is_new && w < test_.words; ++w) {
      uint32_t bits = 0;
      for (int b = 0; b < 32; ++b) {
        const auto [row, key] = test_.score_of(w, b);
        if (row >= 0) bits |= (at->first[row * words + key / 32] >> key % 32 & 1) << b;
      }
      lists_.bits.push_back(static_cast<int>(bits));
    }
    return at->second;
  }

  const fa::Problem& p_;
  const Test test_;
  const int Tr_, Tc_;
  size_t bh_ = 0;             // the query head whose lists are made
  std::vector<int> visible_;  // [Tr, Tc]
  std::map<std::vector<uint32_t>, int> patterns_;
  TileLists lists_;
};

}  // namespace step15
