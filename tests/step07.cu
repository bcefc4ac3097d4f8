#include "steps/07_tensor_cores/kernel.cuh"

#include "steps/06_work_partitioning/register.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant kernel{"kernel", "", step07::forward, step07::traffic, nullptr, true};
static const fa::Variant parent{"register", "",  step06_register::forward, step06_register::traffic,
                                nullptr,    true};

TEST_CASE("step 07: right at the edges of tiles, bands and mmas", "[step07]") {
  const int N = GENERATE(1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 257);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, d, causal);
  fa::test::require_right(kernel, bf16_problem(N, N, d, causal, /*B=*/1, /*H=*/2, /*Hkv=*/2));
}

TEST_CASE("step 07: heads that share keys and values", "[step07]") {
  const int Hkv = GENERATE(8, 4, 2, 1);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  CAPTURE(Hkv, d, causal);
  fa::test::require_right(kernel, bf16_problem(70, 90, d, causal, /*B=*/2, /*H=*/8, Hkv));
}

TEST_CASE("step 07: as many keys as one likes", "[step07]") {
  const auto [N, Nk] = GENERATE(from_range(fa::test::kLengths));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, Nk, d, causal);
  fa::test::require_right(kernel, bf16_problem(N, Nk, d, causal));
}

TEST_CASE("step 07: a row without keys gives O = 0 and LSE = -inf", "[step07]") {
  // One row; whole tiles of rows and a part of one; all but the last row.
  const auto [N, Nk] = GENERATE(std::pair(65, 64), std::pair(300, 20), std::pair(130, 1));
  const int d = GENERATE(64, 128);
  CAPTURE(N, Nk, d);
  const auto p = bf16_problem(N, Nk, d, /*causal=*/true, /*B=*/1, /*H=*/FA_BACKEND_GPU ? 64 : 2);
  const auto in = fa::normal_inputs(p, 9);
  fa::test::require_right(kernel, p, in);
  const fa::Outputs out = fa::run(kernel, p, in);
  const auto features = static_cast<size_t>(d);
  for (size_t row = 0; row < p.rows(); ++row) {
    const bool sees = p.visible(static_cast<int>(row % p.N)) > 0;
    const auto O = out.O.begin() + row * features;
    const bool zero = std::all_of(O, O + features, [](float o) { return o == 0; });
    const bool infinite = out.LSE[row] == -INFINITY;
    if (zero == sees || infinite == sees) FAIL("row " << row << " sees " << sees);
  }
}

TEST_CASE("step 07: random shapes", "[step07]") {
  std::mt19937 random(7);
  for (int i = 0; i < (FA_BACKEND_GPU ? 1000 : 200); ++i) {
    const fa::Problem p = fa::test::random_problem(random);
    CAPTURE(i, fa::describe(p));
    fa::test::require_right(kernel, p);
  }
}

TEST_CASE("step 07: real input and outliers", "[step07]") {
  const auto p = bf16_problem(150, 200, GENERATE(64, 128), true, /*B=*/1, /*H=*/4, /*Hkv=*/2);
  fa::test::require_right(kernel, p, fa::real_inputs(p, 1));
  fa::test::require_right(kernel, p, fa::outlier_inputs(p, 1));
}

TEST_CASE("step 07: behaves as attention must", "[step07]") {
  const int d = GENERATE(64, 128);
  const auto full = bf16_problem(75, 140, d, false), causal = bf16_problem(75, 140, d, true);
  // One rounding of P and one of O, to 8 bits each.
  fa::test::require_rows_sum_to_one(kernel, full, 0x1p-8);
  fa::test::require_rows_sum_to_one(kernel, causal, 0x1p-8);
  fa::test::require_shift_invariance(kernel, full, 0x1p-6);
  fa::test::require_shift_invariance(kernel, causal, 0x1p-6);
  fa::test::require_key_permutation(kernel, full, 0x1p-6);
  fa::test::require_any_score_size(kernel, causal);
}

TEST_CASE("step 07: agrees with step 06", "[step07]") {
  auto p = bf16_problem(130, 130, GENERATE(64, 128), GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 6);
  const fa::Outputs now = fa::run(kernel, p, in);
  p.dtype = fa::DType::f32;
  const fa::Outputs before = fa::run(parent, p, in);  // of the same, rounded inputs
  REQUIRE(fa::test::max_difference(now.O, before.O) <= 0x1p-6);
  REQUIRE(fa::test::max_difference(now.LSE, before.LSE) <= 2e-5);
}

