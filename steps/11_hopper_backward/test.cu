// Tests of step 11. steps/CMakeLists.txt has the sources that it is linked with.
#include "steps/10_warp_specialized/4_scheduled.cuh"
#include "steps/11_hopper_backward/beyond/deterministic.cuh"
#include "steps/11_hopper_backward/beyond/halves.cuh"
#include "steps/11_hopper_backward/beyond/meeting.cuh"
#include "steps/11_hopper_backward/beyond/shares.cuh"
#include "tests/backward.h"
#include "tests/device.h"
#if !FA_BACKEND_GPU
#include "tests/sim/diagnosis.h"
#endif

using fa::test::bf16_problem, fa::test::Kernels;

static const fa::Variant& parent() { return fa::linked_variant("06 backward"); }
static const fa::Variant& wgmma() { return fa::linked_variant("11 wgmma"); }
static const fa::Variant& late() { return fa::linked_variant("11 late"); }
static const fa::Variant& deterministic() { return fa::linked_variant("11 deterministic"); }
static const fa::Variant& columns() { return fa::linked_variant("11 columns"); }
static const fa::Variant& persistent() { return fa::linked_variant("11 persistent"); }
static const fa::Variant& places() { return fa::linked_variant("11 places"); }
static const fa::Variant& direct() { return fa::linked_variant("11 direct"); }
static const fa::Variant& paired() { return fa::linked_variant("11 paired"); }

// A variant and a head dimension per run of the test.
static Kernels any() {
  const auto* variant = GENERATE(&wgmma(), &late(), &deterministic(), &columns(), &paired());
  const int d = GENERATE_COPY(from_range(variant->support->d));
  return {variant, d, /*square=*/false, /*one_order=*/variant == &deterministic()};
}

/// In the simulator also: the backward's counts are as predicted, and the analysis finds nothing.
static void require_right_as_predicted(const fa::Variant& v, const fa::Problem& p) {
#if FA_BACKEND_GPU
  fa::test::require_right(v, p);
#else
  fa::test::require_equal(v.backward_traffic(p),
                          fa::test::require_right_counted(v, p, /*analyse=*/true).backward);
#endif
}

TEST_CASE("step 11: what every backward on tensor cores is asked", "[step11][all]") {
  fa::test::require_backward(any(), parent());
}

TEST_CASE("step 11: as many keys as one likes", "[step11][all]") {
  const Kernels of = any();
  CAPTURE(of.variant->name, of.d);
  const auto [N, Nk] = GENERATE(from_range(fa::test::kLengths));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  if (!FA_BACKEND_GPU && N > 300 && of.variant != &columns()) return;  // seconds each
  CAPTURE(N, Nk, causal);
  fa::test::require_right(*of.variant, bf16_problem(N, Nk, of.d, causal));
}

TEST_CASE("step 11: random shapes", "[step11][all]") {
  fa::test::require_right_for_random_shapes(
      {&wgmma(), &late(), &deterministic(), &columns(), &places()}, 11);
}

TEST_CASE("step 11: a first tile that the second warpgroup skips", "[step11][all]") {
  const auto* variant = GENERATE(&deterministic(), &columns());
  const int d = GENERATE(64, 128);
  const int Hkv = GENERATE(1, 2);
  // Rows of the walk's first tile that see only the first 64 of the block's keys: all of them, all
  // but one; a walk of one tile, and of many.
  const auto [N, Nk] = GENERATE(std::pair(256, 256), std::pair(257, 258), std::pair(300, 237),
                                std::pair(64, 128), std::pair(65, 129), std::pair(520, 390));
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant->name, d, Hkv, N, Nk);
  const auto p = bf16_problem(N, Nk, d, true, 1, 2, Hkv);
#if !FA_BACKEND_GPU
  if (N > 500) {
    fa::test::require_right_counted(*variant, p, /*analyse=*/true);
    return;
  }
#endif
  fa::test::require_right(*variant, p);
}

TEST_CASE("step 11: a NaN or an inf in dO or Q reaches its row of dQ, and no other",
          "[step11][all]") {
  const Kernels of = any();
  const float bad = GENERATE(NAN, INFINITY);
  const bool in_q = GENERATE(false, true), causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  CAPTURE(of.variant->name, of.d, bad, in_q, causal);
  const auto p = bf16_problem(140, 150, of.d, causal, 1, 2, 1);
  fa::Inputs in = fa::normal_inputs(p, 19);
  const auto d = static_cast<size_t>(of.d);
  (in_q ? in.Q : in.dO)[5 * d + 3] = bad;
  const fa::Outputs out = fa::test::run_backward(*of.variant, p, in);
  for (size_t i = 0; i < out.dQ.size(); ++i) {
    if ((i / d == 5) != std::isnan(out.dQ[i])) FAIL("dQ[" << i / d << "][" << i % d << "]");
  }
}

