// Tests of step 17. steps/CMakeLists.txt has the sources that it is linked with.
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& absorbed() { return fa::linked_variant("17 absorbed"); }
static const fa::Variant& panels() { return fa::linked_variant("17 panels"); }
static const fa::Variant& exchange() { return fa::linked_variant("17 exchange"); }

static const fa::Variant& any() { return *GENERATE(&absorbed(), &panels(), &exchange()); }

static fa::Problem latent(int H, int Nk, int N = 1, int B = 1) {
  return bf16_problem(N, Nk, 576, /*causal=*/N > 1, B, H, /*Hkv=*/1);
}

TEST_CASE("step 17: right at the ends of tiles", "[step17]") {
  const int Nk = GENERATE(1, 2, 63, 64, 65, 127, 128, 129, 200);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk);
  fa::test::require_right(variant, latent(16, Nk));
}
