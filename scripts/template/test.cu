#include "steps/@NAME@/kernel.cuh"
#include "tests/attention.h"

TEST_CASE("@NAME@: O matches the fp64 reference where blocks end") {
  const int N = GENERATE(1, 127, 128, 129);
  const int d = GENERATE(32, 64);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, d, causal);
  const fa::Variant kernel{.name = "kernel", .idea = "", .forward = @NAME@::forward};
  fa::test::require_right(kernel, fa::test::problem(N, d, causal));
}
