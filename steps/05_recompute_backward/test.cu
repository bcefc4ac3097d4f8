// Tests of step 05. steps/CMakeLists.txt says what it is linked with.
#include "common/harness/tiles.h"
#include "tests/backward.h"
#if !FA_BACKEND_GPU
#include "tests/sim/diagnosis.h"
#endif

static const fa::Variant& standard() { return fa::linked_variant("05 standard"); }
static const fa::Variant& delta() { return fa::linked_variant("05 delta"); }
static const fa::Variant& from_lse() { return fa::linked_variant("05 from_lse"); }
static const fa::Variant& recompute() { return fa::linked_variant("05 recompute"); }
static const fa::Variant& parent() { return fa::linked_variant("04 fused"); }

namespace {

/// Sum of the rows of one head of a tensor [heads, N, d], feature by feature.
std::vector<double> sum_over_rows(const std::vector<float>& t, const fa::Problem& p, size_t head) {
  std::vector<double> sum(p.d);
  for (size_t i = 0; i < size_t(p.N) * p.d; ++i) sum[i % p.d] += t[head * p.N * p.d + i];
  return sum;
}

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

TEST_CASE("step 05: V = 1 makes O constant, so dQ and dK are 0", "[step05]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(75, 64, GENERATE(false, true));
  fa::Inputs in = fa::normal_inputs(p, 8);
  std::fill(in.V.begin(), in.V.end(), 1.f);
  const fa::Outputs out = fa::run(*variant, p, in);
  const std::vector<float> zero(p.q_size(), 0.f);
  REQUIRE(fa::test::max_difference(out.dQ, zero) <= 1e-5);
  REQUIRE(fa::test::max_difference(out.dK, zero) <= 1e-5);
}

TEST_CASE("step 05: what the gradients of all keys sum to", "[step05]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(75, 64, GENERATE(false, true));
  const fa::Inputs in = fa::normal_inputs(p, 9);
  const fa::Outputs out = fa::run(*variant, p, in);
  for (size_t head = 0; head < p.heads(); ++head) {
    // A row of P sums to 1, a row of dS to 0.
    const auto dV = sum_over_rows(out.dV, p, head), dO = sum_over_rows(in.dO, p, head);
    const auto dK = sum_over_rows(out.dK, p, head);
    for (int x = 0; x < p.d; ++x) {
      CAPTURE(variant->name, head, x);
      CHECK(dV[x] == Approx(dO[x]).margin(1e-4));
      CHECK(dK[x] == Approx(0).margin(1e-4));
    }
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

TEST_CASE("step 05: twice dO, exactly twice the gradients", "[step05]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(75, 96, true);
  fa::Inputs in = fa::normal_inputs(p, 11);
  fa::Outputs once = fa::run(*variant, p, in);
  for (float& g : in.dO) g *= 2;
  const fa::Outputs twice = fa::run(*variant, p, in);
  for (std::vector<float>* t : {&once.dQ, &once.dK, &once.dV}) {
    for (float& g : *t) g *= 2;
  }
  REQUIRE(twice.dQ == once.dQ);
  REQUIRE(twice.dK == once.dK);
  REQUIRE(twice.dV == once.dV);
}

TEST_CASE("step 05: the same bits in each run", "[step05][all]") {
  const auto* variant = GENERATE(&standard(), &delta(), &from_lse(), &recompute());
  const auto p = fa::test::problem(130, 64, GENERATE(false, true), 1, 4);
  if (!fa::test::one_in(3)) return;
  const fa::Inputs in = fa::normal_inputs(p, 12);
  const fa::Outputs first = fa::run(*variant, p, in);
  fa::Session session(p, in, *variant);
  session.forward();
  session.backward();
  session.backward();  // adds to nothing that the one before has left
  const fa::Outputs second = session.download();
  REQUIRE(second.dQ == first.dQ);
  REQUIRE(second.dK == first.dK);
  REQUIRE(second.dV == first.dV);
}

TEST_CASE("step 05: the variants agree, and with step 04", "[step05]") {
  const auto p = fa::test::problem(130, 96, GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 6);
  const fa::Outputs before = fa::run(parent(), p, in), stored = fa::run(standard(), p, in);
  REQUIRE(fa::test::max_difference(stored.O, before.O) <= 2e-6);
  for (const fa::Variant* variant : {&delta(), &from_lse(), &recompute()}) {
    CAPTURE(variant->name);
    const fa::Outputs now = fa::run(*variant, p, in);
    if (variant != &delta()) {  // it borrows step 02's forward
      REQUIRE(now.O == before.O);
      REQUIRE(now.LSE == before.LSE);
    }
    REQUIRE(fa::test::max_difference(stored.dQ, now.dQ) <= 5e-6);
    REQUIRE(fa::test::max_difference(stored.dK, now.dK) <= 5e-6);
    REQUIRE(fa::test::max_difference(stored.dV, now.dV) <= 5e-6);
  }
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
  for (const fa::KernelCount& k : counts.kernels) {
    CAPTURE(variant->name, d, causal, k.name);
    CHECK(k.shared_wavefronts == k.shared_ideal);
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
  sim::Options t4 = sim::options();
  t4.block_shared_bytes = 65536;
  const sim::test::WithOptions with(t4);
  const auto p = fa::test::problem(N, d, causal);
  fa::test::require_right(*variant, p);
  fa::test::require_backward_predicted(*variant, p);
  const fa::Counts counts = fa::test::count_backward(*variant, p, /*analyse=*/true);
  for (const fa::KernelCount& k : counts.kernels) {
    CAPTURE(k.name);
    CHECK(k.shared_wavefronts == k.shared_ideal);
  }
  const auto prediction = variant->backward_traffic(p);
  CHECK(prediction.buffers.at("LSE").read == 4u * 2 * N * fa::ceil_div(N, Bc));  // two heads
}
#endif
