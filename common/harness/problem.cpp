#include "common/harness/problem.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "common/counts/format.h"
#include "common/harness/parallel.h"

namespace fa {
namespace {

constexpr int kMaxLength = 1 << 28;    // sums of a few lengths and tiles still fit an int
constexpr int kMaxHeads = 65535;       // gridDim.y and gridDim.z
constexpr double kMaxScores = 0x1p53;  // bytes and FLOPs of any step stay below 2^64

/// By DType.
constexpr struct {
  const char* name;
  size_t bytes;
} kTypes[] = {{"fp32", 4}, {"bf16", 2}, {"e4m3", 1}, {"fp16", 2}};

float round_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return x;
  return std::bit_cast<float>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000);
}

// OCP E4M3: bias 7, no infinities; 448 is the largest number, 2^-9 the smallest above 0.
float round_to_e4m3(float x) {
  const float size = std::fabs(x);
  if (std::isnan(x) || size == 0) return x;
  if (size >= 448) return std::copysign(448.0f, x);
  if (size < 0x1p-6f) return std::nearbyint(x * 512) / 512;  // the spacing stays the same
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((u + 0x7ffff + (u >> 20 & 1)) & 0xfff00000);
}

// Above 65504 infinity; below 2^-14 the spacing stays the same.
float round_to_fp16(float x) {
  const float size = std::fabs(x);
  if (std::isnan(x)) return x;
  if (size < 0x1p-14f) return std::nearbyint(x * 0x1p24f) * 0x1p-24f;
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const float rounded = std::bit_cast<float>((u + 0xfff + (u >> 13 & 1)) & 0xffffe000);
  return std::fabs(rounded) > 65504 ? std::copysign(INFINITY, x) : rounded;
}

std::string list_of(const std::vector<int>& values, const char* between = ",") {
  std::string list;
  for (const int each : values) list += (list.empty() ? "" : between) + std::to_string(each);
  return list;
}

constexpr int kPages[] = {16, 32, 64, 128, 256};

/// "0,1,700", cut off when there are many.
std::string short_list(std::vector<int> values) {
  constexpr size_t kShown = 8;
  const bool all = values.size() <= kShown;
  if (!all) values.resize(kShown);
  return list_of(values) + (all ? "" : ",...");
}

void validate_cache(const Problem& p, const Support& support, const std::string& who) {
  if (!p.cache.lengths.empty() && !support.lengths) {
    refuse("--lengths {}: {} supports only as many keys in each batch entry (--nk {})",
           short_list(p.cache.lengths), who, p.Nk);
  }
  if (!p.cache.lengths.empty() && p.cache.lengths.size() != static_cast<size_t>(p.B)) {
    refuse("--lengths {}: must be one for each batch entry, --b {}", short_list(p.cache.lengths),
           p.B);
  }
  for (const int length : p.cache.lengths) {
    if (length >= 0 && length <= p.Nk) continue;
    refuse("--lengths {}: each must be 0 to {}, the keys of --nk", length, p.Nk);
  }
  if (p.cache.latent != 0 && p.Hkv != 1) {
    refuse("--hkv {}: all heads share one latent vector per key; leave it out", p.Hkv);
  }
  if (p.cache.page == 0) return;
  if (!support.pages) refuse("--page {}: {} has no paged cache", p.cache.page, who);
  const std::vector<int> sizes(std::find(std::begin(kPages), std::end(kPages), support.least_page),
                               std::end(kPages));
  if (std::find(sizes.begin(), sizes.end(), p.cache.page) == sizes.end()) {
    const std::string list = list_of({sizes.begin(), sizes.end() - 1}, ", ");
    refuse("--page {}: {} supports pages of {} or {} keys", p.cache.page, who, list, sizes.back());
  }
}

void validate_mask(const Problem& p, const Support& support, const std::string& who) {
  const Mask& mask = p.mask;
  const auto need = [&who](bool given, bool supported, const std::string& what) {
    if (given && !supported) refuse("{}: {} has no such mask", what, who);
  };
  need(mask.has_window(), support.window, fmt::format("--window {},{}", mask.left, mask.right));
  need(mask.has_documents(), support.documents,
       fmt::format("--lengths of {} documents", mask.row_starts.size() - 1));
  need(mask.predicate.sees, support.predicate, "--mask " + mask.predicate.name);
  need(mask.has_tiles(), support.predicate, "--tiles");
  for (const int limit : {mask.left, mask.right}) {
    if (limit >= Mask::kNoLimit && limit <= kMaxLength) continue;
    refuse("--window {},{}: each must be 0 to {}, or -1 for no limit", mask.left, mask.right,
           kMaxLength);
  }
  if (!mask.has_documents()) return;
  if (mask.row_starts.size() != mask.key_starts.size()) {
    refuse("--lengths: {} documents of rows and {} of keys", mask.row_starts.size() - 1,
           mask.key_starts.size() - 1);
  }
  for (const auto& [starts, length, flag] :
       {std::tuple(&mask.row_starts, p.N, "--n"), std::tuple(&mask.key_starts, p.Nk, "--nk")}) {
    if (starts->front() == 0 && starts->back() == length &&
        std::is_sorted(starts->begin(), starts->end())) {
      continue;
    }
    refuse("--lengths: the documents must fill {} {}, one after the other", flag, length);
  }
}

