/// \file
/// What is computed: one attention problem, and which problems a step supports.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/dialect/errors.h"

namespace fa {

/// Element type of Q, K, V, O and their gradients. Statistics (LSE) are always fp32.
enum class DType { f32, bf16, e4m3 };

/// Bytes of one element.
size_t bytes_of(DType);
/// "fp32", "bf16" or "e4m3".
const char* name_of(DType);
/// The nearest value that `dtype` can hold (round to nearest even; e4m3 saturates at 448).
float round_to(DType dtype, float x);

/// One attention problem: O = softmax(scale * Q K^T + mask) V for each of B*H heads.
///
/// Layouts, row-major: Q, O, dO, dQ [B, H, N, d]; K, V, dK, dV [B, Hkv, Nk, d]; LSE [B, H, N].
struct Problem {
  int B = 1;            ///< batch
  int H = 4;            ///< query heads
  int Hkv = 4;          ///< key and value heads; H is a multiple of it
  int N = 1024;         ///< queries (the papers' N; N_q where the two lengths differ)
  int Nk = 1024;        ///< keys
  int d = 64;           ///< head dimension
  bool causal = false;  ///< key c is visible to row r when c <= r + Nk - N (bottom-right aligned)
  DType dtype = DType::f32;
  bool fp8 =
      false;  ///< the step quantises Q, K and V, and multiplies e4m3; `dtype` is theirs and O's
  size_t smem =
      0;  ///< bytes of shared memory that a block may use (the papers' M); 0: the step's own
  std::vector<int> lengths = {};  ///< [B] keys of each batch entry, 0 .. Nk; empty: Nk of each
  int page = 0;         ///< keys of a page of the KV cache (see Cache); 0: K and V are not paged
  bool cache8 = false;  ///< K and V are stored in e4m3, with a scale for each key head (see Cache)

  /// 1 / sqrt(d).
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
  size_t heads() const { return static_cast<size_t>(B) * H; }
  size_t kv_heads() const { return static_cast<size_t>(B) * Hkv; }
  /// Elements of Q (and O, dO, dQ).
  size_t q_size() const { return heads() * N * d; }
  /// Elements of K (and V, dK, dV).
  size_t kv_size() const { return kv_heads() * Nk * d; }
  /// Rows of S: elements of LSE.
  size_t rows() const { return heads() * N; }
  /// Elements of S (and P).
  size_t scores() const { return rows() * Nk; }
  /// The query rows' head h of B*H reads this head of B*Hkv.
  size_t kv_head_of(size_t bh) const { return bh / H * Hkv + bh % H / (H / Hkv); }
  /// Keys of batch entry b.
  int keys_of(size_t b) const { return lengths.empty() ? Nk : lengths[b]; }
  /// Pages of a head's keys, at most: columns of the page table.
  int pages() const { return page == 0 ? 1 : (Nk + page - 1) / page; }
  /// Keys that row r of batch entry b sees: 0 .. visible(r, b) - 1. 0 for a fully masked row.
  int visible(int r, size_t b = 0) const {
    const int keys = keys_of(b);
    if (!causal) return keys;
    const int n = r + 1 + keys - N;
    return n < 0 ? 0 : (n < keys ? n : keys);
  }
  /// Pairs (r, c) of one head that the mask leaves: N * Nk, or about half of it. Of Nk keys,
  /// whatever `lengths` says.
  uint64_t visible_scores() const;

  /// FLOPs of the forward by FlashAttention's convention: 4*B*H*N*Nk*d, halved when causal
  /// (arXiv 2307.08691, section 4.1), also where N << Nk and the mask hides almost nothing. With
  /// `lengths` their sum takes the place of B*Nk.
  double flops_forward() const;
  /// 2.5 times the forward (five matrix products instead of two).
  double flops_backward() const { return 2.5 * flops_forward(); }
};

/// What a step can do. Anything else is refused with the list of what is supported.
struct Support {
  std::vector<int> d = {32, 64, 96, 128};  ///< head dimensions
  bool gqa = false;                        ///< Hkv < H
  bool cross = false;                      ///< Nk != N
  bool smem = false;                       ///< Problem::smem: the step cuts its tiles to fit
  int most_n = 0;                          ///< the most queries; 0: as many as one likes
  bool lengths = false;                    ///< Problem::lengths
  bool pages = false;                      ///< Problem::page: 0, 16, 32, 64, 128 or 256

  bool operator==(const Support&) const = default;
  /// The head dimensions, "64, 128".
  std::string list_d() const;
};

/// \param who "this step" or "variant mma", for the sentence.
/// \throws UsageError with one sentence that names the flag, its value and what is supported.
void validate(const Problem&, const Support&, const std::string& who = "this step");

/// "B=1 H=4 N=1024 d=64 causal fp32": the sizes, without what is at its default meaning.
std::string describe(const Problem&);

}  // namespace fa
