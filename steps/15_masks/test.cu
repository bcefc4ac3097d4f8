// Tests of step 15. steps/CMakeLists.txt says what it is linked with.
#include "steps/15_masks/1_window.cuh"
#include "tests/backward.h"
#include "tests/masks.h"

using fa::Problem;
using fa::test::bf16_problem, fa::test::with_window;

static const fa::Variant& window() { return fa::linked_variant("15 window"); }
static const fa::Variant& parent() { return fa::linked_variant("07 lazy"); }

namespace {

/// Around a tile of keys, and larger than all.
std::vector<int> limits() { return {-1, 0, 1, 63, 64, 65, 127, 128, 129, 1000}; }

/// Right, and, in the simulator, as predicted, without a finding of the analysis.
void require_all(const fa::Variant& v, const Problem& p) {
  CAPTURE(v.name, fa::describe(p));
  fa::test::require_right(v, p);
#if !FA_BACKEND_GPU
  const fa::Counts counts = fa::test::count_forward(v, p, /*analyse=*/true);
  fa::test::require_equal(v.traffic(p), counts);
  CHECK(counts.tensor_flops == v.traffic(p).flops);
  const fa::Counts backward = fa::test::count_backward(v, p, /*analyse=*/true);
  fa::test::require_equal(v.backward_traffic(p), backward);
  CHECK(backward.tensor_flops == v.backward_traffic(p).flops);
#endif
}

void require_same_results(const fa::Outputs& a, const fa::Outputs& b) {
  CHECK(a.O == b.O);
  CHECK(a.LSE == b.LSE);
}

}  // namespace

// --- window --------------------------------------------------------------------------------------

TEST_CASE("step 15: what every forward on tensor cores is asked", "[step15][all]") {
  fa::Variant forward = window();
  forward.backward = {};  // large scores are not checkable there
  fa::test::require_forward(forward);
}

TEST_CASE("step 15: what every backward on tensor cores is asked", "[step15][all]") {
  fa::test::require_backward({&window(), GENERATE(64, 128)}, fa::linked_variant("06 backward"));
}

TEST_CASE("step 15: a window, below, at and above a tile", "[step15][all]") {
  const int left = GENERATE(from_range(limits())), right = GENERATE(from_range(limits()));
  const int N = GENERATE(1, 127, 128, 129, 300);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(61)) return;
  require_all(window(), with_window(bf16_problem(N, N, d, causal), left, right));
}

TEST_CASE("step 15: a window, as many keys as one likes", "[step15][all]") {
  const auto [N, Nk] = GENERATE(std::pair(1, 300), std::pair(300, 1), std::pair(130, 257),
                                std::pair(257, 130), std::pair(70, 600), std::pair(400, 90));
  const auto [left, right] = GENERATE(std::pair(0, 0), std::pair(-1, 0), std::pair(0, -1),
                                      std::pair(70, 3), std::pair(3, 70), std::pair(130, -1));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  const auto p = bf16_problem(N, Nk, d, causal, /*B=*/1, /*H=*/3, /*Hkv=*/1);
  require_all(window(), with_window(p, left, right));
}

TEST_CASE("step 15: a window without limits is no window, bit for bit", "[step15]") {
  const bool causal = GENERATE(false, true);
  const auto [N, Nk] = GENERATE(std::pair(300, 300), std::pair(130, 300), std::pair(300, 130));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), causal, 1, /*H=*/2, /*Hkv=*/1);
  CAPTURE(fa::describe(p));
  const auto in = fa::normal_inputs(p, 3);
  const fa::Outputs want = fa::run(parent(), p, in);
  require_same_results(fa::run(window(), p, in), want);
  require_same_results(fa::run(window(), with_window(p, 300, causal ? 0 : 300), in), want);
  require_same_results(fa::run(window(), with_window(p, 1000000, causal ? 7 : -1), in), want);
}

TEST_CASE("step 15: a row that sees only itself has its V", "[step15]") {
  const auto p = with_window(bf16_problem(200, 200, 64, GENERATE(false, true)), 0, 0);
  const auto in = fa::normal_inputs(p, 4);
  REQUIRE(fa::test::max_difference(fa::run(window(), p, in).O, in.V) == 0);
}

#if !FA_BACKEND_GPU
TEST_CASE("step 15: a window's bytes and operations grow with N, not with its square", "[step15]") {
  const auto traffic = [](int N) {
    return window().traffic(with_window(bf16_problem(N, N, 128, true), 256, 0));
  };
  for (const int N : {4096, 8192, 16384}) {
    CHECK(traffic(2 * N).flops < 2.05 * traffic(N).flops);
    CHECK(traffic(2 * N).total().read < 2.05 * traffic(N).total().read);
  }
}
#endif