// --- additions that do not round -----------------------------------------------------------------

TEST_CASE("step 11: deterministic: a row of very small or very large gradients", "[step11][all]") {
  const int d = GENERATE(64, 128);
  const auto p = bf16_problem(140, 300, d, GENERATE(false, true), 1, 2, 1);
  const float factor = GENERATE(0x1p-60f, 0x1p-20f, 0x1p40f);
  if (!fa::test::one_in(5)) return;
  CAPTURE(d, p.causal, factor);
  fa::Inputs in = fa::normal_inputs(p, 15);
  const fa::Outputs before = fa::test::run_backward(deterministic(), p, in);
  for (size_t i = 0; i < in.dO.size(); ++i) {  // of every second row
    if (i / static_cast<size_t>(d) % 2 == 1) in.dO[i] *= factor;
  }
  const fa::Outputs now = fa::test::run_backward(deterministic(), p, in);
  for (size_t i = 0; i < in.dO.size(); ++i) {  // rows do not meet in dQ, and 2^k is exact
    const float expected = before.dQ[i] * (i / static_cast<size_t>(d) % 2 == 1 ? factor : 1.f);
    if (now.dQ[i] != expected) FAIL("dQ[" << i << "] = " << now.dQ[i] << ", not " << expected);
  }
}

static __global__ void work_tiles(step11::Shape shape,
                                  int* visits) {  // [kv_heads, Tc]
  const step11::WorkTile work = step11::work_tile_at(threadIdx.x, shape, 128);
  atomicAdd(&visits[work.bh_kv * shape.Tc + work.j], 1);
}

TEST_CASE("step 11: sections of a few heads hold each tile of keys once", "[step11]") {
  const int N = GENERATE(1 << 13, 1 << 16);  // four heads of five; one
  const auto shape = step11::shape_of(bf16_problem(N, 256, 64, true, 1, /*H=*/5, 5), 128);
  CHECK(shape.section == (N == 1 << 13 ? 4 : 1));
  const test::Buffer<int> visits("visits", std::vector<int>(5 * 2, 0));
  fa::launch(work_tiles, {dim3(1), dim3(5 * 2)}, shape, visits.get());
  CHECK(visits.download() == std::vector<int>(5 * 2, 1));
}

// Lane 0 adds +-1/3 of the bound.
static __global__ void add_rounded(float bound, float* units, float* sums) {
  *units = step11_deterministic::units_of(bound);
  const float x = bound / 3;
  const float parts[4] = {x, -x, x, -x};
  float rounded[4];
  step11_deterministic::round_to_units(parts, {*units, *units}, rounded);
  step11::FloatSums::Part{sums}.add(rounded);
}

TEST_CASE("step 11: deterministic: parts are whole units, 2^24 of which hold any sum", "[step11]") {
  const float bound = GENERATE(1.f, 1.88f, 1.89f);  // with a sixteenth more: below 2, and above
  const test::Buffer<float> units("units", 1), sums("sums", std::vector<float>(4, 0.f));
  fa::launch(add_rounded, {1, 1}, bound, units, sums);
  const float unit = units.download()[0] * 0x1p-23f;
  // With the sixteenth for errors; no smaller unit would suffice.
  CHECK(bound * 1.0625f < 0x1p24f * unit);
  CHECK(bound * 1.0625f >= 0x1p23f * unit);
  for (const float sum : sums.download()) {
    CHECK(std::fabs(sum) == Approx(bound / 3));
    CHECK(std::fmod(sum, unit) == 0);
  }
}

