// Problems with a mask, for the tests of shared code and of the steps with masks.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "common/harness/problem.h"

namespace fa::test {

inline Problem with_window(Problem p, int left, int right) {
  p.mask.left = left, p.mask.right = right;
  return p;
}

/// Rows and keys of each document; N and Nk become their sums.
inline Problem packed(Problem p, const std::vector<std::pair<int, int>>& lengths) {
  p.mask.row_starts = p.mask.key_starts = {0};
  for (const auto& [rows, keys] : lengths) {
    p.mask.row_starts.push_back(p.mask.row_starts.back() + rows);
    p.mask.key_starts.push_back(p.mask.key_starts.back() + keys);
  }
  p.N = p.mask.row_starts.back(), p.Nk = p.mask.key_starts.back();
  return p;
}
/// As many keys as rows.
inline Problem packed(const Problem& p, const std::vector<int>& lengths) {
  std::vector<std::pair<int, int>> both;
  for (const int length : lengths) both.emplace_back(length, length);
  return packed(p, both);
}

/// A predicate that differs for each n: blocks visible in full, in part or not; and blind rows.
inline bool sees_at_random(const Problem& p, int r, int c) {
  const auto hash = [n = static_cast<unsigned>(p.mask.predicate.n)](unsigned a, unsigned b) {
    unsigned h = n * 2654435761u ^ a * 2246822519u ^ b * 3266489917u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    return h;
  };
  const int block = 16 << p.mask.predicate.n % 5;
  if (hash(r, 7777) % 16 == 0) return false;
  const unsigned kind = hash(r / block, c / block + 100000) % 4;
  return kind == 0 || (kind == 1 && hash(r + 500000, c) % 3 == 0);
}

inline Problem with_random_predicate(Problem p, int seed) {
  p.mask.predicate = {"random", seed, sees_at_random};
  return p;
}

/// Tiles of which each is seen with a chance of `share`; of several tiles of rows the first sees
/// none. heads: 1, H or B*H; heads that share keys have the same.
inline Problem with_random_tiles(Problem p, size_t heads, double share, unsigned seed) {
  TileMask& tiles = p.mask.tiles;
  tiles.heads = heads, tiles.rows = TileMask::of(p.N), tiles.keys = TileMask::of(p.Nk);
  const size_t row = tiles.keys, head = tiles.rows * row, group = heads > 1 ? p.H / p.Hkv : 1;
  std::mt19937 random(seed);
  std::vector<uint8_t> kept(heads * head);
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i] = (i % head >= row || tiles.rows == 1) && random() < share * 0x1p32;
    if (i / head % group > 0) kept[i] = kept[i - head];
  }
  tiles.kept = std::make_shared<const std::vector<uint8_t>>(std::move(kept));
  return p;
}

inline Problem with_score_mod(Problem p, float cap, bool alibi, bool sinks) {
  p.score_mod = {cap, alibi, sinks};
  return p;
}

/// A window or none, documents or none, a predicate or none, for a small problem.
inline Problem with_random_mask(Problem p, std::mt19937& random, bool predicates) {
  const auto below = [&random](int n) { return static_cast<int>(random() % n); };
  if (below(2)) {
    const int size = 1 + below(80);
    p = with_window(p, below(4) ? below(size) : -1, below(4) ? below(size) : -1);
  }
  if (below(2)) {
    std::vector<std::pair<int, int>> lengths;
    const bool same = below(2);
    for (int i = 1 + below(6); i > 0; --i) {
      const int rows = below(3) ? below(60) : below(2), keys = same ? rows : below(60);
      lengths.emplace_back(rows, keys);
    }
    lengths.emplace_back(1 + below(20), 1 + below(20));
    p = packed(p, lengths);
  }
  if (predicates && below(2)) p = with_random_predicate(p, below(1000));
  return p;
}

}  // namespace fa::test
