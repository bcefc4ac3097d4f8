#include "common/harness/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "tests/test.h"

using Catch::Matchers::StartsWith;
using fa::DType;
using fa::Problem;

namespace {

std::vector<float> rounded(DType dtype, const std::vector<double>& a) {
  std::vector<float> to;
  for (const double x : a) to.push_back(fa::round_to(dtype, static_cast<float>(x)));
  return to;
}

/// A small problem and its right answer, which each test damages.
struct Answer {
  Problem p;
  fa::Inputs in;
  fa::Sample sample;
  fa::Outputs out;

  explicit Answer(DType dtype = DType::f32, bool masked_rows = false) {
    p.B = 2, p.H = 4, p.Hkv = 2, p.N = 40, p.Nk = masked_rows ? 30 : 50, p.d = 32;
    p.causal = true;
    p.dtype = dtype;
    in = fa::normal_inputs(p, 5);
    solve();
  }
  void solve(bool with_backward = true) {
    sample = fa::sample_of(p, 1, 1e18);
    const auto forward = fa::attention_fp64(p, in, sample);
    out = {};
    out.O = rounded(p.dtype, forward.O);
    out.LSE = rounded(DType::f32, forward.LSE);
    if (!with_backward) return;
    const auto backward = fa::attention_backward_fp64(p, in, sample);
    out.dQ = rounded(p.dtype, backward.dQ);
    out.dK = rounded(p.dtype, backward.dK);
    out.dV = rounded(p.dtype, backward.dV);
    out.dsinks = rounded(DType::f32, backward.dsinks);
  }
  fa::CheckResult check() const { return fa::check(p, in, out, sample); }
  fa::TensorCheck check(const std::string& name) const {
    const fa::CheckResult result = check();
    for (const fa::TensorCheck& t : result.tensors) {
      if (t.tensor == name) {
        CHECK(result.ok() == t.ok);
        return t;
      }
    }
    throw std::logic_error("no tensor " + name);
  }
};

float poison() {
  float x;
  std::memset(&x, 0xff, sizeof x);
  return x;
}

}  // namespace

TEST_CASE("the rounded truth passes, with its error within the bound", "[check]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Answer answer(dtype, GENERATE(false, true));
  const fa::CheckResult result = answer.check();
  CHECK(result.ok());
  CHECK(result.complete);
  REQUIRE(result.tensors.size() == 5);
  const size_t query_rows = answer.p.rows(), key_rows = answer.p.kv_heads() * answer.p.Nk;
  const size_t rows[] = {query_rows, query_rows, query_rows, key_rows, key_rows};
  const char* names[] = {"O", "LSE", "dQ", "dK", "dV"};
  for (int i = 0; i < 5; ++i) {
    const fa::TensorCheck& t = result.tensors[i];
    CAPTURE(t.tensor, t.max_abs_err, t.bound, t.message);
    CHECK(t.tensor == names[i]);
    CHECK(t.ok);
    CHECK(t.message.empty());
    CHECK(t.rows_checked == rows[i]);
    CHECK(t.max_abs_err > 0);
    CHECK(t.rmse > 0);
    CHECK(t.rmse < t.max_abs_err);
    CHECK(t.baseline_err > 0);
  }
}

TEST_CASE("rmse is of all elements", "[check]") {
  Answer answer;
  for (size_t i = 0; i < answer.out.O.size(); i += 4) answer.out.O[i] += 0.5f;
  CHECK(answer.check().tensors[0].rmse == Approx(0.25).epsilon(1e-4));
}

TEST_CASE("only what is present is checked", "[check]") {
  Answer answer;
  answer.out.dQ.clear(), answer.out.dK.clear(), answer.out.dV.clear();
  CHECK(answer.check().tensors.size() == 2);
  answer.out.LSE.clear();
  CHECK(answer.check().tensors.size() == 1);
  CHECK(answer.check().ok());
  answer.out.O.pop_back();
  CHECK_THROWS_AS(answer.check(), std::invalid_argument);
}

