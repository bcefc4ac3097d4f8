#include "common/harness/problem.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/harness/format.h"

namespace fa {
namespace {

constexpr int kMaxLength = 1 << 28;    // sums of a few lengths and tiles still fit an int
constexpr int kMaxHeads = 65535;       // gridDim.y and gridDim.z
constexpr double kMaxScores = 0x1p53;  // bytes and FLOPs of any step stay below 2^64

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

std::string list_of(const std::vector<int>& values, const char* between = ",") {
  std::string list;
  for (const int each : values) list += (list.empty() ? "" : between) + std::to_string(each);
  return list;
}

constexpr int kPages[] = {16, 32, 64, 128, 256};

/// "0,1,700", or the first few of many.
std::string short_list(std::vector<int> values) {
  constexpr size_t kShown = 8;
  const bool all = values.size() <= kShown;
  if (!all) values.resize(kShown);
  return list_of(values) + (all ? "" : ",...");
}

void validate_cache(const Problem& p, const Support& support, const std::string& who) {
  if (!p.cache.lengths.empty() && !support.lengths) {
    throw UsageError(
        fmt::format("--lengths {}: {} supports only as many keys in each batch entry "
                    "(--nk {})",
                    short_list(p.cache.lengths), who, p.Nk));
  }
  if (!p.cache.lengths.empty() && p.cache.lengths.size() != static_cast<size_t>(p.B)) {
    throw UsageError(fmt::format("--lengths {}: must be one for each batch entry, --b {}",
                                 short_list(p.cache.lengths), p.B));
  }
  for (const int length : p.cache.lengths) {
    if (length >= 0 && length <= p.Nk) continue;
    throw UsageError(
        fmt::format("--lengths {}: each must be 0 to {}, the keys of --nk", length, p.Nk));
  }
  if (p.cache.page == 0) return;
  if (!support.pages) {
    throw UsageError(fmt::format("--page {}: {} has no paged cache", p.cache.page, who));
  }
  if (std::find(std::begin(kPages), std::end(kPages), p.cache.page) == std::end(kPages)) {
    throw UsageError(fmt::format("--page {}: {} supports pages of 16, 32, 64, 128 or 256 keys",
                                 p.cache.page, who));
  }
}

}  // namespace

size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::e4m3:
      return 1;
  }
  throw std::logic_error("unknown element type");
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::e4m3:
      return "e4m3";
  }
  throw std::logic_error("unknown element type");
}

float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::f32:
      return x;
    case DType::bf16:
      return round_to_bf16(x);
    case DType::e4m3:
      return round_to_e4m3(x);
  }
  throw std::logic_error("unknown element type");
}

uint64_t Problem::visible_scores() const {
  const uint64_t rows = N, keys = Nk;
  if (!causal) return rows * keys;
  // A triangle of the rows that see 1, 2, ... keys, and what every row sees before it.
  const uint64_t side = std::min(rows, keys);
  return side * (side + 1) / 2 + (keys > rows ? rows * (keys - rows) : 0);
}

double Problem::flops_forward() const {
  const double keys = cache.lengths.empty()
                          ? static_cast<double>(B) * Nk
                          : std::accumulate(cache.lengths.begin(), cache.lengths.end(), 0.0);
  const double full = 4.0 * H * keys * N * d;
  return causal ? full / 2 : full;
}

std::string Support::list_d() const { return list_of(d, ", "); }

void validate(const Problem& p, const Support& support, const std::string& who) {
  for (const Size& size : kSizes) {
    if (size.of == &Problem::d || p.*size.of >= 1) continue;
    throw UsageError(fmt::format("{} {}: must be at least 1", size.flag, p.*size.of));
  }
  if (std::find(support.d.begin(), support.d.end(), p.d) == support.d.end()) {
    throw UsageError(fmt::format("--d {}: {} supports --d {}", p.d, who, support.list_d()));
  }
  if (p.method.smem != 0 && !support.smem) {
    throw UsageError(
        fmt::format("--smem {}: the tiles of {} have a fixed size", p.method.smem, who));
  }
  if (p.Hkv != p.H && !support.gqa) {
    throw UsageError(
        fmt::format("--hkv {}: {} supports only as many key/value heads as query heads (--h {})",
                    p.Hkv, who, p.H));
  }
  if (p.H % p.Hkv != 0) {
    throw UsageError(fmt::format("--hkv {}: --h {} must be a multiple of it", p.Hkv, p.H));
  }
  if (p.Nk != p.N && !support.cross) {
    throw UsageError(
        fmt::format("--nk {}: {} supports only as many keys as queries (--n {})", p.Nk, who, p.N));
  }
  if (support.most_n != 0 && p.N > support.most_n) {
    throw UsageError(
        fmt::format("--n {}: {} supports at most {} queries", p.N, who, support.most_n));
  }
  validate_cache(p, support, who);
  for (const auto& [flag, length] : {std::pair("--n", p.N), std::pair("--nk", p.Nk)}) {
    if (length > kMaxLength) {
      throw UsageError(fmt::format("{} {}: at most {} is supported", flag, length, kMaxLength));
    }
  }
  if (p.heads() > kMaxHeads) {
    throw UsageError(
        fmt::format("--b {} --h {}: their product must be at most {}, the size of a CUDA grid", p.B,
                    p.H, kMaxHeads));
  }
  if (static_cast<double>(p.heads()) * p.N * p.Nk > kMaxScores) {
    throw UsageError(fmt::format(
        "--b {} --h {} --n {} --nk {}: b * h * n * nk must be at most 2^53, so that byte counts "
        "fit 64 bits",
        p.B, p.H, p.N, p.Nk));
  }
}

std::string describe(const Problem& p) {
  std::string text = fmt::format("B={} H={}", p.B, p.H);
  if (p.Hkv != p.H) text += fmt::format(" Hkv={}", p.Hkv);
  text += fmt::format(" N={}", p.N);
  if (p.Nk != p.N) text += fmt::format(" Nk={}", p.Nk);
  text += fmt::format(" d={}", p.d);
  if (p.causal) text += " causal";
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
