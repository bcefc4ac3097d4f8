#include "tests/backward.h"

#include <algorithm>
#include <cmath>

namespace fa::test {

/// As many keys as rows and a key head per query head, where required.
static Problem problem_of(const Kernels& of, int N, int Nk, bool causal, int H = 1, int Hkv = 1) {
  Problem p = bf16_problem(N, of.square ? N : Nk, of.d, causal, 1, H, of.square ? H : Hkv);
  p.dtype = of.variant->forward.dtype();
  return p;
}

/// One more and one less than the rows and keys of tiles, bands and mmas.
static void require_backward_right_at_edges(const Kernels& of) {
  const int N = GENERATE(1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, causal);
  require_right(*of.variant, bf16_problem(N, N, of.d, causal));
}

/// Nk - N, of both signs, around each multiple of 16 up to 128, the sizes of tiles and bands of
/// rows and keys: a comparison for the tile at the diagonal may be off by one.
static void require_backward_right_for_every_remainder(const Kernels& of) {
  for (int more = 0; more <= 128; ++more) {
    if ((more + 2) % 16 > 3 || !one_in(5)) continue;
    CAPTURE(more);
    require_right(*of.variant, bf16_problem(3, 3 + more, of.d, /*causal=*/true));
    if (more % 32 < 16) require_right(*of.variant, bf16_problem(35 + more, 35, of.d, true));
  }
}

static void require_backward_right_with_shared_heads(const Kernels& of) {
  const int Hkv = GENERATE(4, 2, 1);
  if (!is_now(Hkv == 2)) return;
  CAPTURE(Hkv);
  require_right(*of.variant, bf16_problem(70, 90, of.d, /*causal=*/true, /*B=*/2, /*H=*/4, Hkv));
}

/// One row, one key, and edges of tiles that do not coincide.
static void require_backward_right_for_few(const Kernels& of) {
  const int N = GENERATE(1, 65, 128), Nk = GENERATE(1, 64, 129);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, causal);
  require_right(*of.variant, bf16_problem(N, Nk, of.d, causal));
}

/// A row without keys gives dQ = 0, and contributes nothing to dK and dV.
static void require_backward_of_blind_rows(const Kernels& of) {
  const auto [N, Nk] = GENERATE(std::pair(65, 64), std::pair(300, 20), std::pair(130, 1));
  if (!one_in(2)) return;
  CAPTURE(N, Nk);
  const auto p = bf16_problem(N, Nk, of.d, /*causal=*/true, /*B=*/1, /*H=*/2);
  Inputs in = normal_inputs(p, 9);
  const auto features = static_cast<size_t>(of.d);
  const auto sees = [&p](size_t row) { return p.visible(static_cast<int>(row % p.N)) > 0; };
  for (size_t i = 0; i < in.dO.size(); ++i) {
    if (!sees(i / features)) in.dO[i] *= 0x1p60f;  // reveals a P that is only almost 0
  }
  require_right(*of.variant, p, in);
  const Outputs out = run_backward(*of.variant, p, in);
  for (size_t row = 0; row < p.rows(); ++row) {
    const auto dQ = out.dQ.begin() + row * features;
    const bool zero = std::all_of(dQ, dQ + features, [](float g) { return g == 0; });
    // A row with a single key has P = 1 and dS = dP - delta: 0 up to two roundings.
    if (!sees(row) && !zero) FAIL("row " << row << " sees no key");
  }
}

static void require_backward_right_for_real_and_outliers(const Kernels& of) {
  const auto p = problem_of(of, 150, 200, true, /*H=*/2, /*Hkv=*/1);
  require_right(*of.variant, p, real_inputs(p, 1));
  require_right(*of.variant, p, outlier_inputs(p, 1));
}

static void require_backward_right_for_any_score_size(const Kernels& of) {
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  // Many keys for few rows: the largest P of some is just below fp32's range.
  if (!of.square) require_any_score_size(*of.variant, bf16_problem(200, 40, of.d, false));
  require_any_score_size(*of.variant, problem_of(of, 75, 140, causal));
}