/// Do heads that share keys have the same tiles?
void validate_tiles(const Problem& p) {
  const TileMask& tiles = p.mask.tiles;
  const size_t group = p.H / p.Hkv, size = size_t{1} * tiles.rows * tiles.keys;
  if (tiles.heads <= 1 || group == 1) return;
  for (size_t h = 0; h < tiles.heads; ++h) {
    const uint8_t *its = &(*tiles.kept)[h * size],
                  *first = &(*tiles.kept)[h / group * group * size];
    if (std::equal(its, its + size, first)) continue;
    refuse("--tiles: heads {} and {} share keys by --hkv {}, but have different tiles",
           h / group * group, h, p.Hkv);
  }
}

/// The document of row (key) i; of several that begin there, the one that is not empty.
size_t place_of(int i, const std::vector<int>& starts) {
  return std::upper_bound(starts.begin(), starts.end() - 1, i) - starts.begin() - 1;
}

Range within(Range range, int own, int before, int after) {
  if (before != Mask::kNoLimit) range.first = std::max(range.first, own - before);
  if (after != Mask::kNoLimit) range.last = std::min(range.last, own + after + 1);
  range.last = std::max(range.first, range.last);
  return range;
}

// The causal rule, which kernels repeat: of Nk keys row r sees the first r + 1 + Nk - N.
Range keys_seen(const Problem& p, const Document& doc, int r) {
  return within(doc.keys, doc.own_key(r), p.mask.left, p.causal ? 0 : p.mask.right);
}

Range rows_seeing(const Problem& p, const Document& doc, int c) {
  return within(doc.rows, c - doc.own_key(0), p.causal ? 0 : p.mask.right, p.mask.left);
}

}  // namespace

size_t bytes_of(DType dtype) { return kTypes[static_cast<int>(dtype)].bytes; }
const char* name_of(DType dtype) { return kTypes[static_cast<int>(dtype)].name; }

float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::f32:
      return x;
    case DType::bf16:
      return round_to_bf16(x);
    case DType::f16:
      return round_to_fp16(x);
    case DType::e4m3:
      return round_to_e4m3(x);
  }
  throw std::logic_error("unknown element type");
}

std::vector<Document> Problem::documents(size_t b) const {
  if (!mask.has_documents()) return {{{0, N}, {0, keys_of(b)}}};
  std::vector<Document> all;
  for (size_t i = 0; i + 1 < mask.row_starts.size(); ++i) all.push_back(document(i));
  return all;
}

Document Problem::document_of(int r, size_t b) const {
  if (!mask.has_documents()) return {{0, N}, {0, keys_of(b)}};
  return document(place_of(r, mask.row_starts));
}

Document Problem::document_of_key(int c, size_t b) const {
  if (!mask.has_documents()) return {{0, N}, {0, keys_of(b)}};
  return document(place_of(c, mask.key_starts));
}

Range Problem::seen(int r, size_t b) const { return keys_seen(*this, document_of(r, b), r); }

Range Problem::seen_by(int c, size_t b) const {
  return rows_seeing(*this, document_of_key(c, b), c);
}

int Problem::visible(int r, size_t b, size_t h) const {
  int n = 0;
  for_runs(r, b * H + h, [&](const Range& keys) {
    if (!mask.predicate.sees) n += keys.size();
    for (int c = keys.first; mask.predicate.sees && c < keys.last; ++c) {
      n += mask.predicate.sees(*this, r, c);
    }
  });
  return n;
}

uint64_t Problem::visible_scores(size_t bh) const {
  if (!mask.is_none()) {
    std::vector<uint64_t> of(N);
    parallel_for(of.size(), [&] {
      return [&](size_t r) { of[r] = visible(static_cast<int>(r), bh / H, bh % H); };
    });
    return std::accumulate(of.begin(), of.end(), uint64_t{0});
  }
  // Causal: each row that sees keys sees one more than the previous row; else all see equally many.
  const Document all = {{0, N}, {0, Nk}};
  const Range rows = rows_seeing(*this, all, 0);
  const uint64_t first = keys_seen(*this, all, rows.first).size();
  const uint64_t last = keys_seen(*this, all, N - 1).size();
  return rows.size() * (first + last) / 2;
}

uint64_t Problem::all_visible_scores() const {
  const size_t different = std::max<size_t>(1, mask.tiles.heads);
  uint64_t sum = 0;
  for (size_t bh = 0; bh < different; ++bh) sum += visible_scores(bh);
  return sum * (heads() / different);
}

