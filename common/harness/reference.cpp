#include "common/harness/reference.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/harness/norms.h"
#include "common/harness/parallel.h"

namespace fa {
namespace {

// --- two precisions, one algorithm ---------------------------------------------------------------

/// Everything in double.
struct Fp64 {
  using Real = double;
  double round(double x) const { return x; }
  double probability(double p, double l) const { return p / l; }
  bool rounds() const { return false; }
};

/// Sums in fp32; values that a textbook kernel stores are rounded to the problem's type.
struct Unfused {
  using Real = float;
  DType dtype;
  float round(float x) const { return round_to(dtype, x); }
  float probability(float p, float l) const { return round(p / l); }
  bool rounds() const { return dtype != DType::f32; }
};

/// Sums in fp32 of e4m3; scores stay in registers, O is rounded to the problem's type.
struct Quantised {
  using Real = float;
  DType dtype;
  float round(float x) const { return round_to(dtype, x); }
  float probability(float p, float l) const {
    constexpr float kScale = 256;  // the largest numerator, 1, stays below 448
    return round_to(DType::e4m3, p * kScale) / kScale / l;
  }
  bool rounds() const { return false; }
};

/// Values of e4m3 and a scale that makes the largest 448 / headroom.
std::vector<float> quantised(const std::vector<float>& tensor, float headroom) {
  const auto most = static_cast<float>(largest(tensor));
  const float scale = most > 0 ? most * headroom / 448 : 1;
  std::vector<float> rounded(tensor.size());
  parallel_chunks(tensor.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      rounded[i] = round_to(DType::e4m3, tensor[i] / scale) * scale;
    }
  });
  return rounded;
}

// --- matrices ------------------------------------------------------------------------------------

constexpr size_t kBlock =
    16;  // rows that a thread takes at a time: each element of a matrix serves all

/// A block of up to kBlock rows.
template <class Real>
struct Block {
  size_t width = 0;
  std::vector<Real> data;  // [kBlock, width]

  void resize(size_t width_) {
    width = width_;
    data.assign(kBlock * width, 0);
  }
  void load(const float* from, size_t row) { std::copy_n(from, width, (*this)[row]); }
  Real* operator[](size_t row) { return &data[row * width]; }
  const Real* operator[](size_t row) const { return &data[row * width]; }
};

/// A matrix in panels of kWidth columns, zero-padded: the sums of one panel stay in registers while
/// its rows stream by, and each sum adds its terms in row order.
template <class Real>
struct Panels {
  // Four sums of 32 bytes hide an addition's latency. A vector or array leaves registers (g++ 12).
  using Vector [[gnu::vector_size(32)]] = Real;
  using InMemory [[gnu::vector_size(32), gnu::aligned(alignof(Real)), gnu::may_alias]] = Real;
  static constexpr int kLanes = sizeof(Vector) / sizeof(Real), kWidth = 4 * kLanes;
  int rows = 0;
  int columns = 0;
  std::vector<Real> data;  // [ceil(columns / kWidth), rows, kWidth]

  /// Element (i, j) is from[i * row_stride + j * column_stride].
  void fill(const float* from, int rows_, int columns_, size_t row_stride, size_t column_stride) {
    rows = rows_;
    columns = columns_;
    data.assign(static_cast<size_t>((columns + kWidth - 1) / kWidth) * rows * kWidth, 0);
    constexpr int kRows = 64;  // at a time, so that the caches hold them
    for (int first = 0; first < rows; first += kRows) {
      for (int j = 0; j < columns; ++j) {
        Real* column = &data[static_cast<size_t>(j / kWidth) * rows * kWidth + j % kWidth];
        for (int i = first; i < std::min(rows, first + kRows); ++i) {
          column[static_cast<size_t>(i) * kWidth] =
              static_cast<Real>(from[i * row_stride + j * column_stride]);
        }
      }
    }
  }
  /// The matrix `from` [n, d] itself: columns are features.
  void fill_rows(const float* from, int n, int d) { fill(from, n, d, d, 1); }
  /// Its transpose [d, n]: columns are tokens.
  void fill_transposed(const float* from, int n, int d) { fill(from, d, n, 1, d); }

  [[gnu::always_inline]] void multiply_here(const Block<Real>& a, const std::vector<Range>& terms,
                                            const std::vector<Range>& wanted,
                                            Block<Real>& out) const {
    for (int start = 0; start < columns; start += kWidth) {
      const Real* panel = data.data() + static_cast<size_t>(start) * rows;  // null without rows
      for (size_t k = 0; k < terms.size(); ++k) {
        const int begin = std::max(wanted[k].first, start);
        const int end = std::min(wanted[k].last, start + kWidth);
        if (begin >= end) continue;
        Vector s0 = {}, s1 = {}, s2 = {}, s3 = {};
        for (int i = terms[k].first; i < terms[k].last; ++i) {
          const auto* b =
              reinterpret_cast<const InMemory*>(panel + static_cast<size_t>(i) * kWidth);
          const Real factor = a[k][i];
          s0 += factor * b[0];
          s1 += factor * b[1];
          s2 += factor * b[2];
          s3 += factor * b[3];
        }
        const Vector sums[] = {s0, s1, s2, s3};
        for (int j = begin; j < end; ++j)
          out[k][j] = sums[(j - start) / kLanes][(j - start) % kLanes];
      }
    }
  }
};

