#include "common/harness/inputs.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/harness/npy.h"
#include "common/harness/parallel.h"

namespace fa {
namespace {

// --- random numbers ------------------------------------------------------------------------------
// std::normal_distribution differs between libraries, so numbers are a hash of (seed, stream,
// index), which any thread can compute for any element.

constexpr uint64_t kStreams = 4;           // of Q, K, V and dO, in this order
constexpr uint64_t kTable = 2 * kStreams;  // after the streams of the outliers

// The output function of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Element i of an endless random sequence, uniform in (0, 1).
class Uniform {
 public:
  Uniform(uint64_t seed, uint64_t stream) : key_(mix(seed * kStreams + stream + 1)) {}
  double operator()(uint64_t i) const {
    const uint64_t bits = mix(key_ + (i + 1) * 0x9e3779b97f4a7c15);
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  }

 private:
  uint64_t key_;
};

// N(0,1) by Box and Muller, from elements 2i and 2i + 1 of `u`.
double normal(const Uniform& u, uint64_t i) {
  const double z = std::sqrt(-2 * std::log(u(2 * i))) * std::cos(2 * M_PI * u(2 * i + 1));
  return std::nearbyint(z * 0x1p16) * 0x1p-16;  // drops the last bit, in which libraries differ
}

using Generator = std::function<double(uint64_t)>;

std::vector<float> generate(size_t n, DType dtype, const Generator& value) {
  constexpr size_t kChunk = 1 << 14;
  std::vector<float> data(n);
  parallel_for((n + kChunk - 1) / kChunk, [&] {
    return [&](size_t chunk) {
      for (size_t i = chunk * kChunk; i < std::min(n, (chunk + 1) * kChunk); ++i) {
        data[i] = round_to(dtype, static_cast<float>(value(i)));
      }
    };
  });
  return data;
}

std::vector<float> normal_tensor(size_t n, DType dtype, uint64_t seed, uint64_t stream) {
  const Uniform u(seed, stream);
  return generate(n, dtype, [u](uint64_t i) { return normal(u, i); });
}

std::vector<float> outlier_tensor(size_t n, DType dtype, uint64_t seed, uint64_t stream) {
  const Uniform u(seed, stream);
  const Uniform chance(~seed, stream), spread(~seed, stream + kStreams);
  return generate(n, dtype, [=](uint64_t i) {
    return normal(u, i) + (chance(i) < 0.001 ? 10 * normal(spread, i) : 0.0);
  });
}

/// The tensors that files may give: Q, K, V and dO, numbered by stream.
void each_input(auto&& f) {
  uint64_t stream = 0;
  for (const Tensor& t : all_tensors()) {
    if (t.file) f(t, stream++);
  }
}

// --- a cache -------------------------------------------------------------------------------------

/// Quantises K or V to scale * e4m3. \returns the scales [B, Hkv]
std::vector<float> quantise_heads(const Problem& p, std::vector<float>& tensor) {
  constexpr float kLeast = FLT_MIN * 0x1p9f;  // its products with e4m3 are also normal numbers
  std::vector<float> scales(p.kv_heads(), 1);
  parallel_for(p.kv_heads(), [&] {
    return [&](size_t head) {
      const size_t d = p.d;
      float* first = tensor.data() + head * p.Nk * d;
      float* last = first + p.keys_of(head / p.Hkv) * d;
      float largest = 0;
      for (const float* x = first; x < last; ++x) largest = std::max(largest, std::abs(*x));
      if (largest > 0) scales[head] = std::max(largest / 448, kLeast);
      for (float* x = first; x < last; ++x) {
        *x = scales[head] * round_to(DType::e4m3, *x / scales[head]);
      }
    };
  });
  return scales;
}

/// Adds what a problem has besides Q, K, V and dO.
Inputs completed(const Problem& p, uint64_t seed, Inputs in) {
  if (p.cache.fp8) quantise_cache(p, in);
  if (p.score_mod.sinks) in.sinks = normal_tensor(p.H, DType::f32, seed, 2 * kStreams);
  return in;
}

int pages_of(const Problem& p, int b) { return (p.keys_of(b) + p.cache.page - 1) / p.cache.page; }

size_t entry_of(const Problem& p, int b, int i) { return static_cast<size_t>(b) * p.pages() + i; }

// --- the shipped activations ---------------------------------------------------------------------

Npy read_real(const std::string& name) {
  Npy npy = read_npy(data_file(name));
  if (npy.shape.size() != 4 || npy.shape[0] != 1 || npy.data.empty()) {
    refuse("{}: holds {} instead of [1, heads, tokens, features]", data_file(name),
           text_of(npy.shape));
  }
  return npy;
}

// [heads, n, p.d] from the file's [1, H, N, d]. Row r is token r + first_token(head) of the text.
std::vector<float> resample(const Npy& from, const Problem& p, size_t heads, int n,
                            const auto& first_token, double factor) {
  const auto H = from.shape[1], N = from.shape[2], d = from.shape[3];
  std::vector<float> to(heads * n * p.d);
  parallel_for(heads, [&] {
    return [&](size_t head) {
      size_t i = head * n * p.d;
      for (int r = 0; r < n; ++r) {
        const int64_t token = static_cast<int64_t>(r) + first_token(head);
        const auto length = static_cast<int64_t>(N);
        const size_t row = (head % H) * N + static_cast<size_t>((token % length + length) % length);
        for (int x = 0; x < p.d; ++x) {
          const size_t feature = static_cast<size_t>(x) * d / p.d;
          to[i++] = round_to(p.dtype, static_cast<float>(factor * from.data[row * d + feature]));
        }
      }
    };
  });
  return to;
}

std::string note_on_real(const Npy& from, const Problem& p) {
  std::string changes;
  auto add = [&](const std::string& change) { changes += (changes.empty() ? "" : ", ") + change; };
  const auto H = from.shape[1], N = from.shape[2], d = from.shape[3];
  const size_t longest = std::max(p.N, p.Nk);
  if (longest > N) add(fmt::format("tiled from N={} to N={}", N, longest));
  if (longest < N) add(fmt::format("cut from N={} to N={}", N, longest));
  if (p.heads() > H) add(fmt::format("repeated from {} to {} heads", H, p.heads()));
  if (static_cast<size_t>(p.d) != d) add(fmt::format("resampled from d={} to d={}", d, p.d));
  return changes.empty() ? "" : "real input " + changes;
}

// --- files ---------------------------------------------------------------------------------------

struct GivenFile {
  std::string path;
  Npy npy;
};

std::optional<GivenFile> read_tensor(const std::string& path) {
  if (path.empty()) return std::nullopt;
  GivenFile file{path, read_npy(path)};
  if (file.npy.shape.size() != 4) {
    refuse("{}: its shape is {}, not [B, H, N, d]", path, text_of(file.npy.shape));
  }
  for (const size_t n : file.npy.shape) {
    if (n < 1 || n > (1u << 30)) {
      refuse("{}: its shape {} has a size that is not supported", path, text_of(file.npy.shape));
    }
  }
  return file;
}

// Two files must agree on the sizes (indices into [B, H, N, d]) in `dims`.
void require_same(const std::optional<GivenFile>& a, const std::optional<GivenFile>& b,
                  const std::vector<int>& dims) {
  if (!a || !b) return;
  for (const int i : dims) {
    if (a->npy.shape[i] != b->npy.shape[i]) {
      refuse("{} and {}: their shapes {} and {} differ in {}", a->path, b->path,
             text_of(a->npy.shape), text_of(b->npy.shape),
             std::vector{"B", "the heads", "the length", "d"}[i]);
    }
  }
}

/// Does element i of K or V belong to a key? After an entry's keys they may hold anything.
bool is_key(const Problem& p, size_t i) {
  const size_t row = i / p.d, Nk = p.Nk;
  return row % Nk < static_cast<size_t>(p.keys_of(row / Nk / p.Hkv));
}

/// \param used  whether element i is read
void load_tensor(const std::string& path, const std::vector<size_t>& shape, DType dtype,
                 std::vector<float>& to, const auto& used) {
  const auto file = read_tensor(path);
  if (!file) return;
  if (file->npy.shape != shape) {
    refuse("{}: its shape is {}, but the problem's is {}", path, text_of(file->npy.shape),
           text_of(shape));
  }
  to.resize(file->npy.data.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = round_to(dtype, file->npy.data[i]);
    if (!std::isfinite(to[i]) && used(i)) {
      refuse("{}: element {} is {}, which {} cannot hold as a number", path, i, file->npy.data[i],
             name_of(dtype));
    }
  }
}

}  // namespace

Inputs normal_inputs(const Problem& p, uint64_t seed, bool with_dO) {
  Inputs in;
  each_input([&](const Tensor& t, uint64_t stream) {
    if (t.role == Role::input || with_dO)
      in.*t.input = normal_tensor(t.elements(p), p.dtype, seed, stream);
  });
  return completed(p, seed, std::move(in));
}

Inputs outlier_inputs(const Problem& p, uint64_t seed, bool with_dO) {
  Inputs in;
  each_input([&](const Tensor& t, uint64_t stream) {
    const auto make = t.role == Role::input ? outlier_tensor : normal_tensor;
    if (t.role == Role::input || with_dO) in.*t.input = make(t.elements(p), p.dtype, seed, stream);
  });
  return completed(p, seed, std::move(in));
}

Inputs real_inputs(const Problem& p, uint64_t seed, bool with_dO) {
  const Npy q = read_real("q.npy"), k = read_real("k.npy"), v = read_real("v.npy");
  if (q.shape != k.shape || q.shape != v.shape) {
    refuse("{}: its shape differs from those of k.npy and v.npy", data_file("q.npy"));
  }
  // The queries are the last N positions of their entry, as in the mask. With repeated features q.k
  // grows with d, but its scale falls with sqrt(d): the factor preserves the scores' size.
  const double factor = std::pow(static_cast<double>(q.shape[3]) / p.d, 0.25);
  Inputs in;
  const auto first_query = [&p](size_t head) { return p.keys_of(head / p.H) - p.N; };
  const auto first_key = [](size_t) { return 0; };
  in.Q = resample(q, p, p.heads(), p.N, first_query, factor);
  in.K = resample(k, p, p.kv_heads(), p.Nk, first_key, factor);
  in.V = resample(v, p, p.kv_heads(), p.Nk, first_key, 1);
  if (with_dO) in.dO = normal_tensor(p.q_size(), p.dtype, seed, kStreams - 1);
  in.note = note_on_real(q, p);
  return completed(p, seed, std::move(in));
}

Problem problem_of(const InputFiles& files, const Problem& defaults) {
  const auto q = read_tensor(files.q), k = read_tensor(files.k), v = read_tensor(files.v),
             dO = read_tensor(files.dO);
  require_same(q, dO, {0, 1, 2, 3});
  require_same(k, v, {0, 1, 2, 3});
  for (const auto* queries : {&q, &dO}) {
    for (const auto* keys : {&k, &v}) require_same(*queries, *keys, {0, 3});
  }

  Problem p = defaults;
  const auto& queries = q ? q : dO;
  const auto& keys = k ? k : v;
  auto size = [](const std::optional<GivenFile>& file, int i) {
    return static_cast<int>(file->npy.shape[i]);
  };
  if (queries || keys) {
    p.B = size(queries ? queries : keys, 0);
    p.d = size(queries ? queries : keys, 3);
  }
  if (queries) p.H = size(queries, 1), p.N = size(queries, 2);
  if (keys) p.Hkv = size(keys, 1), p.Nk = size(keys, 2);
  // Sizes without a file follow the others where the defaults are equal.
  if (queries && !keys) {
    if (defaults.Hkv == defaults.H) p.Hkv = p.H;
    if (defaults.Nk == defaults.N) p.Nk = p.N;
  }
  if (keys && !queries) {
    if (defaults.Hkv == defaults.H) p.H = p.Hkv;
    if (defaults.Nk == defaults.N) p.N = p.Nk;
  }
  return p;
}

void load_inputs(const InputFiles& files, const Problem& p, Inputs& in) {
  each_input([&](const Tensor& t, uint64_t) {
    load_tensor(files.*t.file, t.shape(p), p.dtype, in.*t.input,
                [&](size_t i) { return !t.is_kv() || is_key(p, i); });
  });
  if (p.cache.fp8) quantise_cache(p, in);
}

void require_range(const Problem& p, const Inputs& in, bool backward) {
  const auto largest = [&p](const std::vector<float>& tensor, bool keys) {
    double size = 0;
    for (size_t i = 0; i < tensor.size(); ++i) {
      if (!keys || is_key(p, i)) size = std::max<double>(size, std::abs(tensor[i]));
    }
    return size;
  };
  const double Q = largest(in.Q, false), K = largest(in.K, true);
  const double V = largest(values_of(p, in), true);
  const double dO = backward ? largest(in.dO, false) : 0;
  if (p.method.fp8 && std::sqrt(p.d) * std::max({Q, K, V}) > FLT_MAX) {
    refuse(
        "Q reaches {:.1e}, K {:.1e} and V {:.1e}: sums of a row may pass "
        "{:.1e}, where fp32 ends; scale them down",
        Q, K, V, FLT_MAX);
  }
  if (0x1p8 * p.Nk * V > FLT_MAX && !p.method.fp8 && !p.cache.fp8) {
    refuse("V reaches {:.1e}: sums of P V may pass {:.1e}, where fp32 ends; scale V down", V,
           FLT_MAX);
  }
  // Bounds of dP and delta; then of dS K, where P sums to 1, and of dS^T Q.
  const double dP = 2 * p.d * dO * V, rows = static_cast<double>(p.N) * (p.H / p.Hkv);
  if (dP * std::max({1.0, p.scale() * K, p.scale() * rows * Q}) > FLT_MAX) {
    refuse(
        "dO reaches {:.1e}, V {:.1e}, Q {:.1e} and K {:.1e}: gradients or "
        "dO V^T may pass {:.1e}, where fp32 ends; scale dO down",
        dO, V, Q, K, FLT_MAX);
  }
  if (dP > 0 && dP < FLT_MIN / FLT_EPSILON) {
    refuse(
        "dO ends at {:.1e} and V at {:.1e}: dO V^T stays below {:.1e}, "
        "where fp32 loses digits; scale dO up",
        dO, V, FLT_MIN / FLT_EPSILON);
  }
}

void quantise_cache(const Problem& p, Inputs& in) {
  in.K_scale = quantise_heads(p, in.K);
  in.V_scale = quantise_heads(p, in.V);
}

// --- pages ---------------------------------------------------------------------------------------

size_t needed_pages(const Problem& p) {
  size_t n = 0;
  for (int b = 0; b < p.B; ++b) n += pages_of(p, b);
  return n;
}

size_t pool_pages(const Problem& p, const std::vector<int>& table) {
  int last = 0;
  for (int b = 0; b < p.B; ++b) {
    for (int i = 0; i < pages_of(p, b); ++i) last = std::max(last, table[entry_of(p, b, i)]);
  }
  return static_cast<size_t>(last) + 1;
}

std::vector<int> shuffled_table(const Problem& p, uint64_t seed) {
  std::vector<int> order(needed_pages(p));
  std::iota(order.begin(), order.end(), 0);
  const Uniform u(seed, kTable);
  for (size_t i = order.size(); i-- > 1;) {  // Fisher and Yates
    std::swap(order[i], order[static_cast<size_t>(u(i) * static_cast<double>(i + 1))]);
  }
  std::vector<int> table(static_cast<size_t>(p.B) * p.pages(), -1);
  auto next = order.begin();
  for (int b = 0; b < p.B; ++b) {
    for (int i = 0; i < pages_of(p, b); ++i) table[entry_of(p, b, i)] = *next++;
  }
  return table;
}

void validate_table(const Problem& p, const std::vector<int>& table, const std::string& who) {
  const size_t most = static_cast<size_t>(p.B) * p.pages();
  if (table.size() != most) {
    refuse(
        "{}: has {} entries, but the problem's {} batch entries of up to "
        "{} keys have {} pages of {} each",
        who, table.size(), p.B, p.Nk, p.pages(), p.cache.page);
  }
  std::vector<std::pair<int, int>> owner(most, {-1, -1});
  for (int b = 0; b < p.B; ++b) {
    for (int i = 0; i < pages_of(p, b); ++i) {
      const int page = table[entry_of(p, b, i)];
      if (page < 0 || static_cast<size_t>(page) >= most) {
        refuse("{}: entry [{}, {}] is {}, but the pool has the pages 0 to {}", who, b, i, page,
               most - 1);
      }
      const auto [other_b, other_i] = owner[page];
      if (other_b >= 0) {
        refuse(
            "{}: entry [{}, {}] is {}, as entry [{}, {}] is, but a page "
            "holds the keys of one entry",
            who, b, i, page, other_b, other_i);
      }
      owner[page] = {b, i};
    }
  }
}

std::vector<int> load_table(const std::string& path, const Problem& p) {
  const std::string who = "--table " + path;
  const NpyIntegers npy = read_npy_integers(path);
  const std::vector<size_t> shape = {static_cast<size_t>(p.B), static_cast<size_t>(p.pages())};
  if (npy.shape != shape) {
    refuse("{}: its shape is {}, but {} batch entries of up to {} keys in pages of {} need {}", who,
           text_of(npy.shape), p.B, p.Nk, p.cache.page, text_of(shape));
  }
  std::vector<int> table;
  for (const int64_t page : npy.data) {
    constexpr int kMost = std::numeric_limits<int>::max();  // of no pool, as is -1
    table.push_back(page < 0 ? -1 : static_cast<int>(std::min<int64_t>(page, kMost)));
  }
  validate_table(p, table, who);
  return table;
}

}  // namespace fa
