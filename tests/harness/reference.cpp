#include "common/harness/reference.h"

#include <algorithm>
#include <cmath>

#include "common/harness/definition.h"
#include "tests/masks.h"
#include "tests/test.h"

using fa::DType;
using fa::Problem;
using fa::Sample;

namespace {

Problem problem(int B, int H, int Hkv, int N, int Nk, int d, bool causal) {
  Problem p;
  p.B = B, p.H = H, p.Hkv = Hkv, p.N = N, p.Nk = Nk, p.d = d, p.causal = causal;
  return p;
}

/// Ragged lengths, groups, causal or not, more or fewer keys than queries (masked rows); and masks.
Problem any_problem() {
  using fa::test::packed, fa::test::with_random_predicate, fa::test::with_score_mod,
      fa::test::with_window;
  using Lengths = std::vector<std::pair<int, int>>;
  return GENERATE(
      problem(1, 1, 1, 1, 1, 32, true), problem(2, 2, 2, 33, 33, 32, false),
      problem(1, 2, 2, 70, 70, 32, true), problem(2, 4, 2, 20, 45, 32, true),
      problem(1, 4, 1, 45, 20, 64, true), problem(1, 3, 3, 17, 40, 96, false),
      with_window(problem(1, 2, 1, 40, 40, 32, false), 5, 3),
      with_window(problem(1, 1, 1, 45, 20, 32, true), 3, 7),
      packed(problem(2, 2, 1, 1, 1, 32, true), Lengths{{9, 20}, {0, 5}, {25, 8}, {1, 1}}),
      with_window(packed(problem(1, 1, 1, 1, 1, 32, false), {17, 0, 1, 20}), 4, -1),
      with_random_predicate(problem(1, 2, 2, 40, 30, 32, false), 1),
      with_score_mod(problem(1, 2, 1, 40, 30, 32, true), 2, false, false),
      with_score_mod(problem(1, 4, 2, 30, 40, 32, false), 0, true, false),
      with_score_mod(problem(2, 2, 1, 30, 20, 32, true), 0, false, true),
      with_score_mod(with_window(problem(1, 2, 2, 40, 40, 32, true), 5, 0), 3, true, true),
      with_score_mod(problem(2, 6, 2, 20, 30, 32, false), 0, true, true),
      with_score_mod(packed(problem(2, 4, 2, 1, 1, 32, true), Lengths{{9, 20}, {12, 8}}), 2, true,
                     true),
      with_random_predicate(packed(problem(1, 1, 1, 1, 1, 32, true), {30, 20}), 3));
}

Sample everything(const Problem& p) { return fa::sample_of(p, 1, 1e18); }

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // both -inf
    const double difference = std::abs(a[i] - b[i]);
    REQUIRE(!std::isnan(difference));
    largest = std::max(largest, difference);
  }
  return largest;
}

/// The sum of dO * O: the scalar whose gradients the backward computes.
double loss(const Problem& p, const fa::Inputs& in) {
  const fa::ReferenceForward f = fa::attention_fp64(p, in, everything(p));
  double sum = 0;
  for (size_t i = 0; i < f.O.size(); ++i) sum += f.O[i] * in.dO[i];
  return sum;
}

}  // namespace

TEST_CASE("the fp64 forward is the definition", "[reference]") {
  const Problem p = any_problem();
  CAPTURE(fa::describe(p));
  const fa::Inputs in = fa::outlier_inputs(p, 7);
  const fa::ReferenceForward got = fa::attention_fp64(p, in, everything(p));
  const fa::Definition<double> want(p, in, [](double x) { return x; });
  CHECK(largest_difference(got.O, want.O) < 1e-13);
  CHECK(largest_difference(got.LSE, want.LSE) < 1e-13);
}