TEST_CASE("the message names the worst element", "[check]") {
  Answer answer;
  const size_t row = (1 * 4 + 2) * 40 + 37;  // b = 1, h = 2
  const float right = answer.out.O[row * 32 + 5];
  answer.out.O[row * 32 + 4] += 0.125f;
  answer.out.O[row * 32 + 5] = right + 0.5f;
  const fa::TensorCheck t = answer.check("O");
  CHECK_FALSE(t.ok);
  CHECK(t.max_abs_err == Approx(0.5));
  CHECK(t.bound < 1e-4);
  CHECK_THAT(t.message, ContainsSubstring("O[b=1, h=2, row=37, feature=5] is "));
  CHECK_THAT(t.message, ContainsSubstring(", expected "));
  CHECK_THAT(t.message, ContainsSubstring("error 5.00e-01, allowed "));
}

TEST_CASE("gradients of keys are named by K/V head and key", "[check]") {
  Answer answer;
  answer.out.dV[((1 * 2 + 1) * 50 + 49) * 32 + 31] += 1;
  CHECK_THAT(answer.check("dV").message, ContainsSubstring("dV[b=1, h=1, key=49, feature=31] is "));
}

TEST_CASE("the bound is twice the baseline's error in the same row, and the rounding", "[check]") {
  Answer answer(DType::bf16);
  const fa::ReferenceForward want = fa::attention_fp64(answer.p, answer.in, answer.sample);
  const fa::ReferenceForward base = fa::attention_unfused(answer.p, answer.in, answer.sample);
  for (const size_t row : {size_t{77}, size_t{160}, size_t{319}}) {
    double baseline = 0, largest = 0;
    for (int x = 0; x < 32; ++x) {
      baseline = std::max(baseline, std::abs(base.O[row * 32 + x] - want.O[row * 32 + x]));
      largest = std::max(largest, std::abs(want.O[row * 32 + x]));
    }
    const double bound = 2 * baseline + 0x1p-8 * largest;
    const float kept = answer.out.O[row * 32 + 9];
    answer.out.O[row * 32 + 9] = static_cast<float>(want.O[row * 32 + 9] + 0.99 * bound);
    CHECK(answer.check("O").ok);
    CHECK(answer.check("O").bound == Approx(bound).epsilon(0.005));  // the rest is fp32's share
    answer.out.O[row * 32 + 9] = static_cast<float>(want.O[row * 32 + 9] + 1.01 * bound);
    CHECK_FALSE(answer.check("O").ok);
    answer.out.O[row * 32 + 9] = kept;
  }
}

// The sum of the checker's bounds for some rows and heads. A change of a bound changes it here.
TEST_CASE("the bounds of a few problems are these", "[check]") {
  using enum DType;
  const char* const tensors[] = {"O", "LSE", "dQ", "dK", "dV", "dsinks"};
  struct Case {
    DType dtype;
    float q;  // factor of Q
    bool fp8, scores;
    std::vector<double> want;  // for the first tensors
  };
  const std::vector<Case> cases = {
      {f32, 1, false, false, {2.2588e-05, 2.8476e-05, 6.3083e-05, 0.00016552, 6.7116e-05}},
      {bf16, 1, false, false, {0.067317, 2.9045e-05, 0.20106, 0.23039, 0.21551}},
      {f32, 100, false, true, {0.0016646, 0.0015049, 0.0034024, 0.60658, 0.0032836, 0.063671}},
      {bf16, 3, false, true, {0.05521, 6.0644e-05, 0.096132, 0.35771, 0.1445, 0.46399}},
      {bf16, 1, true, false, {1.6193, 1.1833}},
      {bf16, 6, true, false, {9.886, 8}},
      {bf16, 30, true, false, {12.405, 8}},
  };
  for (const Case& c : cases) {
    Answer answer(c.dtype);
    CAPTURE(fa::name_of(c.dtype), c.q, c.fp8, c.scores);
    if (c.scores) answer.p.score_mod = {2, true, true};
    answer.p.method.fp8 = c.fp8;
    answer.in = fa::normal_inputs(answer.p, 5);
    for (float& q : answer.in.Q) q *= c.q;
    answer.solve(/*with_backward=*/!c.fp8);
    std::vector<std::pair<std::string, double>> sums;
    const std::vector<size_t> rows = {7, 39, 77, 160, 201, 222, 300, 319};
    for (size_t i = 0; i < rows.size(); ++i) {
      answer.sample.rows = {rows[i]}, answer.sample.heads = {i % 4};
      const fa::CheckResult result = answer.check();
      sums.resize(result.tensors.size());
      for (size_t t = 0; t < sums.size(); ++t) {
        sums[t].first = result.tensors[t].tensor;
        sums[t].second += result.tensors[t].bound;
      }
    }
    REQUIRE(sums.size() == c.want.size());
    for (size_t t = 0; t < sums.size(); ++t) {
      CAPTURE(sums[t].first);
      CHECK(sums[t].first == tensors[t]);
      CHECK(sums[t].second == Approx(c.want[t]).epsilon(0.01));
    }
  }
}