void require_backward_right_far_below_zero(const Variant& v, int d) {
  CAPTURE(v.name, d);
  const int N = GENERATE(1, 31, 33, 63, 65, 127);
  auto p = bf16_problem(N, N, d, GENERATE(false, true));
  if (!one_in(5)) return;
  p.dtype = v.forward.dtype();
  CAPTURE(p.N, p.causal);
  Inputs in = normal_inputs(p, 13);
  for (float& k : in.K) k = std::abs(k);
  for (float& q : in.Q) q = round_to(p.dtype, -30 * std::abs(q));
  require_right(v, p, in);
}

/// V = 1 makes O constant, so dQ and dK are 0.
static void require_no_gradient_of_constant_v(const Kernels& of) {
  const auto p = problem_of(of, 75, 140, GENERATE(false, true), /*H=*/2, /*Hkv=*/1);
  if (!one_in(5)) return;
  CAPTURE(p.causal);
  Inputs in = normal_inputs(p, 11);
  std::fill(in.V.begin(), in.V.end(), 1.f);
  const Outputs out = run_backward(*of.variant, p, in);
  // O = 1 is exact in bf16, dP and delta are the same sum: only fp32 roundings remain.
  REQUIRE(max_difference(out.dQ, std::vector<float>(p.q_size(), 0.f)) <= 2e-5);
  REQUIRE(max_difference(out.dK, std::vector<float>(p.kv_size(), 0.f)) <= 2e-5);
}

/// Sums of the rows of [rows, d], feature by feature.
static std::vector<double> sum_of_rows(const std::vector<float>& t, int d) {
  const auto features = static_cast<size_t>(d);
  std::vector<double> sum(features);
  for (size_t i = 0; i < t.size(); ++i) sum[i % features] += t[i];
  return sum;
}

/// The sum of the gradients over all keys: in each head a row of P sums to 1, a row of dS to 0.
static void require_sums_over_keys(const Kernels& of) {
  const auto p = problem_of(of, 140, 150, GENERATE(false, true), /*H=*/3, /*Hkv=*/1);
  if (!one_in(5)) return;
  const Inputs in = normal_inputs(p, 12);
  const Outputs out = run_backward(*of.variant, p, in);
  const auto dO = sum_of_rows(in.dO, of.d), dV = sum_of_rows(out.dV, of.d),
             dK = sum_of_rows(out.dK, of.d);
  const double margin = p.dtype == DType::f32 ? 3e-4 : 0.1;
  for (int x = 0; x < of.d; ++x) {
    CAPTURE(p.causal, x);
    CHECK(dV[x] == Approx(dO[x]).margin(margin));
    CHECK(dK[x] == Approx(0).margin(margin));
  }
}

/// Twice dO gives exactly twice the gradients.
static void require_linear_in_do(const Kernels& of) {
  // One block of keys, even with the smaller tiles: the sum of dQ has a fixed order.
  const auto p = problem_of(of, 60, 60, true);
  Inputs in = normal_inputs(p, 14);
  Outputs once = run_backward(*of.variant, p, in);
  for (float& g : in.dO) g *= 2;
  const Outputs twice = run_backward(*of.variant, p, in);
  for (std::vector<float>* t : {&once.dQ, &once.dK, &once.dV}) {
    for (float& g : *t) g *= 2;
  }
  REQUIRE(twice.dQ == once.dQ);
  REQUIRE(twice.dK == once.dK);
  REQUIRE(twice.dV == once.dV);
}

/// Gradients agree with those of `parent` in fp32 for the same, rounded inputs.
static void require_gradients_as(const Variant& parent, const Kernels& of) {
  if (of.d > 128) return;  // no fp32 step has such kernels
  auto p = bf16_problem(130, 130, of.d, GENERATE(false, true), 1, 2, 2);
  if (!one_in(5)) return;
  CAPTURE(p.causal);
  const auto in = normal_inputs(p, 6);
  const Outputs now = run_backward(*of.variant, p, in);
  p.dtype = DType::f32;
  const Outputs before = run(parent, p, in);
  CHECK(max_difference(now.dQ, before.dQ) <= 0x1p-5);
  CHECK(max_difference(now.dK, before.dK) <= 0x1p-5);
  CHECK(max_difference(now.dV, before.dV) <= 0x1p-5);
}

