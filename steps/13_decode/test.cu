// Tests of step 13. steps/CMakeLists.txt has the sources that it is linked with.
#include <cmath>

#include "steps/13_decode/2_splits.cuh"
#include "steps/13_decode/6_fp8.cuh"
#include "tests/attention.h"
#include "tests/device.h"

using fa::test::bf16_problem;

static const fa::Variant& warps() { return fa::linked_variant("13 warps"); }
static const fa::Variant& splits() { return fa::linked_variant("13 splits"); }
static const fa::Variant& groups() { return fa::linked_variant("13 groups"); }
static const fa::Variant& pages() { return fa::linked_variant("13 pages"); }
static const fa::Variant& once() { return fa::linked_variant("13 once"); }
static const fa::Variant& fp8() { return fa::linked_variant("13 fp8"); }
static const fa::Variant& early() { return fa::linked_variant("13 early"); }
static const fa::Variant& wgmma() { return fa::linked_variant("13 wgmma"); }
static const fa::Variant& parent() { return fa::linked_variant("07 lazy"); }

static const fa::Variant& any() {
  return *GENERATE(&warps(), &splits(), &groups(), &pages(), &once(), &fp8(), &early(), &wgmma());
}
/// Splits of the keys that `group` query heads read together.
static step13::Splits splits_of(const fa::Problem& p, int group) {
  const step13::Rows rows(p, group);
  const step13::Splits splits = step13::splits_of(p, rows, rows.per_block);
  REQUIRE((splits.count - 1) * splits.keys < p.Nk);  // the last one holds keys
  return splits;
}

static step13::Splits splits_of_groups(const fa::Problem& p) { return splits_of(p, p.H / p.Hkv); }

/// Those that accept a table and lengths.
static const fa::Variant& paged() {
  return *GENERATE(&pages(), &once(), &fp8(), &early(), &wgmma());
}

/// Keys of several batch entries: none, one, ends of tiles, of pages and of a split (768); if d is
/// 128, more splits (9) than a thread of early's merge loads at once.
static fa::Problem ragged(int page, int d, int N = 1, bool causal = false) {
  auto p = bf16_problem(N, 1089, d, causal, /*B=*/8, /*H=*/4, /*Hkv=*/2);
  p.cache.lengths = {0, 1, 1089, 16, 17, 768, 64, 257};
  p.cache.page = page;
  return p;
}

TEST_CASE("step 13: right at the ends of tiles and splits", "[step13]") {
  const int Nk =
      GENERATE(1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 700);
  const int d = GENERATE(64, 128);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk, d);
  fa::test::require_right(variant, bf16_problem(1, Nk, d, false, 1, 2, 2));
}

TEST_CASE("step 13: 1 to 16 queries, with and without a mask", "[step13][all]") {
  const int N = GENERATE(range(1, 17));
  const int Nk = GENERATE(40, 333);
  const bool causal = GENERATE(false, true);
  const fa::Variant& variant = any();
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, N, Nk, causal);
  fa::test::require_right(variant, bf16_problem(N, Nk, N % 2 ? 64 : 128, causal, 1, 2, 2));
}

TEST_CASE("step 13: groups of query heads", "[step13][all]") {
  struct Case {
    int group, N, d;
  };
  // Group * N rows: a part of a band; one row in the second band (17); one row in the second block
  // (33); whole bands (32); more blocks (48, 112).
  const Case c = GENERATE(Case{1, 1, 64}, Case{2, 16, 128}, Case{3, 1, 128}, Case{3, 11, 64},
                          Case{3, 11, 128}, Case{5, 3, 128}, Case{7, 1, 64}, Case{7, 16, 128},
                          Case{16, 3, 128}, Case{17, 1, 64}, Case{17, 1, 128}, Case{33, 1, 128});
  const fa::Variant& variant = any();
  if (!fa::test::one_in(5)) return;
  const auto p = bf16_problem(c.N, 400, c.d, true, 1, 2 * c.group, 2);
  CAPTURE(variant.name, c.group, c.N, c.d);
  if (!FA_BACKEND_GPU) {  // a small GPU has too few SMs
    REQUIRE(splits_of(p, /*group=*/1).count > 1);
    REQUIRE(splits_of_groups(p).count > 1);
  }
  fa::test::require_right(variant, p);
}

TEST_CASE("step 13: fewer keys than queries: rows without keys", "[step13]") {
  const int Nk = GENERATE(1, 5, 15);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk);
  fa::test::require_right(variant, bf16_problem(16, Nk, 128, true, 1, 4, 2));
}

