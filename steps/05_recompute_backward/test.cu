// Tests of step 05. steps/CMakeLists.txt says what it is linked with.
#include "common/harness/tiles.h"
#include "tests/backward.h"

static const fa::Variant& standard() { return fa::linked_variant("05 standard"); }
static const fa::Variant& delta() { return fa::linked_variant("05 delta"); }
static const fa::Variant& from_lse() { return fa::linked_variant("05 from_lse"); }
static const fa::Variant& recompute() { return fa::linked_variant("05 recompute"); }
static const fa::Variant& parent() { return fa::linked_variant("04 fused"); }

namespace {

/// <dO, O> in fp64: the scalar whose gradients dQ, dK and dV are.
double loss(const fa::Problem& p, const fa::Inputs& in) {
  const auto O = fa::attention_fp64(p, in, fa::sample_of(p, 1, 1e18)).O;
  double sum = 0;
  for (size_t i = 0; i < O.size(); ++i) sum += O[i] * in.dO[i];
  return sum;
}

/// d loss / d tensor[i] by a central difference.
double difference_quotient(const fa::Problem& p, fa::Inputs in, std::vector<float> fa::Inputs::*t,
                           size_t i) {
  const float x = (in.*t)[i], above = x + 0.01f, below = x - 0.01f;
  (in.*t)[i] = above;
  const double loss_above = loss(p, in);
  (in.*t)[i] = below;
  return (loss_above - loss(p, in)) / (double(above) - below);
}

}  // namespace

TEST_CASE("step 05: gradients match the fp64 reference at tile edges", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const int N = GENERATE(1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, N, d, causal);
  fa::test::require_right(*variant, fa::test::problem(N, d, causal, 1, 1));
}

TEST_CASE("step 05: several tiles each way", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, causal);
  fa::test::require_right(*variant, fa::test::problem(257, 64, causal, 1, 1));
  fa::test::require_right(*variant, fa::test::problem(130, 128, causal, 1, 1));
}

TEST_CASE("step 05: right for real input and outliers, behaves as attention must", "[step05]") {
  fa::test::require_fp32_properties(*GENERATE(&standard(), &delta(), &from_lse(), &recompute()));
}

TEST_CASE("step 05: scores far below zero, where 2^(0 - LSE) of a key past the end overflows",
          "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  fa::test::require_backward_right_far_below_zero(*variant, GENERATE(32, 128));
}

TEST_CASE("step 05: gradients are the difference quotients of the loss", "[step05]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(67, 32, GENERATE(false, true), 1, 2);
  const fa::Inputs in = fa::normal_inputs(p, 7);
  const fa::Outputs out = fa::run(*variant, p, in);
  for (const int r : {0, 1, 31, 63, 64, 66}) {
    const size_t i = (size_t(r % 2) * p.N + r) * p.d + r * 5 % p.d;  // both heads, six features
    CAPTURE(variant->name, p.causal, r);
    CHECK(out.dQ[i] == Approx(difference_quotient(p, in, &fa::Inputs::Q, i)).margin(1e-4));
    CHECK(out.dK[i] == Approx(difference_quotient(p, in, &fa::Inputs::K, i)).margin(1e-4));
    CHECK(out.dV[i] == Approx(difference_quotient(p, in, &fa::Inputs::V, i)).margin(1e-4));
  }
}

TEST_CASE("step 05: keys in another order, gradients in that order", "[step05]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(75, 64, false, 1, 1);
  const auto reversed = [&p](const std::vector<float>& t) {
    std::vector<float> out(t.size());
    for (int c = 0; c < p.N; ++c) {
      std::copy_n(&t[size_t(c) * p.d], p.d, &out[size_t(p.N - 1 - c) * p.d]);
    }
    return out;
  };
  fa::Inputs in = fa::normal_inputs(p, 10);
  const fa::Outputs before = fa::run(*variant, p, in);
  in.K = reversed(in.K);
  in.V = reversed(in.V);
  const fa::Outputs after = fa::run(*variant, p, in);
  REQUIRE(fa::test::max_difference(after.dQ, before.dQ) <= 5e-6);
  REQUIRE(fa::test::max_difference(reversed(after.dK), before.dK) <= 5e-6);
  REQUIRE(fa::test::max_difference(reversed(after.dV), before.dV) <= 5e-6);
}

TEST_CASE("step 05: behaves as a gradient must", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  fa::test::require_gradient_properties({variant, 64, /*square=*/true, /*one_order=*/true});
}

TEST_CASE("step 05: agrees with step 04", "[step05]") {
  fa::test::require_agrees_fp32(*GENERATE(&standard(), &from_lse(), &recompute()), parent());
}

