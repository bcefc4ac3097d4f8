/// \file
/// Sums over the tiles that a tiled kernel visits, for exact traffic formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/harness/problem.h"

namespace fa {

/// ceil(a / b).
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// Calls f(std::integral_constant<int, n>) for the one of `Ns` that equals n: a tile size chosen at
/// run time becomes a template argument.
/// \throws std::logic_error when there is none, since nothing would be computed.
template <int... Ns, class F>
void dispatch_tile(int n, F&& f) {
  if (!((n == Ns && (f(std::integral_constant<int, Ns>{}), true)) || ...)) {
    throw std::logic_error("no kernel for tiles of " + std::to_string(n));
  }
}

/// The tiles of Bc keys, from the document's first key on, with a key that any of these rows of the
/// document sees. A window is a band, so the first and the last row decide.
inline Range tiles_seen(const Problem& p, const Document& doc, Range rows, int Bc) {
  const int first = p.seen(rows.first).first, last = p.seen(rows.last - 1).last;
  if (first >= last) return {};
  return {(first - doc.keys.first) / Bc, ceil_div(last - doc.keys.first, Bc)};
}

/// Rows of Q cut into tiles of Br and keys into tiles of Bc, in each document from its first one
/// on; only tiles (i, j) with a visible score are visited. Ragged tiles count their actual rows and
/// keys. Per head, and without Mask::predicate (for which see tile_lists()).
struct TileVisits {
  uint64_t tiles = 0;  ///< visited tiles
  uint64_t rows = 0;   ///< sum of the rows of tile i over visited (i, j)
  uint64_t keys = 0;   ///< sum of the keys of tile j over visited (i, j)
  uint64_t pairs = 0;  ///< sum of rows * keys over visited (i, j)
};

/// The visits of one head.
inline TileVisits visited_tiles(const Problem& p, int Br, int Bc) {
  TileVisits v;
  for (const Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      const Range rows = {r, std::min(r + Br, doc.rows.last)};
      const Range seen = tiles_seen(p, doc, rows, Bc);
      const uint64_t tiles = seen.size();
      const uint64_t keys = std::min(seen.last * Bc, doc.keys.size()) - seen.first * Bc;
      v.tiles += tiles;
      v.rows += rows.size() * tiles;
      v.keys += keys;
      v.pairs += rows.size() * keys;
    }
  }
  return v;
}

}  // namespace fa
