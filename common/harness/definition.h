/// \file
/// What every kernel here computes, written as plainly as possible. The fast reference and the
/// unfused baseline (reference.h) are tested against this text.
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
  std::vector<Real> O;    ///< [B*H, N, d]
  std::vector<Real> LSE;  ///< [B*H, N]

  /// \param round  what a kernel does to S, P and O that keeps them in memory; nothing for the
  ///               truth. LSE is of S before it.
  template <class Round>
  Definition(const Problem& p, const Inputs& in, const Round& round)
      : O(p.q_size()), LSE(p.rows(), -INFINITY) {
    const size_t d = p.d;
    for (size_t row = 0; row < p.rows(); ++row) {
      const size_t bh = row / p.N, key0 = p.kv_head_of(bh) * p.Nk;
      const float *q = &in.Q[row * d], *K = &in.K[key0 * d], *V = &in.V[key0 * d];
      std::vector<Real> S(p.visible(static_cast<int>(row % p.N), bh / p.H));
      if (S.empty()) continue;
      for (size_t c = 0; c < S.size(); ++c) {
        for (size_t x = 0; x < d; ++x) S[c] += Real(q[x]) * Real(K[c * d + x]);
        S[c] *= Real(p.scale());
      }
      LSE[row] = maximum(S) + std::log(sum(S));
      for (Real& s : S) s = round(s);
      const Real m = maximum(S), l = sum(S);
      for (size_t x = 0; x < d; ++x) {
        Real o = 0;
        for (size_t c = 0; c < S.size(); ++c) {
          o += round(std::exp(S[c] - m) / l) * Real(V[c * d + x]);
        }
        O[row * d + x] = round(o);
      }
    }
  }

 private:
  static Real maximum(const std::vector<Real>& S) { return *std::max_element(S.begin(), S.end()); }
  /// Of exp(S - m), which no score makes overflow.
  static Real sum(const std::vector<Real>& S) {
    const Real m = maximum(S);
    Real l = 0;
    for (const Real s : S) l += std::exp(s - m);
    return l;
  }
};

}  // namespace fa
