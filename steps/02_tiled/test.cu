// Tests of step 02. steps/CMakeLists.txt says what it is linked with.
#include "tests/attention.h"

static const fa::Variant& parent() { return fa::linked_variant("01 naive"); }
static const fa::Variant& shared() { return fa::linked_variant("02 shared"); }
static const fa::Variant& registers() { return fa::linked_variant("02 registers"); }

TEST_CASE("step 02: O matches the fp64 reference at tile edges", "[step02][all]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const int N = GENERATE(1, 31, 32, 33, 63, 64, 65, 100, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, N, d, causal);
  fa::test::require_right(*variant, fa::test::problem(N, d, causal));
}

TEST_CASE("step 02: batches and heads, real input and outliers", "[step02]") {
  const auto* variant = GENERATE(&shared(), &registers());
  auto p = fa::test::problem(70, 64, true, /*B=*/3, /*H=*/5);
  fa::test::require_right(*variant, p, fa::real_inputs(p, 1));
  fa::test::require_right(*variant, p, fa::outlier_inputs(p, 1));
}

TEST_CASE("step 02: behaves as attention must", "[step02]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const auto full = fa::test::problem(75, 64, false), causal = fa::test::problem(75, 64, true);
  fa::test::require_rows_sum_to_one(*variant, full, 2e-6);
  fa::test::require_rows_sum_to_one(*variant, causal, 2e-6);
  fa::test::require_shift_invariance(*variant, full, 2e-5);
  fa::test::require_shift_invariance(*variant, causal, 2e-5);
  fa::test::require_key_permutation(*variant, full, 2e-6);
  fa::test::require_any_score_size(*variant, causal);
}

TEST_CASE("step 02: agrees with step 01", "[step02]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const auto p = fa::test::problem(130, 96, GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 6);
  const auto difference =
      fa::test::max_difference(fa::run(*variant, p, in).O, fa::run(parent(), p, in).O);
  REQUIRE(difference <= 2e-6);
}

TEST_CASE("step 02: more than 2^31 elements", "[.][large]") {
  fa::test::require_right_beyond_2_31(registers());
}

#if !FA_BACKEND_GPU
TEST_CASE("step 02: predicted bytes are counted bytes", "[step02][all]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const int d = GENERATE(32, 64, 96, 128);
  const int N = d == 32 ? GENERATE(1, 17, 64, 100, 257, 1024) : GENERATE(1, 17, 64, 100, 257);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, N, d, causal);
  const int H = N == 1024 ? 1 : 3;
  fa::test::require_predicted(*variant, fa::test::problem(N, d, causal, 1, H));
}

TEST_CASE("step 02: no bank conflicts, coalesced loads", "[step02][all]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const auto p = fa::test::problem(128, GENERATE(32, 64, 96, 128), GENERATE(false, true));
  if (!fa::test::one_in(5)) return;
  const fa::Counts counts = fa::test::count_forward(*variant, p);
  for (const fa::KernelCount& k : counts.kernels) {
    CAPTURE(variant->name, k.name);
    CHECK(k.shared_wavefronts == k.shared_ideal);
    CHECK(k.sectors.load * 32 == k.bytes.read);  // every byte of every sector was asked for
  }
}

TEST_CASE("step 02: requests fall by the tile width, the N*N in HBM stays", "[step02]") {
  const auto p = fa::test::problem(256, 64, false);
  const auto naive = parent().traffic(p), tiled = shared().traffic(p),
             wide = registers().traffic(p);
  CHECK(naive.buffers.at("K").read == 32 * tiled.buffers.at("K").read);
  CHECK(naive.buffers.at("K").read == 64 * wide.buffers.at("K").read);
  CHECK(naive.hbm == tiled.hbm);
  CHECK(naive.hbm == wide.hbm);
}

TEST_CASE("step 02: the analysis finds nothing", "[step02][all]") {
  const auto* variant = GENERATE(&shared(), &registers());
  const int N = GENERATE(1, 33, 75);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  fa::test::count_forward(*variant, fa::test::problem(N, 64, causal), /*analyse=*/true);
}
#endif

TEST_CASE("step 02: huge and tiny inputs that make the same scores", "[step02][all]") {
  fa::test::require_any_scale("02_tiled");
}
