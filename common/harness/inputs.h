/// \file
/// Where Q, K, V and dO come from.
#pragma once

#include <string>
#include <vector>

#include "common/harness/problem.h"

namespace fa {

/// Host tensors, already rounded to the problem's element type. Layouts: see Problem.
struct Inputs {
  std::vector<float> Q;   ///< [B, H, N, d]
  std::vector<float> K;   ///< [B, Hkv, Nk, d]
  std::vector<float> V;   ///< [B, Hkv, Nk, d]
  std::vector<float> dO;  ///< [B, H, N, d]
  std::string note;       ///< "real input tiled from N=1024 to N=4096", or empty
  std::vector<float> K_scale = {};  ///< [B, Hkv] with Problem::cache8: K / K_scale is e4m3
  std::vector<float> V_scale = {};  ///< likewise
  std::vector<int> table = {};  ///< [B, Problem::pages()] of a paged cache; empty: a shuffled one
};

/// A shipped file: in the folder $FLASH_STEPS_DATA if set, else in common/data.
std::string data_file(const std::string& name);

/// `normal`: N(0,1). Same seed, same numbers, on every machine.
Inputs normal_inputs(const Problem&, uint64_t seed);
/// `outliers`: N(0,1) + N(0,100) * Bernoulli(0.001), FlashAttention-3's distribution
/// (arXiv 2407.08608, section 4.3).
Inputs outlier_inputs(const Problem&, uint64_t seed);
/// `real`: the activations shipped in common/data (four heads, N=1024, d=64).
/// Other sizes tile the tokens, repeat the heads and resample the features; `note` says so.
/// dO is N(0,1) from the seed.
/// \throws UsageError when the files are missing or damaged.
Inputs real_inputs(const Problem&, uint64_t seed);

/// Files given by --q, --k, --v, --do; an empty path means "not given".
struct InputFiles {
  std::string q, k, v, dO;
  bool any() const { return !q.empty() || !k.empty() || !v.empty() || !dO.empty(); }
};
/// Takes B, H, Hkv, N, Nk and d from the files' shapes ([B, H, N, d] each; f2, f4 or f8).
/// \throws UsageError with one sentence: missing file, wrong dtype, wrong or contradicting shapes.
Problem problem_of(const InputFiles&, const Problem& defaults);
/// Replaces what the files give; the rest stays.
/// \throws UsageError as above.
void load_inputs(const InputFiles&, const Problem&, Inputs&);

}  // namespace fa