TEST_CASE("the unfused baseline is the plain loop of its precision, bit for bit", "[reference]") {
  Problem p = any_problem();
  p.dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(fa::describe(p));
  const fa::Inputs in = fa::normal_inputs(p, 7);
  const fa::ReferenceForward got = fa::attention_unfused(p, in, everything(p));
  const fa::Definition<float> want(p, in, [&](float x) { return fa::round_to(p.dtype, x); });
  CHECK(got.O == std::vector<double>(want.O.begin(), want.O.end()));
  CHECK(got.LSE == std::vector<double>(want.LSE.begin(), want.LSE.end()));
}

TEST_CASE("the fp64 backward is the forward's finite difference", "[reference]") {
  const Problem p = any_problem();
  CAPTURE(fa::describe(p));
  fa::Inputs in = fa::normal_inputs(p, 7);
  const fa::ReferenceBackward b = fa::attention_backward_fp64(p, in, everything(p));
  const float h = 0x1p-10f;
  const auto check_some = [&](const char* name, std::vector<float>& tensor,
                              const std::vector<double>& gradient) {
    REQUIRE(gradient.size() == tensor.size());  // the sample holds all heads, in order
    for (size_t k = 0; k < 12; ++k) {
      const size_t i = (k * 7919 + 3) % tensor.size();
      const float kept = tensor[i];
      // A step that fp32 represents exactly, so that the formula divides by the actual difference.
      tensor[i] = kept + h;
      const double up = tensor[i], loss_up = loss(p, in);
      tensor[i] = kept - h;
      const double down = tensor[i], loss_down = loss(p, in);
      tensor[i] = kept;
      CAPTURE(name, i);
      CHECK(gradient[i] == Approx((loss_up - loss_down) / (up - down)).margin(2e-5).epsilon(1e-4));
    }
  };
  check_some("dQ", in.Q, b.dQ);
  check_some("dK", in.K, b.dK);
  check_some("dV", in.V, b.dV);
  if (!p.score_mod.sinks) return;
  std::vector<double> dsinks(p.H);  // over the batch
  for (size_t i = 0; i < b.dsinks.size(); ++i) dsinks[i % p.H] += b.dsinks[i];
  check_some("dsinks", in.sinks, dsinks);
}

TEST_CASE("the unfused backward errs as its precision does", "[reference]") {
  Problem p = problem(1, 4, 2, 60, 100, 64, true);
  p.dtype = GENERATE(DType::f32, DType::bf16);
  const double unit = p.dtype == DType::f32 ? 0x1p-24 : 0x1p-9;
  const fa::Inputs in = fa::normal_inputs(p, 7);
  const auto want = fa::attention_backward_fp64(p, in, everything(p));
  const auto got = fa::attention_backward_unfused(p, in, everything(p));
  for (const auto& [a, b] :
       {std::pair(&got.dQ, &want.dQ), std::pair(&got.dK, &want.dK), std::pair(&got.dV, &want.dV)}) {
    double size = 0;
    for (const double x : *b) size = std::max(size, std::abs(x));
    const double error = largest_difference(*a, *b) / size;
    CHECK(error > unit / 8);
    CHECK(error < unit * 16);
    for (const double x : *a) REQUIRE(x == fa::round_to(p.dtype, static_cast<float>(x)));
  }
}

namespace {

/// A number that depends on each element and its place.
double digest(const std::vector<double>& t) {
  double sum = 0;
  for (size_t i = 0; i < t.size(); ++i) sum += t[i] * (1 + static_cast<double>(i * 7919 % 13));
  return sum;
}

}  // namespace

