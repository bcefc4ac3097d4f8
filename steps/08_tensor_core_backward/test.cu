// Tests of step 08. steps/CMakeLists.txt says what it is linked with.
#include "steps/08_tensor_core_backward/6_roles.cuh"
#include "tests/backward.h"
#include "tests/device.h"

using fa::test::bf16_problem, fa::test::Kernels;

static const fa::Variant& keys() { return fa::linked_variant("08 keys"); }
static const fa::Variant& wide() { return fa::linked_variant("08 wide"); }
static const fa::Variant& atomics() { return fa::linked_variant("08 atomics"); }
static const fa::Variant& deterministic() { return fa::linked_variant("08 deterministic"); }
static const fa::Variant& roles() { return fa::linked_variant("08 roles"); }
static const fa::Variant& parent() { return fa::linked_variant("06 backward"); }

namespace {

/// No atomics.
bool has_one_order(const fa::Variant* v) {
  return v == &keys() || v == &wide() || v == &deterministic();
}

// Those for any problem. With d = 64 `roles` is `atomics`: one test of its own.
std::vector<Kernels> all_kernels() {
  return {{&wide(), 64},           {&deterministic(), 64}, {&atomics(), 64}, {&wide(), 128},
          {&deterministic(), 128}, {&atomics(), 128},      {&roles(), 128}};
}
/// And those for as many keys as rows, and a key head for each query head.
std::vector<Kernels> square_kernels() {
  std::vector<Kernels> all = all_kernels();
  all.insert(all.end(), {{&keys(), 64, /*square=*/true}, {&keys(), 128, /*square=*/true}});
  for (Kernels& k : all) k.one_order = has_one_order(k.variant);
  return all;
}

/// One of all_kernels(); a test runs once with each.
std::pair<const fa::Variant*, int> any() {
  const Kernels of = GENERATE(from_range(all_kernels()));
  return {of.variant, of.d};
}

}  // namespace

TEST_CASE("step 08: what every backward on tensor cores is asked", "[step08][all]") {
  fa::test::require_backward(GENERATE(from_range(square_kernels())), parent());
}

TEST_CASE("step 08: as many keys as one likes", "[step08][all]") {
  const auto [variant, d] = any();
  const auto [N, Nk] = GENERATE(from_range(fa::test::kLengths));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  if (!FA_BACKEND_GPU && N > 1000 && (d == 128 || variant != &atomics())) return;  // seconds each
  CAPTURE(variant->name, N, Nk, d, causal);
  fa::test::require_right(*variant, bf16_problem(N, Nk, d, causal));
}

TEST_CASE("step 08: random shapes", "[step08][all]") {
  fa::test::require_right_for_random_shapes({&wide(), &deterministic(), &atomics(), &roles()}, 8);
}

TEST_CASE("step 08: d = 64 has no roles", "[step08]") {
  const auto p = bf16_problem(65, 130, 64, true, /*B=*/1, /*H=*/4, /*Hkv=*/2);
  const auto in = fa::normal_inputs(p, 10);
  fa::test::require_right(roles(), p, in);
  const fa::Outputs a = fa::run(roles(), p, in), b = fa::run(atomics(), p, in);
  REQUIRE(a.dK == b.dK);
  REQUIRE(a.dV == b.dV);
}

static __global__ void pack_kernel(const float* P,  // [2]
                                   float* got) {    // [2]
  const float2 two = step08_roles::unpack_P(step08_roles::pack_P(P[0], P[1]));
  got[0] = two.x, got[1] = two.y;
}

TEST_CASE("step 08: P for the partner warp keeps nine bits, and is 1 at most", "[step08]") {
  // LSE is rounded, so P may come out larger than 1: by much where scores are huge.
  const std::vector<float> values = {0.f,        0x1p-126f,     1e-30f,   0.3f,          0.999f,
                                     0x1.ffp-1f, 1.f,           1.0001f,  1.5f,          2.f,
                                     1000.f,     0x1.fffffep0f, INFINITY, 0x1.fffffep-1f};
  for (const float lo : values) {
    for (const float hi : values) {
      CAPTURE(lo, hi);
      const test::Buffer<float> P("P", {lo, hi}), got("got", 2);
      fa::launch(pack_kernel, {dim3(1), dim3(1)}, P.get(), got.get());
      const std::vector<float> two = got.download();
      CHECK(two[0] == Approx(std::min(lo, 1.f)).epsilon(0x1p-10).margin(0));
      CHECK(two[1] == Approx(std::min(hi, 1.f)).epsilon(0x1p-10).margin(0));
      CHECK((two[0] <= 1 && two[1] <= 1));
    }
  }
}

TEST_CASE("step 08: blocks of rows beyond 2^32 threads", "[step08]") {
  auto p = bf16_problem(1 << 20, 1, 128, false, /*B=*/1, /*H=*/4096, 1);  // 2^36 chunks of a row
  CHECK(step08::row_blocks(p) == (1u << 28));
  p.N = 1, p.H = 3;  // a whole tile each
  CHECK(step08::row_blocks(p) == 3u * step08::padded_rows(p) * 16 / 256);
  p.d = 64;
  CHECK(step08::row_blocks(p) == 3u * 64 * 8 / 256);
}

