#include "common/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "common/parallel.h"

namespace fa {
namespace {

// --- two precisions, one algorithm ---------------------------------------------------------------

/// Everything in double.
struct Fp64 {
  using Real = double;
  double round(double x) const { return x; }
};

/// Sums in fp32; what a textbook kernel stores in memory is rounded to the problem's type.
struct Unfused {
  using Real = float;
  DType dtype;
  float round(float x) const { return round_to(dtype, x); }
};

// --- matrices ----------------------------------------------------------------------------------------

/// A matrix in panels of kWidth columns, zero-padded: the sums of one panel stay in registers while
/// its rows stream by, and each sum still adds its terms in the order of the rows.
template <class Real>
struct Panels {
  // 64 bytes are four SSE or NEON registers, enough sums in flight to hide an addition's latency. A
  // plain array in their place does not stay in registers: 6 times slower with g++ 12.
  using Vector [[gnu::vector_size(64)]] = Real;
  static constexpr int kWidth = sizeof(Vector) / sizeof(Real);
  int rows = 0;
  int columns = 0;
  std::vector<Real> data;  // [ceil(columns / kWidth), rows, kWidth]

  /// from[i * row_stride + j * column_stride] becomes element (i, j).
  void fill(const float* from, int rows_, int columns_, size_t row_stride, size_t column_stride) {
    rows = rows_;
    columns = columns_;
    data.assign(static_cast<size_t>((columns + kWidth - 1) / kWidth) * rows * kWidth, 0);
    for (int j = 0; j < columns; ++j) {
      Real* column = &data[static_cast<size_t>(j / kWidth) * rows * kWidth + j % kWidth];
      for (int i = 0; i < rows; ++i) {
        column[static_cast<size_t>(i) * kWidth] =
            static_cast<Real>(from[i * row_stride + j * column_stride]);
      }
    }
  }
  /// The matrix `from` [n, d] itself: columns are features.
  void fill_rows(const float* from, int n, int d) { fill(from, n, d, d, 1); }
  /// Its transpose [d, n]: columns are tokens.
  void fill_transposed(const float* from, int n, int d) { fill(from, d, n, 1, d); }

  /// out[j] = sum over i in [first_row, last_row) of a[i] * (i, j), for j in [first, last).
  void multiply(const Real* a, int first_row, int last_row, int first, int last, Real* out) const {
    for (int panel = first / kWidth; panel * kWidth < last; ++panel) {
      const Real* row = &data[(static_cast<size_t>(panel) * rows + first_row) * kWidth];
      Vector sum = {}, b;
      for (int i = first_row; i < last_row; ++i, row += kWidth) {
        std::memcpy(&b, row, sizeof b);
        sum += a[i] * b;
      }
      const int begin = std::max(first, panel * kWidth), end = std::min(last, (panel + 1) * kWidth);
      for (int j = begin; j < end; ++j) out[j] = sum[j - panel * kWidth];
    }
  }
};

template <class Real>
void copy_row(const float* from, int d, std::vector<Real>& to) {
  to.assign(from, from + d);
}

double norm(const float* a, int d) {
  double sum = 0;
  for (int x = 0; x < d; ++x) sum += static_cast<double>(a[x]) * a[x];
  return std::sqrt(sum);
}

double largest_norm(const float* a, int n, int d) {
  double largest = 0;
  for (int r = 0; r < n; ++r) largest = std::max(largest, norm(a + static_cast<size_t>(r) * d, d));
  return largest;
}

double rms(const float* a, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * a[i];
  return std::sqrt(sum / static_cast<double>(n));
}

// --- forward ---------------------------------------------------------------------------------------------

constexpr size_t kNoHead = std::numeric_limits<size_t>::max();
constexpr int kRowsOfItem = 64;  // one thread takes so many rows at a time

/// Rows of one query head: what a thread takes at a time.
struct Item {
  size_t bh;
  size_t begin, end;  // a range of the sample (forward) or of the head's rows (backward)
};

/// P of one row: scores, softmax, and its statistics.
template <class A>
struct SoftmaxRow {
  using Real = typename A::Real;
  std::vector<Real> P;
  Real m = -INFINITY, l = 0;

