// Tests of step 06. steps/CMakeLists.txt says what it is linked with.
#include "steps/04_fused/2_fused.cuh"
#include "steps/06_work_partitioning/1_swapped.cuh"
#include "steps/06_work_partitioning/2_registers.cuh"
#include "steps/06_work_partitioning/3_backward.cuh"
#include "tests/backward.h"

static const fa::Variant& parent() { return fa::linked_variant("04 fused"); }
static const fa::Variant& backward_parent() { return fa::linked_variant("05 recompute"); }
static const fa::Variant& swapped() { return fa::linked_variant("06 swapped"); }
static const fa::Variant& registers() { return fa::linked_variant("06 registers"); }
static const fa::Variant& with_backward() { return fa::linked_variant("06 backward"); }

TEST_CASE("step 06: outputs and gradients match the fp64 reference at tile edges",
          "[step06][all]") {
  fa::test::require_right_at_edges_fp32(*GENERATE(&swapped(), &registers(), &with_backward()));
}

TEST_CASE("step 06: right for real input and outliers, behaves as attention must", "[step06]") {
  fa::test::require_fp32_properties(*GENERATE(&swapped(), &registers(), &with_backward()));
}

TEST_CASE("step 06: agrees with step 04", "[step06]") {
  fa::test::require_agrees_fp32(*GENERATE(&swapped(), &registers()), parent());
}

TEST_CASE("step 06: scores far below zero, where 2^(0 - LSE) of a key past the end overflows",
          "[step06][all]") {
  fa::test::require_backward_right_far_below_zero(with_backward(), GENERATE(32, 64, 96, 128));
}

TEST_CASE("step 06: gradients agree with step 05", "[step06]") {
  fa::test::require_agrees_fp32(with_backward(), backward_parent());
}

TEST_CASE("step 06: two runs give the same bits, dQ alone only the same number", "[step06]") {
  const auto* variant = GENERATE(&swapped(), &with_backward());
  const auto p = fa::test::problem(330, 64, true);
  const auto in = fa::normal_inputs(p, 7);
  const fa::Outputs once = fa::run(*variant, p, in), twice = fa::run(*variant, p, in);
  REQUIRE(once.O == twice.O);  // no block waits for or adds to what another one does
  REQUIRE(once.LSE == twice.LSE);
  REQUIRE(once.dK == twice.dK);
  REQUIRE(once.dV == twice.dV);
  REQUIRE(fa::test::max_difference(once.dQ, twice.dQ) <= 5e-6);  // atomics have no fixed order
}

