/// \file
/// What every kernel here computes, written as plainly as possible. The fast reference and the
/// unfused baseline (reference.h) are tested against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/problem.h"

namespace fa {

/// O = softmax(scale Q K^T) V, and LSE = log(sum of exp(scale Q K^T)), row by row. A row that sees
/// no key has O = 0 and LSE = -inf.
/// \tparam Real  the type of all sums: double for the truth
template <class Real>
struct Definition {
  std::vector<Real> O;    ///< [B*H, N, dv]
  std::vector<Real> LSE;  ///< [B*H, N]

  /// \param round  what a kernel that keeps S, P and O in memory does to them; the identity for the
  ///               truth. LSE is of the unrounded S.
  Definition(const Problem& p, const Inputs& in, const auto& round)
      : O(p.rows() * p.dv()), LSE(p.rows(), -INFINITY) {
    const size_t d = p.d, dv = p.dv();
    for (size_t row = 0; row < p.rows(); ++row) {
      const size_t bh = row / p.N, key0 = p.kv_head_of(bh) * p.Nk;
      const float *q = &in.Q[row * d], *K = &in.K[key0 * d], *V = &values_of(p, in)[key0 * d];
      std::vector<Real> S;  // of the keys, after that of a sink
      if (p.score_mod.sinks) S.push_back(in.sinks[bh % p.H]);
      const size_t first = S.size();
      std::vector<size_t> keys;  // that the row sees
      for (int c = 0; c < p.Nk; ++c) {
        if (p.sees(static_cast<int>(row % p.N), c, bh / p.H, bh % p.H)) keys.push_back(c);
      }
      for (const size_t c : keys) {
        Real s = 0;
        for (size_t x = 0; x < d; ++x) s += Real(q[x]) * Real(K[c * d + x]);
        S.push_back(modified(p, row, static_cast<int>(c), s * Real(p.scale())));
      }
      if (S.empty() || maximum(S) == -INFINITY) continue;
      LSE[row] = maximum(S) + std::log(sum(S));
      for (size_t i = first; i < S.size(); ++i) S[i] = round(S[i]);
      const Real m = maximum(S), l = sum(S);
      for (size_t x = 0; x < dv; ++x) {
        Real o = 0;
        for (size_t i = 0; i < keys.size(); ++i) {
          o += round(std::exp(S[first + i] - m) / l) * Real(V[keys[i] * d + x]);
        }
        O[row * dv + x] = round(o);
      }
    }
  }

 private:
  /// \param row  of all heads
  static Real modified(const Problem& p, size_t row, int c, Real s) {
    const int r = static_cast<int>(row % p.N), h = static_cast<int>(row / p.N % p.H);
    const Real cap = p.score_mod.cap;
    if (cap > 0) s = cap * std::tanh(s / cap);
    if (p.score_mod.alibi) {
      s -= Real(alibi_slope(h, p.H)) * Real(std::abs(p.document_of(r).own_key(r) - c));
    }
    return s;
  }
  static Real maximum(const std::vector<Real>& S) { return *std::max_element(S.begin(), S.end()); }
  /// Sum of exp(S - m), which cannot overflow.
  static Real sum(const std::vector<Real>& S) {
    const Real m = maximum(S);
    Real l = 0;
    for (const Real s : S) l += std::exp(s - m);
    return l;
  }
};

}  // namespace fa