  /// S = scale * q K^T for the first `visible` keys, then P = exp(S - m) / l.
  void compute(const A& arithmetic, const Real* q, const Panels<Real>& K_transposed, Real scale,
               int visible) {
    m = -INFINITY;
    l = 0;
    K_transposed.multiply(q, 0, K_transposed.rows, 0, visible, P.data());
    for (int c = 0; c < visible; ++c) {
      P[c] = arithmetic.round(scale * P[c]);
      m = std::max(m, P[c]);
    }
    for (int c = 0; c < visible; ++c) {
      P[c] = std::exp(P[c] - m);
      l += P[c];
    }
    for (int c = 0; c < visible; ++c) P[c] = arithmetic.round(P[c] / l);
  }
};

template <class A>
ReferenceForward forward(const A& arithmetic, const Problem& p, const Inputs& in,
                         const Sample& sample) {
  using Real = typename A::Real;
  constexpr bool kWithScales = std::is_same_v<A, Fp64>;
  const size_t rows = sample.rows.size(), d = p.d, Nk = p.Nk;
  ReferenceForward out;
  out.O.assign(rows * d, 0);
  out.LSE.assign(rows, -INFINITY);
  if (kWithScales) {
    out.sum_PV.assign(rows, 0);
    out.score_bound.assign(rows, 0);
  }

  std::vector<Item> items;
  for (size_t i = 0; i < rows; ++i) {
    const size_t bh = sample.rows[i] / p.N;
    if (items.empty() || items.back().bh != bh || i - items.back().begin == kRowsOfItem) {
      items.push_back({bh, i, i});
    }
    items.back().end = i + 1;
  }

  parallel_for(items.size(), [&] {
    struct Worker {
      size_t kv_head = kNoHead;
      Panels<Real> K_transposed, V, V_size;
      double largest_k = 0;
      SoftmaxRow<A> softmax;
      std::vector<Real> q, o;
    };
    return [&, w = Worker()](size_t i) mutable {
      const Item& item = items[i];
      if (const size_t kv_head = p.kv_head_of(item.bh); kv_head != w.kv_head) {
        w.kv_head = kv_head;
        const float* K = &in.K[kv_head * Nk * d];
        const float* V = &in.V[kv_head * Nk * d];
        w.K_transposed.fill_transposed(K, p.Nk, p.d);
        w.V.fill_rows(V, p.Nk, p.d);
        w.softmax.P.resize(Nk);
        w.o.resize(d);
        if (kWithScales) {
          w.V_size = w.V;
          for (Real& v : w.V_size.data) v = std::abs(v);
          w.largest_k = largest_norm(K, p.Nk, p.d);
        }
      }
      for (size_t row = item.begin; row < item.end; ++row) {
        const int visible = p.visible(static_cast<int>(sample.rows[row] % p.N));
        if (visible == 0) continue;  // O = 0, LSE = -inf
        const float* q = &in.Q[sample.rows[row] * d];
        copy_row(q, p.d, w.q);
        w.softmax.compute(arithmetic, w.q.data(), w.K_transposed, p.scale(), visible);
        out.LSE[row] = w.softmax.m + std::log(w.softmax.l);
        w.V.multiply(w.softmax.P.data(), 0, visible, 0, p.d, w.o.data());
        for (size_t x = 0; x < d; ++x) out.O[row * d + x] = arithmetic.round(w.o[x]);
        if (kWithScales) {
          w.V_size.multiply(w.softmax.P.data(), 0, visible, 0, p.d, w.o.data());
          out.sum_PV[row] = *std::max_element(w.o.begin(), w.o.end());
          out.score_bound[row] = p.scale() * norm(q, p.d) * w.largest_k;
        }
      }
    };
  });
  return out;
}

// --- backward --------------------------------------------------------------------------------------------
//
// Two sweeps, so that nobody ever holds a matrix of N * Nk and every sum has one owner: by rows for
// the softmax's statistics, delta and dQ; by keys, with P computed again, for dK and dV.

/// What the second sweep needs of each row of a query head.
template <class Real>
struct RowStatistics {
  Real m = -INFINITY, l = 0;
  Real delta = 0;          // sum over keys of P * dP, which is rowsum(dO * O)
  double score_bound = 0;  // as in ReferenceForward
};

template <class A>
ReferenceBackward backward(const A& arithmetic, const Problem& p, const Inputs& in,
                           const Sample& sample) {
  using Real = typename A::Real;
  constexpr bool kWithScales = std::is_same_v<A, Fp64>;
  const size_t heads = sample.heads.size(), d = p.d, N = p.N, Nk = p.Nk;
  const size_t group = p.H / p.Hkv;
  const Real scale = p.scale();
  ReferenceBackward out;
  out.dQ.assign(heads * group * N * d, 0);
  out.dK.assign(heads * Nk * d, 0);
  out.dV.assign(heads * Nk * d, 0);
  if (kWithScales) {
    out.dQ_scale.assign(heads * group * N, 0);
    out.dK_scale.assign(heads * Nk, 0);
    out.dV_scale.assign(heads * Nk, 0);
  }
  // Query head g of the group that reads K/V head j of the sample.
  auto query_head = [&](size_t j, size_t g) {
    const size_t b = sample.heads[j] / p.Hkv, hkv = sample.heads[j] % p.Hkv;
    return b * p.H + hkv * group + g;
  };
  auto items_of = [](size_t lists, size_t length) {
    std::vector<Item> items;
    for (size_t i = 0; i < lists; ++i) {
      for (size_t begin = 0; begin < length; begin += kRowsOfItem) {
        items.push_back({i, begin, std::min(length, begin + kRowsOfItem)});
      }
    }
    return items;
  };

  // --- by rows: m, l, delta, dQ
  std::vector<RowStatistics<Real>> statistics(heads * group * N);
  const std::vector<Item> row_items = items_of(heads * group, N);
  parallel_for(row_items.size(), [&] {
    struct Worker {
      size_t kv_head = kNoHead;
      Panels<Real> K, K_transposed, V_transposed;
      double largest_k = 0, rms_k = 0;
      SoftmaxRow<A> softmax;
      std::vector<Real> q, dO, dS, dq;
    };
    return [&, w = Worker()](size_t i) mutable {
      const Item& item = row_items[i];
      const size_t j = item.bh / group, kv_head = sample.heads[j];
      if (kv_head != w.kv_head) {
        w.kv_head = kv_head;
        const float* K = &in.K[kv_head * Nk * d];
        w.K.fill_rows(K, p.Nk, p.d);
        w.K_transposed.fill_transposed(K, p.Nk, p.d);
        w.V_transposed.fill_transposed(&in.V[kv_head * Nk * d], p.Nk, p.d);
        w.softmax.P.resize(Nk);
        w.dS.resize(Nk);
        w.dq.resize(d);
        if (kWithScales) {
          w.largest_k = largest_norm(K, p.Nk, p.d);
          w.rms_k = rms(K, Nk * d);
        }
      }
      const size_t first = query_head(j, item.bh % group) * N;  // row 0 of the query head
      for (size_t r = item.begin; r < item.end; ++r) {
        const int visible = p.visible(static_cast<int>(r));
        if (visible == 0) continue;  // dQ = 0
        const float* q = &in.Q[(first + r) * d];
        copy_row(q, p.d, w.q);
        copy_row(&in.dO[(first + r) * d], p.d, w.dO);
        RowStatistics<Real>& row = statistics[item.bh * N + r];
        const std::vector<Real>& P = w.softmax.P;
        w.softmax.compute(arithmetic, w.q.data(), w.K_transposed, scale, visible);
        row.m = w.softmax.m;
        row.l = w.softmax.l;
        w.V_transposed.multiply(w.dO.data(), 0, p.d, 0, visible, w.dS.data());  // dP
        for (int c = 0; c < visible; ++c) {
          w.dS[c] = arithmetic.round(w.dS[c]);
          row.delta += P[c] * w.dS[c];
        }
        double size = 0;  // sum of P * (|dP| + |delta|)
        for (int c = 0; c < visible; ++c) {
          if (kWithScales) size += P[c] * (std::abs(w.dS[c]) + std::abs(row.delta));
          w.dS[c] = arithmetic.round(P[c] * (w.dS[c] - row.delta));
        }
        w.K.multiply(w.dS.data(), 0, visible, 0, p.d, w.dq.data());
        for (size_t x = 0; x < d; ++x) {
          out.dQ[(item.bh * N + r) * d + x] = arithmetic.round(scale * w.dq[x]);
        }
        if (kWithScales) {
          row.score_bound = scale * norm(q, p.d) * w.largest_k;
          out.dQ_scale[item.bh * N + r] = (1 + row.score_bound) * scale * size * w.rms_k;
        }
      }
    };
  });

  // --- by keys: dK, dV
  const std::vector<Item> key_items = items_of(heads, Nk);
  parallel_for(key_items.size(), [&] {
    struct Worker {
      size_t bh = kNoHead;
      Panels<Real> Q, Q_transposed, dO, dO_transposed;
      double rms_q = 0, rms_dO = 0;
      std::vector<Real> k, v, P, dS, sum, dK, dV;  // dK, dV: [keys of the item, d]
    };
    return [&, w = Worker()](size_t i) mutable {
      const Item& item = key_items[i];
      const size_t j = item.bh, keys = item.end - item.begin;
      w.P.resize(N);
      w.dS.resize(N);
      w.sum.resize(d);
      w.dK.assign(keys * d, 0);
      w.dV.assign(keys * d, 0);
      for (size_t g = 0; g < group; ++g) {
        if (const size_t bh = query_head(j, g); bh != w.bh) {
          w.bh = bh;
          const float *Q = &in.Q[bh * N * d], *dO = &in.dO[bh * N * d];
          w.Q.fill_rows(Q, p.N, p.d);
          w.Q_transposed.fill_transposed(Q, p.N, p.d);
          w.dO.fill_rows(dO, p.N, p.d);
          w.dO_transposed.fill_transposed(dO, p.N, p.d);
          if (kWithScales) {
            w.rms_q = rms(Q, N * d);
            w.rms_dO = rms(dO, N * d);
          }
        }
        const RowStatistics<Real>* rows = &statistics[(j * group + g) * N];
        for (size_t c = item.begin; c < item.end; ++c) {
          // The rows that see key c: all from this one on.
          const int first = p.causal ? std::max(0, static_cast<int>(c) + p.N - p.Nk) : 0;
          copy_row(&in.K[(sample.heads[j] * Nk + c) * d], p.d, w.k);
          copy_row(&in.V[(sample.heads[j] * Nk + c) * d], p.d, w.v);
          w.Q_transposed.multiply(w.k.data(), 0, p.d, first, p.N, w.P.data());    // S
          w.dO_transposed.multiply(w.v.data(), 0, p.d, first, p.N, w.dS.data());  // dP
          for (int r = first; r < p.N; ++r) {
            const Real s = arithmetic.round(scale * w.P[r]);
            w.P[r] = arithmetic.round(std::exp(s - rows[r].m) / rows[r].l);
            const Real dP = arithmetic.round(w.dS[r]);
            w.dS[r] = arithmetic.round(w.P[r] * (dP - rows[r].delta));
            if (kWithScales) {
              const double size = (1 + rows[r].score_bound) * w.P[r];
              out.dK_scale[j * Nk + c] +=
                  size * (std::abs(dP) + std::abs(rows[r].delta)) * scale * w.rms_q;
              out.dV_scale[j * Nk + c] += size * w.rms_dO;
            }
          }
          w.Q.multiply(w.dS.data(), first, p.N, 0, p.d, w.sum.data());
          for (size_t x = 0; x < d; ++x) w.dK[(c - item.begin) * d + x] += w.sum[x];
          w.dO.multiply(w.P.data(), first, p.N, 0, p.d, w.sum.data());
          for (size_t x = 0; x < d; ++x) w.dV[(c - item.begin) * d + x] += w.sum[x];
        }
      }
      const size_t at = (j * Nk + item.begin) * d;
      for (size_t x = 0; x < keys * d; ++x) {
        out.dK[at + x] = arithmetic.round(scale * w.dK[x]);
        out.dV[at + x] = arithmetic.round(w.dV[x]);
      }
    };
  });
  return out;
}

/// `count` different numbers below `limit`, besides those of `chosen`; `next` proposes them.
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

}  // namespace

Sample sample_of(const Problem& p, uint64_t seed, double budget) {
  // Multiply-adds: 2 d a score forward (Q K^T and P V), 7 d backward (S and dP twice, dQ, dK, dV).
  const double row_cost = 2.0 * p.d * p.visible_scores() / p.N;
  const double head_cost = 7.0 * p.d * p.visible_scores() * (p.H / p.Hkv);
  const double row_budget = std::max(16.0, budget / row_cost);
  const double head_budget = std::max(1.0, budget / head_cost);
  std::mt19937_64 random(seed);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };

  Sample sample;
  if (row_budget >= static_cast<double>(p.rows())) {
    sample.rows = all(p.rows());
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

ReferenceForward attention_fp64(const Problem& p, const Inputs& in, const Sample& sample) {
  return forward(Fp64{}, p, in, sample);
}
ReferenceForward attention_unfused(const Problem& p, const Inputs& in, const Sample& sample) {
  return forward(Unfused{p.dtype}, p, in, sample);
}
ReferenceBackward attention_backward_fp64(const Problem& p, const Inputs& in,
                                          const Sample& sample) {
  return backward(Fp64{}, p, in, sample);
}
ReferenceBackward attention_backward_unfused(const Problem& p, const Inputs& in,
                                             const Sample& sample) {
  return backward(Unfused{p.dtype}, p, in, sample);
}

}  // namespace fa