TEST_CASE("step 11: deterministic: sums at their bound are right", "[step11]") {
  const int d = GENERATE(64, 128);
  const auto [k, v, g] = GENERATE(std::tuple(1.f, 1.f, 1.f), std::tuple(4.f, 1.f, 1.f),
                                  std::tuple(1.f, 4.f, 1.f), std::tuple(1.f, 1.f, 4.f));
  CAPTURE(d, k, v, g);
  // P = 1 / Nk and O = 0, so all keys add to dQ with one sign: v g d k / Nk each, from two blocks.
  const auto p = bf16_problem(3, 256, d, false);
  fa::Inputs in = fa::normal_inputs(p, 18);
  std::fill(in.Q.begin(), in.Q.end(), 0.f);
  std::fill(in.dO.begin(), in.dO.end(), g);
  for (size_t i = 0; i < in.K.size(); ++i) {
    const float sign = i / static_cast<size_t>(d) % 2 == 0 ? 1.f : -1.f;
    in.K[i] = k * sign, in.V[i] = v * sign;
  }
  fa::test::require_right(deterministic(), p, in);
  const fa::Outputs out = fa::test::run_backward(deterministic(), p, in);
  const float expected = p.scale() * v * g * k * static_cast<float>(d);
  for (const float dQ : out.dQ) REQUIRE(dQ == Approx(expected).epsilon(0x1p-8));
}

TEST_CASE("step 11: deterministic: dO = 0 gives 0", "[step11]") {
  const int d = GENERATE(64, 128);
  const auto p = bf16_problem(140, 150, d, false, 1, 2, 1);
  fa::Inputs in = fa::normal_inputs(p, 16);
  const auto features = static_cast<size_t>(d);
  std::fill_n(in.dO.begin() + 3 * features, features, 0.f);
  const fa::Outputs out = fa::test::run_backward(deterministic(), p, in);
  for (size_t x = 0; x < features; ++x) CHECK(out.dQ[3 * features + x] == 0);
}

TEST_CASE("step 11: deterministic: a row without a bound is not rounded", "[step11]") {
  const int d = GENERATE(64, 128);
  const auto features = static_cast<size_t>(d);
  // The first 128 rows see only the first block of keys: one part, no order.
  const auto p = bf16_problem(140, 140, d, true);
  fa::Inputs in = fa::normal_inputs(p, 20);
  size_t first = 0, rows = 128;
  SECTION("dO's length squared overflows") {
    first = 3, rows = 1;
    for (size_t x = 0; x < features; ++x) in.dO[first * features + x] *= 0x1p70f;
  }
  SECTION("inf in K, for the last rows") { in.K[135 * features] = INFINITY; }
  SECTION("inf in V, for the last rows") { in.V[135 * features] = INFINITY; }
  const std::vector<float> rounded = fa::test::run_backward(deterministic(), p, in).dQ;
  const std::vector<float> dQ = fa::test::run_backward(columns(), p, in).dQ;
  for (size_t i = first * features; i < (first + rows) * features; ++i) {
    CAPTURE(i / features, i % features);
    REQUIRE(std::isfinite(dQ[i]));
    REQUIRE(rounded[i] == dQ[i]);
  }
}

// --- blocks with one walk after another ----------------------------------------------------------

// So few blocks that each has many walks, `direct` draws whole heads, and heads reuse places.
static fa::Problem on_two_sms(fa::Problem p) {
  p.gpu.sms = 2;
  return p;
}
template <const fa::Variant& (*of)()>
static fa::Variant on_few_blocks() {
  fa::Variant v = of();
  v.backward = fa::Runner(v.backward.dtype(), [](const fa::Problem& p, const fa::Tensors<void>& t) {
    of().backward(on_two_sms(p), t);
  });
  v.workspace = [](const fa::Problem& p) { return of().workspace(on_two_sms(p)); };
  v.backward_traffic = [](const fa::Problem& p) { return of().backward_traffic(on_two_sms(p)); };
  return v;
}
static fa::Problem of_heads(int N, int Nk, bool causal, int H, int Hkv, int d = 64) {
  return bf16_problem(N, Nk, d, causal, /*B=*/2, H, Hkv);
}

TEST_CASE("step 11: persistent, heads, places: ends of walks", "[step11][all]") {
  const auto [variant, d] =
      GENERATE(std::pair(on_few_blocks<direct>(), 64), std::pair(on_few_blocks<persistent>(), 64),
               std::pair(on_few_blocks<places>(), 128));
  const bool causal = GENERATE(false, true);
  const auto [H, Hkv] = GENERATE(std::pair(2, 2), std::pair(6, 3));
  // Walks of one tile, of many; one key more or less than a tile; a walk alone.
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(60, 300), std::pair(128, 128),
                                std::pair(129, 257), std::pair(260, 387));
  if (!fa::test::one_in(6)) return;
  if (!FA_BACKEND_GPU && N == 260 && H == 6) return;  // seconds each
  CAPTURE(variant.name, d, causal, H, N, Nk);
  const fa::Problem p = of_heads(N, Nk, causal, H, Hkv, d);
  require_right_as_predicted(variant, p);
}