TEST_CASE("LSE is held to fp32's error whatever the type", "[check]") {
  Answer answer(DType::bf16);
  for (const size_t row : {size_t{30}, size_t{200}}) {
    const float kept = answer.out.LSE[row];
    answer.out.LSE[row] = kept + 2e-6f;  // an fp32 sum may err by that
    CHECK(answer.check("LSE").ok);
    answer.out.LSE[row] = kept - 1e-4f;  // a key with 1 / 10000 of the row's weight is missing
    CHECK_FALSE(answer.check("LSE").ok);
    CHECK(answer.check("LSE").baseline_err < 1e-5);
    answer.out.LSE[row] = kept;
  }
}

TEST_CASE("one checker compares again and again", "[check]") {
  Answer answer(DType::bf16);
  fa::Checker checker(answer.p, answer.in, answer.sample);
  CHECK(checker(answer.out).ok());
  const float kept = answer.out.dK[7];
  answer.out.dK[7] += 1;
  CHECK_FALSE(checker(answer.out).ok());
  answer.out.dK[7] = kept;
  CHECK(checker(answer.out).ok());
  CHECK(checker(answer.out).tensors[3].max_abs_err == answer.check("dK").max_abs_err);
}

TEST_CASE("NaN never passes", "[check]") {
  for (const auto tensor :
       {&fa::Outputs::O, &fa::Outputs::LSE, &fa::Outputs::dQ, &fa::Outputs::dK, &fa::Outputs::dV}) {
    Answer answer;
    (answer.out.*tensor)[45] = NAN;
    const fa::CheckResult result = answer.check();
    CHECK_FALSE(result.ok());
    const auto failed = std::find_if(result.tensors.begin(), result.tensors.end(),
                                     [](const fa::TensorCheck& t) { return !t.ok; });
    REQUIRE(failed != result.tensors.end());
    CHECK(std::isnan(failed->max_abs_err));
    CHECK_THAT(failed->message, ContainsSubstring("is nan"));
  }
}

TEST_CASE("an element that was never written is called so", "[check]") {
  Answer answer;
  answer.out.O[33] = poison();
  CHECK(answer.check("O").message ==
        "1 of 10240 elements of O were never written, first O[b=0, h=0, row=1, feature=1]");
  for (size_t i = 0; i < 32; ++i) answer.out.O[i] = poison();
  CHECK_THAT(answer.check("O").message, ContainsSubstring("33 of 10240"));
  CHECK(std::isnan(answer.check("O").max_abs_err));
  // So many elements cannot hide outside the sample either.
  answer.sample.rows = {300, 301};
  CHECK_FALSE(answer.check("O").ok);
}

TEST_CASE("an Inf fails where none belongs, and only there", "[check]") {
  Answer answer(DType::f32, /*masked_rows=*/true);  // rows 0 to 9 of a head see no key
  CHECK(answer.out.LSE[3] == -INFINITY);
  CHECK(answer.check().ok());
  answer.out.O[500] = INFINITY;
  CHECK_THAT(answer.check("O").message, ContainsSubstring("is inf"));
}