// The widest registers that leave results unchanged: AVX-512 would bring fused multiply-adds.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define FA_WIDE_REGISTERS [[gnu::target_clones("avx2", "default")]]
#else
#define FA_WIDE_REGISTERS
#endif

/// out[k][j] = sum of a[k][i] * B(i, j) over i in terms[k], for j in wanted[k]: one row per k.
FA_WIDE_REGISTERS
void multiply(const Block<double>& a, const Panels<double>& B, const std::vector<Range>& terms,
              const std::vector<Range>& wanted, Block<double>& out) {
  B.multiply_here(a, terms, wanted, out);
}
FA_WIDE_REGISTERS
void multiply(const Block<float>& a, const Panels<float>& B, const std::vector<Range>& terms,
              const std::vector<Range>& wanted, Block<float>& out) {
  B.multiply_here(a, terms, wanted, out);
}

/// For each of d features, over n rows.
std::vector<double> rms_of_features(const float* a, int n, int d) {
  std::vector<double> of(d, 0);
  for (int r = 0; r < n; ++r) {
    for (int x = 0; x < d; ++x) of[x] += static_cast<double>(a[x]) * a[x];
    a += d;
  }
  for (double& squares : of) squares = n == 0 ? 0 : std::sqrt(squares / n);
  return of;
}

double rms(const float* a, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * a[i];
  return std::sqrt(sum / static_cast<double>(n));
}

// --- forward -------------------------------------------------------------------------------------

constexpr size_t kNoHead = std::numeric_limits<size_t>::max();

struct Item {
  size_t head;
  size_t begin, end;  // a range of the sample (forward) or of the head's rows (backward)
  size_t size() const { return end - begin; }
};

template <class Real>
struct Modified {
  Real cap, slope;  // of ALiBi
  Modified(const Problem& p, size_t head)
      : cap(p.score_mod.cap),
        slope(p.score_mod.alibi ? alibi_slope(static_cast<int>(head % p.H), p.H) : 0) {}

  /// The modified score, and its derivative by s.
  std::pair<Real, Real> operator()(Real s, int distance) const {
    Real change = 1;
    if (cap > 0) {
      const Real t = std::tanh(s / cap);
      s = cap * t, change = 1 - t * t;
    }
    return {s - slope * static_cast<Real>(std::abs(distance)), change};
  }
};

/// P of a block of rows: scores, softmax and statistics.
template <class A>
struct Softmax {
  using Real = typename A::Real;
  Block<Real> P;
  Block<Real> change;   // derivative of the score by scale * q k; only with ScoreMod::cap
  Real sink[kBlock];    // P of it
  double bias[kBlock];  // sum of P times ALiBi's reduction of the score
  Real m[kBlock], l[kBlock];
  Real LSE[kBlock];     // of the unrounded scores: no kernel that writes LSE stores S
  double size[kBlock];  // sum of P |S|; only in fp64

  /// S = scale * q K^T for the keys that each row sees, then P = exp(S - m) / l. A row that sees
  /// none has m = -inf, l = 0. P is 0 for a key within `seen` that Problem::leaves() hides.
  /// \param head  of B*H
  /// \param rows  of their head
  /// \param sinks  Inputs::sinks
  void compute(const A& arithmetic, const Block<Real>& q, const Panels<Real>& K_transposed,
               const Problem& problem, size_t head, const std::vector<int>& rows,
               const std::vector<float>& sinks, const std::vector<Range>& features,
               const std::vector<Range>& seen) {
    const Real scale = problem.scale();
    const ScoreMod& mod = problem.score_mod;
    const Modified<Real> modified(problem, head);
    const Real sink_score = mod.sinks ? sinks[head % problem.H] : -INFINITY;
    const bool tests = problem.mask.predicate.sees || problem.mask.has_tiles();
    multiply(q, K_transposed, features, seen, P);
    if (mod.cap > 0) change.resize(P.width);
    for (size_t k = 0; k < seen.size(); ++k) {
      Real* p = P[k];
      const int first = seen[k].first, last = seen[k].last;
      const int own =
          mod.alibi ? problem.document_of(rows[k], head / problem.H).own_key(rows[k]) : 0;
      m[k] = LSE[k] = sink_score;
      l[k] = size[k] = sink[k] = bias[k] = 0;
      bool any = sink_score > -INFINITY;
      for (int c = first; c < last; ++c) {
        const bool is_seen = !tests || problem.leaves(rows[k], c, head);
        p[c] = is_seen ? p[c] * scale : -INFINITY;
        if (is_seen && !mod.is_none()) {
          Real slope;
          std::tie(p[c], slope) = modified(p[c], own - c);
          if (mod.cap > 0) change[k][c] = slope;
        }
        m[k] = std::max(m[k], p[c]);
        any |= is_seen;
      }
      if (!any) {
        std::fill(p + first, p + last, Real(0));
        continue;
      }
      if (arithmetic.rounds()) {
        Real sum = std::exp(sink_score - m[k]);
        for (int c = first; c < last; ++c) sum += std::exp(p[c] - m[k]);
        LSE[k] = m[k] + std::log(sum);
        for (int c = first; c < last; ++c) p[c] = arithmetic.round(p[c]);
        if (m[k] != sink_score) m[k] = std::max(sink_score, arithmetic.round(m[k]));
      }
      l[k] = std::exp(sink_score - m[k]);
      for (int c = first; c < last; ++c) {
        const Real s = p[c];
        p[c] = std::exp(s - m[k]);
        l[k] += p[c];
        if constexpr (std::is_same_v<A, Fp64>) {
          size[k] += s == -INFINITY ? 0 : p[c] * std::abs(s);
          if (mod.alibi) bias[k] += p[c] * modified.slope * std::abs(own - c);
        }
      }
      sink[k] = std::exp(sink_score - m[k]) / l[k];
      if (l[k] > 0) size[k] /= l[k], bias[k] /= l[k];
      if (!arithmetic.rounds()) LSE[k] = m[k] + std::log(l[k]);
      for (int c = first; c < last; ++c) p[c] = arithmetic.probability(p[c], l[k]);
    }
  }
};