double Problem::flops_forward() const {
  if (!mask.is_none()) return 4.0 * all_visible_scores() * d;
  const double keys = cache.lengths.empty()
                          ? static_cast<double>(B) * Nk
                          : std::accumulate(cache.lengths.begin(), cache.lengths.end(), 0.0);
  const double full = 2.0 * H * keys * N * (d + dv());
  return causal ? full / 2 : full;
}

double alibi_slope(int h, int H) { return std::exp2(-8.0 * (h + 1) / H); }

std::string text_of(const Predicate& predicate) {
  return predicate.name + (predicate.n == 0 ? "" : fmt::format(":{}", predicate.n));
}

std::string Support::list_d() const { return list_of(d, ", "); }

void validate(const Problem& p, const Support& support, const std::string& who) {
  for (const Size& size : kSizes) {
    if (size.of == &Problem::d || p.*size.of >= 1) continue;
    refuse("{} {}: must be at least 1", size.flag, p.*size.of);
  }
  if (std::find(support.d.begin(), support.d.end(), p.d) == support.d.end()) {
    refuse("--d {}: {} supports --d {}", p.d, who, support.list_d());
  }
  if (p.method.smem != 0 && !support.smem) {
    refuse("--smem {}: the tiles of {} have a fixed size", p.method.smem, who);
  }
  if (p.Hkv != p.H && !support.gqa) {
    refuse("--hkv {}: {} supports only as many key/value heads as query heads (--h {})", p.Hkv, who,
           p.H);
  }
  if (p.H % p.Hkv != 0) refuse("--hkv {}: --h {} must be a multiple of it", p.Hkv, p.H);
  if (p.Nk != p.N && !support.cross) {
    refuse("--nk {}: {} supports only as many keys as queries (--n {})", p.Nk, who, p.N);
  }
  if (support.most_n != 0 && p.N > support.most_n) {
    refuse("--n {}: {} supports at most {} queries", p.N, who, support.most_n);
  }
  if (p.heads() > kMaxHeads) {
    refuse("--b {} --h {}: their product must be at most {}, the size of a CUDA grid", p.B, p.H,
           kMaxHeads);
  }
  validate_cache(p, support, who);
  validate_mask(p, support, who);
  validate_tiles(p);
  const ScoreMod& mod = p.score_mod;
  if (!mod.is_none() && !support.score_mod) {
    refuse("--{}: {} changes no scores",
           mod.cap != 0 ? fmt::format("cap {:g}", mod.cap)
           : mod.alibi  ? "alibi"
                        : "sinks",
           who);
  }
  if (!(mod.cap == 0 || (mod.cap >= 0x1p-20f && mod.cap <= 0x1p20f))) {
    refuse("--cap {:g}: must be 0, for none, or 2^-20 to 2^20", mod.cap);
  }
  for (const auto& [flag, length] : {std::pair("--n", p.N), std::pair("--nk", p.Nk)}) {
    if (length > kMaxLength) refuse("{} {}: at most {} is supported", flag, length, kMaxLength);
  }
  if (static_cast<double>(p.heads()) * p.N * p.Nk > kMaxScores) {
    refuse(
        "--b {} --h {} --n {} --nk {}: b * h * n * nk must be at most 2^53, so that byte counts "
        "fit 64 bits",
        p.B, p.H, p.N, p.Nk);
  }
}

std::string describe(const Problem& p) {
  std::string text = fmt::format("B={} H={}", p.B, p.H);
  if (p.Hkv != p.H) text += fmt::format(" Hkv={}", p.Hkv);
  text += fmt::format(" N={}", p.N);
  if (p.Nk != p.N) text += fmt::format(" Nk={}", p.Nk);
  text += fmt::format(" d={}", p.d);
  if (p.cache.latent != 0) text += fmt::format(" dv={}", p.cache.latent);
  if (p.causal) text += " causal";
  if (p.mask.has_window()) text += fmt::format(" window={},{}", p.mask.left, p.mask.right);
  if (p.mask.has_documents()) text += fmt::format(" documents={}", p.mask.row_starts.size() - 1);
  if (p.mask.predicate.sees) text += " mask=" + text_of(p.mask.predicate);
  if (p.mask.has_tiles()) {
    text += fmt::format(" tiles={}/{}", p.mask.tiles.count(), p.mask.tiles.kept->size());
  }
  if (p.score_mod.cap != 0) text += fmt::format(" cap={:g}", p.score_mod.cap);
  if (p.score_mod.alibi) text += " alibi";
  if (p.score_mod.sinks) text += " sinks";
  if (p.method.smem != 0) text += fmt::format(" smem={}", p.method.smem);
  if (!p.cache.lengths.empty()) {
    const auto [least, most] = std::minmax_element(p.cache.lengths.begin(), p.cache.lengths.end());
    text += *least == *most ? fmt::format(" lengths={}", *most)
                            : fmt::format(" lengths={}..{}", *least, *most);
  }
  if (p.cache.page != 0) text += fmt::format(" page={}", p.cache.page);
  text += std::string(" ") + name_of(p.dtype);
  return p.cache.fp8 ? text + " fp8 cache" : text;
}

}  // namespace fa
