// Tests of step 10. steps/CMakeLists.txt has the sources that it is linked with.
#include "steps/10_warp_specialized/4_scheduled.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& parent() { return fa::linked_variant("09 wgmma"); }
static const fa::Variant& producer() { return fa::linked_variant("10 producer"); }
static const fa::Variant& specialized() { return fa::linked_variant("10 specialized"); }
static const fa::Variant& lazy() { return fa::linked_variant("10 lazy"); }
static const fa::Variant& persistent() { return fa::linked_variant("10 persistent"); }
static const fa::Variant& scheduled() { return fa::linked_variant("10 scheduled"); }

// The persistent kernels with this many blocks instead of one per SM.
template <int kBlocks>
static const fa::Variant& on_blocks() {
  static const fa::Variant variant = fa::test::on_blocks(scheduled(), kBlocks);
  return variant;
}
template <int kBlocks>
static const fa::Variant& in_turn_on_blocks() {
  static const fa::Variant variant = fa::test::on_blocks(persistent(), kBlocks);
  return variant;
}
static const fa::Variant& few_blocks() { return on_blocks<0>(); }
static const fa::Variant& few_blocks_in_turn() { return in_turn_on_blocks<0>(); }

static constexpr int kWarpRows = step10::kGroupRows / 4;

// One of them per run of the test.
static const fa::Variant& any() {
  const fa::Variant* variant =
      GENERATE(&producer(), &specialized(), &lazy(), &few_blocks_in_turn(), &few_blocks());
  UNSCOPED_INFO("variant " << variant->name);
  return *variant;
}

TEST_CASE("step 10: what every forward on tensor cores is asked", "[step10][all]") {
  const fa::Variant& variant = any();
  const bool few = &variant == &few_blocks() || &variant == &few_blocks_in_turn();
  fa::test::require_forward(variant, /*predicted=*/!few);
}

TEST_CASE("step 10: agrees with step 09", "[step10][all]") {
  fa::test::require_agrees(any(), parent());
}

TEST_CASE("step 10: random shapes, one work tile per block, many, and many in turn",
          "[step10][all]") {
  const fa::Variant* variant = GENERATE(&specialized(), &few_blocks(), &few_blocks_in_turn());
  fa::test::require_right_for_random_shapes({variant}, 10);
}

TEST_CASE("step 10: as many blocks as one likes give the same bits", "[step10][all]") {
  fa::test::require_same_bits_on_blocks(scheduled());
}

TEST_CASE("step 10: maxima that grow slowly, fast, not at all, and lie far from zero",
          "[step10][all]") {
  fa::test::require_right_for_any_maxima(*GENERATE(&lazy(), &few_blocks()), kWarpRows,
                                         step10::Tiling<64, false>::Bc);
}

TEST_CASE("step 10: maxima, one product after the other", "[step10][all]") {
  constexpr int kTileKeys = 64;  // as in step 09
  fa::test::require_right_for_any_maxima(producer(), kWarpRows, kTileKeys);
}

// --- the seam between work tiles -----------------------------------------------------------------

TEST_CASE("step 10: many work tiles on few blocks", "[step10][all]") {
  const fa::Variant& variant =
      *GENERATE(&on_blocks<1>(), &on_blocks<2>(), &on_blocks<3>(), &in_turn_on_blocks<2>());
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  // Work tiles of one tile of keys; of some; warpgroups that skip tiles; a diagonal over two tiles.
  const auto [N, Nk] = GENERATE(std::pair(20, 30), std::pair(300, 300), std::pair(257, 100),
                                std::pair(300, 331), std::pair(65, 400));
  if (!fa::test::one_in(3)) return;
  CAPTURE(d, causal, N, Nk);
  fa::test::require_right(variant, bf16_problem(N, Nk, d, causal, 1, /*H=*/3, /*Hkv=*/1));
}

TEST_CASE("step 10: a head that fills a section of the L2", "[step10][.all]") {
  fa::test::require_right(scheduled(), bf16_problem(1, 33000, 128, /*causal=*/true));
}

TEST_CASE("step 10: heads in more than one section", "[step10]") {
  const fa::Variant& variant = *GENERATE(&on_blocks<3>(), &on_blocks<132>());
  const auto [d, Nk, section] =
      GENERATE(std::tuple(64, 20, 64), std::tuple(64, 4096, 16), std::tuple(128, 20, 32),
               std::tuple(128, 4096, 8), std::tuple(256, 20, 32), std::tuple(256, 1030, 16));
  const int heads = section + 5;
  CAPTURE(d, Nk);
  fa::test::require_right(variant, bf16_problem(20, Nk, d, /*causal=*/true, 1, heads, heads));
}

TEST_CASE("step 10: more work tiles than SMs", "[step10][all]") {
  // The last one: 64 rows that skip a tile of keys after a seam.
  const auto [d, N, Nk] =
      GENERATE(std::tuple(64, 20, 30), std::tuple(128, 20, 30), std::tuple(256, 100, 100));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  CAPTURE(d, causal);
  const auto p = bf16_problem(N, Nk, d, causal, 1, /*H=*/150, /*Hkv=*/50);
  for (const fa::Variant* variant : {&persistent(), &scheduled()}) {
    if (d == 256 && variant == &persistent()) continue;
#if FA_BACKEND_GPU
    fa::test::require_right(*variant, p);
#else
    fa::test::require_equal(
        variant->traffic(p),
        fa::test::require_right_counted(*variant, p, /*analyse=*/false).forward);
#endif
  }
}