TEST_CASE("step 11: persistent, heads, places: a NaN stays in its row, whoever sums next",
          "[step11][all]") {
  const auto [variant, d] =
      GENERATE(std::pair(on_few_blocks<direct>(), 64), std::pair(on_few_blocks<persistent>(), 64),
               std::pair(on_few_blocks<places>(), 128));
  const fa::Problem p = of_heads(140, 300, GENERATE(false, true), 6, 3, d);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant.name, d, p.causal);
  fa::Inputs in = fa::normal_inputs(p, 22);
  in.dO[5 * d + 3] = NAN;
  const fa::Outputs out = fa::test::run_backward(variant, p, in);
  for (size_t i = 0; i < out.dQ.size(); ++i) {
    if ((i / d == 5) != std::isnan(out.dQ[i])) FAIL("dQ[" << i / d << "][" << i % d << "]");
  }
}

TEST_CASE("step 11: heads: keys that no row sees, and few heads, are columns' work", "[step11]") {
  fa::test::require_right(on_few_blocks<direct>(), of_heads(330, 60, true, 2, 2));
  fa::test::require_right(direct(), bf16_problem(300, 300, 64, true, 1, 3, 3));
}

TEST_CASE("step 11: direct: many heads of d = 128 share places without the mask", "[step11]") {
  const bool causal = GENERATE(false, true);
  const fa::Problem p = of_heads(128, 520, causal, 3, 3, 128);
  const fa::Variant variant = on_few_blocks<direct>();
#if FA_BACKEND_GPU
  fa::test::require_right(variant, p);
#else
  const fa::Counts counts = fa::test::require_right_counted(variant, p, /*analyse=*/false).backward;
  CHECK(counts.buffers.count("place_sums") == !causal);
#endif
}

#if !FA_BACKEND_GPU
TEST_CASE("step 11: places: heads' sums take the places of earlier heads", "[step11]") {
  const fa::Problem p = of_heads(60, 30, false, 6, 6, 128);
  const fa::Variant variant = on_few_blocks<places>();
  sim::Options options = sim::options();
  options.workers = 2;  // as the SMs: with more blocks at a time some find no place
  const sim::test::WithOptions with(options);
  const auto written = double(fa::test::count_backward(variant, p).hbm->write);
  CHECK(written == Approx(variant.backward_traffic(p).hbm.write).epsilon(0.01));
}
#endif

TEST_CASE("step 11: direct: rows that one walk sees have no sums", "[step11]") {
  // Both tiles of 64 rows; one, as one more row sees a second block of keys; none; no others.
  const auto [N, Nk, tiles] = GENERATE(std::tuple(300, 300, 2), std::tuple(260, 261, 1),
                                       std::tuple(200, 265, 0), std::tuple(65, 65, 2));
  const int Hkv = GENERATE(1, 2);
  CAPTURE(N, Nk, Hkv);
  const auto p = bf16_problem(N, Nk, 128, true, 1, 2, Hkv);
#if FA_BACKEND_GPU
  fa::test::require_right(direct(), p);
#else
  const fa::Counts counts = fa::test::require_right_counted(direct(), p, /*analyse=*/true).backward;
  fa::test::require_equal(direct().backward_traffic(p), counts);
  const uint64_t with_sums = (N + 127) / 128 * 128 - 64 * tiles;
  const auto found = counts.buffers.find("dQ_sum");
  CHECK((found == counts.buffers.end() ? 0 : found->second.bytes.write) ==
        2 * 4 * 128 * with_sums);  // zeros of two heads
#endif
}

