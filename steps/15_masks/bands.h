// Step 15 -- which keys a row of a window or a pack sees, and tables of their tiles for the
// kernels.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step15 {

// Instead of fa::Mask's: further than any key, and no sum overflows.
constexpr int kNoLimit = 1 << 30;

// Row r of a document has the own key r + keys - rows: the last row has the last key. It sees the
// keys from `left` before its own to `right` after it.
struct Band {
  int left, right;  // 0 .. kNoLimit
};

inline Band band_of(const fa::Problem& p) {
  const auto limit = [](int given) { return given == fa::Mask::kNoLimit ? kNoLimit : given; };
  return {limit(p.mask.left), p.causal ? 0 : limit(p.mask.right)};
}

// Tiles as a table, the longest walks first. The last number of a tile is the length of its walk:
// tiles are sorted by it, and it is not stored.
template <size_t n>
fa::Table longest_first(const char* name, std::vector<std::array<int, n>> tiles) {
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const auto& a, const auto& b) { return a.back() > b.back(); });
  fa::Table table{name, {}};
  for (const auto& t : tiles) table.values.insert(table.values.end(), t.begin(), t.end() - 1);
  return table;
}

// How many tiles all documents have, per head: tiles of rows (of = &fa::Document::rows) or of keys.
inline unsigned count_tiles(const fa::Problem& p, fa::Range fa::Document::*of, int size) {
  unsigned tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div((doc.*of).size(), size);
  return tiles;
}

// Of each document's tiles of Br rows the first row, and how many rows the document has from there.
inline fa::Table sum_rows_of(const fa::Problem& p, int Br) {
  fa::Table table{"sum_rows", {}};
  for (const fa::Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      table.values.insert(table.values.end(), {r, doc.rows.last - r});
    }
  }
  return table;
}

// --- the order of work on Hopper ----------------------------------------------------------------

// Tiles of all heads in the order in which blocks draw them. As in 10, work is cut into sections
// whose K and V together stay in the L2 (16 MB), each of at most `most` pairs of a document and a
// query head. Within a section the longest walks come first; documents with the longest walks are
// in the first sections. bytes: of K and V of a document and a key head, which `group` heads share.
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

// A table of structs that have only int members.
template <class Entry>
fa::Table table_of(const char* name, const std::vector<Entry>& entries) {
  const int* first = reinterpret_cast<const int*>(entries.data());
  return {name, {first, first + entries.size() * sizeof(Entry) / sizeof(int)}};
}

}  // namespace step15