TEST_CASE("a touched guard band fails", "[check]") {
  Answer answer;
  answer.out.damage = {"the guard band after O was overwritten, first 0 bytes past its end"};
  const fa::CheckResult result = answer.check();
  CHECK_FALSE(result.ok());
  CHECK(result.damage == answer.out.damage);
}

TEST_CASE("a sample sees its own rows and heads", "[check]") {
  Answer answer;
  answer.sample.rows = {0, 100};
  answer.sample.heads = {1, 2};
  answer.sample.complete = false;
  CHECK(answer.check().ok());
  CHECK_FALSE(answer.check().complete);
  CHECK(answer.check("O").rows_checked == 2);
  CHECK(answer.check("dQ").rows_checked == 4 * 40);
  CHECK(answer.check("dK").rows_checked == 2 * 50);
  answer.out.O[100 * 32] += 1;
  CHECK_THAT(answer.check("O").message, ContainsSubstring("O[b=0, h=2, row=20, feature=0]"));
  answer.out.O[100 * 32] -= 1;
  answer.out.dQ[(5 * 40 + 3) * 32] += 1;  // query head 5 = (b=1, h=1) reads K/V head 2
  CHECK_THAT(answer.check("dQ").message, ContainsSubstring("dQ[b=1, h=1, row=3, feature=0]"));
  answer.out.dQ[(5 * 40 + 3) * 32] -= 1;
  answer.out.dK[(3 * 50 + 3) * 32] += 1;  // K/V head 3 is not in the sample
  CHECK(answer.check().ok());
  answer.out.dQ.clear();
  CHECK_FALSE(answer.check().complete);
}

TEST_CASE("V = 0 leaves no room: O must be 0", "[check]") {
  Answer answer;
  std::fill(answer.in.V.begin(), answer.in.V.end(), 0.0f);
  answer.out.dQ.clear();
  std::fill(answer.out.O.begin(), answer.out.O.end(), 0.0f);
  CHECK(answer.check().ok());
  answer.out.O[0] = 1e-20f;
  CHECK_FALSE(answer.check().ok());
}

TEST_CASE("a weight below the normal numbers may be 0, whatever it is multiplied by", "[check]") {
  // One row and two keys; the second has the weight e^-score.
  const float score = GENERATE(88.f, 84.f);  // 6.1e-39, 3.3e-37; FLT_MIN is 1.2e-38
  const float size = GENERATE(1.f, 1000.f);  // of dO and V
  const auto [heads, rows] = GENERATE(std::pair(1, 1), std::pair(1, 4), std::pair(4, 1));
  CAPTURE(score, size, heads, rows);
  Answer answer(DType::f32);
  Problem& p = answer.p;
  p.B = p.Hkv = 1, p.H = heads, p.N = rows, p.Nk = 2, p.d = 4;
  p.causal = false;
  const auto repeated = [n = heads * rows](const std::vector<float>& row) {
    std::vector<float> all;
    for (int i = 0; i < n; ++i) all.insert(all.end(), row.begin(), row.end());
    return all;
  };
  answer.in.Q = repeated({1, 0, 0, 0});
  answer.in.K = {0, 0, 0, 0, -2 * score, 0, 0, 0};
  answer.in.V = {size, 0, size, 0, 0, size, 0, 0};
  answer.in.dO = repeated({size, -size, size, 0});
  answer.solve();
  CHECK(answer.check().ok());
  std::fill(answer.out.dK.begin() + 4, answer.out.dK.end(), 0.f);
  std::fill(answer.out.dV.begin() + 4, answer.out.dV.end(), 0.f);
  for (const fa::TensorCheck& t : answer.check().tensors) {
    CAPTURE(t.tensor, t.message);
    CHECK(t.ok == (score > 87 || (t.tensor != "dK" && t.tensor != "dV")));
  }
}

