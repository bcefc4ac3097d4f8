/// \file
/// The keys and values of a decoding step where they are not simply Nk rows per head: CacheFormat
/// is a part of Problem, Cache of Tensors.
#pragma once

#include <vector>

namespace fa {

/// What the keys and values look like. See Cache.
struct CacheFormat {
  std::vector<int> lengths = {};  ///< [B] keys of each batch entry, 0 .. Nk; empty: Nk of each
  int page = 0;                   ///< keys of a page; 0: K and V are not paged
  bool fp8 = false;               ///< K and V are in e4m3, with a scale for each key head
  int latent = 0;  ///< V is so many features of K, its first, for all heads; 0: a tensor of its own

  bool operator==(const CacheFormat&) const = default;
};

/// The keys and values beyond K and V, in device memory. A page holds CacheFormat::page keys of
/// all key heads of one batch entry: K and V are then pools [pages, Hkv, page, d], and key c of
/// batch entry b lies in page table[b, c / page], at row c % page, with garbage after the last key.
struct Cache {
  const int* lengths = nullptr;    ///< [B] keys of each batch entry; null: Nk of each
  const int* table = nullptr;      ///< [B, Problem::pages()]; null: K and V are [B, Hkv, Nk, d]
  const float* K_scale = nullptr;  ///< [B, Hkv], where K is e4m3: K = K_scale * e4m3; else null
  const float* V_scale = nullptr;  ///< the same for V
};

}  // namespace fa
