// Tests of step 03. steps/CMakeLists.txt says what it is linked with.
#include <random>

#include "steps/03_online_softmax/1_merge.cuh"
#include "tests/attention.h"

using step03::merge;
using step03::RowStats;
using step03::stats_of;

static const fa::Variant& parent() { return fa::linked_variant("02 registers"); }
static const fa::Variant& naive() { return fa::linked_variant("03 naive"); }
static const fa::Variant& safe() { return fa::linked_variant("03 safe"); }
static const fa::Variant& online() { return fa::linked_variant("03 online"); }
static const fa::Variant& one_pass() { return fa::linked_variant("03 one_pass"); }

static const fa::Variant& any() { return *GENERATE(&naive(), &safe(), &online(), &one_pass()); }

// --- merge --------------------------------------------------------------------------------------

/// What a row's statistics can be: of no score, of masked scores only, of one score, of many.
static RowStats any_stats(std::mt19937& random) {
  const float m = std::uniform_real_distribution<float>(-100.f, 100.f)(random);
  const float l = std::uniform_real_distribution<float>(1.f, 4096.f)(random);
  switch (random() % 6) {
    case 0:
      return {};
    case 1:
      return stats_of(-INFINITY);
    case 2:
      return stats_of(m);
    case 3:
      return {std::round(m), l};  // so that equal maxima meet
    default:
      return {m, l};
  }
}

static bool equal(RowStats a, RowStats b) { return a.m == b.m && a.l == b.l; }

TEST_CASE("step 03: merge is associative, commutative, has an identity and makes no NaN",
          "[step03]") {
  std::mt19937 random(1);
  double worst = 0;  // relative difference of l between the two ways to merge three
  for (int i = 0; i < 100000; ++i) {
    const RowStats a = any_stats(random), b = any_stats(random), c = any_stats(random);
    CAPTURE(a.m, a.l, b.m, b.l, c.m, c.l);
    const RowStats ab = merge(a, b);
    const RowStats left = merge(ab, c), right = merge(a, merge(b, c));
    const bool commutes = equal(ab, merge(b, a));
    const bool identity = equal(merge(a, {}), a) && equal(merge({}, a), a);
    const bool number = !std::isnan(left.m) && !std::isnan(left.l);
    const bool empty = (left.m == -INFINITY) == (left.l == 0);
    if (!(commutes && identity && number && empty && left.m == right.m)) {
      FAIL("commutes " << commutes << ", identity " << identity << ", number " << number
                       << ", empty only without scores " << empty << ", same maximum "
                       << (left.m == right.m));
    }
    if (left.l != 0) worst = std::max(worst, std::abs(left.l - right.l) / double(left.l));
  }
  CAPTURE(worst);
  CHECK(worst > 0);  // associative up to rounding, and no more than that
  CHECK(worst < 8 * 0x1p-23);
}

TEST_CASE("step 03: any tree of merges gives the softmax of the row", "[step03]") {
  std::mt19937 random(2);
  for (int row = 0; row < 200; ++row) {
    std::vector<float> scores(1 + random() % 300);
    for (float& s : scores) {
      s = random() % 5 == 0 ? -INFINITY
                            : std::uniform_real_distribution<float>(-200.f, 200.f)(random);
    }
    scores[0] = 0;
    const double m = *std::max_element(scores.begin(), scores.end());
    double l = 0;
    for (const float s : scores) l += std::exp(s - m);

    std::vector<RowStats> parts;
    for (const float s : scores) parts.push_back(stats_of(s));
    while (parts.size() > 1) {  // joins any two
      std::swap(parts[random() % parts.size()], parts.back());
      const RowStats last = parts.back();
      parts.pop_back();
      RowStats& other = parts[random() % parts.size()];
      other = merge(other, last);
    }
    CHECK(parts[0].m == m);
    CHECK(std::abs(parts[0].l - l) <= 1e-5 * l);
  }
}

// --- attention ----------------------------------------------------------------------------------

TEST_CASE("step 03: O matches the fp64 reference at tile edges", "[step03][all]") {
  fa::test::require_right_at_edges_fp32(one_pass());
}

TEST_CASE("step 03: right for real input and outliers, behaves as attention must", "[step03]") {
  fa::test::require_fp32_properties(*GENERATE(&safe(), &online(), &one_pass()));
  const auto p = fa::test::problem(70, 64, true, /*B=*/3, /*H=*/5);
  fa::test::require_right(naive(), p, fa::real_inputs(p, 1));
  fa::test::require_right(naive(), p, fa::outlier_inputs(p, 1));
}