/// Sizes of the scores of a head, for error bounds.
struct ScoreSizes {
  std::vector<double> k_norms, k_largest;  // of the keys
  std::vector<double> k_rms;               // of the features
  double largest_k = 0;

  ScoreSizes() = default;
  ScoreSizes(const float* K, int keys, int d) : k_rms(rms_of_features(K, keys, d)) {
    for (int c = 0; c < keys; ++c) {
      k_norms.push_back(norm(K + static_cast<size_t>(c) * d, d));
      k_largest.push_back(largest_size(K + static_cast<size_t>(c) * d, d));
    }
    for (const double k : k_norms) largest_k = std::max(largest_k, k);
  }

  /// As ReferenceForward::score_bound.
  double bound(const float* q, const double* P, const Range& seen, const Problem& p) const {
    double mean = 0;
    for (int c = seen.first; c < seen.last; ++c) mean += P[c] * k_norms[c];
    return p.scale() * norm(q, p.d) * std::min(largest_k, 2 * mean);
  }
  /// As ReferenceForward::sum_error. d additions round by up to 2^-24 each, in either direction:
  /// four times the usual error. A tensor-core instruction of 16 products truncates each product
  /// and the sum so far below 2^-25 of the largest, and the new sum below 2^-23, all toward zero,
  /// of a sum as large as `bound` from its first products on; smaller sums lose in proportion.
  /// \param size  the row's sum of P |S|; where products cancel, the largest feature's counts
  double sum_error(const float* q, double size, double bound, const Problem& p) const {
    for (int x = 0; x < p.d; ++x) size = std::max(size, p.scale() * std::abs(q[x]) * k_rms[x]);
    if (bound == 0) return 0;
    const double rounded = 4 * std::sqrt(p.d / 3.) * 0x1p-24;
    const double cut_off = p.d / 16. * (17 * 0x1p-25 + 0x1p-23);
    const double each = p.dtype == DType::f32 ? rounded : std::max(rounded, cut_off);
    return each * size * std::min(1., size / bound);
  }
};

constexpr double kE4m3Error = 2 * 0x1p-4;  // of a score, as in check.cpp

/// The weight of the square of each key's P in a root. Equal keys (and values) have equal errors,
/// which add up: n of them count n^2 times, so the n-th counts n^2 - (n - 1)^2.
std::vector<double> weights_of_keys(const float* K, const float* V, int keys, int d) {
  const auto bytes_of = [&](const float* row) {
    return std::string_view(reinterpret_cast<const char*>(row), d * sizeof *row);
  };
  std::map<std::pair<std::string_view, std::string_view>, int> copies;
  std::vector<double> weights;
  for (int c = 0; c < keys; ++c, K += d, V += d) {
    weights.push_back(2 * ++copies[{bytes_of(K), bytes_of(V)}] - 1);
  }
  return weights;
}

/// The roots of a block of rows, whose P, q and panels `w` holds. Squares P and q. Also covers
/// scores whose terms are spread evenly over the features: a kernel may rotate Q and K.
template <class Worker>
void roots(Worker& w, const Problem& p, size_t begin, ReferenceForward& out) {
  auto& P = w.softmax.P;
  double q_squares[kBlock] = {};  // of scale q, over its features, over d
  multiply(P, w.K, w.seen, w.features, w.o);
  for (size_t k = 0; k < w.seen.size(); ++k) {
    double mean = 0, even = 0;
    for (int x = 0; x < p.d; ++x) {
      w.q[k][x] *= p.scale() * w.q[k][x] * p.scale();
      q_squares[k] += w.q[k][x] / p.d;
      mean += w.q[k][x] * w.o[k][x] * w.o[k][x], even += w.o[k][x] * w.o[k][x];
    }
    out.root_mean[begin + k] = std::sqrt(std::max(mean, q_squares[k] * even));
  }
  auto& of_scores = w.score_squares;
  double sums[kBlock] = {};
  multiply(w.q, w.K_squares, w.features, w.seen, of_scores);
  for (size_t k = 0; k < w.seen.size(); ++k) {
    double squares = 0;
    const double common = std::pow(out.root_mean[begin + k] / 2, 2);
    for (int c = w.seen[k].first; c < w.seen[k].last; ++c) {
      const double score = std::max<double>(of_scores[k][c], q_squares[k] * w.k_squares[c]);
      if (const double error = kE4m3Error * std::sqrt(score); error > 1) {
        const double log_P = std::log(std::max<double>(P[k][c], DBL_TRUE_MIN));
        out.adrift[begin + k] += std::exp(std::min(log_P + error, 600.));
      }
      P[k][c] *= P[k][c] * w.key_weights[c];
      squares += P[k][c] * score;
      sums[k] += of_scores[k][c] = P[k][c] * (score + common);
    }
    out.root_PS[begin + k] = std::sqrt(squares);
  }
  multiply(P, w.V_squares, w.seen, w.features, w.o);
  for (size_t k = 0; k < w.seen.size(); ++k) {
    out.root_PV[begin + k] = std::sqrt(largest_size(w.o[k], p.d));
  }
  // (V - O)^2 is V^2 - 2 O V + O^2.
  multiply(of_scores, w.V_squares, w.seen, w.features, w.o);
  multiply(of_scores, w.V, w.seen, w.features, w.q);
  for (size_t k = 0; k < w.seen.size(); ++k) {
    double most = 0;
    for (int x = 0; x < p.d; ++x) {
      const double O = out.O[(begin + k) * p.d + x];
      most = std::max<double>(most, w.o[k][x] + O * (O * sums[k] - 2 * w.q[k][x]));
    }
    out.root_PSV[begin + k] = std::sqrt(most);
  }
}