TEST_CASE("a gradient of one term may be off by the rounding of P and of dS", "[check]") {
  // All in double, except that P and dS are operands of tensor cores, and so rounded. Of 3,000
  // inputs these use most of the bound: the baseline is lucky in a row whose two roundings agree.
  const int seed = GENERATE(294, 1901, 2446);
  Problem p;
  p.B = p.H = p.Hkv = p.N = 1, p.Nk = 300, p.d = 64, p.dtype = DType::bf16;
  const auto in = fa::normal_inputs(p, seed);
  const auto round = [](double x) { return fa::round_to(DType::bf16, static_cast<float>(x)); };
  const auto dot = [&](auto* a, auto* b) { return std::inner_product(a, a + p.d, b, 0.0); };
  Answer answer;
  answer.p = p, answer.in = in;
  answer.solve();
  const double LSE = fa::attention_fp64(p, in, answer.sample).LSE[0];
  const double delta = dot(in.dO.data(), answer.out.O.data());
  for (int c = 0; c < p.Nk; ++c) {
    const float *k = &in.K[c * p.d], *v = &in.V[c * p.d];
    const double P = std::exp(p.scale() * dot(in.Q.data(), k) - LSE);
    const double dS = round(round(P) * (dot(in.dO.data(), v) - delta));
    for (int x = 0; x < p.d; ++x) answer.out.dK[c * p.d + x] = round(p.scale() * dS * in.Q[x]);
  }
  const fa::TensorCheck dK = answer.check("dK");
  CAPTURE(seed, dK.message);
  CHECK(dK.ok);
  CHECK(dK.used > 0.9);
}

namespace {

/// Queries so large that one key of a row has all of P, or, with equal keys, that it is undecided.
Answer large_scores(DType dtype, float by, bool equal_keys) {
  Answer answer(dtype);
  Problem& p = answer.p;
  p.causal = false;
  if (equal_keys) {
    for (size_t i = 0; i < answer.in.K.size(); ++i) answer.in.K[i] = answer.in.K[i % p.d];
  }
  for (float& q : answer.in.Q) q = fa::round_to(dtype, q * by);
  answer.solve(/*with_backward=*/false);
  return answer;
}

}  // namespace

TEST_CASE("a row that is one key's has a narrow bound, however large its scores are", "[check]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const float by = GENERATE(1e5f, 1e7f);
  Answer answer = large_scores(dtype, by, /*equal_keys=*/false);
  CAPTURE(fa::name_of(dtype), by);
  CHECK(answer.check("O").ok);
  CHECK(answer.check("O").bound < (dtype == DType::f32 ? 1e-4 : 0.05));
  for (float& o : answer.out.O) o = -o;
  const fa::TensorCheck t = answer.check("O");
  CHECK_FALSE((t.ok || t.lost));
}

TEST_CASE("where the scores have no digits a right result is right, another not checkable",
          "[check]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  Answer answer = large_scores(dtype, 1e7f, /*equal_keys=*/true);
  CHECK(answer.check().ok());
  CHECK(answer.check("LSE").rows_lost == 0);
  const std::vector<float> O = answer.out.O, LSE = answer.out.LSE;
  for (float& o : answer.out.O) o = 0;
  fa::CheckResult result = answer.check();
  CHECK_FALSE(result.ok());
  CHECK(result.lost());
  CHECK(result.tensors[0].rows_lost == result.tensors[0].rows_checked);
  CHECK(result.tensors[1].ok);
  CHECK_THAT(
      result.tensors[0].message,
      ContainsSubstring("not checkable: the scores lose their precision, in 320 of 320 rows"));
  CHECK(result.tensors[0].used == 0);  // of the checkable rows
  answer.out.O = O;
  for (const size_t row : {size_t{203}, size_t{290}}) {
    std::fill_n(answer.out.O.begin() + row * 32, 32, 0.f);
  }
  CHECK_THAT(answer.check("O").message,
             ContainsSubstring("in 2 of 320 rows; the first is that of O[b=1, h=1, row=3, "
                               "feature=0]"));
  // No average of V is so large.
  answer.out.O = O;
  answer.out.O[7] = 100;
  CHECK_FALSE((answer.check().ok() || answer.check().lost()));
  answer.out.O = O;
  for (float& lse : answer.out.LSE) lse *= 1 + 0x1p-22f;
  CHECK(answer.check().lost());
  answer.out.LSE = LSE;
  for (float& lse : answer.out.LSE) lse *= 1 + 0x1p-10f;
  CHECK_FALSE((answer.check().ok() || answer.check().lost()));
  // A NaN is wrong: not enough digits are lost for P to overflow.
  answer.out.LSE = LSE;
  answer.out.O[7] = NAN;
  CHECK_FALSE((answer.check().ok() || answer.check().lost()));
  answer = large_scores(dtype, 1e12f, /*equal_keys=*/true);
  answer.out.LSE[7] = -INFINITY;
  CHECK(answer.check("LSE").lost);
  answer.out.O[7] = NAN;
  CHECK(answer.check().lost());
  answer = large_scores(dtype, 1e12f, /*equal_keys=*/false);
  for (float& o : answer.out.O) o = -o;
  CHECK(answer.check("O").lost);
}