TEST_CASE("step 11: direct chooses by size, as measured", "[step11]") {
  const auto chosen = [](int N, int Nk, int d, bool causal, int H, int group) {
    auto p = bf16_problem(N, Nk, d, causal, 1, H * group, H);
    p.gpu = {};  // an H200's 132 SMs
    fa::Prediction t = direct().backward_traffic(p);
    const fa::Prediction plain = columns().backward_traffic(p);
    if (t.buffers == plain.buffers) {
      return t.flops == plain.flops ? "columns" : causal ? "meeting" : "idle";
    }
    if (d == 128 && t.buffers == places().backward_traffic(p).buffers) return "places";
    if (t.buffers == persistent().backward_traffic(p).buffers) return "walks";
    if (t.buffers.count("dK_sum")) return "shares";
    if (t["K"].read == 2 * p.kv_size() * 2) return "halves";
    return t["walks"].atomic == 4u * (H + 132) ? "heads" : "direct";
  };
  const auto of_64 = [&](int N, int Nk, bool causal, int H = 4, int group = 1) {
    return std::string(chosen(N, Nk, 64, causal, H, group));
  };
  CHECK((of_64(4096, 4096, true, 17) == "walks" && of_64(4097, 4097, true, 17) == "columns"));
  CHECK((of_64(2048, 2048, false, 33) == "walks" && of_64(2048, 2048, false, 32) == "columns"));
  CHECK((of_64(2049, 2049, false, 33) == "idle" && of_64(2113, 2113, false, 33) == "columns"));
  CHECK((of_64(2048, 64, true, 528, 2) == "walks" && of_64(2049, 64, true, 528, 2) == "columns"));
  CHECK((of_64(512, 512, true, 264) == "heads" && of_64(512, 512, true, 263) == "walks"));
  CHECK((of_64(640, 640, true, 264) == "walks" && of_64(512, 511, true, 264) == "walks"));
  CHECK((of_64(256, 256, false, 264) == "heads" && of_64(384, 384, false, 264) == "walks"));
  CHECK((of_64(256, 256, true, 264, 2) == "heads" && of_64(384, 384, true, 264, 2) == "walks"));
  const auto of_128 = [&](int N, int Nk, bool causal, int H = 32, int group = 1) {
    return std::string(chosen(N, Nk, 128, causal, H, group));
  };
  CHECK((of_128(512, 512, false, 264) == "places" && of_128(512, 512, false, 263) == "columns"));
  CHECK(of_128(640, 512, false, 264) == "columns");
  CHECK((of_128(8192, 8192, false, 17) == "places" && of_128(8193, 16384, false, 17) == "columns"));
  CHECK((of_128(1024, 1024, true) == "direct" && of_128(1025, 1025, true) == "columns"));
  CHECK((of_128(512, 576, true) == "direct" && of_128(512, 577, true) == "columns"));
  CHECK((of_128(512, 511, true) == "columns" && of_128(512, 512, false) == "columns"));
  CHECK((of_128(1024, 1024, true, 16) == "halves" && of_128(1024, 1024, true, 17) == "direct"));
  CHECK((of_128(2048, 2048, true, 8) == "halves" && of_128(2049, 2049, true, 7) == "columns"));
  CHECK((of_128(896, 896, true, 8) == "direct" && of_128(1088, 1088, true, 14) == "columns"));
  CHECK(of_128(1024, 1024, false, 16) == "columns");
  CHECK((of_128(1024, 2048, true, 8) == "columns" && of_128(1024, 2048, true, 5) == "halves"));
  CHECK(
      (of_128(1024, 1024, true, 1, 16) == "shares" && of_128(1023, 1023, true, 1, 16) != "shares"));
  CHECK(
      (of_128(4096, 4096, true, 7, 8) == "shares" && of_128(4096, 4096, true, 9, 8) == "columns"));
  CHECK(
      (of_128(4096, 4096, true, 8, 8) == "meeting" && of_128(8192, 8192, true, 8, 8) == "meeting"));
  CHECK((of_128(8192, 8192, true, 9, 8) == "columns" &&
         of_128(8192, 8192, false, 8, 8) == "columns"));
  CHECK(
      (of_128(1024, 1024, true, 64, 4) == "direct" && of_128(8192, 8192, true, 8, 3) == "columns"));
  CHECK((of_128(4096, 4096, false, 2, 8) == "shares" &&
         of_128(4096, 4096, false, 3, 8) == "columns"));
  CHECK((of_64(8192, 8192, true, 4, 3) == "shares" && of_64(8192, 8192, true, 8, 8) == "columns"));
}

