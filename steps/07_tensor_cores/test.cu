// Tests of step 07. steps/CMakeLists.txt says what it is linked with.
#include "steps/07_tensor_cores/1_mma.cuh"
#include "steps/07_tensor_cores/2_pipelined.cuh"
#include "steps/07_tensor_cores/3_bands.cuh"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& mma() { return fa::linked_variant("07 mma"); }
static const fa::Variant& pipelined() { return fa::linked_variant("07 pipelined"); }
static const fa::Variant& bands() { return fa::linked_variant("07 bands"); }
static const fa::Variant& lazy() { return fa::linked_variant("07 lazy"); }
static const fa::Variant& parent() { return fa::linked_variant("06 registers"); }

/// One of the variants that take as many keys as queries and as many key heads as query heads.
static const fa::Variant& early() { return *GENERATE(&mma(), &pipelined(), &bands()); }
static const fa::Variant& any() { return *GENERATE(&mma(), &pipelined(), &bands(), &lazy()); }

TEST_CASE("step 07: what every forward on tensor cores is asked", "[step07][all]") {
  fa::test::require_forward(any());
}

TEST_CASE("step 07: random shapes", "[step07][all]") {
  fa::test::require_right_for_random_shapes({&lazy()}, 7);
}

TEST_CASE("step 07: maxima that grow, fall, and lie far from zero, as many keys as queries",
          "[step07][all]") {
  const fa::Variant& variant = early();
  const auto p = bf16_problem(448, 448, 64, GENERATE(false, true));
  const float step = GENERATE(0.f, 1.f, 6.f, 100.f, -1.f, -6.f, 5000.f, -5000.f);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, p.causal, step);
  fa::test::require_right(variant, p, fa::test::inputs_with_scores(p, 16, [&](int c) {
                            return fa::round_to(p.dtype, step * static_cast<float>(c / 64));
                          }));
  fa::test::require_right(variant, p, fa::test::inputs_with_scores(p, 16, [&](int c) {
                            return fa::round_to(p.dtype, step * static_cast<float>(c % 5));
                          }));
}

TEST_CASE("step 07: agrees with step 06", "[step07]") {
  const fa::Variant& variant = any();
  auto p = bf16_problem(130, 130, GENERATE(64, 128), GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 6);
  const fa::Outputs now = fa::run(variant, p, in);
  p.dtype = fa::DType::f32;
  const fa::Outputs before = fa::run(parent(), p, in);  // of the same, rounded inputs
  REQUIRE(fa::test::max_difference(now.O, before.O) <= 0x1p-6);
  REQUIRE(fa::test::max_difference(now.LSE, before.LSE) <= 2e-5);
}

TEST_CASE("step 07: maxima that grow slowly, fast, not at all", "[step07][all]") {
  fa::test::require_right_for_any_maxima(lazy(), step07::kWarpRows, step07::Bc<64>);
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
static constexpr int keys_of_tile(int d) { return d == 64 ? step07::Bc<64> : step07::Bc<128>; }

TEST_CASE("step 07: the formulas of the header", "[step07][all]") {
  fa::test::require_header_formulas(lazy(), step07::Br);
}

TEST_CASE("step 07: no bank conflicts, padded or swizzled", "[step07]") {
  const fa::Variant& variant = early();
  const auto p = bf16_problem(192, 192, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(variant.name, p.d, p.causal);
  const fa::Counts counts = fa::test::count_forward(variant, p);
  REQUIRE(counts.kernels.size() == 1);
  const fa::KernelCount& k = counts.kernels[0];
  CHECK(k.shared_wavefronts == k.shared_ideal);
  CHECK(k.sectors.load * 32 == k.bytes.read);
  // O leaves `mma` in pairs: 16 of a sector's 32 bytes in each request, LSE one in eight rows.
  const uint64_t o_bytes = 2 * 192 * p.d, lse_bytes = 4 * 192;
  CHECK(k.sectors.store * 32 == (&variant == &mma() ? 2 : 1) * o_bytes + lse_bytes);
}

TEST_CASE("step 07: no bank conflicts, coalesced accesses", "[step07]") {
  const auto p = bf16_problem(128, 192, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(p.d, p.causal);
  const fa::Counts counts = fa::test::count_forward(lazy(), p, /*analyse=*/true);
  REQUIRE(counts.kernels.size() == 1);
  const fa::KernelCount& k = counts.kernels[0];
  CHECK(k.shared_wavefronts == k.shared_ideal);
  CHECK(k.sectors.load * 32 == k.bytes.read);  // every byte of every sector was asked for
  CHECK(k.sectors.store * 32 == k.bytes.write);

  // cp.async, ldmatrix and the two halves of the epilogue are all in that sum.
  const uint64_t d = p.d, Bc = keys_of_tile(p.d);
  const uint64_t tiles = fa::visited_tiles(p, step07::Br, keys_of_tile(p.d)).tiles;
  const uint64_t q_bytes = 2 * step07::Br * d, kv_bytes = 2 * tiles * 2 * Bc * d;
  std::map<std::string, uint64_t> wavefronts;
  for (const fa::SiteCount& site : counts.sites) wavefronts[site.what] += site.transfers;
  CHECK(wavefronts["shared store128"] == (q_bytes + kv_bytes) / 128);
  CHECK(wavefronts["shared store32"] == q_bytes / 128);
  // Each warp reads its rows of Q in every tile and all of K and V; and at the end its rows of O.
  CHECK(wavefronts["shared load128"] ==
        (tiles * q_bytes + step07::kWarps * kv_bytes + q_bytes) / 128);
}

TEST_CASE("step 07: causal tiles above the diagonal are not visited", "[step07]") {
  constexpr uint64_t d = 64, key = 2 * d;  // bytes
  const auto square = fa::test::count_forward(lazy(), bf16_problem(512, 512, d, true));
  CHECK(square.buffers.at("K").bytes.read == (128 + 256 + 384 + 512) * key);
  CHECK(square.buffers.at("V").bytes.read == (128 + 256 + 384 + 512) * key);
  const auto wide = fa::test::count_forward(lazy(), bf16_problem(256, 512, d, true));
  CHECK(wide.buffers.at("K").bytes.read == (384 + 512) * key);
  const auto tall = fa::test::count_forward(lazy(), bf16_problem(512, 256, d, true));
  CHECK(tall.buffers.at("V").bytes.read == (0 + 0 + 128 + 256) * key);
}
#endif
