/// \file
/// One attention problem, and the problems that a step supports.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/dialect/errors.h"
#include "common/harness/cache.h"
#include "common/harness/mask.h"

namespace fa {

/// Element type of Q, K, V, O and their gradients. Statistics (LSE) are always fp32. f16 is of
/// other people's kernels: no step has it.
enum class DType { f32, bf16, e4m3, f16 };

/// Bytes of one element.
size_t bytes_of(DType);
/// "fp32", "bf16", "e4m3" or "fp16".
const char* name_of(DType);
/// The nearest value that `dtype` can hold (round to nearest even; e4m3 saturates at 448).
float round_to(DType dtype, float x);

/// What a step may choose in how it computes.
struct Method {
  bool fp8 = false;  ///< quantises Q, K and V and multiplies e4m3; Problem::dtype is unchanged
  size_t smem = 0;   ///< shared bytes that a block may use (the papers' M); 0: its default

  bool operator==(const Method&) const = default;
};

/// The GPU by which host functions, and so the formulas, choose tiles and grids: an H200's figures.
struct Gpu {
  int sms = 132;
  size_t block_shared_bytes = 227 * 1024;  ///< shared memory available to a block

  bool operator==(const Gpu&) const = default;
};

/// One attention problem: O = softmax(scale * Q K^T + mask) V for each of B*H heads.
///
/// Its tensors are row-major: all_tensors() in tensors.h has their shapes.
struct Problem {
  int B = 1;            ///< batch
  int H = 4;            ///< query heads
  int Hkv = 4;          ///< key and value heads; H is a multiple of it
  int N = 1024;         ///< queries (the papers' N; N_q where the two lengths differ)
  int Nk = 1024;        ///< keys
  int d = 64;           ///< head dimension
  bool causal = false;  ///< key c is visible to row r when c <= r + Nk - N (bottom-right aligned)
  DType dtype = DType::f32;
  Method method = {};
  CacheFormat cache = {};   ///< steps 13 and 17
  Mask mask = {};           ///< beyond `causal`, step 15; only its tiles may differ between heads
  ScoreMod score_mod = {};  ///< step 15
  Gpu gpu = {};             ///< that runs the problem: this_gpu()

  bool operator==(const Problem&) const = default;

  /// 1 / sqrt(d).
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
  size_t heads() const { return static_cast<size_t>(B) * H; }
  size_t kv_heads() const { return static_cast<size_t>(B) * Hkv; }
  /// Features of V and O.
  int dv() const { return cache.latent == 0 ? d : cache.latent; }
  /// Elements of Q (and O, dO, dQ).
  size_t q_size() const { return heads() * N * d; }
  /// Elements of K (and V, dK, dV).
  size_t kv_size() const { return kv_heads() * Nk * d; }
  /// Rows of S: elements of LSE.
  size_t rows() const { return heads() * N; }
  /// Elements of S (and P).
  size_t scores() const { return rows() * Nk; }
  /// The head of B*Hkv that head bh of B*H reads.
  size_t kv_head_of(size_t bh) const { return bh / H * Hkv + bh % H / (H / Hkv); }
  /// Keys of batch entry b.
  int keys_of(size_t b) const { return cache.lengths.empty() ? Nk : cache.lengths[b]; }
  /// The most pages of a head's keys: columns of the page table.
  int pages() const { return cache.page == 0 ? 1 : (Nk + cache.page - 1) / cache.page; }
  /// The documents of batch entry b, one without Mask::row_starts.
  std::vector<Document> documents(size_t b = 0) const;
  /// The document of a row, and of a key.
  Document document_of(int r, size_t b = 0) const;
  Document document_of_key(int c, size_t b = 0) const;
  /// The range of keys that row r of batch entry b sees, apart from Mask::predicate and tiles; may
  /// be empty.
  Range seen(int r, size_t b = 0) const;
  /// The same for the rows that see key c.
  Range seen_by(int c, size_t b = 0) const;
  /// Do Mask::predicate and Mask::tiles leave score (r, c) of head bh?
  bool leaves(int r, int c, size_t bh) const {
    return (!mask.predicate.sees || mask.predicate.sees(*this, r, c)) &&
           (!mask.has_tiles() || mask.tiles.has(bh, r, c));
  }
  /// Calls f(Range) for the runs of keys, in order, that row r of head bh sees, apart from
  /// Mask::predicate.
  template <class F>
  void for_runs(int r, size_t bh, const F& f) const {
    const Range keys = seen(r, bh / H);
    for (int c = keys.first, end = 0; c < keys.last; c = end) {
      end = keys.last;
      if (mask.has_tiles()) end = std::min(end, (c / TileMask::kSize + 1) * TileMask::kSize);
      if (!mask.has_tiles() || mask.tiles.has(bh, r, c)) f(Range{c, end});
    }
  }
  /// `h`: the query head, for Mask::tiles
  bool sees(int r, int c, size_t b = 0, size_t h = 0) const {
    return seen(r, b).has(c) && leaves(r, c, b * H + h);
  }
  /// The number of keys that row r of batch entry b sees; without a mask the first ones.
  int visible(int r, size_t b = 0, size_t h = 0) const;
  /// Pairs (r, c) of one head that the mask leaves, of N * Nk, whatever CacheFormat::lengths says.
  uint64_t visible_scores(size_t bh = 0) const;
  /// The same of all B*H heads.
  uint64_t all_visible_scores() const;

