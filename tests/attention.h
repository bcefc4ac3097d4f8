// What the tests of all steps ask: is it right, are its bytes as predicted, does it behave as
// attention must.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "common/backend.h"
#include "common/check.h"
#include "common/inputs.h"
#include "common/run.h"
#include "common/step.h"
#include "tests/test.h"

namespace fa::test {

inline Problem problem(int N, int d, bool causal, int B = 1, int H = 2) {
  Problem p;
  p.B = B;
  p.H = p.Hkv = H;
  p.N = p.Nk = N;
  p.d = d;
  p.causal = causal;
  return p;
}

/// The same in bf16, with what the tensor-core steps allow besides: N queries and Nk keys, and H
/// query heads that share Hkv key heads.
inline Problem bf16_problem(int N, int Nk, int d, bool causal, int B = 1, int H = 1, int Hkv = 1) {
  Problem p = problem(N, d, causal, B, H);
  p.Nk = Nk;
  p.Hkv = Hkv;
  p.dtype = DType::bf16;
  return p;
}

/// N and Nk of no common tile; a long walk for one row; one key more, or less, than there are rows.
inline const std::vector<std::pair<int, int>> kLengths = {
    {113, 203}, {128, 217}, {108, 256}, {256, 512}, {1, 2048}, {1023, 1024}, {1024, 1023}};

/// Any small problem of the tensor-core steps.
inline Problem random_problem(std::mt19937& random) {
  auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const int N = between(1, 150), Nk = between(1, 150), d = between(1, 2) * 64;
  const bool causal = between(0, 1);
  const int B = between(1, 2), Hkv = between(1, 2), group = between(1, 3);
  return bf16_problem(N, Nk, d, causal, B, Hkv * group, Hkv);
}

/// Every row against fp64, by the checker's bound.
inline void require_right(const Variant& v, const Problem& p, const Inputs& in) {
  const CheckResult result = check(p, in, run(v, p, in), sample_of(p, 1, 1e18));
  for (const TensorCheck& t : result.tensors) {
    CAPTURE(t.tensor, t.max_abs_err, t.bound, t.message);
    CHECK(t.ok);
  }
  CHECK(result.damage.empty());
  REQUIRE(result.ok());
  REQUIRE(result.complete);
}
inline void require_right(const Variant& v, const Problem& p) {
  require_right(v, p, normal_inputs(p, static_cast<uint64_t>(p.N) * 1000 + p.d));
}

/// The bytes of one forward, counted (simulator) or measured (GPU).
inline Counts count_forward(const Variant& v, const Problem& p, bool analyse = false) {
  Session session(p, normal_inputs(p, 1), v);
  CountOptions options;
  options.analyse = analyse;
  options.gpu = find_gpu("H200");
  return count([&] { session.forward(); }, options);
}

/// The bytes of one backward, behind one forward that is not counted.
inline Counts count_backward(const Variant& v, const Problem& p, bool analyse = false) {
  Session session(p, normal_inputs(p, 1), v);
  CountOptions options;
  options.analyse = analyse;
  options.gpu = find_gpu("H200");
  session.forward();
  return count([&] { session.backward(); }, options);
}

/// Predicted requested bytes are the counted ones, per buffer, to the byte. Simulator only.
inline void require_equal(Prediction prediction, const Counts& counts) {
  for (const auto& [name, count] : counts.buffers) {
    CAPTURE(name);
    CHECK(count.bytes.read == prediction[name].read);
    CHECK(count.bytes.write == prediction[name].write);
    CHECK(count.bytes.atomic == prediction[name].atomic);
  }
  REQUIRE(counts.buffers.size() == prediction.buffers.size());
  REQUIRE(counts.requested == prediction.total());
}
inline void require_predicted(const Variant& v, const Problem& p) {
  require_equal(v.traffic(p), count_forward(v, p));
}
inline void require_backward_predicted(const Variant& v, const Problem& p) {
  require_equal(v.backward_traffic(p), count_backward(v, p));
}

inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(e)) return e;  // which is <= no tolerance
    worst = std::max(worst, e);
  }
  return worst;
}

/// V = 1 gives O = 1: every row of P sums to one.
inline void require_rows_sum_to_one(const Variant& v, const Problem& p, double tolerance) {
  Inputs in = normal_inputs(p, 2);
  std::fill(in.V.begin(), in.V.end(), 1.f);
  const Outputs out = run(v, p, in);
  REQUIRE(max_difference(out.O, std::vector<float>(out.O.size(), 1.f)) <= tolerance);
}

/// The same vector added to every key shifts each row of S by a constant: O does not change.
inline void require_shift_invariance(const Variant& v, const Problem& p, double tolerance) {
  Inputs in = normal_inputs(p, 3);
  for (float& k : in.K) k = std::round(16 * k) / 16;  // bf16 too adds the vector without rounding
  const Outputs before = run(v, p, in);
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] += 0.25f * static_cast<float>(i % p.d % 3);
  REQUIRE(max_difference(run(v, p, in).O, before.O) <= tolerance);
}

/// Keys and values in another order: O does not change (no causal mask).
inline void require_key_permutation(const Variant& v, const Problem& p, double tolerance) {
  REQUIRE(!p.causal);
  const Inputs in = normal_inputs(p, 4);
  Inputs reversed = in;
  const size_t d = p.d, Nk = p.Nk;
  for (size_t h = 0; h < p.kv_heads(); ++h) {
    for (size_t c = 0; c < Nk; ++c) {
      const size_t from = (h * Nk + c) * d, to = (h * Nk + (Nk - 1 - c)) * d;
      std::copy_n(&in.K[from], d, &reversed.K[to]);
      std::copy_n(&in.V[from], d, &reversed.V[to]);
    }
  }
  REQUIRE(max_difference(run(v, p, in).O, run(v, p, reversed).O) <= tolerance);
}

/// Scores in the thousands (only the largest survives) and near zero (a mean) are both right.
inline void require_any_score_size(const Variant& v, const Problem& p) {
  for (const float factor : {300.f, 1e-6f}) {
    CAPTURE(factor);
    Inputs in = normal_inputs(p, 5);
    for (float& q : in.Q) q = round_to(p.dtype, q * factor);
    require_right(v, p, in);
  }
}

}  // namespace fa::test
