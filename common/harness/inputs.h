/// \file
/// The sources of Q, K, V and dO.
#pragma once

#include <string>
#include <vector>

#include "common/harness/tensors.h"

namespace fa {

// `with_dO`: not needed for the forward only.

/// `normal`: N(0,1). Same seed, same numbers, on every machine.
Inputs normal_inputs(const Problem&, uint64_t seed, bool with_dO = true);
/// `outliers`: N(0,1) + N(0,100) * Bernoulli(0.001), FlashAttention-3's (arXiv 2407.08608, 4.3).
Inputs outlier_inputs(const Problem&, uint64_t seed, bool with_dO = true);
/// `real`: the activations shipped in common/data (four heads, N=1024, d=64). Other sizes tile the
/// tokens, repeat the heads and resample the features; `note` says so. dO is N(0,1) from the seed.
/// \throws UsageError when the files are missing or damaged.
Inputs real_inputs(const Problem&, uint64_t seed, bool with_dO = true);

/// The rows [B, Hkv, Nk, d] that begin with V's dv() features: V, or with CacheFormat::latent K.
inline const std::vector<float>& values_of(const Problem& p, const Inputs& in) {
  return p.cache.latent == 0 ? in.V : in.K;
}

/// Takes B, H, Hkv, N, Nk and d from the files' shapes ([B, H, N, d] each; f2, f4 or f8).
/// \throws UsageError with one sentence: missing file, wrong dtype, wrong or contradicting shapes.
Problem problem_of(const InputFiles&, const Problem& defaults);
/// Replaces what the files give. After the keys of a batch entry (CacheFormat::lengths) K and V may
/// hold anything, even NaN. With CacheFormat::fp8 it ends with quantise_cache().
/// \throws UsageError as above.
void load_inputs(const InputFiles&, const Problem&, Inputs&);

/// Checks that a kernel's sums stay within fp32. Before normalisation a sum of P V may be 2^8 * Nk
/// times O; dP = dO V^T may leave fp32 where gradients do not, gradients where inputs do not.
/// \param backward  whether gradients are computed
/// \throws UsageError with one sentence: which inputs are too large or too small.
void require_range(const Problem&, const Inputs&, bool backward);

/// Rounds K and V as an 8-bit cache does: per batch entry and key head the scale is max |.| / 448
/// over the existing keys (Problem::keys_of), and each number becomes the nearest scale * e4m3.
/// Fills K_scale and V_scale. normal_inputs() and the others end with it where CacheFormat::fp8 is
/// set; call it again after changing K or V.
void quantise_cache(const Problem&, Inputs&);

/// Pages that the keys of all batch entries fill: ceil(keys_of(b) / page) each.
size_t needed_pages(const Problem&);
/// Pages of the pool of a table: up to the last one that holds keys, and at least 1.
size_t pool_pages(const Problem&, const std::vector<int>& table);
/// A page table [B, Problem::pages()] that hands out the pages 0 .. needed_pages() - 1 in a seeded
/// random order; -1 where an entry has no keys. Same seed, same table, on every machine.
std::vector<int> shuffled_table(const Problem&, uint64_t seed);
/// Checks that each page has one owner, since K and V fill the pages, and that no kernel meets an
/// invalid page. Entries after the last key of a batch entry may be anything.
/// \param who "--table F.npy", for the sentence
/// \throws UsageError with one sentence: a table of another size, a page outside the
/// B * Problem::pages() that a pool may have, a page that is used twice.
void validate_table(const Problem&, const std::vector<int>& table, const std::string& who);
/// From a .npy file of shape [B, Problem::pages()], i4 or i8.
/// \throws UsageError as read_npy_integers() and validate_table() do.
std::vector<int> load_table(const std::string& path, const Problem&);

}  // namespace fa
