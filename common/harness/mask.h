/// \file
/// Which keys a row sees, beyond Problem::causal (a rule in problem.cpp): a window, packed
/// documents, any function, or tiles; and how its scores are modified. Parts of Problem.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fa {

struct Problem;

/// first, first + 1, ..., last - 1: rows or keys.
struct Range {
  int first = 0, last = 0;
  int size() const { return last - first; }
  bool has(int i) const { return first <= i && i < last; }
  bool operator==(const Range&) const = default;
};

/// A document: its rows see only its keys.
struct Document {
  Range rows, keys;
  /// The key that row r is aligned with: the document's last row with its last key.
  int own_key(int r) const { return r - rows.last + keys.last; }
  bool operator==(const Document&) const = default;
};

/// A mask as a function, from which the host makes lists of tiles; no kernel calls it.
struct Predicate {
  std::string name = {};  ///< "strided" of --mask strided:64
  int n = 0;              ///< 64; the function defines its meaning
  /// Whether row r sees key c; null: it does.
  bool (*sees)(const Problem& p, int r, int c) = nullptr;

  bool operator==(const Predicate&) const = default;
};

/// "strided:64", or "causal_blocks" where n is 0.
std::string text_of(const Predicate&);

/// Tiles of scores, each seen whole or not at all: block-sparse attention.
struct TileMask {
  static constexpr int kSize = 128;  ///< rows and keys of a tile
  size_t heads = 0;                  ///< that differ: 1, H or B*H; 0: there is no such mask
  int rows = 0, keys = 0;            ///< tiles of each
  std::shared_ptr<const std::vector<uint8_t>> kept = {};  ///< [heads, rows, keys]: 0 or 1

  /// The number of tiles of n > 0 rows or keys.
  static int of(int n) { return (n - 1) / kSize + 1; }
  /// Is key c in a tile that row r of head bh of B*H sees?
  bool has(size_t bh, int r, int c) const {
    return (*kept)[(bh % heads * rows + r / kSize) * keys + c / kSize] != 0;
  }
  /// The number of tiles that are seen, of all `heads`.
  size_t count() const { return std::count(kept->begin(), kept->end(), uint8_t{1}); }
  bool operator==(const TileMask& other) const {
    return heads == other.heads && rows == other.rows && keys == other.keys &&
           (kept == other.kept || (kept && other.kept && *kept == *other.kept));
  }
};

/// All conditions must hold, and so must Problem::causal.
struct Mask {
  static constexpr int kNoLimit = -1;

  /// A row sees keys from `left` before its own (Document::own_key) to `right` after it.
  int left = kNoLimit, right = kNoLimit;
  /// Where each document begins among the rows and among the keys, plus the end of the last one:
  /// [documents + 1], the cu_seqlens of FlashAttention. Empty: one document.
  std::vector<int> row_starts = {}, key_starts = {};
  Predicate predicate = {};
  TileMask tiles = {};

  bool has_window() const { return left != kNoLimit || right != kNoLimit; }
  bool has_documents() const { return !row_starts.empty(); }
  bool has_tiles() const { return tiles.heads != 0; }
  bool is_none() const {
    return !has_window() && !has_documents() && !predicate.sees && !has_tiles();
  }
  bool operator==(const Mask&) const = default;
};

/// Modifies scale * q k before the softmax, in this order, and adds sinks to its sum.
struct ScoreMod {
  float cap = 0;       ///< s becomes cap * tanh(s / cap); 0: no cap
  bool alibi = false;  ///< subtracts alibi_slope() times the key's distance from the row's own
  bool sinks = false;  ///< each head's sum includes e^sink, from Inputs::sinks

  bool is_none() const { return cap == 0 && !alibi && !sinks; }
  bool operator==(const ScoreMod&) const = default;
};

/// 2^(-8 (h + 1) / H) of query head h of H (arXiv 2108.12409, section 3).
double alibi_slope(int h, int H);

}  // namespace fa
