// Tests of step 09. steps/CMakeLists.txt says what it is linked with.
#include "steps/09_tma_wgmma/1_tma.cuh"
#include "steps/09_tma_wgmma/2_wgmma.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& tma() { return fa::linked_variant("09 tma"); }
static const fa::Variant& wgmma() { return fa::linked_variant("09 wgmma"); }
static const fa::Variant& parent() { return fa::linked_variant("07 lazy"); }

static constexpr int kWarpRows = step09::Br / step09::kWarps;

// One of them; a test runs once with each.
static const fa::Variant& any() {
  const fa::Variant* variant = GENERATE(&tma(), &wgmma());
  UNSCOPED_INFO("variant " << variant->name);
  return *variant;
}

TEST_CASE("step 09: what every forward on tensor cores is asked", "[step09][all]") {
  fa::test::require_forward(any());
}

TEST_CASE("step 09: agrees with step 07", "[step09][all]") {
  fa::test::require_agrees(any(), parent());
}

TEST_CASE("step 09: random shapes", "[step09][all]") {
  fa::test::require_right_for_random_shapes({&any()}, 9);
}

TEST_CASE("step 09: maxima that grow slowly, fast, not at all", "[step09][all]") {
  fa::test::require_right_for_any_maxima(wgmma(), kWarpRows, step09::Bc);
}

TEST_CASE("step 09: maxima, with the rows and keys of mma", "[step09][all]") {
  fa::test::require_right_for_any_maxima(tma(), step09_tma::kWarpRows, step09_tma::Bc<64>);
}

TEST_CASE("step 09: what follows the keys of a head is not read", "[step09]") {
  // The last tile of a head's keys ends among the next head's. TMA gives zeros there, not those.
  const fa::Variant& variant = any();
  const int d = GENERATE(64, 128);
  const auto p = bf16_problem(65, 65, d, GENERATE(false, true), /*B=*/1, /*H=*/2, /*Hkv=*/2);
  CAPTURE(d, p.causal);
  fa::Inputs in = fa::normal_inputs(p, 11);
  const fa::Outputs before = fa::run(variant, p, in);
  const size_t half = p.kv_size() / 2;
  for (size_t i = half; i < 2 * half; ++i) in.K[i] = in.V[i] = INFINITY;
  const fa::Outputs after = fa::run(variant, p, in);
  const size_t rows = static_cast<size_t>(p.N) * d;
  REQUIRE(std::equal(before.O.begin(), before.O.begin() + rows, after.O.begin()));
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
TEST_CASE("step 09: the formulas of the header", "[step09][all]") {
  fa::test::require_header_formulas(any(), 128);
}

TEST_CASE("step 09: no bank conflicts; what warps move of a tile", "[step09]") {
  const auto p = bf16_problem(128, 192, GENERATE(64, 128), GENERATE(false, true));
  const bool wgmma_reads = GENERATE(false, true);
  CAPTURE(p.d, p.causal, wgmma_reads);
  const fa::Counts counts = fa::test::require_loads_by_tma(wgmma_reads ? wgmma() : tma(), p);
  CHECK(counts.kernels[0].sectors.store * 32 == 4 * p.rows());  // LSE
  std::map<std::string, uint64_t> wavefronts;
  for (const fa::SiteCount& site : counts.sites) wavefronts[site.what] += site.transfers;
  const uint64_t d = p.d, q_bytes = 2 * 128 * d;  // a tile of Q, and of O
  if (wgmma_reads) {
    CHECK(wavefronts["shared load128"] == 0);
    CHECK(wavefronts["shared store128"] == q_bytes / 128);  // stmatrix
    return;
  }
  // ldmatrix: each warp reads its rows of Q in every tile and all of K and V.
  const uint64_t keys = d == 64 ? step09_tma::Bc<64> : step09_tma::Bc<128>;
  const uint64_t tiles = fa::visited_tiles(p, step09_tma::Br, static_cast<int>(keys)).tiles;
  CHECK(wavefronts["shared load128"] ==
        tiles * (q_bytes + step09_tma::kWarps * 2 * keys * 2 * d) / 128);
  CHECK(wavefronts["shared store128"] == 0);
  CHECK(wavefronts["shared store32"] == q_bytes / 128);  // O
}

TEST_CASE("step 09: causal tiles above the diagonal are not visited", "[step09]") {
  constexpr uint64_t d = 64, key = 2 * d;  // bytes
  const auto square = fa::test::count_forward(wgmma(), bf16_problem(512, 512, d, true));
  CHECK(square.buffers.at("K").bytes.read == (128 + 256 + 384 + 512) * key);
  CHECK(square.buffers.at("V").bytes.read == (128 + 256 + 384 + 512) * key);
  const auto wide = fa::test::count_forward(wgmma(), bf16_problem(200, 264, d, true));
  CHECK(wide.buffers.at("K").bytes.read == (192 + 264) * key);
  const auto tall = fa::test::count_forward(wgmma(), bf16_problem(512, 256, d, true));
  CHECK(tall.buffers.at("V").bytes.read == (0 + 0 + 128 + 256) * key);
}
#endif