// The scales of reference.h for a few problems: a change of a scale changes it here.
TEST_CASE("the scales of the checker's floors are exactly these", "[reference]") {
  struct Case {
    Problem p;
    float q;  // factor of Q
    bool fp8;
  };
  using fa::test::with_score_mod, fa::test::with_window;
  const Case cases[] = {
      {problem(2, 4, 2, 20, 33, 32, true), 1, false},
      {with_score_mod(with_window(problem(2, 4, 2, 20, 33, 32, false), 9, 9), 2, true, true), 10,
       false},
      {problem(1, 4, 2, 18, 70, 64, false), 8, true},
  };
  struct Scale {
    const char* name;
    const std::vector<double>* got;
    double want[std::size(cases)];
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Case& c = cases[i];
    Problem p = c.p;
    p.dtype = c.fp8 ? DType::bf16 : DType::f32;
    p.method.fp8 = c.fp8;
    CAPTURE(fa::describe(p));
    fa::Inputs in = fa::normal_inputs(p, 7);
    for (float& q : in.Q) q *= c.q;
    std::copy_n(in.K.begin(), 2 * p.d, in.K.begin() + 4 * p.d);  // equal keys
    std::copy_n(in.V.begin(), 2 * p.d, in.V.begin() + 4 * p.d);
    const auto f = fa::attention_fp64(p, in, everything(p));
    const auto b = fa::attention_backward_fp64(p, in, everything(p));
    const Scale scales[] = {
        {"sum_PV", &f.sum_PV, {1376.08463, 1384.39888, 1121.108941}},
        {"score_bound", &f.score_bound, {7539.3066, 78161.39642, 39554.7566}},
        {"sum_error", &f.sum_error, {0.0001734164948, 0.0002168102559, 0.00628616477}},
        {"rest_of_P", &f.rest_of_P, {875.2560172, 912.9960609, 118.9812979}},
        {"largest_V", &f.largest_V, {3526.58255, 3325.045624, 1725.46875}},
        {"root_PV", &f.root_PV, {0, 0, 1024.043329}},
        {"root_PS", &f.root_PS, {0, 0, 3789.754631}},
        {"root_mean", &f.root_mean, {0, 0, 3903.849439}},
        {"root_PSV", &f.root_PSV, {0, 0, 2245.224255}},
        {"adrift", &f.adrift, {0, 0, 1256.760089}},
        {"dsinks_scale", &b.dsinks_scale, {0, 25682.60467, 0}},
        {"dsinks_delta", &b.dsinks_delta, {0, 23.48188221, 0}},
        {"dQ_scale", &b.dQ_scale, {20062.65806, 172060.3101, 235777.0346}},
        {"dK_scale", &b.dK_scale, {20119.97221, 1919188.755, 2030248.24}},
        {"dV_scale", &b.dV_scale, {8860.928257, 86016.30007, 92966.95588}},
        {"dQ_terms", &b.dQ_terms, {5740.596846, 5451.260876, 3531.403274}},
        {"dK_terms", &b.dK_terms, {5603.03823, 56542.01575, 27621.7612}},
        {"dV_terms", &b.dV_terms, {2596.435097, 2642.169256, 1299.203668}},
        {"dQ_delta", &b.dQ_delta, {313.0181417, 335.6690897, 982.9960215}},
        {"dK_delta", &b.dK_delta, {293.5446525, 3634.336365, 7574.798318}},
        {"dQ_root", &b.dQ_root, {662.1835204, 99.62560846, 233.8274779}},
        {"dK_root", &b.dK_root, {737.8509273, 1148.309583, 2798.579836}},
        {"dV_root", &b.dV_root, {919.9738646, 1069.825163, 1136.428348}},
    };
    for (const Scale& s : scales) {
      CAPTURE(s.name);
      CHECK(digest(*s.got) == Approx(s.want[i]).epsilon(1e-9));
    }
  }
}

