// Tests of step 04. steps/CMakeLists.txt says what it is linked with.
#include "steps/04_fused/2_fused.cuh"
#include "tests/attention.h"

static const fa::Variant& parent() { return fa::linked_variant("03 one_pass"); }
static const fa::Variant& tile() { return fa::linked_variant("04 tile"); }
static const fa::Variant& fused() { return fa::linked_variant("04 fused"); }

/// A problem whose K/V tiles have exactly Bc keys.
static fa::Problem tiled(int Bc, int N, int d, bool causal, int H = 2) {
  fa::Problem p = fa::test::problem(N, d, causal, 1, H);
  p.method.smem = step04::smem_bytes(d, Bc);
  return p;
}

TEST_CASE("step 04: O and LSE match the fp64 reference at tile edges", "[step04][all]") {
  const int N = GENERATE(1, 31, 32, 33, 63, 64, 65, 100, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(N, d, causal);
  fa::test::require_right(tile(), fa::test::problem(N, d, causal, 1, 1));
  fa::test::require_right(fused(), tiled(64, N, d, causal, 1));
}

TEST_CASE("step 04: right whatever the K/V tile", "[step04][all]") {
  const int Bc = GENERATE(16, 32, 64, 128);
  const int d = GENERATE(32, 64, 96, 128);
  const int N = GENERATE(63, 64, 145);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(Bc, d, N, causal);
  fa::test::require_right(fused(), tiled(Bc, N, d, causal, 1));
}

TEST_CASE("step 04: right with the default M, for which several K/V tiles are needed", "[step04]") {
  const int d = GENERATE(32, 64, 96, 128);
  const auto p = fa::test::problem(260, d, GENERATE(false, true), 1, 1);
  CAPTURE(d, p.causal);
  REQUIRE(step04::tile_keys(p) < p.N);
  fa::test::require_right(fused(), p);
}

TEST_CASE("step 04: right for real input and outliers, behaves as attention must", "[step04]") {
  fa::test::require_fp32_properties(tile());
  fa::test::require_fp32_properties(fused(), step04::smem_bytes(64, 32));
}

TEST_CASE("step 04: agrees with step 03", "[step04]") {
  fa::test::require_agrees_fp32(*GENERATE(&tile(), &fused()), parent());
}

TEST_CASE("step 04: O and LSE do not depend on M", "[step04]") {
  auto p = fa::test::problem(150, 64, GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 7);
  const fa::Outputs by_default = fa::run(fused(), p, in);
  for (const int Bc : {16, 32, 128}) {
    CAPTURE(Bc);
    p.method.smem = step04::smem_bytes(p.d, Bc);
    const fa::Outputs out = fa::run(fused(), p, in);
    CHECK(fa::test::max_difference(out.O, by_default.O) <= 2e-6);
    CHECK(fa::test::max_difference(out.LSE, by_default.LSE) <= 4e-6);
  }
}

TEST_CASE("step 04: the widest tile that fits M, and an M that holds none is refused", "[step04]") {
  const int d = GENERATE(32, 64, 96, 128);
  CAPTURE(d);
  fa::Problem p = fa::test::problem(4096, d, false);
  const auto keys = [&](size_t M) {
    p.method.smem = M;
    return step04::tile_keys(p);
  };
  fa::dispatch_d<32, 64, 96, 128>(d, [&](auto D) {
    CHECK(step04::smem_bytes(d, 16) == sizeof(step04::Tiles<D, 16>));
    CHECK(step04::smem_bytes(d, 128) == sizeof(step04::Tiles<D, 128>));
  });
  for (const int Bc : {16, 32, 64, 128}) {
    CHECK(keys(step04::smem_bytes(d, Bc)) == Bc);
    CHECK(keys(step04::smem_bytes(d, 2 * Bc) - 1) == Bc);
  }
  CHECK(keys(0) == keys(step04::kDefaultM));
  CHECK(keys(0) == (d == 128 ? 32 : 64));

  const size_t least = step04::smem_bytes(d, 16);
  for (const size_t M : {size_t(1), least - 1}) {
    p.method.smem = M;
    const std::string flag = "--smem " + std::to_string(M), need = std::to_string(least);
    CHECK_THROWS_AS(fused().traffic(p), fa::UsageError);
    CHECK_THROWS_WITH(fused().traffic(p), ContainsSubstring(flag) && ContainsSubstring(need) &&
                                              ContainsSubstring("d=" + std::to_string(d)));
  }
}

TEST_CASE("step 04: the header's formula, and the paper's example at 2 bytes an element",
          "[step04]") {
  // B*H = 1024, N = 1024, d = 64 in 16 bit (arXiv 2205.14135): 2Nd + Tc*3Nd elements a head without
  // the statistics and the initialisation of O.
  const auto [Bc, gigabytes] = GENERATE(table<int, double>({{32, 13.15}, {64, 6.71}, {128, 3.49}}));
  CAPTURE(Bc);
  fa::Problem p = fa::test::problem(1024, 64, false, 64, 16);
  p.method.smem = step04::smem_bytes(p.d, Bc);
  fa::Prediction t = fused().traffic(p);
  const uint64_t BH = 1024, N = 1024, d = 64, Tc = N / Bc;
  CHECK(t.total().read == 4 * BH * ((2 + 2 * Tc) * N * d + 2 * (Tc + 1) * N));
  CHECK(t.total().write == 4 * BH * ((Tc + 1) * N * d + (2 * Tc + 3) * N));
  const uint64_t zeros = 4 * BH * N * d;  // O = 0
  const uint64_t papers = t["Q"].read + t["K"].read + t["V"].read + t["O"].total() - zeros;
  CHECK(std::abs(papers / 2 / 1e9 - gigabytes) < 0.005);
}

TEST_CASE("step 04: memory grows with N, not with its square", "[step04]") {
  const auto bytes = [](int N) {
    return fa::memory_need(fa::test::problem(N, 64, false), fused()).workspace;
  };
  CHECK(bytes(1024) == 2 * 4 * 2 * 1024);  // m and l, 4 bytes, two heads
  CHECK(bytes(4096) == 4 * bytes(1024));
}

#if !FA_BACKEND_GPU
TEST_CASE("step 04: predicted bytes are counted bytes", "[step04][all]") {
  const auto* variant = GENERATE(&tile(), &fused());
  const int N = GENERATE(1, 17, 64, 100, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, N, d, causal);
  fa::test::require_predicted(*variant, fa::test::problem(N, d, causal, 1, 2));
}

TEST_CASE("step 04: predicted bytes are counted bytes for each M", "[step04][all]") {
  const int Bc = GENERATE(16, 32, 64, 128);
  const int N = GENERATE(17, 100, 129);
  const int d = GENERATE(32, 64, 96, 128);
  if (!fa::test::one_in(5)) return;
  CAPTURE(Bc, N, d);
  fa::test::require_predicted(fused(), tiled(Bc, N, d, false, 1));
}

TEST_CASE("step 04: no bank conflicts, coalesced loads", "[step04][all]") {
  const int d = GENERATE(32, 64, 96, 128);
  const int Bc = GENERATE(0, 32, 64, 128);  // 0: `tile`; with 16, two rows of P meet in the banks
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  const auto p = Bc == 0 ? fa::test::problem(128, d, causal) : tiled(Bc, 128, d, causal);
  CAPTURE(d, Bc, causal);
  const fa::Counts counts = fa::test::count_forward(Bc == 0 ? tile() : fused(), p);
  fa::test::require_no_conflicts(counts);
  for (const char* name : {"Q", "K", "V", "O", "LSE"}) {
    CAPTURE(name);
    if (!counts.buffers.contains(name)) continue;
    const fa::BufferCount& b = counts.buffers.at(name);
    CHECK(b.sectors.load * 32 == b.bytes.read);  // every byte of every sector was asked for
    CHECK(b.sectors.store * 32 == b.bytes.write);
  }
}

TEST_CASE("step 04: a wider tile asks for less, and nothing else changes", "[step04]") {
  const auto narrow = tiled(32, 256, 64, false), wide = tiled(128, 256, 64, false);
  fa::Prediction a = fused().traffic(narrow), b = fused().traffic(wide);
  CHECK(a["Q"].read == 4 * b["Q"].read);
  CHECK(a["K"] == b["K"]);
  CHECK(a.hbm == b.hbm);
  CHECK(a.flops == b.flops);
}

TEST_CASE("step 04: the analysis finds nothing", "[step04]") {
  const int N = GENERATE(1, 33, 75);
  const bool causal = GENERATE(false, true);
  fa::test::count_forward(tile(), fa::test::problem(N, 64, causal), /*analyse=*/true);
  fa::test::count_forward(fused(), tiled(GENERATE(16, 32, 64), N, 64, causal), /*analyse=*/true);
}
#endif