/// Added by ScoreMod to the size of scores, to which errors are proportional; `bias`: ALiBi's mean.
double score_mod_size(const Problem& p, double bias) { return p.score_mod.cap + 2 * bias; }

template <class A>
ReferenceForward forward(const A& arithmetic, const Problem& p, const Inputs& in,
                         const Sample& sample) {
  using Real = typename A::Real;
  constexpr bool kWithScales = std::is_same_v<A, Fp64>;
  const size_t rows = sample.rows.size(), d = p.d, dv = p.dv(), Nk = p.Nk;
  ReferenceForward out;
  out.O.assign(rows * dv, 0);
  out.LSE.assign(rows, 0);
  if (kWithScales) {
    for (auto* scale :
         {&out.sum_PV, &out.score_bound, &out.sum_error, &out.rest_of_P, &out.largest_V}) {
      scale->assign(rows, 0);
    }
  }
  if (kWithScales && p.method.fp8) {
    for (auto* root : {&out.root_PV, &out.root_PS, &out.root_PSV, &out.root_mean, &out.adrift}) {
      root->assign(rows, 0);
    }
  }

  std::vector<Item> items;
  for (size_t i = 0; i < rows; ++i) {
    const size_t bh = sample.rows[i] / p.N;
    if (items.empty() || items.back().head != bh || items.back().size() == kBlock) {
      items.push_back({bh, i, i});
    }
    items.back().end = i + 1;
  }

  parallel_for(items.size(), [&] {
    struct Worker {
      size_t kv_head = kNoHead;
      Panels<Real> K_transposed, V, V_size, V_squares, K, K_squares;
      ScoreSizes scores;
      std::vector<double> V_sizes;  // largest |V| of each key
      Softmax<A> softmax;
      Block<Real> q, o, score_squares;
      std::vector<double> k_squares, key_weights;
      std::vector<int> rows;
      std::vector<Range> features, values, seen;
    };
    return [&, w = Worker()](size_t i) mutable {
      const Item& item = items[i];
      if (const size_t kv_head = p.kv_head_of(item.head); kv_head != w.kv_head) {
        w.kv_head = kv_head;
        const float* K = &in.K[kv_head * Nk * d];
        const float* V = &values_of(p, in)[kv_head * Nk * d];
        const int keys = p.keys_of(kv_head / p.Hkv);  // after them K and V may hold anything
        w.K_transposed.fill_transposed(K, keys, p.d);
        w.V.fill(V, keys, p.dv(), d, 1);
        w.softmax.P.resize(Nk);
        w.q.resize(d);
        w.o.resize(dv);
        if (kWithScales) {
          w.V_size = w.V;
          for (Real& v : w.V_size.data) v = std::abs(v);
          w.scores = ScoreSizes(K, keys, p.d);
          w.V_sizes.clear();
          for (int c = 0; c < keys; ++c) {
            w.V_sizes.push_back(largest_size(V + static_cast<size_t>(c) * d, dv));
          }
          if (p.method.fp8) {
            w.K.fill_rows(K, keys, p.d);
            w.V_squares = w.V, w.K_squares = w.K_transposed;
            w.score_squares.resize(Nk);
            w.k_squares.clear();
            for (const double k : w.scores.k_norms) w.k_squares.push_back(k * k);
            w.key_weights = weights_of_keys(K, V, keys, p.d);
            for (Real& v : w.V_squares.data) v *= v;
            for (Real& k : w.K_squares.data) k *= k;
          }
        }
      }
      w.features.assign(item.size(), {0, p.d});
      w.values.assign(item.size(), {0, p.dv()});
      w.rows.clear();
      w.seen.clear();
      for (size_t k = 0; k < item.size(); ++k) {
        const size_t row = sample.rows[item.begin + k];
        w.rows.push_back(static_cast<int>(row % p.N));
        w.seen.push_back(p.seen(w.rows[k], item.head / p.H));
        w.q.load(&in.Q[row * d], k);
      }
      w.softmax.compute(arithmetic, w.q, w.K_transposed, p, item.head, w.rows, in.sinks, w.features,
                        w.seen);
      multiply(w.softmax.P, w.V, w.seen, w.values, w.o);
      for (size_t k = 0; k < item.size(); ++k) {
        const size_t row = item.begin + k;
        out.LSE[row] = w.softmax.LSE[k];
        for (size_t x = 0; x < dv; ++x) out.O[row * dv + x] = arithmetic.round(w.o[k][x]);
      }
      if (!kWithScales) return;
      multiply(w.softmax.P, w.V_size, w.seen, w.values, w.o);
      for (size_t k = 0; k < item.size(); ++k) {
        const size_t row = item.begin + k;
        const float* q = &in.Q[sample.rows[row] * d];
        const Range& seen = w.seen[k];
        if (seen.size() == 0 || w.softmax.l[k] == 0) continue;
        out.sum_PV[row] = largest_size(w.o[k], dv);
        if constexpr (kWithScales) {
          out.score_bound[row] =
              w.scores.bound(q, w.softmax.P[k], seen, p) + score_mod_size(p, w.softmax.bias[k]);
        }
        out.sum_error[row] = w.scores.sum_error(q, w.softmax.size[k], out.score_bound[row], p);
        out.rest_of_P[row] = (w.softmax.l[k] - 1) / w.softmax.l[k];  // the largest is 1 / l
        out.largest_V[row] =
            *std::max_element(&w.V_sizes[seen.first], w.V_sizes.data() + seen.last);
      }
      if (p.method.fp8) roots(w, p, item.begin, out);
    };
  });
  return out;
}