TEST_CASE("step 13: a split of which some queries see no key", "[step13]") {
  // The last split's only tile holds one or two keys; the first queries' mask ends before them.
  const fa::Variant& variant =
      *GENERATE(&splits(), &groups(), &pages(), &once(), &fp8(), &early(), &wgmma());
  const int d = GENERATE(64, 128), tile = d == 64 ? step13::Bc<64> : step13::Bc<128>;
  const int Nk = 4 * step13::kLeastTiles * tile + GENERATE(1, 2);
  CAPTURE(variant.name, Nk);
  fa::test::require_right(variant, bf16_problem(8, Nk, d, true, 1, 2, 1));
}

TEST_CASE("step 13: shuffled pages, ragged lengths", "[step13][all]") {
  const int page = GENERATE(0, 16, 32, 64, 128, 256);
  const auto [N, d] = GENERATE(std::pair(1, 128), std::pair(5, 64));
  const bool causal = N > 1;
  const fa::Variant& variant = paged();
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, page, d, N);
  fa::test::require_right(variant, ragged(page, d, N, causal));
}

TEST_CASE("step 13: what follows a sequence's keys changes no bit", "[step13][all]") {
  const fa::Variant& variant = paged();
  const auto p = fa::problem_for(variant, ragged(GENERATE(0, 16, 64), 64));
  if (!fa::test::one_in(2)) return;
  CAPTURE(variant.name, p.cache.page);
  const auto in = fa::normal_inputs(p, 3);
  const size_t d = p.d, Nk = p.Nk;
  auto garbage = in;
  for (size_t i = 0; i < in.K.size(); ++i) {
    if (i / d % Nk < size_t(p.keys_of(i / d / Nk / p.Hkv))) continue;
    garbage.K[i] = i % 2 ? NAN : INFINITY, garbage.V[i] = i % 3 ? NAN : 3e38f;
  }
  if (p.cache.fp8) fa::quantise_cache(p, garbage);
  fa::test::require_right(variant, p, garbage);
  const fa::Outputs clean = fa::run(variant, p, in), got = fa::run(variant, p, garbage);
  CHECK(got.O == clean.O);
  CHECK(got.LSE == clean.LSE);
}

TEST_CASE("step 13: keys that end where a split does", "[step13]") {
  const int d = GENERATE(64, 128);
  const fa::Variant& variant = paged();
  auto p = bf16_problem(1, 700, d, false, /*B=*/2, /*H=*/2, /*Hkv=*/2);
  int tried = 0;
  for (int keys = 1; keys < 700; ++keys) {
    p.cache.lengths = {700, keys};
    const step13::Splits splits = splits_of_groups(p);
    if (keys % splits.keys != 0) continue;
    CAPTURE(variant.name, d, keys, splits.keys);
    fa::test::require_right(variant, p);  // also that the counters are left at zero
    ++tried;
  }
  CHECK(tried > 1);
}

TEST_CASE("step 13: a long cache", "[step13]") {
  const fa::Variant& variant = paged();
  auto p = bf16_problem(1, FA_BACKEND_GPU ? 131072 : 16384, 64, false, 1, 2, 1);
  p.cache.page = GENERATE(0, 16);
  CAPTURE(variant.name, p.cache.page);
  fa::test::require_right(variant, p);
}

TEST_CASE("step 13: 131,072 keys", "[step13][.all]") {
  auto p = bf16_problem(1, 131072, 64, false, 1, 1, 1);
  fa::test::require_right(groups(), p);
  p.cache.page = 256;
  fa::test::require_right(once(), p);
}

TEST_CASE("step 13: random problems", "[step13][all]") {
  std::mt19937 random(13);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int i = 0; i < (FA_BACKEND_GPU ? 1000 : 200); ++i) {
    const fa::Variant* variants[] = {&warps(), &splits(), &groups(), &pages(),
                                     &once(),  &fp8(),    &early(),  &wgmma()};
    const fa::Variant& variant = *variants[i % 8];
    const int Hkv = between(1, 2), B = between(1, 4), Nk = between(1, FA_BACKEND_GPU ? 5000 : 700);
    auto p = bf16_problem(between(1, 16), Nk, between(1, 2) * 64, between(0, 1), B,
                          Hkv * between(1, 8), Hkv);
    if (i % 8 >= 3 && between(0, 3) > 0) p.cache.page = 16 << between(0, 4);
    if (i % 8 >= 3 && between(0, 3) > 0) {
      for (int b = 0; b < B; ++b) p.cache.lengths.push_back(between(0, Nk));
    }
    if (!fa::test::is_now(i % 5 == 0)) continue;
    CAPTURE(i, variant.name, fa::describe(p));
    fa::test::require_right(variant, p);
  }
}