TEST_CASE("step 05: the variants agree", "[step05]") {
  fa::test::require_agrees_fp32(*GENERATE(&delta(), &from_lse(), &recompute()), standard());
}

TEST_CASE("step 05: five products instead of four, no N * N in memory", "[step05]") {
  for (const int d : {32, 64, 96, 128}) {
    const auto p = fa::test::problem(256, d, false);
    const auto stored = standard().backward_traffic(p), again = recompute().backward_traffic(p);
    CAPTURE(d);
    CHECK(4 * again.flops == 5 * stored.flops);
    CHECK(delta().backward_traffic(p).flops == stored.flops);
    CHECK(from_lse().backward_traffic(p).flops == again.flops);
    CHECK(again.total().total() < stored.total().total());
    CHECK(again.hbm.total() < stored.hbm.total());
  }
  const auto bytes = [](const fa::Variant& v, int N) {
    return fa::memory_need(fa::test::problem(N, 64, false), v).workspace;
  };
  CHECK(bytes(recompute(), 2048) == 2 * bytes(recompute(), 1024));
  CHECK(bytes(standard(), 2048) == 4 * bytes(standard(), 1024));
}

TEST_CASE("step 05: a score is read and written 9, 7, 5 and 0 times", "[step05]") {
  const auto p = fa::test::problem(1024, 64, false);
  const auto accesses = [&p](const fa::Variant& v) {
    uint64_t bytes = 0;
    for (const auto& [name, of] : v.backward_traffic(p).buffers) {
      if (name == "S" || name == "P" || name == "dS") bytes += of.total();
    }
    return bytes / (4 * p.scores());
  };
  CHECK(accesses(standard()) == 9);
  CHECK(accesses(delta()) == 7);
  CHECK(accesses(from_lse()) == 5);
  CHECK(accesses(recompute()) == 0);
}

#if !FA_BACKEND_GPU
TEST_CASE("step 05: predicted bytes are counted bytes", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const int N = GENERATE(1, 17, 64, 100);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, N, d, causal);
  const auto p = fa::test::problem(N, d, causal, 1, N < 64 ? 3 : 1);
  fa::test::require_predicted(*variant, p);
  fa::test::require_backward_predicted(*variant, p);
}

TEST_CASE("step 05: predicted bytes are counted bytes, larger problems", "[step05][.all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  CAPTURE(variant->name);
  for (const bool causal : {false, true}) {
    for (const int d : {32, 128}) {
      CAPTURE(causal, d);
      fa::test::require_backward_predicted(*variant, fa::test::problem(257, d, causal, 1, 1));
    }
  }
  fa::test::require_backward_predicted(*variant, fa::test::problem(1024, 32, true, 1, 1));
}

TEST_CASE("step 05: no bank conflicts, coalesced loads", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  const fa::Counts counts =
      fa::test::count_backward(*variant, fa::test::problem(128, d, causal, 1, 1));
  fa::test::require_no_conflicts(counts);
  for (const fa::KernelCount& k : counts.kernels) {
    CAPTURE(variant->name, d, causal, k.name);
    if (k.name.find("softmax_backward") != std::string::npos && (causal || variant == &delta())) {
      continue;  // it reads what a causal row sees, or one delta: not whole sectors
    }
    CHECK(k.sectors.load * 32 == k.bytes.read);  // every byte of every sector was asked for
  }
}

TEST_CASE("step 05: the analysis finds nothing", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto [N, d] = GENERATE(std::pair(1, 64), std::pair(33, 64), std::pair(75, 64),
                               std::pair(130, 32), std::pair(130, 128));  // other tiles
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  const auto p = fa::test::problem(N, d, causal);
  fa::test::count_forward(*variant, p, /*analyse=*/true);
  fa::test::count_backward(*variant, p, /*analyse=*/true);
}

TEST_CASE("step 05: smaller tiles where a block gets 64 KB of shared memory, as on a T4",
          "[step05][all]") {
  const auto* variant = GENERATE(&from_lse(), &recompute());
  const auto [d, Bc] = GENERATE(table<int, int>({{32, 64}, {64, 64}, {96, 32}, {128, 32}}));
  const int N = GENERATE(1, 33, 64, 100);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, d, N, causal);
  const fa::Counts counts =
      fa::test::require_with_shared_memory(65536, *variant, fa::test::problem(N, d, causal));
  CHECK(counts.buffers.at("LSE").bytes.read == 4u * 2 * N * fa::ceil_div(N, Bc));  // two heads
}
#endif