// --- backward ------------------------------------------------------------------------------------
//
// Two sweeps, so that no N * Nk matrix is ever stored and every sum has one owner: by rows for the
// softmax's statistics, delta and dQ; by keys, recomputing P, for dK and dV.

/// Statistics of each row of a query head for the second sweep.
template <class Real>
struct RowStatistics {
  Real m = -INFINITY, l = 0;
  Real delta = 0;     // rowsum(dO * O), with the O that the forward stored
  double weight = 0;  // of P in the scales of ReferenceBackward
  double largest_q = 0, largest_dO = 0;
  double dP_size = 0;   // |dO| max |v| / sqrt(d)
  double dK_delta = 0;  // |dO * O| max |q|: effect of an error in O's last bit on dS q
  Real sink = 0;        // P of it
  double root = 0;      // |dO * O|
};

/// dS = P (dP - delta) of one pair; dP is the unrounded sum.
template <class A>
typename A::Real dS_of(const A& arithmetic, typename A::Real P, typename A::Real& dP,
                       typename A::Real delta) {
  dP = arithmetic.round(dP);
  return arithmetic.round(P * (dP - delta));
}

template <class A>
class Backward {
 public:
  using Real = typename A::Real;

  Backward(const A& arithmetic, const Problem& problem, const Inputs& inputs, const Sample& sample)
      : arithmetic_(arithmetic), p(problem), in(inputs), sample_(sample) {}

  ReferenceBackward operator()() {
    const size_t heads = sample_.heads.size();
    out_.dQ.assign(heads * group * N * d, 0);
    out_.dK.assign(heads * Nk * d, 0);
    out_.dV.assign(heads * Nk * d, 0);
    if (kWithScales) {
      for (auto* rows : {&out_.dQ_scale, &out_.dQ_terms, &out_.dQ_delta, &out_.dQ_root}) {
        rows->assign(heads * group * N, 0);
      }
      for (auto* keys : {&out_.dK_scale, &out_.dK_terms, &out_.dK_delta, &out_.dK_root,
                         &out_.dV_scale, &out_.dV_terms, &out_.dV_root}) {
        keys->assign(heads * Nk, 0);
      }
    }
    statistics_.resize(heads * group * N);
    sweep<RowWorker>(heads * group, N, &Backward::rows);
    sweep<KeyWorker>(heads, Nk, &Backward::keys);
    if (p.score_mod.sinks) sinks(heads * group);
    return std::move(out_);
  }

 private:
  static constexpr bool kWithScales = std::is_same_v<A, Fp64>;

  template <class Worker>
  void sweep(size_t heads, size_t length, void (Backward::*work)(Worker&, const Item&)) {
    std::vector<Item> items;
    for (size_t head = 0; head < heads; ++head) {
      for (size_t begin = 0; begin < length; begin += kBlock) {
        items.push_back({head, begin, std::min(length, begin + kBlock)});
      }
    }
    parallel_for(items.size(), [&] {
      return [&, w = Worker()](size_t i) mutable { (this->*work)(w, items[i]); };
    });
  }

  /// Query head g of the group that reads K/V head j of the sample.
  size_t query_head(size_t j, size_t g) const {
    const size_t b = sample_.heads[j] / p.Hkv, hkv = sample_.heads[j] % p.Hkv;
    return b * p.H + hkv * group + g;
  }

  // --- by rows: m, l, delta, dQ

  struct RowWorker {
    size_t kv_head = kNoHead;
    Panels<Real> K, V, K_transposed, V_transposed;
    ScoreSizes scores;
    double largest_v = 0, rms_k = 0;
    Softmax<A> softmax;
    Block<Real> q, o, dO, dS, dQ;
    std::vector<int> rows;
    std::vector<Range> features, seen;
  };