TEST_CASE("step 11: shares of a walk's heads add to the same dK and dV", "[step11][all]") {
  fa::Variant v = direct();
  v.backward = step11_shares::backward;
  v.workspace = [](const fa::Problem& p) {
    std::vector<fa::Scratch> all = step11_shares::workspace(p);
    for (const fa::Scratch& s : step10::workspace(p)) all.push_back(s);
    return all;
  };
  v.backward_traffic = step11_shares::backward_traffic;
  const auto [N, Nk] = GENERATE(std::pair(130, 260), std::pair(129, 129), std::pair(60, 70));
  const bool causal = GENERATE(false, true);
  const int d = GENERATE(64, 128), group = GENERATE(2, 6);
  if (!fa::test::one_in(6)) return;
  CAPTURE(N, Nk, causal, d, group);
  const auto p = bf16_problem(N, Nk, d, causal, 1, 2 * group, 2);
  require_right_as_predicted(v, p);
}

TEST_CASE("step 11: halves of a walk add to the same dK and dV", "[step11]") {
  fa::Variant v = direct();
  v.backward = step11_halves::backward;
  v.backward_traffic = step11_halves::backward_traffic;
  // Halves of one tile each, of several; one tile more in the first; rows that see no key.
  const auto [N, Nk, group] = GENERATE(std::tuple(256, 256, 1), std::tuple(250, 250, 3),
                                       std::tuple(450, 333, 1), std::tuple(390, 450, 2));
  CAPTURE(N, Nk, group);
  const auto p = bf16_problem(N, Nk, 128, true, 1, 2 * group, 2);
  require_right_as_predicted(v, p);
}

TEST_CASE("step 11: walks that meet visit the same tiles", "[step11]") {
  fa::Variant v = direct();
  v.backward = step11_meeting::backward;
  v.backward_traffic = step11_meeting::backward_traffic;
  // One tile of keys; several; more or fewer than rows.
  const auto [N, Nk, group] = GENERATE(std::tuple(60, 60, 3), std::tuple(200, 264, 1),
                                       std::tuple(330, 330, 3), std::tuple(333, 270, 2));
  CAPTURE(N, Nk, group);
  const auto p = bf16_problem(N, Nk, 128, true, 1, 2 * group, 2);
  require_right_as_predicted(v, p);
}

TEST_CASE("step 11: direct: a warpgroup without a key multiplies nothing", "[step11]") {
  // 64 keys in the last tile, and one more; two in the only one. With the mask all are multiplied.
  const auto [N, Nk, causal] = GENERATE(std::tuple(200, 192, false), std::tuple(200, 193, false),
                                        std::tuple(450, 2, false), std::tuple(200, 192, true));
  const int d = GENERATE(64, 128);
  CAPTURE(N, Nk, d, causal);
  const auto p = bf16_problem(N, Nk, d, causal, 1, 4, 2);
  const uint64_t flops = direct().backward_traffic(p).flops;
  CHECK((flops < columns().backward_traffic(p).flops) == (!causal && Nk != 193));
  require_right_as_predicted(direct(), p);
}