TEST_CASE("of 8 bits one row in a hundred may lose its precision", "[check]") {
  Answer answer = large_scores(DType::bf16, 1e7f, /*equal_keys=*/true);
  answer.p.method.fp8 = true;
  for (const size_t rows : {3, 4}) {  // of 320
    for (size_t i = 0; i < rows * answer.p.d; ++i) answer.out.O[i] = 0;
    const fa::TensorCheck t = answer.check("O");
    CAPTURE(rows, t.message);
    CHECK(t.rows_lost == rows);
    CHECK(t.ok == (rows == 3));
  }
}

TEST_CASE("a NaN is excused in the heads that may overflow, and in no masked row", "[check]") {
  Answer answer(DType::f32, /*masked_rows=*/true);
  const size_t queries = 40 * 32, keys = 30 * 32;                          // elements of a head
  for (size_t i = queries; i < 4 * queries; ++i) answer.in.Q[i] *= 1e12f;  // not of head 0
  std::fill_n(answer.in.K.begin() + keys, keys, 0.f);  // K/V head 1, of the query heads 2 and 3
  answer.solve();
  answer.out.dK[0] = answer.out.O[2 * queries - 1] = NAN;
  CHECK(answer.check("dK").lost);
  CHECK(answer.check("O").lost);
  answer.out.LSE[40 + 3] = NAN;
  CHECK_THAT(answer.check("LSE").message, ContainsSubstring("fully masked row"));
  answer.out.O[3 * queries - 1] = NAN;
  CHECK_FALSE(answer.check("O").lost);
}

TEST_CASE("each batch entry is checked by its own length", "[check]") {
  Answer answer;
  Problem& p = answer.p;
  p.B = 3, p.H = 2, p.Hkv = 1, p.N = 2, p.Nk = 30, p.causal = false;
  p.cache.lengths = {30, 0, 9};
  fa::Inputs& in = answer.in = fa::normal_inputs(p, 5);
  for (size_t i = 30 * 32; i < 60 * 32; ++i) in.K[i] = in.V[i] = INFINITY;
  for (size_t i = (60 + 9) * 32; i < 90 * 32; ++i) in.K[i] = in.V[i] = 1e38f;
  answer.solve(/*with_backward=*/false);
  fa::Outputs& out = answer.out;
  CHECK(answer.check().ok());
  CHECK(answer.check("O").bound < 1e-4);  // the garbage after V's keys loosens nothing
  const auto wrong = [&](std::vector<float>& tensor, size_t at, float value) {
    const float kept = std::exchange(tensor[at], value);
    const fa::CheckResult result = answer.check();
    tensor[at] = kept;
    std::string message;
    for (const fa::TensorCheck& t : result.tensors) message += t.message;
    return message;
  };
  const size_t empty = 2 * 2, short_one = 2 * 2 * 2;  // the first rows of these batch entries
  CHECK_THAT(wrong(out.LSE, short_one, -INFINITY),
             ContainsSubstring("LSE[b=2, h=0, row=0] is -inf"));
  CHECK_THAT(wrong(out.LSE, empty, 0), ContainsSubstring("LSE[b=1, h=0, row=0] is 0"));
  CHECK_THAT(wrong(out.LSE, empty, -1e30f), ContainsSubstring("expected -inf"));
  for (const float lse : {NAN, INFINITY}) {
    CHECK_THAT(wrong(out.LSE, empty, lse),
               ContainsSubstring("expected -inf for a fully masked row"));
  }
  CHECK_THAT(wrong(out.O, empty * 32, 1e-6f), ContainsSubstring("O[b=1, h=0, row=0, feature=0]"));
  CHECK_THAT(wrong(out.O, short_one * 32, NAN), ContainsSubstring("O[b=2, h=0, row=0, feature=0]"));
}