TEST_CASE("step 07: two runs give the same bits", "[step07]") {
  const auto p = bf16_problem(330, 400, 64, GENERATE(false, true), 1, FA_BACKEND_GPU ? 64 : 2);
  const auto in = fa::normal_inputs(p, 7);
  const fa::Outputs once = fa::run(kernel, p, in), twice = fa::run(kernel, p, in);
  REQUIRE(once.O == twice.O);
  REQUIRE(once.LSE == twice.LSE);
}

// --- late rescale ---------------------------------------------------------------------------------

// Key c scores score(c), times what its row makes of it: the rows of every other warp agree, in the
// others some grow while others fall. All of these numbers are bf16, so the bound is a narrow one.
template <class F>
static fa::Inputs inputs_with_scores(const fa::Problem& p, const F& score) {
  REQUIRE((p.d == 64 && p.kv_heads() == 1));  // 1 / sqrt(64) is a power of two
  fa::Inputs in = fa::normal_inputs(p, 8);
  std::fill(in.Q.begin(), in.Q.end(), 0.f);
  constexpr float kFactors[] = {1, -1, 0.5f, 0.25f};
  for (size_t r = 0; r < p.rows(); ++r) {
    in.Q[r * p.d] = (r / step07::kRows % 2 ? kFactors[r % 4] : 1) / p.scale();
  }
  bool exact = true;
  for (int c = 0; c < p.Nk; ++c) {
    const float s = score(c);
    exact &= s == fa::round_to(p.dtype, s);
    in.K[static_cast<size_t>(c) * p.d] = s;
  }
  REQUIRE(exact);
  return in;
}

TEST_CASE("step 07: maxima that grow slowly, fast, not at all", "[step07]") {
  const auto p = bf16_problem(128, 7 * step07::Bc<64>, 64, GENERATE(false, true));
  constexpr int Bc = step07::Bc<64>;
  // 2^8 is e^5.545: a tile's step of 5.5 leaves O as it is, one of 5.75 does not.
  const float step = GENERATE(0.f, 1.f, 2.75f, 5.5f, 5.75f, 6.f, 20.f, 100.f);
  const float sign = GENERATE(1.f, -1.f);
  CAPTURE(p.causal, step, sign);
  fa::test::require_right(kernel, p, inputs_with_scores(p, [&](int c) {
                            return sign * step * static_cast<float>(c / Bc);
                          }));
  fa::test::require_right(kernel, p, inputs_with_scores(p, [&](int c) {  // up and down
                            return sign * (c / Bc % 2 ? step : -step);
                          }));
  fa::test::require_right(kernel, p, inputs_with_scores(p, [&](int c) {  // within a tile, too
                            return sign * step * static_cast<float>(c % 5);
                          }));
}

TEST_CASE("step 07: a maximum far from zero, and one key that outweighs all others", "[step07]") {
  const auto p = bf16_problem(128, 7 * step07::Bc<64>, 64, GENERATE(false, true));
  const float far = GENERATE(-30000.f, -2000.f, 2000.f, 30000.f);
  CAPTURE(p.causal, far);
  fa::test::require_right(kernel, p, inputs_with_scores(p, [&](int c) {
                            return fa::round_to(fa::DType::bf16, far * (c % 3 ? 1 : 1.125f));
                          }));
  const int peak = GENERATE(0, 127, 128, 300, 447);
  CAPTURE(peak);
  fa::test::require_right(kernel, p,
                          inputs_with_scores(p, [&](int c) { return c == peak ? 64.f : 0.f; }));
}

TEST_CASE("step 07: scores below -1e30, which bf16 can make", "[step07]") {
  const auto [N, Nk] = GENERATE(std::pair(40, 150), std::pair(150, 40));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), /*causal=*/true);
  const float q = GENERATE(-0x1p93f, -0x1p103f, -0x1p114f);  // -1e28 .. -2e34
  CAPTURE(N, Nk, p.d, q);
  fa::Inputs in = fa::normal_inputs(p, 10);
  // Powers of two: scores of such a size have no digit to lose before a weight is made of them.
  std::fill(in.Q.begin(), in.Q.end(), q);
  std::fill(in.K.begin(), in.K.end(), 1.f);
  fa::test::require_right(kernel, p, in);  // O: the mean of V
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] = i / p.d % 3 ? 1.f : 2.f;
  fa::test::require_right(kernel, p, in);
}