  /// item.head counts the query heads of the sample.
  void rows(RowWorker& w, const Item& item) {
    if (const size_t kv_head = sample_.heads[item.head / group]; kv_head != w.kv_head) {
      w.kv_head = kv_head;
      const float *K = &in.K[kv_head * Nk * d], *V = &in.V[kv_head * Nk * d];
      w.K.fill_rows(K, p.Nk, p.d);
      w.V.fill_rows(V, p.Nk, p.d);
      w.K_transposed.fill_transposed(K, p.Nk, p.d);
      w.V_transposed.fill_transposed(V, p.Nk, p.d);
      w.softmax.P.resize(Nk);
      w.dS.resize(Nk);
      for (Block<Real>* block : {&w.q, &w.o, &w.dO, &w.dQ}) block->resize(d);
      if (kWithScales) {
        w.scores = ScoreSizes(K, p.Nk, p.d);
        w.largest_v = largest_norm(V, p.Nk, p.d);
        w.rms_k = rms(K, Nk * d);
      }
    }
    const size_t first = query_head(item.head / group, item.head % group) * N + item.begin;
    w.features.assign(item.size(), {0, p.d});
    w.rows.clear();
    w.seen.clear();
    for (size_t k = 0; k < item.size(); ++k) {
      w.rows.push_back(static_cast<int>(item.begin + k));
      w.seen.push_back(p.seen(w.rows[k]));
      w.q.load(&in.Q[(first + k) * d], k);
      w.dO.load(&in.dO[(first + k) * d], k);
    }
    const Block<Real>& P = w.softmax.P;
    const size_t head = query_head(item.head / group, item.head % group);
    w.softmax.compute(arithmetic_, w.q, w.K_transposed, p, head, w.rows, in.sinks, w.features,
                      w.seen);
    multiply(P, w.V, w.seen, w.features, w.o);
    multiply(w.dO, w.V_transposed, w.features, w.seen, w.dS);  // dP

    for (size_t k = 0; k < item.size(); ++k) {
      RowStatistics<Real>& row = statistics_[item.head * N + item.begin + k];
      row.m = w.softmax.m[k];
      row.l = w.softmax.l[k];
      row.sink = w.softmax.sink[k];
      double squares = 0;
      for (size_t x = 0; x < d; ++x) {
        const Real term = w.dO[k][x] * arithmetic_.round(w.o[k][x]);
        row.delta += term;
        squares += static_cast<double>(term) * term;
      }
      if (kWithScales) {
        const float* q = &in.Q[(first + k) * d];
        const double bound =
            scale * norm(q, p.d) * w.scores.largest_k + score_mod_size(p, w.softmax.bias[k]);
        const double sum_error = w.scores.sum_error(q, w.softmax.size[k], bound, p);
        row.weight = 1 + growth(std::max(kFp32Error * bound, sum_error)) / kFp32Error;
        row.largest_q = largest_size(q, p.d);
        row.largest_dO = largest_size(&in.dO[(first + k) * d], p.d);
        // From a typical partial sum of dP and delta, both of which may be small by cancellation.
        row.dP_size = norm(&in.dO[(first + k) * d], p.d) * w.largest_v / std::sqrt(d);
        row.dK_delta = std::sqrt(squares) * largest_size(w.q[k], p.d);
        row.root = std::sqrt(squares);
      }
      double size = 0, largest_terms = 0, dS_squares = 0, term_squares = 0;
      for (int c = w.seen[k].first; c < w.seen[k].last; ++c) {
        Real dP = w.dS[k][c];
        w.dS[k][c] = dS_of(arithmetic_, P[k][c], dP, row.delta);
        if (p.score_mod.cap > 0) {
          w.dS[k][c] = arithmetic_.round(P[k][c] == 0 ? 0 : w.dS[k][c] * w.softmax.change[k][c]);
        }
        if (!kWithScales) continue;
        const double term = P[k][c] * (std::abs(dP) + std::abs(row.delta) + row.dP_size);
        size += term;
        largest_terms += term * w.scores.k_largest[c];
        const double of_dS = w.dS[k][c] * w.scores.k_largest[c];
        dS_squares += of_dS * of_dS;
        term_squares += term * term * w.scores.k_largest[c] * w.scores.k_largest[c];
      }
      if (kWithScales) {
        out_.dQ_scale[item.head * N + item.begin + k] =
            row.weight * scale * std::max(size * w.rms_k, std::sqrt(term_squares));
        out_.dQ_terms[item.head * N + item.begin + k] = scale * largest_terms;
        out_.dQ_root[item.head * N + item.begin + k] = scale * std::sqrt(dS_squares);
        out_.dQ_delta[item.head * N + item.begin + k] = scale * std::sqrt(squares);
      }
    }

    multiply(w.dS, w.K, w.seen, w.features, w.dQ);
    for (size_t k = 0; k < item.size(); ++k) {
      double* to = &out_.dQ[(item.head * N + item.begin + k) * d];
      for (size_t x = 0; x < d; ++x) to[x] = arithmetic_.round(scale * w.dQ[k][x]);
    }
    if (!kWithScales) return;
    multiply(P, w.K, w.seen, w.features, w.dQ);
    for (size_t k = 0; k < item.size(); ++k) {
      out_.dQ_delta[item.head * N + item.begin + k] *= largest_size(w.dQ[k], p.d);
    }
  }

  // --- for each head: dsinks, where dP is 0

  void sinks(size_t heads) {
    for (size_t head = 0; head < heads; ++head) {
      Real sum = 0;
      double scale = 0, squares = 0;
      for (size_t r = 0; r < N; ++r) {
        const RowStatistics<Real>& row = statistics_[head * N + r];
        sum -= row.sink * row.delta;
        scale += row.weight * row.sink * (std::abs(row.delta) + row.dP_size);
        squares += row.sink * row.root * row.sink * row.root;
      }
      out_.dsinks.push_back(sum);
      out_.dsinks_scale.push_back(scale);
      out_.dsinks_delta.push_back(std::sqrt(squares));
    }
  }

  // --- by keys: dK, dV