TEST_CASE("step 13: real input and outliers", "[step13]") {
  const fa::Variant& variant = any();
  const auto p = fa::problem_for(variant, bf16_problem(2, 700, GENERATE(64, 128), true, 1, 4, 2));
  CAPTURE(variant.name, p.d);
  fa::test::require_right(variant, p, fa::real_inputs(p, 1));
  fa::test::require_right(variant, p, fa::outlier_inputs(p, 1));
}

TEST_CASE("step 13: behaves as attention must", "[step13]") {
  const fa::Variant& variant = any();
  const int d = GENERATE(64, 128);
  CAPTURE(variant.name, d);
  const auto full = bf16_problem(9, 600, d, false), causal = bf16_problem(9, 600, d, true);
  fa::test::require_rows_sum_to_one(variant, full, 0x1p-8);
  fa::test::require_rows_sum_to_one(variant, causal, 0x1p-8);
  // Keys of e4m3 plus a vector are not of e4m3.
  if (!variant.extras.cache8) fa::test::require_shift_invariance(variant, full, 0x1p-6);
  fa::test::require_key_permutation(variant, full, 0x1p-6);
  fa::test::require_any_score_size(variant, causal);
}

TEST_CASE("step 13: maxima that grow, fall, and lie far from zero", "[step13][all]") {
  const fa::Variant& variant = any();
  const auto p = fa::problem_for(variant, bf16_problem(16, 1024, 64, GENERATE(false, true)));
  const float step = GENERATE(0.f, 1.f, 5.5f, 6.f, 100.f, -6.f, 5000.f, -5000.f);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, p.causal, step);
  if (variant.extras.cache8 && std::abs(step) > 100)
    return;  // keys of e4m3 cannot say them exactly
  for (const int keys : {16, 128, 512}) {
    auto in = fa::test::inputs_with_scores(
        p, 4, [&](int c) { return fa::round_to(p.dtype, step * static_cast<float>(c / keys)); });
    if (variant.extras.cache8) fa::quantise_cache(p, in);
    fa::test::require_right(variant, p, in);
  }
}

TEST_CASE("step 13: agrees with step 07", "[step13]") {
  const fa::Variant& variant = any();
  const auto p = bf16_problem(3, 600, GENERATE(64, 128), GENERATE(false, true), 1, 2, 1);
  CAPTURE(variant.name, p.d, p.causal);
  fa::Inputs in = fa::normal_inputs(p, 6);
  if (variant.extras.cache8) {
    // 3.5 is 448 / 128: scales become powers of two, so that bf16, too, holds each number.
    for (auto* tensor : {&in.K, &in.V}) {
      for (float& x : *tensor) x = std::clamp(x, -3.5f, 3.5f);
      tensor->front() = 3.5f;
    }
    fa::quantise_cache(p, in);
  }
  const fa::Outputs now = fa::run(variant, fa::problem_for(variant, p), in);
  const fa::Outputs before = fa::run(parent(), p, in);
  REQUIRE(fa::test::max_difference(now.O, before.O) <= 0x1p-6);
  REQUIRE(fa::test::max_difference(now.LSE, before.LSE) <= 2e-5);
}

TEST_CASE("step 13: any order of the blocks gives the same bits", "[step13]") {
  const fa::Variant& variant = any();
  CAPTURE(variant.name);
  // 33 rows per group: two blocks per split, so that each of the two groups has two counters.
  const auto p =
      fa::problem_for(variant, bf16_problem(11, FA_BACKEND_GPU ? 2000 : 700, 128, true, 1, 6, 2));
  REQUIRE(splits_of_groups(p).count > 2);
  const auto in = fa::normal_inputs(p, 7);
  const fa::Outputs first = fa::test::run_in_order(0, variant, p, in);
  for (const uint64_t order : {1, 2, 3}) {
    CAPTURE(order);
    const fa::Outputs again = fa::test::run_in_order(order, variant, p, in);
    REQUIRE(again.O == first.O);
    REQUIRE(again.LSE == first.LSE);
  }
}

TEST_CASE("step 13: where the pages lie changes no bit", "[step13]") {
  const fa::Variant& variant = paged();
  auto p = fa::problem_for(variant, ragged(0, 128));
  fa::Inputs in = fa::normal_inputs(p, 8);
  const fa::Outputs contiguous = fa::run(variant, p, in);
  p.cache.page = GENERATE(16, 256);
  for (const uint64_t seed : {1, 2}) {
    in.table = fa::shuffled_table(p, seed);
    const fa::Outputs shuffled = fa::run(variant, p, in);
    REQUIRE(contiguous.O == shuffled.O);
    REQUIRE(contiguous.LSE == shuffled.LSE);
  }
}