TEST_CASE("the message is of the row that uses most of its bound, the figures of the largest error",
          "[check]") {
  Answer answer(DType::bf16);
  const fa::ReferenceForward want = fa::attention_fp64(answer.p, answer.in, answer.sample);
  // The bounds of two rows, from their own allowance.
  const auto bound_of = [&](size_t row) {
    Answer one = answer;
    one.sample.rows = {row}, one.sample.heads = {0};
    return one.check().tensors[0].bound;
  };
  size_t narrow = 7, wide = 7;
  for (const size_t row : {39, 77, 160, 201, 222, 300, 319}) {
    if (bound_of(row) < bound_of(narrow)) narrow = row;
    if (bound_of(row) > bound_of(wide)) wide = row;
  }
  REQUIRE(1.5 * bound_of(narrow) < bound_of(wide));
  const auto put = [&](size_t row, double error) {
    answer.out.O[row * 32 + 3] = static_cast<float>(want.O[row * 32 + 3] + error);
  };
  const double bound_of_narrow = bound_of(narrow);
  put(narrow, 4 * bound_of(narrow)), put(wide, 3.5 * bound_of(wide));
  const fa::TensorCheck t = answer.check("O");
  CHECK(t.max_abs_err == Approx(3.5 * bound_of(wide)));
  CHECK(t.bound == Approx(bound_of(wide)));
  CHECK(t.used == Approx(4));
  CHECK_THAT(t.message, StartsWith("O[b=" + std::to_string(narrow / 160) +
                                   ", h=" + std::to_string(narrow / 40 % 4) +
                                   ", row=" + std::to_string(narrow % 40) + ", feature=3] is "));
  char allowed[32];
  std::snprintf(allowed, sizeof allowed, "allowed %.2e", bound_of_narrow);
  CHECK_THAT(t.message, ContainsSubstring(allowed));
}

TEST_CASE("gradients of sinks are checked of the heads of the sample, in each batch entry",
          "[check]") {
  Answer answer;
  answer.p.score_mod.sinks = true;
  answer.in = fa::normal_inputs(answer.p, 5);
  answer.solve();
  REQUIRE(answer.out.dsinks.size() == 8);
  CHECK(answer.check("dsinks").ok);
  CHECK(answer.check("dsinks").rows_checked == 8);
  const auto verdict = [&](size_t head, float value) {
    const float kept = std::exchange(answer.out.dsinks[head], value);
    const std::string message = answer.check("dsinks").message;
    answer.out.dsinks[head] = kept;
    return message;
  };
  CHECK_THAT(verdict(6, 100), ContainsSubstring("dsinks[b=1, h=2, row=0] is 100, expected "));
  CHECK_THAT(verdict(6, NAN), ContainsSubstring("dsinks[b=1, h=2, row=0] is nan"));
  CHECK(verdict(1, poison()) ==
        "1 of 8 elements of dsinks were never written, first dsinks[b=0, h=1, row=0]");
  answer.sample.heads = {1, 2};  // of the query heads 2 to 5
  CHECK(answer.check("dsinks").rows_checked == 4);
  for (const size_t head : {2, 3, 4, 5}) CHECK_FALSE(verdict(head, 100).empty());
  for (const size_t head : {0, 1, 6, 7}) CHECK(verdict(head, 100).empty());
  answer.out.dsinks.pop_back();
  CHECK_THROWS_WITH(answer.check(), "check: dsinks has 7 elements instead of 8");
}

