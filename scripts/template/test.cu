// Tests of @NAME@. TESTED_WITH in steps/CMakeLists.txt adds steps for linked_variant() to find.
#include "tests/attention.h"

static const fa::Variant& kernel() { return fa::linked_variant("@NAME@ kernel"); }

TEST_CASE("@NAME@: O matches the fp64 reference where blocks end") {
  const int N = GENERATE(1, 127, 128, 129);
  const int d = GENERATE(32, 64);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, d, causal);
  fa::test::require_right(kernel(), fa::test::problem(N, d, causal));
}

#if !FA_BACKEND_GPU
TEST_CASE("@NAME@: predicted bytes are counted bytes") {
  const int N = GENERATE(1, 127, 128, 129);
  const int d = GENERATE(32, 64);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, d, causal);
  fa::test::require_predicted(kernel(), fa::test::problem(N, d, causal));
}

TEST_CASE("@NAME@: the analysis finds nothing") {
  const int N = GENERATE(1, 70, 129);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, causal);
  fa::test::count_forward(kernel(), fa::test::problem(N, 64, causal), /*analyse=*/true);
}
#endif