// --- bytes ----------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
static constexpr int keys_of_tile(int d) { return d == 64 ? step07::Bc<64> : step07::Bc<128>; }

TEST_CASE("step 07: predicted bytes are counted bytes", "[step07]") {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(17, 65), std::pair(129, 129),
                                std::pair(257, 131), std::pair(131, 257), std::pair(300, 20));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, Nk, d, causal);
  fa::test::require_predicted(kernel, bf16_problem(N, Nk, d, causal, 1, /*H=*/3, /*Hkv=*/1));
}

TEST_CASE("step 07: the formulas of the header", "[step07]") {
  const uint64_t d = GENERATE(64, 128), N = GENERATE(65, 193), Nk = 300, H = 4, Hkv = 2;
  CAPTURE(N, d);
  const auto p = bf16_problem(N, Nk, d, /*causal=*/false, /*B=*/3, H, Hkv);
  const uint64_t BH = 3 * H, BHkv = 3 * Hkv, Tr = (N + 127) / 128;
  const fa::Bytes counted = *fa::test::count_forward(kernel, p).requested;
  CHECK(counted.read == 2 * BH * (N * d + 2 * Tr * Nk * d));
  CHECK(counted.write == 2 * BH * N * d + 4 * BH * N);
  const fa::Bytes least = kernel.traffic(p).hbm;
  CHECK(least.read + least.write == 2 * (2 * BH * N * d + 2 * BHkv * Nk * d) + 4 * BH * N);
}

TEST_CASE("step 07: predicted bytes are counted bytes at N = 1024", "[step07]") {
  fa::test::require_predicted(kernel, bf16_problem(1024, 1024, 64, true));
  fa::test::require_predicted(kernel, bf16_problem(512, 1024, 128, true));
}

TEST_CASE("step 07: no bank conflicts, coalesced accesses", "[step07]") {
  const auto p = bf16_problem(128, 192, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(p.d, p.causal);
  const fa::Counts counts = fa::test::count_forward(kernel, p, /*analyse=*/true);
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

TEST_CASE("step 07: HBM sees inputs and outputs only, and keys once a group", "[step07]") {
  const uint64_t N = 256, Nk = 512, d = 64;
  const auto p = bf16_problem(N, Nk, d, false, 1, /*H=*/4, /*Hkv=*/2);
  CHECK(kernel.traffic(p).hbm ==
        fa::Bytes{.read = 2 * (4 * N + 2 * 2 * Nk) * d, .write = 4 * (2 * N * d + 4 * N)});
  const fa::Counts counts = fa::test::count_forward(kernel, p);
  REQUIRE(counts.hbm);
  CHECK(*counts.hbm == kernel.traffic(p).hbm);
}

TEST_CASE("step 07: causal tiles above the diagonal are not visited", "[step07]") {
  constexpr uint64_t d = 64, key = 2 * d;  // bytes
  const auto square = fa::test::count_forward(kernel, bf16_problem(512, 512, d, true));
  CHECK(square.buffers.at("K").bytes.read == (128 + 256 + 384 + 512) * key);
  CHECK(square.buffers.at("V").bytes.read == (128 + 256 + 384 + 512) * key);
  const auto wide = fa::test::count_forward(kernel, bf16_problem(256, 512, d, true));
  CHECK(wide.buffers.at("K").bytes.read == (384 + 512) * key);
  const auto tall = fa::test::count_forward(kernel, bf16_problem(512, 256, d, true));
  CHECK(tall.buffers.at("V").bytes.read == (0 + 0 + 128 + 256) * key);
}

TEST_CASE("step 07: multiplies no more than it says, on tensor cores", "[step07]") {
  const auto p = bf16_problem(300, 200, GENERATE(64, 128), GENERATE(false, true));
  CHECK(fa::test::count_forward(kernel, p).tensor_flops == kernel.traffic(p).flops);
}

TEST_CASE("step 07: the analysis finds nothing", "[step07]") {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(33, 33), std::pair(75, 130),
                                std::pair(150, 70), std::pair(300, 20));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  CAPTURE(N, Nk, d, causal);
  fa::test::count_forward(kernel, bf16_problem(N, Nk, d, causal, 1, 2), /*analyse=*/true);
}
#endif