TEST_CASE("a sample's results are those of the whole", "[reference]") {
  const Problem p = problem(2, 4, 2, 50, 80, 32, true);
  const fa::Inputs in = fa::normal_inputs(p, 7);
  Sample some;
  some.rows = {3, 49, 50, 51, 377, 399};
  some.heads = {1, 2};
  const auto whole = fa::attention_fp64(p, in, everything(p));
  const auto part = fa::attention_fp64(p, in, some);
  REQUIRE(part.O.size() == some.rows.size() * 32);
  for (size_t i = 0; i < some.rows.size(); ++i) {
    CHECK(part.LSE[i] == whole.LSE[some.rows[i]]);
    for (int x = 0; x < 32; ++x) CHECK(part.O[i * 32 + x] == whole.O[some.rows[i] * 32 + x]);
  }
  const auto all_heads = fa::attention_backward_fp64(p, in, everything(p));
  const auto two_heads = fa::attention_backward_fp64(p, in, some);
  const size_t group = 2 * 50 * 32, keys = 80 * 32;  // heads 1 and 2 are consecutive
  CHECK(std::equal(two_heads.dQ.begin(), two_heads.dQ.end(), all_heads.dQ.begin() + group));
  CHECK(std::equal(two_heads.dK.begin(), two_heads.dK.end(), all_heads.dK.begin() + keys));
  CHECK(std::equal(two_heads.dV.begin(), two_heads.dV.end(), all_heads.dV.begin() + keys));
  CHECK(two_heads.dQ.size() == 2 * group);
}

TEST_CASE("a small problem is checked completely, a large one by a seeded sample", "[reference]") {
  CHECK(fa::sample_of({}, 1).complete);
  CHECK(fa::sample_of({}, 1).rows.size() == 4096);
  CHECK(fa::sample_of({}, 1).heads == std::vector<size_t>{0, 1, 2, 3});

  Problem p;
  p.B = 2, p.H = 8, p.Hkv = 4, p.N = p.Nk = 5000, p.d = 128;
  const Sample sample = fa::sample_of(p, 1);
  CHECK_FALSE(sample.complete);
  const double cost = 2.0 * p.d * p.Nk * static_cast<double>(sample.rows.size());
  CHECK(cost <= 4e9);
  CHECK(cost > 3.9e9);
  CHECK(std::is_sorted(sample.rows.begin(), sample.rows.end()));
  CHECK(std::adjacent_find(sample.rows.begin(), sample.rows.end()) == sample.rows.end());
  for (const size_t row : {size_t{0}, size_t{4999}, p.rows() - 5000, p.rows() - 1}) {
    CHECK(std::binary_search(sample.rows.begin(), sample.rows.end(), row));
  }
  CHECK(sample.rows.back() == p.rows() - 1);
  size_t edges = 0;
  std::vector<bool> heads(p.heads());
  for (const size_t row : sample.rows) {
    edges += row % 5000 % 64 == 0 || row % 5000 % 64 == 63;
    heads[row / 5000] = true;
  }
  CHECK(3 * edges >= sample.rows.size());  // one row in 32 is at an edge
  CHECK(std::count(heads.begin(), heads.end(), true) == 16);
  CHECK(sample.heads == std::vector<size_t>{7});  // the budget is enough for one head

  CHECK(fa::sample_of(p, 1).rows == sample.rows);
  CHECK(fa::sample_of(p, 2).rows != sample.rows);
  CHECK(fa::sample_of(p, 1, 1e13).complete);
}

