// Tests of step 17. steps/CMakeLists.txt has the sources that it is linked with.
#include <cmath>
#include <random>

#include "steps/17_latent/4_splits.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& absorbed() { return fa::linked_variant("17 absorbed"); }
static const fa::Variant& panels() { return fa::linked_variant("17 panels"); }
static const fa::Variant& exchange() { return fa::linked_variant("17 exchange"); }
static const fa::Variant& splits() { return fa::linked_variant("17 splits"); }

static const fa::Variant& any() {
  return *GENERATE(&absorbed(), &panels(), &exchange(), &splits());
}

/// With two tokens the first does not see the second.
static fa::Problem latent(int H, int Nk, int N = 1, int B = 1) {
  return bf16_problem(N, Nk, 576, /*causal=*/N > 1, B, H, /*Hkv=*/1);
}

/// Keys of several batch entries: none, one, ends of tiles, of pages and of splits.
static fa::Problem ragged(int page, int H, int N = 1) {
  auto p = latent(H, 449, N, /*B=*/8);
  p.cache.lengths = {0, 1, 449, 63, 64, 65, 128, 257};
  p.cache.page = page;
  return p;
}

TEST_CASE("step 17: right at the ends of tiles", "[step17]") {
  const int Nk = GENERATE(1, 2, 63, 64, 65, 127, 128, 129, 191, 193, 320);
  const int N = GENERATE(1, 2);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk, N);
  fa::test::require_right(variant, latent(16, Nk, N));
}

TEST_CASE("step 17: rows of all heads in blocks of 64", "[step17][all]") {
  const int H = GENERATE(1, 7, 16, 31, 32, 33, 64, 65, 128), N = GENERATE(1, 2);
  const fa::Variant& variant = any();
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant.name, H, N);
  fa::test::require_right(variant, latent(H, 200, N, /*B=*/2));
}

TEST_CASE("step 17: shuffled pages, ragged lengths", "[step17]") {
  const int page = GENERATE(0, 64, 128, 256), N = GENERATE(1, 2), H = GENERATE(16, 40);
  CAPTURE(page, N, H);
  fa::test::require_right(splits(), ragged(page, H, N));
}

#if !FA_BACKEND_GPU
TEST_CASE("step 17: predicted bytes are counted bytes", "[step17]") {
  const int Nk = GENERATE(1, 131, 577), N = GENERATE(1, 2), H = GENERATE(16, 65);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk, N, H);
  fa::test::require_predicted(variant, latent(H, Nk, N, /*B=*/2));
}

TEST_CASE("step 17: predicted bytes are counted bytes of pages and lengths", "[step17]") {
  const int page = GENERATE(0, 64, 256), N = GENERATE(1, 2);
  CAPTURE(page, N);
  fa::test::require_predicted(splits(), ragged(page, 40, N));
}

TEST_CASE("step 17: no race, nothing uninitialised", "[step17]") {
  const fa::Variant& variant = any();
  CAPTURE(variant.name);
  fa::test::require_right_counted(variant, latent(33, 257, 2), /*analyse=*/true);
  fa::test::require_right_counted(splits(), ragged(64, 33, 2), /*analyse=*/true);
}
#endif