// --- numbers of 8 bits ---------------------------------------------------------------------------

static __global__ void convert_kernel(uint32_t* out) {
  out[threadIdx.x] = step13_fp8::bf16_of_e4m3(threadIdx.x << 8 | (255 - threadIdx.x) << 24);
}

TEST_CASE("step 13: all numbers of e4m3 become the same numbers of bf16", "[step13]") {
  test::Buffer<uint32_t> out("out", 256);
  fa::launch(convert_kernel, {1, 256}, out.get());
  const auto got = out.download();
  const auto value = [](uint32_t bits16) { return std::bit_cast<float>(bits16 << 16); };
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN, which a cache does not hold
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                     : std::ldexp(float(8 + mantissa), exponent - 10);
    const float want = code & 0x80 ? -size : size;
    CAPTURE(code);
    CHECK(value(got[code] & 0xffff) == want);
    CHECK(value(got[255 - code] >> 16) == want);
  }
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
TEST_CASE("step 13: predicted bytes are counted bytes", "[step13][all]") {
  const int Nk = GENERATE(1, 17, 131, 1100);
  const auto [N, d] = GENERATE(std::pair(1, 128), std::pair(7, 64), std::pair(16, 128));
  const fa::Variant& variant = any();
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, Nk, N, d);
  fa::test::require_predicted(variant, bf16_problem(N, Nk, d, true, 2, 6, 2));
}

TEST_CASE("step 13: predicted bytes are counted bytes of pages and ragged lengths",
          "[step13][all]") {
  const int page = GENERATE(0, 16, 64, 256);
  const auto [N, d] = GENERATE(std::pair(1, 64), std::pair(9, 128));
  const fa::Variant& variant = paged();
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, page, d, N);
  fa::test::require_predicted(variant, ragged(page, d, N, true));
}

TEST_CASE("step 13: the formulas of the headers", "[step13]") {
  const uint64_t d = GENERATE(64, 128), N = GENERATE(1, 5), Nk = 1030, H = 8, Hkv = 2, B = 2;
  const auto p = bf16_problem(N, Nk, d, false, B, H, Hkv);
  const uint64_t BH = B * H, BHkv = B * Hkv, g = H / Hkv;
  const uint64_t compulsory = 2 * (2 * BH * N * d + 2 * BHkv * Nk * d) + 4 * BH * N;
  const auto least = [&](const fa::Variant& v) { return v.traffic(p).hbm.total(); };
  CAPTURE(d, N);
  {
    const fa::Bytes counted = *fa::test::count_forward(warps(), p).requested;
    CHECK(counted.read == 2 * BH * (4 * N * d + 2 * Nk * d));
    CHECK(counted.write == 2 * BH * N * d + 4 * BH * N);
    CHECK(least(warps()) == compulsory);
  }
  {
    const uint64_t s = splits_of(p, /*group=*/1).count;
    REQUIRE(s > 1);
    const fa::Bytes counted = *fa::test::count_forward(splits(), p).requested;
    CHECK(counted.read == 2 * BH * (4 * s * N * d + 2 * Nk * d) + 4 * BH * s * N * (d + d / 2));
    CHECK(counted.write == 2 * BH * N * d + 4 * BH * N + 4 * BH * s * N * (d + 1));
    CHECK(least(splits()) == compulsory + 2 * 4 * BH * s * N * (d + 1));  // parts written and read
  }
  {
    const uint64_t s = splits_of_groups(p).count, t = (g * N + 31) / 32;
    REQUIRE(s > 1);
    const fa::Bytes counted = *fa::test::count_forward(groups(), p).requested;
    CHECK(counted.read ==
          2 * BHkv * s * 4 * g * N * d + 2 * BHkv * t * 2 * Nk * d + 4 * BH * s * N * (d + d / 2));
    CHECK(counted.write == 2 * BH * N * d + 4 * BH * N + 4 * BH * s * N * (d + 1));
    CHECK(least(groups()) == compulsory + 2 * 4 * BH * s * N * (d + 1));  // parts written and read
  }
}

TEST_CASE("step 13: no bank conflicts, whole sectors", "[step13]") {
  const fa::Variant& variant = any();
  const auto p =
      fa::problem_for(variant, bf16_problem(GENERATE(1, 8), 700, GENERATE(64, 128), true, 1, 8, 2));
  CAPTURE(variant.name, p.N, p.d);
  const fa::Counts counts = fa::test::count_forward(variant, p);
  fa::test::require_no_conflicts(counts);
  for (const char* name : {"K", "V", "O"}) {
    const fa::BufferCount& buffer = counts.buffers.at(name);
    // wgmma's K and V come by TMA
    CHECK((buffer.sectors.load * 32 == buffer.bytes.read || &variant == &wgmma()));
    CHECK(buffer.sectors.store * 32 == buffer.bytes.write);
  }
}