// --- bytes ---------------------------------------------------------------------------------------

TEST_CASE("step 08: no N * N in memory, and no dQ_sum without atomics", "[step08]") {
  const auto bytes = [](const fa::Variant& v, int N) {
    return fa::memory_need(bf16_problem(N, N, 128, false), v).workspace;
  };
  for (const fa::Variant* v : {&keys(), &wide(), &deterministic(), &atomics(), &roles()}) {
    CAPTURE(v->name);
    CHECK(bytes(*v, 2048) == 2 * bytes(*v, 1024));
    if (has_one_order(v)) CHECK(bytes(*v, 1000) == 4 * 2 * 1000);
  }
  CHECK(bytes(atomics(), 1000) == 4 * (2 * 1000 + 1024 * 128));  // delta, LSE2; rows in whole tiles
}

#if !FA_BACKEND_GPU
TEST_CASE("step 08: the formulas of 2_keys.cuh", "[step08][all]") {
  const uint64_t N = GENERATE(1, 65, 257), d = GENERATE(64, 128), BH = 2;
  if (!fa::test::one_in(3)) return;
  CAPTURE(N, d);
  const auto p = bf16_problem(N, N, d, /*causal=*/false, 1, BH, BH);
  const uint64_t Tc = (N + 63) / 64, Tr = (N + 127) / 128;
  const fa::Bytes counted = *fa::test::count_backward(keys(), p).requested;
  CHECK(counted.read == 2 * BH * (6 + 2 * Tc + 2 * Tr) * N * d + 4 * BH * (3 + 2 * Tc) * N);
  CHECK(counted.write == 2 * BH * 3 * N * d + 8 * BH * N);
  const fa::Bytes least = keys().backward_traffic(p).hbm;
  CHECK(least.read + least.write == 2 * BH * 13 * N * d + 4 * BH * 7 * N);
}

TEST_CASE("step 08: the formulas of the headers", "[step08][all]") {
  const auto [variant, features] = any();
  const uint64_t d = features, N = GENERATE(65, 193), Nk = 300, H = 4, Hkv = 2;
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, N, d);
  const auto p = bf16_problem(N, Nk, features, /*causal=*/false, /*B=*/1, H, Hkv);
  const uint64_t BH = H, BHkv = Hkv, Tc = 3, Tr = (N + 127) / 128, Np = (N + 63) / 64 * 64;
  const fa::Bytes counted = *fa::test::count_backward(*variant, p).requested;
  const fa::Bytes least = variant->backward_traffic(p).hbm;
  if (has_one_order(variant)) {
    CHECK(counted.read == 2 * BH * (4 * N + 2 * Tc * N) * d + 2 * BHkv * 2 * Nk * d +
                              2 * BH * 2 * Tr * Nk * d + 4 * BH * (3 * N + 2 * Tc * N));
    CHECK(counted.write == 2 * BH * N * d + 2 * BHkv * 2 * Nk * d + 8 * BH * N);
    CHECK(counted.atomic == 0);
    CHECK(least.read + least.write == 2 * (7 * BH * N * d + 6 * BHkv * Nk * d) + 28 * BH * N);
  } else {
    CHECK(counted.read == 2 * BH * (2 * N + 2 * Tc * N) * d + 2 * BHkv * 2 * Nk * d +
                              4 * BH * (N * d + N + 2 * Tc * N));
    CHECK(counted.write == 2 * BH * N * d + 2 * BHkv * 2 * Nk * d + 4 * BH * (Np * d + 2 * N));
    CHECK(counted.atomic == 4 * BH * Tc * Np * d);
    CHECK(least.read + least.write ==
          2 * (5 * BH * N * d + 4 * BHkv * Nk * d) + 4 * BH * (5 * N + (3 * Np + N) * d));
  }
}

TEST_CASE("step 08: predicted bytes are counted bytes, many tiles", "[step08][all]") {
  const auto [variant, d] = any();
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, d);
  fa::test::require_backward_predicted(*variant, bf16_problem(200, 1024, d, true));
}

TEST_CASE("step 08: the forward is step 07's", "[step08]") {
  const auto* variant = GENERATE(&wide(), &deterministic(), &atomics(), &roles());
  fa::test::require_predicted(*variant, bf16_problem(65, 130, 64, true, 1, 2, 1));
  fa::test::require_predicted(keys(), bf16_problem(65, 65, 64, true, 1, 2, 2));
}

