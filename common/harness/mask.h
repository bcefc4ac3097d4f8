/// \file
/// Which keys a row sees, beyond Problem::causal (a rule in problem.cpp): a window, documents
/// behind each other, or any function; and what is done to its scores. Parts of Problem.
#pragma once

#include <algorithm>
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

/// A document: its rows see no keys but its own.
struct Document {
  Range rows, keys;
  /// The key that row r is aligned with: the document's last row with its last key.
  int own_key(int r) const { return r - rows.last + keys.last; }
  bool operator==(const Document&) const = default;
};

/// A mask as a function, of which lists of tiles are made on the host; no kernel calls it.
struct Predicate {
  std::string name = {};  ///< "strided", of --mask strided:64
  int n = 0;              ///< its number, 64; what it means is up to the function
  /// Whether row r sees key c; null: it does.
  bool (*sees)(const Problem& p, int r, int c) = nullptr;

  bool operator==(const Predicate&) const = default;
};

/// "strided:64", or "causal_blocks" where n is 0.
std::string text_of(const Predicate&);

/// All that is given must hold, and so must Problem::causal.
struct Mask {
  static constexpr int kNoLimit = -1;

  /// A row sees keys from `left` before its own (Document::own_key) to `right` behind it.
  int left = kNoLimit, right = kNoLimit;
  /// Where each document begins among the rows and among the keys, and where the last one ends:
  /// [documents + 1], the cu_seqlens of FlashAttention. Empty: all rows and keys are one document.
  std::vector<int> row_starts = {}, key_starts = {};
  Predicate predicate = {};

  bool has_window() const { return left != kNoLimit || right != kNoLimit; }
  bool has_documents() const { return !row_starts.empty(); }
  bool is_none() const { return !has_window() && !has_documents() && !predicate.sees; }
  bool operator==(const Mask&) const = default;
};

/// What becomes of scale * q k before the softmax, in this order, and what the softmax sums, too.
struct ScoreMod {
  float cap = 0;       ///< s becomes cap * tanh(s / cap); 0: it stays
  bool alibi = false;  ///< then it loses alibi_slope() times the key's distance from the row's own
  bool sinks = false;  ///< each head sums e^sink, too, a number of Inputs::sinks

  bool is_none() const { return cap == 0 && !alibi && !sinks; }
  bool operator==(const ScoreMod&) const = default;
};

/// 2^(-8 (h + 1) / H) of query head h of H (arXiv 2108.12409, section 3).
double alibi_slope(int h, int H);

}  // namespace fa