TEST_CASE("step 11: direct: keys past the last add nothing, whatever shared memory held",
          "[step11]") {
  const int d = GENERATE(64, 128);
  fa::Problem p = bf16_problem(200, 256, d, false, 1, 4, 2);
  fa::Inputs in = fa::normal_inputs(p, 23);
  std::fill(in.dO.begin(), in.dO.end(), NAN);
  REQUIRE(std::isnan(fa::test::run_backward(direct(), p, in).dQ[0]));  // and all dS
  p.Nk = 192;
  const fa::Outputs out = fa::test::run_backward(direct(), p, fa::normal_inputs(p, 24));
  CHECK(std::all_of(out.dQ.begin(), out.dQ.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("step 11: direct: any other problem is another kernel's work", "[step11]") {
  fa::test::require_right(direct(), bf16_problem(140, 140, 128, false, 1, 2, 2));
  fa::test::require_right(direct(), bf16_problem(140, 140, 64, true, 1, 2, 2));
  fa::test::require_right(direct(), bf16_problem(200, 130, 128, true, 1, 2, 2));
  fa::test::require_right(direct(), bf16_problem(140, 140, 256, true, 1, 2, 2));
}

#if !FA_BACKEND_GPU
// In eight orders of the blocks deterministic()'s dQ keeps its bits; that of floats does not, or
// the orders would test nothing. With the mask so few bits of bf16 differ that none may.
void require_same_bits_in_any_order(const fa::Problem& p, const fa::Inputs& in) {
  const std::vector<float> first = fa::test::run_in_order(0, deterministic(), p, in).dQ;
  const std::vector<float> of_floats = fa::test::run_in_order(0, columns(), p, in).dQ;
  bool floats_differ = false;
  for (uint64_t order = 1; order <= 8; ++order) {
    CAPTURE(order);
    REQUIRE(fa::test::run_in_order(order, deterministic(), p, in).dQ == first);
    floats_differ |= fa::test::run_in_order(order, columns(), p, in).dQ != of_floats;
  }
  CHECK((floats_differ || p.causal));
}

TEST_CASE("step 11: deterministic: any order of the blocks gives the same bits", "[step11][all]") {
  const int d = GENERATE(64, 128);
  const auto p = bf16_problem(70, 1000, d, GENERATE(false, true));
  if (!fa::test::one_in(3)) return;
  CAPTURE(d, p.causal);
  require_same_bits_in_any_order(p, fa::normal_inputs(p, 17));
}

TEST_CASE("step 11: deterministic: the same for sums near their bound", "[step11][all]") {
  const int d = GENERATE(64, 128);
  const float k = GENERATE(1.f, 1.3f, 1.6f, 1.85f);  // a bound is rounded to a power of 2
  CAPTURE(d, k);
  if (!fa::test::one_in(5)) return;
  // P = 1 / Nk, O is about 0. V and K have the same sign in the first half of the keys, then
  // opposite ones: dQ's parts add up to half of the bound and back to 0, where bf16 shows each bit.
  const auto p = bf16_problem(5, 1024, d, false);
  fa::Inputs in = fa::normal_inputs(p, 19);
  std::fill(in.Q.begin(), in.Q.end(), 0.f);
  std::fill(in.dO.begin(), in.dO.end(), 1.f);
  for (size_t i = 0; i < in.K.size(); ++i) {
    const float sign = i / static_cast<size_t>(d) % 2 == 0 ? 1.f : -1.f;
    const auto nearly = [](float x) { return 1 - std::fmod(std::fabs(x), 1.f) / 16; };
    const float half = i < in.K.size() / 2 ? 1.f : -1.f;
    in.K[i] = half * sign * k * nearly(in.K[i]), in.V[i] = sign * nearly(in.V[i]);
  }
  require_same_bits_in_any_order(p, in);
}

TEST_CASE("step 11: heads: the same bits in any order of the blocks", "[step11]") {
  const fa::Problem p = of_heads(150, 400, GENERATE(false, true), 3, 3);
  const fa::Variant variant = on_few_blocks<direct>();
  const fa::Inputs in = fa::normal_inputs(p, 21);
  const std::vector<float> first = fa::test::run_in_order(0, variant, p, in).dQ;
  for (uint64_t order = 1; order <= 3; ++order) {
    CAPTURE(order);
    REQUIRE(fa::test::run_in_order(order, variant, p, in).dQ == first);
  }
}

TEST_CASE("step 11: heads: a row's sums are stored, added and read once", "[step11]") {
  // Tiles of a head with three tiles of keys and of rows.
  const auto counted = [](bool causal) {
    const fa::Problem p = of_heads(384, 384, causal, 2, 2);
    const auto counts = fa::test::count_backward(on_few_blocks<direct>(), p);
    const auto& bytes = counts.buffers.at("dQ_sum").bytes;
    constexpr uint64_t tile = 4 * 64 * 128, heads = 4;
    return std::array{bytes.write / (heads * tile), bytes.atomic / (heads * tile),
                      bytes.read / (heads * tile)};
  };
  CHECK(counted(false) == std::array<uint64_t, 3>{3, 3, 3});
  CHECK(counted(true) == std::array<uint64_t, 3>{2, 1, 2});
}

TEST_CASE("step 11: the formulas of the headers", "[step11][all]") {
  const Kernels of = any();
  CAPTURE(of.variant->name, of.d);
  const uint64_t d = of.d, N = GENERATE(65, 193), Nk = 300, BH = 4, BHkv = 2;
  if (!fa::test::one_in(3)) return;
  const auto p = bf16_problem(N, Nk, of.d, /*causal=*/false, /*B=*/1, BH, BHkv);
  const bool third = of.variant != &wgmma() && of.variant != &late();  // a third warpgroup
  const uint64_t Tc = (Nk + 127) / 128, Np = (N + 127) / 128 * 128;
  const uint64_t Nv = third && d >= 128 ? (N + 63) / 64 * 64 : Np;  // in whole tiles
  const uint64_t row = third ? 16 : 8;                              // bytes of LSE and delta
  const fa::Bytes counted = *fa::test::count_backward(*of.variant, p).requested;
  uint64_t read = 2 * BH * (2 * N + 2 * Tc * N) * d + 2 * BHkv * 2 * Nk * d +
                  4 * BH * (N + Np * d) + row * BH * Tc * Nv;
  uint64_t write = 2 * BH * N * d + 2 * BHkv * 2 * Nk * d + 4 * BH * Np * d + row * BH * Np;
  if (of.variant == &deterministic()) {  // K and V; bounds
    read += 2 * BHkv * 2 * Nk * d + 8 * BH * Np * Tc;
    write += 8 * BHkv * Tc;
  }
  if (of.variant == &paired())
    read += 2 * BHkv * Nk * d / 2 + row * BH * Tc * Nv;  // half of K; the columns
  CHECK(counted.read == read);
  CHECK(counted.write == write);
  CHECK(counted.atomic == 4 * BH * Tc * Nv * d);
}

TEST_CASE("step 11: the forward is step 10's", "[step11]") {
  const auto* variant = GENERATE(&wgmma(), &late(), &deterministic(), &columns());
  fa::test::require_predicted(*variant, bf16_problem(65, 130, 64, true, 1, 2, 1));
}

TEST_CASE("step 11: no bank conflicts, coalesced accesses, full atomic sectors", "[step11]") {
  const Kernels of = any();
  CAPTURE(of.variant->name, of.d);
  const auto p = bf16_problem(128, 192, of.d, GENERATE(false, true), 1, 2, 1);
  CAPTURE(p.causal);
  const fa::Counts counts = fa::test::count_backward(*of.variant, p);
  REQUIRE(counts.kernels.size() == (of.variant == &deterministic() ? 4 : 3));
  fa::test::require_no_conflicts(counts);
  for (const auto& [name, count] : counts.buffers) {
    CAPTURE(name);
    CHECK(count.sectors.atomic * 32 == count.bytes.atomic);
  }
}

TEST_CASE("step 11: HBM sees each operand once a kernel", "[step11]") {
  const Kernels of = any();
  CAPTURE(of.variant->name, of.d);
  // One tile each way: requested bytes equal compulsory ones. An atomic reads and writes.
  const auto p = bf16_problem(60, 30, of.d, GENERATE(false, true), 1, 2, 2);
  CAPTURE(p.causal);
  const fa::Counts counts = fa::test::count_backward(*of.variant, p);
  fa::Bytes streamed = *counts.requested;
  if (of.variant == &deterministic()) {  // each row reads the same bounds
    const auto& bounds = counts.buffers.at("bounds").bytes;
    streamed.read -= bounds.read - bounds.write;
  }
  if (of.variant == &paired()) {  // both blocks of the cluster read these
    streamed.read -= counts.buffers.at("K").bytes.read / 3;
    streamed.read -= counts.buffers.at("columns").bytes.read / 2;
  }
  CHECK(of.variant->backward_traffic(p).hbm ==
        fa::Bytes{.read = streamed.read + streamed.atomic,
                  .write = streamed.write + streamed.atomic});
}

TEST_CASE("step 11: causal tiles above the diagonal are not visited", "[step11]") {
  constexpr uint64_t d = 64, row = 2 * d, tile = 128 * 4 * d;  // bytes
  // Rows of dO that delta_kernel reads, then those of each tile of 128 keys.
  const auto square = fa::test::count_backward(columns(), bf16_problem(512, 512, d, true));
  CHECK(square.buffers.at("dO").bytes.read == (512 + 512 + 384 + 256 + 128) * row);
  CHECK(square.buffers.at("dQ_sum").bytes.atomic == (4 + 3 + 2 + 1) * tile);
}

TEST_CASE("step 11: half of a tile at the diagonal is skipped, when d = 128", "[step11]") {
  const auto flops = [](int d) {
    const auto counts = fa::test::count_backward(columns(), bf16_problem(512, 512, d, true));
    return *counts.tensor_flops;
  };
  // Five products, and 16 columns more in S and dP.
  const auto of_tiles = [](uint64_t rows, uint64_t d, uint64_t tiles) {
    return 2 * rows * 128 * tiles * (5 * d + 2 * 16);
  };
  CHECK(flops(64) == of_tiles(128, 64, 4 + 3 + 2 + 1));
  // Four products of 64 rows, 64 keys and 128 features in each of four blocks, two with columns.
  CHECK(flops(128) == of_tiles(64, 128, 8 + 6 + 4 + 2) - 4 * 2ull * 64 * 64 * (4 * 128 + 2 * 16));
}
#endif
