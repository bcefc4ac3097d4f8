// Tests of step 16. steps/CMakeLists.txt has the sources that it is linked with.
#include "steps/16_blackwell/4_pair.cuh"
#include "tests/attention.h"
#include "tests/device.h"

using fa::test::bf16_problem;

static const fa::Variant& tmem() { return fa::linked_variant("16 tmem"); }
static const fa::Variant& issuer() { return fa::linked_variant("16 issuer"); }
static const fa::Variant& roles() { return fa::linked_variant("16 roles"); }
static const fa::Variant& pair() { return fa::linked_variant("16 pair"); }
static const fa::Variant& exp2() { return fa::linked_variant("16 exp2"); }
static const fa::Variant& ctas() { return fa::linked_variant("16 ctas"); }
static const fa::Variant& parent() { return fa::linked_variant("07 lazy"); }

// One of them per run of the test.
static const fa::Variant& any() {
  const fa::Variant* variant = GENERATE(&tmem(), &issuer(), &roles(), &pair(), &exp2(), &ctas());
  UNSCOPED_INFO("variant " << variant->name);
  return *variant;
}

TEST_CASE("step 16: what every forward on tensor cores is asked", "[step16][all]") {
  fa::test::require_forward(any());
}

TEST_CASE("step 16: agrees with step 07", "[step16][all]") {
  fa::test::require_agrees(any(), parent());
}

TEST_CASE("step 16: random shapes", "[step16][all]") {
  fa::test::require_right_for_random_shapes({&any()}, 16);
}

TEST_CASE("step 16: maxima that grow slowly, fast, not at all", "[step16][all]") {
  fa::test::require_right_for_any_maxima(any(), fa::kWarp, step16::Bc);
}

TEST_CASE("step 16: pairs of tiles of which the first sees fewer keys, or the second has no row",
          "[step16][all]") {
  const fa::Variant& variant = *GENERATE(&pair(), &exp2(), &ctas());
  // One tile and a pair; a diagonal over one, two and three tiles of keys; rows without keys, also
  // all of 256; a cluster of blocks and a part of one.
  const auto [N, Nk] =
      GENERATE(std::pair(128, 128), std::pair(129, 128), std::pair(256, 256), std::pair(257, 257),
               std::pair(300, 129), std::pair(300, 44), std::pair(130, 400), std::pair(384, 512),
               std::pair(600, 88), std::pair(513, 640), std::pair(900, 900));
  const int d = GENERATE(64, 128);
  if (!fa::test::one_in(3)) return;
  CAPTURE(N, Nk, d);
  const auto p = bf16_problem(N, Nk, d, /*causal=*/true, 1, /*H=*/2, /*Hkv=*/1);
#if FA_BACKEND_GPU
  fa::test::require_right(variant, p);
#else
  fa::test::require_equal(variant.traffic(p),
                          fa::test::require_right_counted(variant, p, /*analyse=*/false).forward);
#endif
}

// --- exponentials --------------------------------------------------------------------------------

namespace {

template <int degree>
struct Exp2 {
  FA_PTX float operator()(float x) const { return step16_pair::exp2_polynomial<degree>({x, -x}).x; }
};
template <int degree = step16_pair::kDegree>
std::vector<float> exponentials(const std::vector<float>& x) {
  return test::mapped<Exp2<degree>>(x);
}

/// The largest relative error of numbers, and of the same rounded to bf16.
std::pair<double, double> errors(const std::vector<float>& x, const std::vector<float>& y) {
  double exact = 0, rounded = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp2(static_cast<double>(x[i]));
    const double narrow = __bfloat162float(__float2bfloat16(y[i]));
    exact = std::max(exact, std::abs(y[i] / want - 1));
    rounded = std::max(rounded, std::abs(narrow / want - 1));
  }
  return {exact, rounded};
}

}  // namespace

TEST_CASE("step 16: polynomials of degree 3, 4 and 5, and what bf16 leaves of their errors",
          "[step16]") {
  std::vector<float> x(1 << 18), exact(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = -3.f + (static_cast<float>(i) + 0.37f) / static_cast<float>(x.size());
    exact[i] = static_cast<float>(std::exp2(static_cast<double>(x[i])));
  }
  const auto [third, rounded] = errors(x, exponentials<3>(x));
  CHECK(third == Approx(8.77e-5).epsilon(0.01));  // FlashAttention-4's
  CHECK(rounded == Approx(3.902e-3).epsilon(1e-3));
  CHECK(errors(x, exact).second == Approx(3.891e-3).epsilon(1e-3));
  CHECK(errors(x, exponentials<4>(x)).first == Approx(3.05e-6).epsilon(0.02));
  CHECK(errors(x, exponentials<5>(x)).first < 2.5e-7);
}

TEST_CASE("step 16: the polynomial of a masked score is 0, of an integer exact", "[step16]") {
  CHECK(exponentials({-INFINITY, -1e30f, -127.5f, -127.f}) == std::vector<float>(4, 0.f));
  CHECK(exponentials({-126.f, -1.f, 0.f, 8.f}) ==
        std::vector<float>{std::ldexp(1.f, -126), 0.5f, 1.f, 256.f});
  CHECK(exponentials({-1e-20f})[0] < 1.f);
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
TEST_CASE("step 16: the formulas of the header", "[step16][all]") {
  const auto [variant, rows] =
      GENERATE(std::pair(&tmem(), 128), std::pair(&issuer(), 128), std::pair(&roles(), 128),
               std::pair(&pair(), 256), std::pair(&exp2(), 256), std::pair(&ctas(), 512));
  fa::test::require_header_formulas(*variant, rows);
}

TEST_CASE("step 16: no bank conflicts, and no load but by TMA", "[step16]") {
  const fa::Variant& variant = any();
  const auto p = bf16_problem(128, 192, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(p.d, p.causal);
  const fa::Counts counts = fa::test::require_loads_by_tma(variant, p);
  CHECK(counts.kernels[0].sectors.store * 32 == 4 * p.rows());  // LSE
}
#endif