TEST_CASE("a run is right or lost as a whole", "[check]") {
  const auto with = [](std::vector<std::pair<bool, bool>> ok_and_lost, bool damage = false) {
    fa::CheckResult result;
    for (const auto& [ok, lost] : ok_and_lost) {
      result.tensors.emplace_back().ok = ok;
      result.tensors.back().lost = lost;
    }
    if (damage) result.damage = {"a guard band"};
    return std::pair(result.ok(), result.lost());
  };
  const std::pair right(true, false), wrong(false, false), lost(false, true);
  CHECK(with({}) == wrong);
  CHECK(with({{true, false}}) == right);
  CHECK(with({{true, false}}, true) == wrong);
  CHECK(with({{true, false}, {false, true}}) == lost);
  CHECK(with({{true, false}, {false, true}}, true) == wrong);
  CHECK(with({{false, false}, {false, true}}) == wrong);
  CHECK(with({{true, false}, {false, false}}) == wrong);
}

TEST_CASE("a checker of a forward can check a backward later; complete is of both", "[check]") {
  Answer answer;
  const fa::Outputs all = answer.out;
  fa::Outputs forward = all;
  forward.dQ.clear(), forward.dK.clear(), forward.dV.clear();
  answer.sample.heads = {1, 2};
  fa::Checker checker(answer.p, answer.in, answer.sample);
  CHECK(checker(forward).complete);
  CHECK(checker(forward).tensors.size() == 2);
  CHECK(checker(all).tensors.size() == 5);
  CHECK(checker(all).ok());
  CHECK_FALSE(checker(all).complete);  // all rows, but not all heads
  answer.sample.heads = {0, 1, 2, 3}, answer.sample.rows.pop_back();
  CHECK_FALSE(answer.check().complete);
}

TEST_CASE("where scores have no digits, a sum that cancels may be off by its rounding", "[check]") {
  // Two rows see two equal keys, with V and -V, dO and -dO: O and dV are 0.
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(fa::name_of(dtype));
  Answer answer(dtype);
  Problem& p = answer.p;
  p.B = p.H = p.Hkv = 1, p.N = p.Nk = 2, p.d = 4, p.causal = false;
  const float large = 0x1p30f;
  answer.in.Q = {large, 0, 0, 0, large, 0, 0, 0};
  answer.in.K = {1, 0, 0, 0, 1, 0, 0, 0};
  answer.in.V = {1, 1, 1, 1, -1, -1, -1, -1};
  answer.in.dO = {1, 1, 1, 1, -1, -1, -1, -1};
  answer.solve();
  CHECK(answer.check().ok());
  const bool f32 = dtype == DType::f32;
  const auto verdict = [&](const char* name, std::vector<float>& tensor, double value) {
    const float kept = std::exchange(tensor[5], static_cast<float>(value));
    const fa::TensorCheck t = answer.check(name);
    tensor[5] = kept;
    return std::string(t.ok ? "ok" : t.lost ? "lost" : "wrong");
  };
  const double of_P = fa::kFp32Error + (f32 ? 0 : 2 * 0x1p-8);  // of the sum of |P V|, 1
  CHECK(verdict("O", answer.out.O, 0.99 * of_P) == "ok");
  CHECK(verdict("O", answer.out.O, 1.01 * of_P) == "lost");
  CHECK(verdict("O", answer.out.O, 0.99 + of_P) == "lost");  // V's largest element
  CHECK(verdict("O", answer.out.O, 1.01 + of_P) == "wrong");
  const double of_dV = fa::kFp32Error + 3 * (f32 ? 0x1p-24 : 0x1p-8);
  CHECK(verdict("dV", answer.out.dV, 0.99 * of_dV) == "ok");
  CHECK(verdict("dV", answer.out.dV, 1.01 * of_dV) == "lost");
  if (f32) return;
  p.method.fp8 = true;  // sqrt(2) / 16 of the root of the sum of (P V)^2, sqrt(1/2)
  answer.solve(/*with_backward=*/false);
  CHECK(verdict("O", answer.out.O, 0.99 * (of_P + 0x1p-4)) == "ok");
  CHECK(verdict("O", answer.out.O, 1.01 * (of_P + 0x1p-4)) == "lost");
}
