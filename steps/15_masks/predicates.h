// Masks by name, for --mask. To add one, add a function and a line.
#pragma once

#include "common/harness/problem.h"

namespace step15 {

// A row sees the first n keys, a prompt, and no key after its own.
inline bool prefix(const fa::Problem& p, int r, int c) {
  return c < p.mask.predicate.n || c <= r + p.Nk - p.N;
}

// Of the keys up to its own a row sees the last n, and every n-th before (arXiv 1904.10509, 4.3).
inline bool strided(const fa::Problem& p, int r, int c) {
  const int back = r + p.Nk - p.N - c, n = p.mask.predicate.n;
  return back >= 0 && (back < n || back % n == 0);
}

// Tiles of n rows and n keys, of which a row sees every second one.
inline bool checkered(const fa::Problem& p, int r, int c) {
  return (r / p.mask.predicate.n + c / p.mask.predicate.n) % 2 == 0;
}

inline std::vector<fa::Predicate> predicates() {
  return {{"prefix", 256, prefix}, {"strided", 64, strided}, {"checkered", 128, checkered}};
}

}  // namespace step15