TEST_CASE("step 08: no bank conflicts, coalesced accesses, full atomic sectors", "[step08][all]") {
  const auto [variant, d] = any();
  const auto p = bf16_problem(128, 192, d, GENERATE(false, true), 1, 2, 1);
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant->name, d, p.causal);
  const fa::Counts counts = fa::test::count_backward(*variant, p);
  REQUIRE(counts.kernels.size() == 3);
  fa::test::require_no_conflicts(counts);
  for (const auto& [name, count] : counts.buffers) {
    CAPTURE(name);
    CHECK(count.sectors.atomic * 32 == count.bytes.atomic);
    // Every byte of every sector was asked for, except where a few lanes of delta_kernel have one
    // number of a row each: 256 / d of them, side by side.
    const uint64_t side_by_side = 4 * 256 / d;
    CHECK(count.sectors.load * (name == "LSE" ? side_by_side : 32) == count.bytes.read);
    const bool of_rows = name == "LSE2" || name == "delta";
    const bool half = variant == &wide() && (name == "dK" || name == "dV");  // 4 bytes a lane
    CHECK(count.sectors.store * (of_rows ? side_by_side : half ? 16 : 32) == count.bytes.write);
  }
}

TEST_CASE("step 08: HBM sees each operand once a kernel", "[step08]") {
  const auto [variant, d] = any();
  // One tile each way: what the kernels ask for is what they stream. An atomic reads and writes.
  const auto p = bf16_problem(60, 30, d, GENERATE(false, true), 1, 2, 2);
  CAPTURE(variant->name, d, p.causal);
  const fa::Bytes requested = *fa::test::count_backward(*variant, p).requested;
  CHECK(variant->backward_traffic(p).hbm == fa::Bytes{.read = requested.read + requested.atomic,
                                                      .write = requested.write + requested.atomic});
}

TEST_CASE("step 08: inputs come from HBM once, and only results and sums go there",
          "[step08][all]") {
  const auto [variant, d] = any();
  if (!fa::test::one_in(3)) return;
  const uint64_t H = 4, Hkv = 2, N = 128, Nk = 256;
  const auto p = bf16_problem(N, Nk, d, false, 1, H, Hkv);
  CAPTURE(variant->name, d);
  const fa::Counts counts = fa::test::count_backward(*variant, p);
  REQUIRE(counts.hbm);  // the workspace is found in the L2
  CHECK(counts.hbm->read == 2 * (3 * H * N + 2 * Hkv * Nk) * d + 4 * H * N);
  const uint64_t dQ_sum = has_one_order(variant) ? 0 : 4 * H * N * d;
  CHECK(counts.hbm->write == 2 * (H * N + 2 * Hkv * Nk) * d + dQ_sum + 2 * 4 * H * N);
}

TEST_CASE("step 08: causal tiles above the diagonal are not visited", "[step08]") {
  constexpr uint64_t d = 64, row = 2 * d, tile = 64 * 4 * d;  // bytes
  // Rows of dO that delta_kernel reads, then those of each tile of 128 keys.
  const auto square = fa::test::count_backward(atomics(), bf16_problem(512, 512, d, true));
  CHECK(square.buffers.at("dO").bytes.read == (512 + 512 + 384 + 256 + 128) * row);
  CHECK(square.buffers.at("dQ_sum").bytes.atomic == (8 + 6 + 4 + 2) * tile);
  const auto wide = fa::test::count_backward(atomics(), bf16_problem(256, 512, d, true));
  CHECK(wide.buffers.at("dO").bytes.read == (256 + 256 + 256 + 256 + 128) * row);
  const auto tall = fa::test::count_backward(deterministic(), bf16_problem(512, 256, d, true));
  CHECK(tall.buffers.at("V").bytes.read == (256 + 0 + 0 + 128 + 256) * row);
}

TEST_CASE("step 08: dQ without atomics costs seven products instead of five", "[step08]") {
  const auto p = bf16_problem(512, 512, GENERATE(64, 128), false);
  CHECK(5 * deterministic().backward_traffic(p).flops == 7 * atomics().backward_traffic(p).flops);
}

TEST_CASE("step 08: smaller tiles where a block gets 99 KB of shared memory", "[step08][all]") {
  const auto [variant, d] = any();
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(33, 65), std::pair(131, 70),
                                std::pair(64, 200), std::pair(300, 20));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  const auto p = bf16_problem(N, Nk, d, causal, 1, /*H=*/4, /*Hkv=*/2);
  fa::test::require_with_shared_memory(99 * 1024, *variant, p);  // of the RTX 30, 40 and 50 series
}

TEST_CASE("step 08: keys of a block, where shared memory is short", "[step08]") {
  auto p = bf16_problem(64, 128, 128, false, 1, 1, 1);
  const auto* variant = GENERATE(&deterministic(), &atomics(), &roles());
  const uint64_t once = variant->backward_traffic(p).buffers.at("Q").read;
  p.gpu.block_shared_bytes = 99 * 1024;
  // Two tiles of 64 keys instead of one of 128: the rows of Q are read once more.
  CHECK(variant->backward_traffic(p).buffers.at("Q").read == once + 2 * 64 * 128);
}
#endif
