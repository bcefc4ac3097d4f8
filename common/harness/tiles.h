/// \file
/// Sums over the tiles that a tiled kernel visits: what exact traffic formulas are made of.
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

/// Calls f(std::integral_constant<int, n>) for the one of `Ns` that equals n, so that the size of a
/// tile, chosen at run time, becomes a template argument.
/// \throws std::logic_error when there is none: nothing would be computed.
template <int... Ns, class F>
void dispatch_tile(int n, F&& f) {
  if (!((n == Ns && (f(std::integral_constant<int, Ns>{}), true)) || ...)) {
    throw std::logic_error("no kernel for tiles of " + std::to_string(n));
  }
}

/// Rows of Q cut into tiles of Br, keys into tiles of Bc; with a causal mask only those tiles (i,
/// j) are visited that hold a visible score. Ragged tiles count their real rows and keys. Per head.
struct TileVisits {
  uint64_t tiles = 0;  ///< visited tiles
  uint64_t rows = 0;   ///< sum of the rows of tile i over visited (i, j)
  uint64_t keys = 0;   ///< sum of the keys of tile j over visited (i, j)
  uint64_t pairs = 0;  ///< sum of rows * keys over visited (i, j)
};

/// Of one head.
inline TileVisits visited_tiles(const Problem& p, int Br, int Bc) {
  TileVisits v;
  for (int i = 0; i < ceil_div(p.N, Br); ++i) {
    const uint64_t rows = std::min(Br, p.N - i * Br);
    const int seen = p.visible(i * Br + static_cast<int>(rows) - 1);  // by the tile's last row
    const uint64_t tiles = ceil_div(seen, Bc);
    const uint64_t keys = std::min<uint64_t>(tiles * Bc, p.Nk);  // of all these tiles
    v.tiles += tiles;
    v.rows += rows * tiles;
    v.keys += keys;
    v.pairs += rows * keys;
  }
  return v;
}

}  // namespace fa