  struct KeyWorker {
    size_t bh = kNoHead;
    Panels<Real> Q, dO, Q_transposed, dO_transposed;
    double rms_q = 0, rms_dO = 0;
    Block<Real> k, v, P, dS, sum, dK, dV;
    std::vector<Range> features, seen;  // the rows that see a key
  };

  /// item.head counts the K/V heads of the sample.
  void keys(KeyWorker& w, const Item& item) {
    const size_t j = item.head;
    for (Block<Real>* block : {&w.P, &w.dS}) block->resize(N);
    for (Block<Real>* block : {&w.k, &w.v, &w.sum, &w.dK, &w.dV}) block->resize(d);
    w.features.assign(item.size(), {0, p.d});
    w.seen.clear();
    for (size_t k = 0; k < item.size(); ++k) {
      const int c = static_cast<int>(item.begin + k);
      w.seen.push_back(p.seen_by(c));
      w.k.load(&in.K[(sample_.heads[j] * Nk + c) * d], k);
      w.v.load(&in.V[(sample_.heads[j] * Nk + c) * d], k);
    }

    for (size_t g = 0; g < group; ++g) {
      load_query_head(w, query_head(j, g));
      multiply(w.k, w.Q_transposed, w.features, w.seen, w.P);    // S
      multiply(w.v, w.dO_transposed, w.features, w.seen, w.dS);  // dP
      for (size_t k = 0; k < item.size(); ++k) {
        const Modified<Real> modified(p, query_head(j, g));
        softmax_of_key(w, k, &statistics_[(j * group + g) * N], modified, query_head(j, g),
                       item.begin + k, j * Nk);
      }
      multiply(w.dS, w.Q, w.seen, w.features, w.sum);
      for (size_t x = 0; x < w.dK.data.size(); ++x) w.dK.data[x] += w.sum.data[x];
      multiply(w.P, w.dO, w.seen, w.features, w.sum);
      for (size_t x = 0; x < w.dV.data.size(); ++x) w.dV.data[x] += w.sum.data[x];
    }
    double *dK = &out_.dK[(j * Nk + item.begin) * d], *dV = &out_.dV[(j * Nk + item.begin) * d];
    for (size_t x = 0; x < item.size() * d; ++x) {
      dK[x] = arithmetic_.round(scale * w.dK.data[x]);
      dV[x] = arithmetic_.round(w.dV.data[x]);
    }
  }

  void load_query_head(KeyWorker& w, size_t bh) {
    if (bh == w.bh) return;
    w.bh = bh;
    const float *Q = &in.Q[bh * N * d], *dO = &in.dO[bh * N * d];
    w.Q.fill_rows(Q, p.N, p.d);
    w.dO.fill_rows(dO, p.N, p.d);
    w.Q_transposed.fill_transposed(Q, p.N, p.d);
    w.dO_transposed.fill_transposed(dO, p.N, p.d);
    if (kWithScales) {
      w.rms_q = rms(Q, N * d);
      w.rms_dO = rms(dO, N * d);
    }
  }

  /// Turns S and dP of the block's k-th key into P and dS.
  /// \param bh  the query head
  /// \param c  the key's number in its head, whose first key is `key0` in the results
  void softmax_of_key(KeyWorker& w, size_t k, const RowStatistics<Real>* rows,
                      const Modified<Real>& modified, size_t bh, size_t c, size_t key0) {
    const bool tests = p.mask.predicate.sees || p.mask.has_tiles();
    const int to_own = p.document_of_key(static_cast<int>(c)).own_key(0) - static_cast<int>(c);
    const size_t key = key0 + c;
    double squares = 0, dK_squares = 0, dV_squares = 0;
    double dK_scale = 0, dV_scale = 0, dK_largest = 0, dV_largest = 0;
    for (int r = w.seen[k].first; r < w.seen[k].last; ++r) {
      const RowStatistics<Real>& row = rows[r];
      Real &P = w.P[k][r], dP = w.dS[k][r];
      if (tests && !p.leaves(r, static_cast<int>(c), bh)) {
        P = w.dS[k][r] = 0;
        continue;
      }
      const auto [score, change] = modified(scale * P, r + to_own);
      P = arithmetic_.round(std::exp(arithmetic_.round(score) - row.m) / row.l);
      w.dS[k][r] = arithmetic_.round(dS_of(arithmetic_, P, dP, row.delta) * change);
      if (kWithScales) {
        const double term = P * (std::abs(dP) + std::abs(row.delta) + row.dP_size) * scale;
        dK_scale += row.weight * term * w.rms_q;
        out_.dK_terms[key] += term * row.largest_q;
        dV_scale += row.weight * P * w.rms_dO;
        out_.dV_terms[key] += P * row.largest_dO;
        const double share = scale * P * row.dK_delta;
        squares += share * share;
        const double of_dK = w.dS[k][r] * row.largest_q, of_dV = P * row.largest_dO;
        dK_squares += of_dK * of_dK, dV_squares += of_dV * of_dV;
        const double one_dK = row.weight * term * row.largest_q, one_dV = row.weight * of_dV;
        dK_largest += one_dK * one_dK, dV_largest += one_dV * one_dV;
      }
    }
    if (!kWithScales) return;
    // Where one term decides a row, use its largest feature.
    out_.dK_scale[key] += std::max(dK_scale, std::sqrt(dK_largest));
    out_.dV_scale[key] += std::max(dV_scale, std::sqrt(dV_largest));
    out_.dK_delta[key] += std::sqrt(squares);
    out_.dK_root[key] += scale * std::sqrt(dK_squares);
    out_.dV_root[key] += std::sqrt(dV_squares);
  }