/// Two runs give the same bits; for dQ only when its sum has one order or none.
static void require_same_gradients(const Kernels& of) {
  const auto p = problem_of(of, 200, 400, GENERATE(false, true), FA_BACKEND_GPU ? 64 : 1);
  if (!one_in(5)) return;
  CAPTURE(p.causal);
  const auto in = normal_inputs(p, 7);
  const Outputs first = run_backward(*of.variant, p, in);
  Session session(p, in, *of.variant);
  if (of.variant->prepare) session.prepare();
  session.forward();
  for (int i = 0; i < (FA_BACKEND_GPU ? 50 : 2); ++i) {
    session.backward();  // adds to nothing that the previous one has left
    const Outputs second = session.download();
    REQUIRE(second.dK == first.dK);
    REQUIRE(second.dV == first.dV);
    if (of.one_order) {
      REQUIRE(second.dQ == first.dQ);
    } else {
      REQUIRE(max_difference(second.dQ, first.dQ) <= 0x1p-7);  // one rounding to bf16
    }
  }
}

#if !FA_BACKEND_GPU
static void require_backward_predicted_for_lengths(const Kernels& of) {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(17, 65), std::pair(257, 131),
                                std::pair(131, 257), std::pair(300, 20));
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, causal);
  Problem p = problem_of(of, N, Nk, causal, /*H=*/causal ? 1 : 2, /*Hkv=*/1);
  if (causal) p.B = 2;
  require_backward_predicted(*of.variant, p);
}

static void require_no_finding_in_backward(const Kernels& of) {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(33, 33), std::pair(75, 130),
                                std::pair(150, 70), std::pair(300, 20));
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, causal);
  const auto p = problem_of(of, N, Nk, causal, /*H=*/2, /*Hkv=*/1);
  count_backward(*of.variant, p, /*analyse=*/true);
}
#endif

void require_gradient_properties(const Kernels& of) {
  CAPTURE(of.variant->name, of.d);
  SECTION("V = 1 makes O constant, so dQ and dK are 0") { require_no_gradient_of_constant_v(of); }
  SECTION("what the gradients of all keys sum to") { require_sums_over_keys(of); }
  SECTION("twice dO, exactly twice the gradients") {
    if (is_now(true)) require_linear_in_do(of);
  }
  SECTION("two runs give the same bits") { require_same_gradients(of); }
}

void require_backward(const Kernels& of, const Variant& parent) {
  CAPTURE(of.variant->name, of.d);
  SECTION("right at the edges of tiles, warps and products") {
    require_backward_right_at_edges(of);
  }
  SECTION("right for scores far below zero") {
    require_backward_right_far_below_zero(*of.variant, of.d);
  }
  SECTION("gradients agree with the parent's") { require_gradients_as(parent, of); }
  require_gradient_properties(of);
  SECTION("right for real input and outliers") {
    if (is_now(true)) require_backward_right_for_real_and_outliers(of);
  }
  SECTION("right for huge and tiny scores") { require_backward_right_for_any_score_size(of); }
#if !FA_BACKEND_GPU
  SECTION("predicted bytes are counted bytes") { require_backward_predicted_for_lengths(of); }
  SECTION("the analysis finds nothing") { require_no_finding_in_backward(of); }
#endif
  if (of.square) return;
#if !FA_BACKEND_GPU
  SECTION("no race in a walk longer than any ring of stages") {
    const Problem p = problem_of(of, 1100, 65, /*causal=*/false, /*H=*/1, /*Hkv=*/1);
    require_right_counted(*of.variant, p, /*analyse=*/true);
  }
#endif
  SECTION("right whatever remains of a tile") { require_backward_right_for_every_remainder(of); }
  SECTION("right where heads share keys") { require_backward_right_with_shared_heads(of); }
  SECTION("right for few rows and keys") { require_backward_right_for_few(of); }
  SECTION("rows without keys") { require_backward_of_blind_rows(of); }
}

}  // namespace fa::test