TEST_CASE("step 03: agrees with step 02", "[step03]") {
  fa::test::require_agrees_fp32(any(), parent());
}

TEST_CASE("step 03: O matches the fp64 reference with any softmax", "[step03][all]") {
  const auto* variant = GENERATE(&naive(), &safe(), &online());
  const int N = GENERATE(1, 31, 33, 64, 100, 257);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, N, causal);
  const auto p = fa::test::problem(N, 64, causal);
  if (variant == &naive()) {  // whose exponentials are 0 for scores far below zero
    fa::test::require_right(naive(), p, fa::normal_inputs(p, N));
  } else {
    fa::test::require_right(*variant, p);
  }
}

TEST_CASE("step 03: a row whose maximum rises or falls with every slice", "[step03]") {
  const auto* variant = GENERATE(&online(), &one_pass());
  const float slope = GENERATE(2.f, -2.f);  // S moves by up to 500 along a row
  CAPTURE(variant->name, slope);
  const auto p = fa::test::problem(257, 64, GENERATE(false, true));
  fa::Inputs in = fa::normal_inputs(p, 7);
  for (size_t i = 0; i < in.Q.size(); ++i) {
    if (i % p.d == 0) {
      in.Q[i] = 8;
      in.K[i] = slope * static_cast<float>(i / p.d % p.N);
    }
  }
  fa::test::require_right(*variant, p, in);
}

TEST_CASE("step 03: the naive softmax overflows, underflows, and the check says so", "[step03]") {
  const auto p = fa::test::problem(75, 64, GENERATE(false, true));
  fa::Inputs in = fa::normal_inputs(p, 5);
  for (float& q : in.Q) q *= 300;
  const auto only_naive_is_rejected = [&] {
    for (const fa::Variant* v : {&naive(), &safe(), &online(), &one_pass()}) {
      CAPTURE(v->name);
      const auto result = fa::check(p, in, fa::run(*v, p, in), fa::sample_of(p, 1, 1e18));
      CHECK(result.ok() == (v != &naive()));
    }
  };
  only_naive_is_rejected();
  // All scores far below zero: every exponential is 0, and so is their sum.
  for (float& q : in.Q) q = 30.f;
  for (float& k : in.K) k = -2.f + 0.01f * k;
  only_naive_is_rejected();
}

TEST_CASE("step 03: S crosses HBM twice, P not at all", "[step03]") {
  const auto p = fa::test::problem(256, 64, false);
  const fa::Prediction before = parent().traffic(p), now = one_pass().traffic(p);
  const uint64_t NN = 4 * p.scores(), Nd = 4 * p.q_size();
  CHECK(before.hbm.total() == 4 * NN + 4 * Nd);
  CHECK(now.hbm.total() == 2 * NN + 4 * Nd);
  CHECK_FALSE(now.buffers.contains("P"));
  CHECK(before.total().total() - now.total().total() == 4 * NN);  // 2 loads of S, P out and in
  REQUIRE(one_pass().workspace(p).size() == 1);
  CHECK(one_pass().workspace(p)[0].bytes == NN);
}

#if !FA_BACKEND_GPU
TEST_CASE("step 03: predicted bytes are counted bytes", "[step03][all]") {
  fa::test::require_predicted_fp32(one_pass());
}

TEST_CASE("step 03: no bank conflicts, coalesced loads", "[step03][all]") {
  fa::test::require_clean_accesses_fp32(any());
}

TEST_CASE("step 03: 3, 4 and 3 accesses per score, as counted", "[step03][all]") {
  const auto [variant, accesses] =
      GENERATE(table<const fa::Variant*, double>({{&naive(), 3}, {&safe(), 4}, {&online(), 3}}));
  const int N = GENERATE(1, 17, 64, 100, 257);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, N, causal);
  const auto p = fa::test::problem(N, 64, causal, 1, 3);
  const fa::Prediction prediction = variant->traffic(p);
  const fa::Counts counts = fa::test::count_forward(*variant, p);
  fa::test::require_equal(prediction, counts);
  REQUIRE(prediction.per_element.size() == 1);
  CHECK(prediction.per_element[0].accesses == accesses);
  CHECK(fa::counted_per_element(prediction.per_element[0], counts) == accesses);
}

TEST_CASE("step 03: the analysis finds nothing", "[step03][all]") {
  fa::test::require_no_finding_fp32(any());
}
#endif
