/// \file
/// What the checker and the program with the student's code share besides their pipes.
#pragma once

#include "common/counts/channel.h"
#include "common/harness/problem.h"

namespace fa {

/// A problem of an exercise or extension; hkv and nk: as h and n where they are not given. With a
/// window [L, R], or lengths of documents, which sum to n, or each batch entry's number of keys.
inline Problem problem_of(const nlohmann::json& j) {
  Problem p;
  p.B = j.value("b", 1);
  p.H = j.value("h", 1);
  p.Hkv = j.value("hkv", p.H);
  p.N = j.at("n");
  p.Nk = j.value("nk", p.N);
  p.d = j.at("d");
  p.causal = j.value("causal", false);
  if (j.contains("window")) p.mask.left = j["window"][0], p.mask.right = j["window"][1];
  if (j.contains("lengths")) {  // of documents, which have as many keys as rows
    p.mask.row_starts = {0};
    for (const int n : j["lengths"]) p.mask.row_starts.push_back(p.mask.row_starts.back() + n);
    p.mask.key_starts = p.mask.row_starts;
  }
  if (j.contains("keys")) p.cache.lengths = j["keys"].get<std::vector<int>>();
  Support support = {.d = {p.d}};
  support.gqa = support.cross = support.window = support.documents = support.lengths = true;
  validate(p, support);
  return p;
}

}  // namespace fa