TEST_CASE("each batch entry is a problem of its own length", "[reference]") {
  Problem p = problem(3, 4, 2, 3, 50, 32, GENERATE(false, true));
  p.dtype = GENERATE(DType::f32, DType::bf16);
  p.cache.lengths = {50, 0, 17};
  CAPTURE(fa::describe(p));
  fa::Inputs in = fa::normal_inputs(p, 7);
  const size_t rows = 4 * 3, queries = rows * 32, keys = 2 * 50 * 32;
  for (size_t head = 0; head < p.kv_heads(); ++head) {  // the rest does not matter
    const size_t end = (head + 1) * 50 * 32;
    for (size_t i = head * 50 * 32 + p.keys_of(head / 2) * 32; i < end; ++i) {
      in.K[i] = in.V[i] = i % 2 ? NAN : INFINITY;
    }
  }
  const auto whole = fa::attention_fp64(p, in, everything(p));
  const auto unfused = fa::attention_unfused(p, in, everything(p));
  for (size_t b = 0; b < 3; ++b) {
    const int length = p.cache.lengths[b];
    if (length == 0) {
      for (size_t row = b * rows; row < (b + 1) * rows; ++row) {
        REQUIRE(whole.LSE[row] == -INFINITY);
        REQUIRE(unfused.LSE[row] == -INFINITY);
        REQUIRE((whole.sum_PV[row] == 0 && whole.score_bound[row] == 0));
        for (int x = 0; x < 32; ++x) REQUIRE(whole.O[row * 32 + x] == 0);
        for (int x = 0; x < 32; ++x) REQUIRE(unfused.O[row * 32 + x] == 0);
      }
      continue;
    }
    Problem one = problem(1, 4, 2, 3, length, 32, p.causal);
    one.dtype = p.dtype;
    fa::Inputs part;
    part.Q.assign(&in.Q[b * queries], &in.Q[b * queries] + queries);
    for (size_t h = 0; h < 2; ++h) {
      const size_t from = b * keys + h * 50 * 32;
      part.K.insert(part.K.end(), &in.K[from], &in.K[from] + length * 32);
      part.V.insert(part.V.end(), &in.V[from], &in.V[from] + length * 32);
    }
    const auto want = fa::attention_fp64(one, part, everything(one));
    const auto want_unfused = fa::attention_unfused(one, part, everything(one));
    const auto same = [&](const std::vector<double>& all, const std::vector<double>& own) {
      const size_t n = own.size();
      return std::equal(own.begin(), own.end(), all.begin() + b * n);
    };
    CHECK(same(whole.O, want.O));
    CHECK(same(whole.LSE, want.LSE));
    CHECK(same(whole.sum_PV, want.sum_PV));
    CHECK(same(whole.score_bound, want.score_bound));
    CHECK(same(unfused.O, want_unfused.O));
    CHECK(same(unfused.LSE, want_unfused.LSE));
  }
}

TEST_CASE("with few rows a sample holds all rows of some heads of K and V", "[reference]") {
  Problem p = problem(64, 32, 8, 2, 8192, 128, false);
  p.cache.lengths.assign(64, 100);
  p.cache.lengths[20] = 0, p.cache.lengths[40] = 8192;
  const Sample sample = fa::sample_of(p, 1);
  CHECK_FALSE(sample.complete);
  REQUIRE(sample.rows.size() % 8 == 0);  // 4 query heads of 2 rows read one head
  std::vector<bool> read(p.kv_heads());
  for (size_t i = 0; i < sample.rows.size(); ++i) {
    CHECK(sample.rows[i] == sample.rows[i / 8 * 8] + i % 8);
    read[p.kv_head_of(sample.rows[i] / 2)] = true;
  }
  CHECK(std::count(read.begin(), read.end(), true) * 8 == ptrdiff_t(sample.rows.size()));
  for (const size_t head : {size_t{0}, p.kv_heads() - 1, size_t{20 * 8}, size_t{40 * 8}}) {
    CHECK(read[head]);
  }
  CHECK(std::is_sorted(sample.rows.begin(), sample.rows.end()));
  const double numbers = 2.0 * 8192 * 128 * static_cast<double>(sample.rows.size()) / 8;
  CHECK(numbers < 4e8);  // of K and V, which take 10 multiply-adds and more each
  CHECK(numbers > 1e8);
  CHECK(fa::sample_of(p, 1).rows == sample.rows);
  CHECK(fa::sample_of(p, 2).rows != sample.rows);
  CHECK(fa::sample_of(p, 1, 1e18).complete);
  CHECK(fa::sample_of(p, 1, 1e18).rows.size() == p.rows());

  const Sample one_head = fa::sample_of(problem(1, 4, 1, 1, 1 << 20, 128, false), 1);
  CHECK(one_head.rows == std::vector<size_t>{0, 1, 2, 3});
}