// --- a head dimension of 256 ---------------------------------------------------------------------

TEST_CASE("step 10: a head dimension of 256", "[step10][all]") {
  const fa::Variant& variant = *GENERATE(&on_blocks<1>(), &few_blocks());
  // One key; the edges of 64; rows without keys; skipped tiles; a diagonal over two tiles.
  const auto [N, Nk] =
      GENERATE(std::pair(1, 1), std::pair(20, 64), std::pair(70, 65), std::pair(128, 64),
               std::pair(200, 333), std::pair(333, 200), std::pair(320, 320), std::pair(129, 161));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  CAPTURE(N, Nk, causal);
  const auto p = bf16_problem(N, Nk, 256, causal, 1, /*H=*/4, /*Hkv=*/2);
  fa::test::require_right(variant, p, fa::real_inputs(p, 1));
#if FA_BACKEND_GPU
  fa::test::require_right(variant, p);
#else
  fa::test::require_predicted(scheduled(), p);
  fa::test::require_no_conflicts(
      fa::test::require_right_counted(variant, p, /*analyse=*/true).forward);
#endif
}

TEST_CASE("step 10: d = 256, and keys around each multiple of 16", "[step10][all]") {
  for (int more = 32; more < 96; ++more) {
    if ((more + 3) % 16 > 5 || !fa::test::is_now((more + 1) % 16 < 3)) continue;
    CAPTURE(more);
    fa::test::require_right(few_blocks(), bf16_problem(3, 3 + more, 256, /*causal=*/true));
    if ((more + 1) % 8 < 3)
      fa::test::require_right(few_blocks(), bf16_problem(1, more, 256, false));
  }
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
TEST_CASE("step 10: predicted bytes are counted bytes, and those of HBM", "[step10][all]") {
  const fa::Variant& variant = *GENERATE(&persistent(), &scheduled());  // with one block per SM
  SECTION("requested") { fa::test::require_predicted_for_lengths(variant); }
  SECTION("HBM") {
    if (fa::test::is_now(true)) fa::test::require_compulsory_hbm(variant);
  }
}

TEST_CASE("step 10: as many blocks as the modelled GPU has SMs", "[step10]") {
  const fa::GpuSpec A100 = fa::find_gpu("A100");
  const struct RunAs {
    explicit RunAs(const fa::GpuSpec& gpu) { fa::configure({.gpu = gpu}); }
    ~RunAs() { fa::configure({}); }
  } as_A100(A100);
  const auto p = bf16_problem(64, 64, 64, /*causal=*/true, /*B=*/10, /*H=*/16, /*Hkv=*/16);
  fa::Session session(p, fa::normal_inputs(p, 1), scheduled());
  const fa::Bytes counted = *fa::count([&] { session.forward(); }, {}).requested;
  CHECK(counted == scheduled().traffic(p).total());
  CHECK(counted.atomic == 4 * (160 + 108));  // work tiles, SMs
}

TEST_CASE("step 10: the formulas of the headers", "[step10][all]") {
  const fa::Variant& variant = *GENERATE(&producer(), &specialized(), &persistent(), &scheduled());
  const bool causal = GENERATE(false, true);
  const uint64_t d = GENERATE(64, 128), N = 300, Nk = 300, BH = 12, BHkv = 6;
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant.name, causal, d);
  const auto p = bf16_problem(N, Nk, d, causal, /*B=*/3, /*H=*/4, /*Hkv=*/2);
  const uint64_t Br = d == 64 ? 256 : 128, Tr = (N + Br - 1) / Br;
  const fa::Bytes counted = *fa::test::count_forward(variant, p).requested;
  if (!causal) CHECK(counted.read == 2 * BH * (N * d + 2 * Tr * Nk * d));
  // 4 B per work tile and per block; all work tiles fit on SMs.
  const bool counters = variant.name == "scheduled" && causal;
  CHECK(counted.write == 2 * BH * N * d + 4 * BH * N + (counters ? 8 : 0));
  CHECK(counted.atomic == (counters ? 4 * (BH * Tr + BH * Tr) : 0));
  const fa::Bytes least = variant.traffic(p).hbm;
  CHECK(least.read + least.write == 2 * (2 * BH * N * d + 2 * BHkv * Nk * d) + 4 * BH * N);
}

TEST_CASE("step 10: the last section may have fewer heads", "[step10]") {
  const auto p = bf16_problem(130, 130, /*d=*/128, /*causal=*/true, /*B=*/1, /*H=*/35, /*Hkv=*/35);
  fa::test::require_right(scheduled(), p);  // 32 heads, and 3
}

TEST_CASE("step 10: no bank conflicts", "[step10]") {
  const fa::Variant& variant = any();
  const auto p = bf16_problem(70, 70, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(p.d, p.causal);
  fa::test::require_loads_by_tma(variant, p);
}

TEST_CASE("step 10: the analysis finds nothing at the seam between work tiles", "[step10][all]") {
  const fa::Variant& variant = *GENERATE(&on_blocks<1>(), &on_blocks<2>(), &in_turn_on_blocks<1>());
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(d, causal);
  fa::test::count_forward(variant, bf16_problem(300, 300, d, causal, 1, /*H=*/3),
                          /*analyse=*/true);
}
#endif
