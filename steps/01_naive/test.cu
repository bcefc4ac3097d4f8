// Tests of step 01. steps/CMakeLists.txt says what it is linked with.
#include "tests/attention.h"

static const fa::Variant& naive() { return fa::linked_variant("01 naive"); }

TEST_CASE("step 01: O matches the fp64 reference at tile edges", "[step01][all]") {
  const int N = GENERATE(1, 7, 8, 9, 31, 32, 33, 100, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(N, d, causal);
  fa::test::require_right(naive(), fa::test::problem(N, d, causal));
}

TEST_CASE("step 01: batches and heads, real input and outliers", "[step01]") {
  auto p = fa::test::problem(70, 64, true, /*B=*/3, /*H=*/5);
  fa::test::require_right(naive(), p, fa::real_inputs(p, 1));
  fa::test::require_right(naive(), p, fa::outlier_inputs(p, 1));
}

TEST_CASE("step 01: behaves as attention must", "[step01]") {
  const auto full = fa::test::problem(75, 64, false), causal = fa::test::problem(75, 64, true);
  fa::test::require_rows_sum_to_one(naive(), full, 2e-6);
  fa::test::require_rows_sum_to_one(naive(), causal, 2e-6);
  fa::test::require_shift_invariance(naive(), full, 2e-5);
  fa::test::require_shift_invariance(naive(), causal, 2e-5);
  fa::test::require_key_permutation(naive(), full, 2e-6);
  fa::test::require_any_score_size(naive(), causal);
}

TEST_CASE("step 01: more than 2^31 elements", "[.][large]") {
  fa::test::require_right_beyond_2_31(naive());
}

#if !FA_BACKEND_GPU
TEST_CASE("step 01: predicted bytes are counted bytes", "[step01][all]") {
  const int d = GENERATE(32, 64, 96, 128);
  const int N = d == 32 ? GENERATE(1, 17, 64, 100, 257, 1024) : GENERATE(1, 17, 64, 100, 257);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(N, d, causal);
  const int H = N == 1024 ? 1 : 3;
  fa::test::require_predicted(naive(), fa::test::problem(N, d, causal, 1, H));
}

TEST_CASE("step 01: the analysis finds nothing", "[step01]") {
  const int N = GENERATE(1, 33, 75);
  const bool causal = GENERATE(false, true);
  fa::test::count_forward(naive(), fa::test::problem(N, 64, causal), /*analyse=*/true);
}
#endif

TEST_CASE("step 01: huge and tiny inputs that make the same scores", "[step01][all]") {
  fa::test::require_any_scale("01_naive");
}