  /// FLOPs of the forward by FlashAttention's convention: 4*B*H*N*Nk*d, halved when causal
  /// (arXiv 2307.08691, section 4.1), even where N << Nk and the mask hides almost nothing. The sum
  /// of `lengths` replaces B*Nk, and with a Mask all_visible_scores() replaces B*H*N*Nk.
  double flops_forward() const;
  /// 2.5 times the forward (five matrix products instead of two).
  double flops_backward() const { return 2.5 * flops_forward(); }

 private:
  /// Document i of Mask::row_starts.
  Document document(size_t i) const {
    return {{mask.row_starts[i], mask.row_starts[i + 1]},
            {mask.key_starts[i], mask.key_starts[i + 1]}};
  }
};

/// One size. All code that reads or prints sizes uses kSizes.
struct Size {
  const char* flag;    ///< "--hkv"; without the dashes its key in JSON
  const char* symbol;  ///< "Hkv"
  int Problem::*of;
  const char* key() const { return flag + 2; }
};
/// All sizes.
inline constexpr Size kSizes[] = {{"--b", "B", &Problem::B},       {"--h", "H", &Problem::H},
                                  {"--hkv", "Hkv", &Problem::Hkv}, {"--n", "N", &Problem::N},
                                  {"--nk", "Nk", &Problem::Nk},    {"--d", "d", &Problem::d}};

/// What a step supports. Anything else is refused with the list of what is supported.
struct Support {
  std::vector<int> d = {32, 64, 96, 128};  ///< head dimensions
  bool gqa = false;                        ///< Hkv < H
  bool cross = false;                      ///< Nk != N
  bool smem = false;                       ///< Method::smem: tiles are cut to fit
  int most_n = 0;                          ///< the most queries; 0: no limit
  // Of steps 13, 15 and 17
  bool lengths = false;    ///< CacheFormat::lengths
  bool pages = false;      ///< CacheFormat::page: 0, 16, 32, 64, 128 or 256
  int least_page = 16;     ///< of these
  bool window = false;     ///< Mask::left and right
  bool documents = false;  ///< Mask::row_starts and key_starts
  bool predicate = false;  ///< Mask::predicate and tiles
  bool score_mod = false;  ///< ScoreMod

  bool operator==(const Support&) const = default;
  /// The head dimensions, "64, 128".
  std::string list_d() const;
};

/// \param who "this step" or "variant mma", for the sentence.
/// \throws UsageError with one sentence that names the flag, its value and what is supported.
void validate(const Problem&, const Support&, const std::string& who = "this step");

/// "B=1 H=4 N=1024 d=64 causal fp32": the sizes, omitting defaults.
std::string describe(const Problem&);

}  // namespace fa