TEST_CASE("step 13: the query heads of a group read K and V once", "[step13]") {
  const uint64_t Nk = 1000, d = 128;
  const auto p = bf16_problem(1, Nk, d, false, 1, /*H=*/8, /*Hkv=*/2);
  const auto read = [&](const fa::Variant& v) {
    const auto of_variant = fa::problem_for(v, p);
    return fa::test::count_forward(v, of_variant).buffers.at("K").bytes.read;
  };
  CHECK(read(splits()) == 2 * 8 * Nk * d);
  CHECK(read(groups()) == 2 * 2 * Nk * d);
  CHECK(read(once()) == 2 * 2 * Nk * d);
  CHECK(read(fp8()) == 2 * Nk * d);
}

TEST_CASE("step 13: rows of one split leave no parts", "[step13]") {
  const auto p = bf16_problem(1, 190, 128, false, 1, 4, 1);
  const fa::Counts counts = fa::test::count_forward(once(), p);
  REQUIRE(counts.kernels.size() == 1);
  for (const char* name : {"O_parts", "LSE_parts", "arrived"}) {
    const auto at = counts.buffers.find(name);
    CHECK((at == counts.buffers.end() || at->second.bytes.total() == 0));
  }
  CHECK(fa::test::count_forward(pages(), p).kernels.size() == 2);
}

TEST_CASE("step 13: as many blocks as SMs, unless rows are many or tiles few", "[step13]") {
  const auto blocks = [](int B, int Nk, int Hkv = 8) {
    const auto p = bf16_problem(1, Nk, 128, false, B, 32, Hkv);
    return splits_of_groups(p).count * B * Hkv;
  };
  const int sms = fa::this_gpu().sms;
  for (const int B : {1, 2, 3, 8}) {
    CAPTURE(B);
    CHECK(blocks(B, 1 << 18) <= sms);
    CHECK(blocks(B, 1 << 18) > sms - 8 * B);
  }
  CHECK(blocks(1, 255) == 2 * 8);
  CHECK(blocks(1, 192) == 8);
  CHECK(blocks(1, 1024) == 8 * 8);
  CHECK(blocks(1, 1 << 14, 2) == 20 * 2);  // 16 rows: sqrt(25 * 256 / 16)
  CHECK(blocks(64, 1 << 16) == 512);
}

TEST_CASE("step 13: the analysis finds nothing", "[step13][all]") {
  const fa::Variant& variant = any();
  const int Nk = GENERATE(1, 70, 600);
  const int N = GENERATE(1, 11);
  CAPTURE(variant.name, Nk, N);
  const auto p = fa::problem_for(variant, bf16_problem(N, Nk, GENERATE(64, 128), true, 1, 4, 2));
  if (!fa::test::one_in(5)) return;
  fa::test::count_forward(variant, p, /*analyse=*/true);
}

TEST_CASE("step 13: the analysis finds nothing in pages", "[step13]") {
  const fa::Variant& variant = paged();
  CAPTURE(variant.name);
  fa::test::count_forward(variant, fa::problem_for(variant, ragged(GENERATE(16, 64), 128, 3)),
                          /*analyse=*/true);
}

TEST_CASE("step 13: the cache crosses HBM once, in 8 bits half of it", "[step13][all]") {
  const fa::Variant& variant = *GENERATE(&groups(), &pages(), &once(), &fp8(), &early(), &wgmma());
  const uint64_t B = 2, H = 16, Hkv = 8, Nk = 1000, d = GENERATE(64, 128);
  if (!fa::test::one_in(3)) return;
  const auto p = fa::problem_for(variant, bf16_problem(1, Nk, d, false, B, H, Hkv));
  CAPTURE(variant.name, d);
  const fa::Bytes least = variant.traffic(p).hbm;
  const fa::Counts counts = fa::test::count_forward(variant, p);
  REQUIRE(counts.hbm);
  // The formula also counts the splits' results, which the L2 keeps.
  CHECK(double(counts.hbm->read) == Approx(double(least.read)).epsilon(0.04));
  CHECK(double(counts.hbm->write) == Approx(double(least.write)).epsilon(0.02));
  const double cache = (variant.extras.cache8 ? 1. : 2.) * 2 * B * Hkv * Nk * d;
  CHECK(double(least.read) == Approx(cache).epsilon(0.05));
}
#endif