#if !FA_BACKEND_GPU
TEST_CASE("step 06: predicted bytes are counted bytes", "[step06][all]") {
  const int N = GENERATE(1, 17, 64, 100, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  CAPTURE(N, d, causal);
  const auto p = fa::test::problem(N, d, causal, 1, N == 257 ? 1 : 3);
  fa::test::require_predicted(swapped(), p);
  fa::test::require_predicted(registers(), p);
  fa::test::require_backward_predicted(with_backward(), p);
}

TEST_CASE("step 06: HBM sees each operand of the backward once a kernel; five products",
          "[step06]") {
  const int d = GENERATE(32, 64, 96, 128);
  CAPTURE(d);
  // One tile each way: what the kernels ask for is what they stream. An atomic reads and writes.
  const auto one = fa::test::problem(30, d, GENERATE(false, true));
  const fa::Bytes asked = *fa::test::count_backward(with_backward(), one).requested;
  CHECK(with_backward().backward_traffic(one).hbm ==
        fa::Bytes{.read = asked.read + asked.atomic, .write = asked.write + asked.atomic});
  const uint64_t heads = 2, N = 256;
  CHECK(with_backward().backward_traffic(fa::test::problem(N, d, false)).flops ==
        5 * 2 * heads * N * N * d);
}

TEST_CASE("step 06: no bank conflicts, coalesced loads", "[step06][all]") {
  const auto p = fa::test::problem(128, GENERATE(32, 64, 96, 128), GENERATE(false, true));
  if (!fa::test::one_in(3)) return;
  CAPTURE(p.d, p.causal);
  fa::test::require_clean_accesses(fa::test::count_forward(swapped(), p));
  fa::test::require_clean_accesses(fa::test::count_forward(registers(), p));
  const fa::Counts backward = fa::test::count_backward(with_backward(), p);
  fa::test::require_clean_accesses(backward);
  REQUIRE(backward.sectors);
  CHECK(backward.sectors->atomic * 32 == backward.requested->atomic);  // neighbours' features
}

TEST_CASE("step 06: HBM sees inputs and outputs only, and the grid grows with N", "[step06]") {
  const auto* variant = GENERATE(&swapped(), &registers());
  CAPTURE(variant->name);
  const uint64_t N = 256, d = 64;
  auto p = fa::test::problem(N, d, false, 1, 1);
  CHECK(variant->traffic(p).hbm == fa::Bytes{.read = 4 * 3 * N * d, .write = 4 * (N * d + N)});
  const fa::Counts now = fa::test::count_forward(*variant, p);
  p.method.smem = step04::smem_bytes(d, 64);  // step 04 with as many keys in a tile
  const fa::Counts before = fa::test::count_forward(parent(), p);
  REQUIRE(now.kernels.size() == 1);
  REQUIRE(before.kernels.size() == 1);
  CHECK(before.kernels[0].blocks == 1);
  CHECK(now.kernels[0].blocks == N / 64);
  CHECK(now.requested->write == 4 * (N * d + N));
  CHECK(now.requested->total() < before.requested->total());
}

TEST_CASE("step 06: causal tiles above the diagonal are not visited", "[step06]") {
  const auto* variant = GENERATE(&swapped(), &registers());
  CAPTURE(variant->name);
  constexpr uint64_t Tr = 8, Bc = 64, d = 64;  // of 8 x 8 tiles, 36 are visited
  const auto p = fa::test::problem(Tr * Bc, d, true, 1, 1);
  const fa::Counts counts = fa::test::count_forward(*variant, p);
  CHECK(counts.buffers.at("K").bytes.read == 36 * 4 * Bc * d);
  CHECK(counts.buffers.at("V").bytes.read == 36 * 4 * Bc * d);
}

TEST_CASE("step 06: smaller tiles where a block gets 64 KB of shared memory, as on a T4",
          "[step06][all]") {
  const auto* variant = GENERATE(&swapped(), &registers());
  const auto [d, Bc] = GENERATE(table<int, int>({{32, 64}, {64, 64}, {96, 32}, {128, 32}}));
  const int N = GENERATE(1, 33, 64, 100);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  const fa::Counts counts =
      fa::test::require_with_shared_memory(65536, *variant, fa::test::problem(N, d, causal));
  REQUIRE(counts.kernels.size() == 1);
  CHECK(counts.kernels[0].blocks == 2u * fa::ceil_div(N, Bc));  // two heads
}

TEST_CASE("step 06: the backward's tiles where a block gets 99 or 64 KB of shared memory",
          "[step06][all]") {
  const size_t bytes = GENERATE(101376, 65536);
  const int d = GENERATE(32, 64, 96, 128);
  const int N = GENERATE(1, 33, 64, 100);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(bytes);
  const fa::Counts counts =
      fa::test::require_with_shared_memory(bytes, with_backward(), fa::test::problem(N, d, causal));
  const int Bc = bytes == 65536 && d > 64 ? 32 : 64;
  REQUIRE(counts.kernels.size() == 2);
  CHECK(counts.kernels[1].blocks == 2u * fa::ceil_div(N, Bc));  // two heads
}

TEST_CASE("step 06: dQ is added once for each tile of keys, and read by no kernel", "[step06]") {
  constexpr uint64_t N = 256, d = 64, Tc = N / 64;
  const fa::Counts counts =
      fa::test::count_backward(with_backward(), fa::test::problem(N, d, false, 1, 1));
  CHECK(counts.buffers.at("dQ").bytes ==
        fa::Bytes{.read = 0, .write = 4 * N * d, .atomic = 4 * Tc * N * d});
}

TEST_CASE("step 06: the analysis finds nothing", "[step06][all]") {
  const auto [N, d] = GENERATE(std::pair(1, 64), std::pair(33, 64), std::pair(75, 64),
                               std::pair(130, 32), std::pair(130, 128));  // other tiles
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(3)) return;
  const auto p = fa::test::problem(N, d, causal);
  fa::test::count_forward(swapped(), p, /*analyse=*/true);
  fa::test::count_forward(registers(), p, /*analyse=*/true);
  fa::test::count_backward(with_backward(), p, /*analyse=*/true);
}
#endif