  const A arithmetic_;
  const Problem& p;  // named as in the formulas
  const Inputs& in;
  const Sample& sample_;
  const size_t N = p.N, Nk = p.Nk, d = p.d, group = p.H / p.Hkv;
  const Real scale = p.scale();
  std::vector<RowStatistics<Real>> statistics_;  // [heads, group, N]
  ReferenceBackward out_;
};

/// Adds `count` different numbers below `limit` to `chosen`; `next` proposes them.
template <class Next>
std::vector<size_t> fill_up(std::set<size_t> chosen, size_t count, const Next& next) {
  while (chosen.size() < count) chosen.insert(next());
  return {chosen.begin(), chosen.end()};
}

std::vector<size_t> all(size_t n) {
  std::vector<size_t> list(n);
  for (size_t i = 0; i < n; ++i) list[i] = i;
  return list;
}

/// All rows that read `count` of K's heads, or a few more.
template <class Below>
std::vector<size_t> rows_of_some_heads(const Problem& p, size_t count, const Below& below) {
  std::set<size_t> heads = {0, p.kv_heads() - 1};
  if (!p.cache.lengths.empty()) {
    const auto [fewest, longest] =
        std::minmax_element(p.cache.lengths.begin(), p.cache.lengths.end());
    for (const auto& at : {fewest, longest}) heads.insert((at - p.cache.lengths.begin()) * p.Hkv);
  }
  const size_t rows = static_cast<size_t>(p.H / p.Hkv) * p.N;  // of one K head
  std::vector<size_t> chosen;
  for (const size_t head : fill_up(heads, count, [&] { return below(p.kv_heads()); })) {
    for (size_t r = 0; r < rows; ++r) chosen.push_back(head * rows + r);
  }
  return chosen;
}

}  // namespace

Sample sample_of(const Problem& p, uint64_t seed, double budget) {
  if (p.method.fp8) budget /= 4;  // three baselines, and the error terms of each row
  // Multiply-adds: 2 d per score forward (Q K^T, P V), 7 d backward (S and dP twice, dQ, dK, dV).
  const double scores = static_cast<double>(p.all_visible_scores()) / p.heads();  // of a head
  const double row_cost = 2.0 * p.d * scores / p.N;
  const double head_cost = 7.0 * p.d * scores * (p.H / p.Hkv);
  const double row_budget = std::max(16.0, budget / row_cost);
  const double head_budget = std::max(1.0, budget / head_cost);
  constexpr double kLayout = 30;  // per number of K and V, in multiply-adds: measured
  std::mt19937_64 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };

  // Each head's keys are laid out twice, for the reference and for the baseline.
  const double keys_cost = kLayout * p.Nk * p.d + row_cost * p.N * (p.H / p.Hkv);
  const bool few_rows = p.N < static_cast<int>(kBlock);
  const double keys_budget = few_rows ? budget / keys_cost : static_cast<double>(p.kv_heads());

  Sample sample;
  if (row_budget >= static_cast<double>(p.rows()) &&
      keys_budget >= static_cast<double>(p.kv_heads())) {
    sample.rows = all(p.rows());
  } else if (few_rows) {
    sample.rows = rows_of_some_heads(p, static_cast<size_t>(keys_budget), below);
    sample.complete = sample.rows.size() == p.rows();
  } else {
    sample.complete = false;
    const size_t N = p.N;
    bool at_edge = false;
    sample.rows =
        fill_up({0, N - 1, p.rows() - N, p.rows() - 1}, static_cast<size_t>(row_budget), [&] {
          at_edge = !at_edge;
          const size_t head = below(p.heads()) * N;
          const size_t r = below(N);
          // The last row of a tile, or the first row of the next one.
          return head + (at_edge ? std::min(r / 64 * 64 + (below(2) ? 63 : 0), N - 1) : r);
        });
  }
  if (head_budget >= static_cast<double>(p.kv_heads())) {
    sample.heads = all(p.kv_heads());
  } else {
    sample.complete = false;
    sample.heads = fill_up({p.kv_heads() - 1}, static_cast<size_t>(head_budget),
                           [&] { return below(p.kv_heads()); });
  }
  return sample;
}

double growth(double score_error) {
  return std::expm1(std::min(2 * score_error, 600.)) / 2;  // of the score, and of P's denominator
}

ReferenceForward attention_fp64(const Problem& p, const Inputs& in, const Sample& sample) {
  return forward(Fp64{}, p, in, sample);
}
ReferenceForward attention_unfused(const Problem& p, const Inputs& in, const Sample& sample,
                                   float headroom) {
  if (!p.method.fp8) return forward(Unfused{p.dtype}, p, in, sample);
  Inputs e4m3;
  e4m3.Q = quantised(in.Q, headroom), e4m3.K = quantised(in.K, headroom);
  e4m3.V = quantised(in.V, headroom);
  return forward(Quantised{p.dtype}, p, e4m3, sample);
}
ReferenceBackward attention_backward_fp64(const Problem& p, const Inputs& in,
                                          const Sample& sample) {
  return Backward<Fp64>({}, p, in, sample)();
}
ReferenceBackward attention_backward_unfused(const Problem& p, const Inputs& in,
                                             const Sample& sample) {
  return Backward<Unfused>({p.dtype}, p, in, sample)();
}

}  // namespace fa
