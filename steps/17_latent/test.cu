// Tests of step 17. steps/CMakeLists.txt has the sources that it is linked with.
#include <cmath>
#include <random>

#include "steps/17_latent/beyond/pairs.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;
using step17::d, step17::dv;

static const fa::Variant& absorbed() { return fa::linked_variant("17 absorbed"); }
static const fa::Variant& panels() { return fa::linked_variant("17 panels"); }
static const fa::Variant& exchange() { return fa::linked_variant("17 exchange"); }
static const fa::Variant& splits() { return fa::linked_variant("17 splits"); }
static const fa::Variant& resident() { return fa::linked_variant("17 resident"); }
static const fa::Variant& pairs() { return fa::linked_variant("17 pairs"); }

static const fa::Variant& any() {
  return *GENERATE(&absorbed(), &panels(), &exchange(), &splits(), &resident(), &pairs());
}

/// Of those that know pages and lengths.
static const fa::Variant& any_paged() { return *GENERATE(&splits(), &resident(), &pairs()); }

/// The problem on so few SMs that the longest entry has two splits, if it has two tiles.
static fa::Problem two_splits(const fa::Variant& v, const fa::Problem& of) {
  fa::Problem p = fa::problem_for(v, of);
  const int most = 2 * p.B * step17::row_blocks_of(p);
  for (p.gpu.sms = 1; p.gpu.sms < most && step17_splits::splits_of(p).count < 2;) ++p.gpu.sms;
  return p;
}

/// The variant on as many SMs as two_splits() gives the problem.
static fa::Variant in_two_splits(const fa::Variant& v) {
  fa::Variant two = v;
  two.forward = fa::Runner(
      v.forward.dtype(),
      [v](const fa::Problem& p, const fa::Tensors<void>& t) { v.forward(two_splits(v, p), t); });
  return two;
}

/// Right in two splits; simulated, also without a race, and with the predicted bytes.
static void require_two_splits(const fa::Variant& v, const fa::Problem& p) {
#if FA_BACKEND_GPU
  fa::test::require_right(in_two_splits(v), p);
#else
  fa::test::require_equal(
      v.traffic(two_splits(v, p)),
      fa::test::require_right_counted(in_two_splits(v), p, /*analyse=*/true).forward);
#endif
}

/// With two tokens the first does not see the second.
static fa::Problem latent(int H, int Nk, int N = 1, int B = 1) {
  return bf16_problem(N, Nk, d, /*causal=*/N > 1, B, H, /*Hkv=*/1);
}

/// Keys of several batch entries: none, one, ends of tiles, of pages and of splits.
static fa::Problem ragged(int page, int H, int N = 1) {
  auto p = latent(H, 449, N, /*B=*/8);
  p.cache.lengths = {0, 1, 449, 63, 64, 65, 128, 257};
  p.cache.page = page;
  return p;
}

TEST_CASE("step 17: right at the ends of tiles", "[step17]") {
  const int Nk = GENERATE(1, 2, 63, 64, 65, 127, 128, 129, 193);
  const int N = GENERATE(1, 2);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk, N);
  fa::test::require_right(variant, latent(16, Nk, N));
}

TEST_CASE("step 17: rows of all heads in blocks of 64", "[step17][all]") {
  const int H = GENERATE(1, 7, 16, 31, 32, 33, 64, 65, 128), N = GENERATE(1, 2, 7);
  const fa::Variant& variant = any();
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant.name, H, N);
  fa::test::require_right(variant, latent(H, 200, N, /*B=*/2));
}

TEST_CASE("step 17: fewer keys than queries: rows without keys", "[step17]") {
  const int Nk = GENERATE(1, 5, 70);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk);
  fa::test::require_right(variant, latent(5, Nk, /*N=*/16));
}

TEST_CASE("step 17: shuffled pages, ragged lengths", "[step17][all]") {
  const int page = GENERATE(0, 64, 128, 256), N = GENERATE(1, 2), H = GENERATE(16, 40);
  const fa::Variant& variant = any_paged();
  if (!fa::test::one_in(3)) return;
  CAPTURE(variant.name, page, N, H);
  fa::test::require_right(variant, ragged(page, H, N));
}

TEST_CASE("step 17: two splits, of several tiles and of ragged lengths", "[step17]") {
  const fa::Variant& variant = *GENERATE(&resident(), &pairs());
  const auto p = GENERATE(latent(33, 449, 2), ragged(0, 65), ragged(128, 20, 2));
  CAPTURE(variant.name, fa::describe(p));
  require_two_splits(variant, p);
}

TEST_CASE("step 17: random problems", "[step17][all]") {
  std::mt19937 random(17);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int i = 0; i < 328; ++i) {  // 28 of them in the short run
    const fa::Variant* variants[] = {&pairs(),    &resident(), &splits(),
                                     &absorbed(), &panels(),   &exchange()};
    const fa::Variant& variant = *variants[i % 7 % 6];
    const int B = between(1, 3), Nk = between(1, 300);
    const int N = between(0, 2) > 0 ? between(1, 2) : between(1, 16);
    auto p = latent(between(1, 128), Nk, N, B);
    p.causal = between(0, 1);
    const bool paged = i % 7 % 6 < 3;
    const bool in_two = paged && between(0, 1);
    if (paged && between(0, 3) > 0) p.cache.page = 64 << between(0, 2);
    if (paged && between(0, 3) > 0) {
      for (int b = 0; b < B; ++b) p.cache.lengths.push_back(between(0, Nk));
    }
    if (!fa::test::is_now(i % 12 == 0)) continue;
    CAPTURE(i, variant.name, fa::describe(p), in_two);
    if (in_two) {
      require_two_splits(variant, p);
      continue;
    }
#if FA_BACKEND_GPU
    fa::test::require_right(variant, p);
#else
    p = fa::problem_for(variant, p);
    fa::test::require_equal(variant.traffic(p),
                            fa::test::require_right_counted(variant, p, /*analyse=*/true).forward);
#endif
  }
}

// The unabsorbed form has K and V of each head: K = [W_UK c, k_rope], V = W_UV c. Integers, so that
// W_UK^T q is exact in bf16.
TEST_CASE("step 17: W_UK and W_UV absorbed give what K and V per head give", "[step17]") {
  constexpr int H = 3, kHead = 128, kRope = d - dv, Nk = 70;
  const fa::Variant& variant = any();
  CAPTURE(variant.name);
  const auto p = fa::problem_for(variant, latent(H, Nk));
  std::mt19937 random(1);
  const auto draw = [&](size_t n, unsigned rarely) {
    std::vector<float> all(n);
    for (float& x : all) x = random() % rarely ? 0.f : random() % 2 ? 1.f : -1.f;
    return all;
  };
  const auto W_UK = draw(H * kHead * dv, 4), W_UV = draw(H * kHead * dv, 4);  // [H, kHead, dv]
  const auto q = draw(H * kHead, 2), q_rope = draw(H * kRope, 2), cache = draw(Nk * d, 4);
  fa::Inputs in = fa::normal_inputs(p, 1);
  in.K = cache;
  for (int h = 0; h < H; ++h) {
    for (int x = 0; x < d; ++x) {
      float& sum = in.Q[h * d + x] = x < dv ? 0.f : q_rope[h * kRope + x - dv];
      for (int i = 0; x < dv && i < kHead; ++i) {
        sum += W_UK[(h * kHead + i) * dv + x] * q[h * kHead + i];
      }
      REQUIRE(sum == fa::round_to(fa::DType::bf16, sum));
    }
  }
  const fa::Outputs out = fa::run(variant, p, in);
  double worst = 0, largest = 0;
  for (int h = 0; h < H; ++h) {
    std::vector<double> P(Nk), k(kHead);
    const auto project = [&](const std::vector<float>& W, const auto* c, int i) {
      double sum = 0;
      for (int x = 0; x < dv; ++x) sum += W[(h * kHead + i) * dv + x] * double(c[x]);
      return sum;
    };
    double l = 0;
    for (int c = 0; c < Nk; ++c) {
      double s = 0;
      for (int i = 0; i < kHead; ++i) s += q[h * kHead + i] * project(W_UK, &cache[c * d], i);
      for (int x = 0; x < kRope; ++x) s += q_rope[h * kRope + x] * cache[c * d + dv + x];
      l += P[c] = std::exp(s * p.scale());
    }
    for (int i = 0; i < kHead; ++i) {
      double want = 0;
      for (int c = 0; c < Nk; ++c) want += P[c] / l * project(W_UV, &cache[c * d], i);
      worst = std::max(worst, std::abs(want - project(W_UV, &out.O[h * dv], i)));
      largest = std::max(largest, std::abs(want));
    }
  }
  CAPTURE(worst, largest);
  CHECK(largest > 1);
  CHECK(worst <= 0x1p-6 * largest);
}

TEST_CASE("step 17: behaves as attention must", "[step17]") {
  const fa::Variant& variant = any();
  CAPTURE(variant.name);
  const auto full = latent(20, 150), causal = latent(20, 150, 2);
  fa::test::require_key_permutation(variant, full, 0x1p-6);
  fa::test::require_any_score_size(variant, causal);
  const auto p = fa::problem_for(variant, full);
  fa::Inputs in = fa::normal_inputs(p, 2);
  for (size_t i = 0; i < in.K.size(); ++i) {
    if (i % d < size_t(dv)) in.K[i] = 1.f;  // each value is 1, and so is their mean
  }
  const fa::Outputs out = fa::run(variant, p, in);
  CHECK(fa::test::max_difference(out.O, std::vector<float>(out.O.size(), 1.f)) <= 0x1p-8);
}

TEST_CASE("step 17: real input and outliers, and maxima that grow", "[step17]") {
  const fa::Variant& variant = any();
  const auto p = fa::problem_for(variant, latent(16, 300, 2));
  CAPTURE(variant.name);
  fa::test::require_right(variant, p, fa::real_inputs(p, 1));
  fa::test::require_right(variant, p, fa::outlier_inputs(p, 1));
  fa::Inputs in = fa::normal_inputs(p, 3);
  for (size_t i = 0; i < in.Q.size(); i += d) in.Q[i] = 1.f;
  for (size_t c = 0; c < size_t(p.Nk); ++c) in.K[c * d] = float(c / 16);  // up to 18 * 2 / 24
  fa::test::require_right(variant, p, in);
  for (size_t c = 200; c < size_t(p.Nk); ++c) in.K[c * d] = 4096;  // 2^246 times the others
  fa::test::require_right(in_two_splits(variant), p, in);
}

TEST_CASE("step 17: what follows a sequence's keys changes no bit", "[step17]") {
  const fa::Variant& variant = any_paged();
  const auto p = fa::problem_for(variant, ragged(GENERATE(0, 64, 256), 16));
  CAPTURE(variant.name, p.cache.page);
  const auto in = fa::normal_inputs(p, 3);
  auto garbage = in;
  for (size_t i = 0; i < in.K.size(); ++i) {
    if (i / d % p.Nk >= size_t(p.keys_of(i / d / p.Nk))) garbage.K[i] = i % 2 ? NAN : INFINITY;
  }
  fa::test::require_right(variant, p, garbage);
  const fa::Outputs clean = fa::run(variant, p, in), got = fa::run(variant, p, garbage);
  CHECK(got.O == clean.O);
  CHECK(got.LSE == clean.LSE);
}

TEST_CASE("step 17: neither pages nor the order of blocks change a bit", "[step17]") {
  const fa::Variant& variant = any_paged();
  auto p = fa::problem_for(variant, ragged(0, 40, 2));
  fa::Inputs in = fa::normal_inputs(p, 8);
  const fa::Outputs first = fa::run(variant, p, in);
  for (const uint64_t order : {1, 2, 3}) {
    CAPTURE(variant.name, order);
    p.cache.page = 32 << order;
    in.table = fa::shuffled_table(p, order);
    const fa::Outputs again = fa::test::run_in_order(order, variant, p, in);
    CHECK(again.O == first.O);
    CHECK(again.LSE == first.LSE);
  }
}

#if !FA_BACKEND_GPU
TEST_CASE("step 17: predicted bytes are counted bytes", "[step17]") {
  const int Nk = GENERATE(1, 131, 320), N = GENERATE(1, 2), H = GENERATE(16, 65);
  const fa::Variant& variant = any();
  CAPTURE(variant.name, Nk, N, H);
  fa::test::require_predicted(variant, latent(H, Nk, N, /*B=*/2));
}

TEST_CASE("step 17: predicted bytes are counted bytes of pages and lengths", "[step17][all]") {
  const int page = GENERATE(0, 64, 256), N = GENERATE(1, 2);
  const fa::Variant& variant = any_paged();
  if (!fa::test::one_in(2)) return;
  CAPTURE(variant.name, page, N);
  fa::test::require_predicted(variant, ragged(page, 40, N));
}

TEST_CASE("step 17: the formulas of the headers", "[step17]") {
  const uint64_t N = GENERATE(1, 2), Nk = 257, H = 65, B = 2, t = (H * N + 63) / 64;
  auto p = latent(H, Nk, N, B);
  p.causal = false;
  CAPTURE(N);
  const uint64_t compulsory = 2 * B * (H * N * d + Nk * d + H * N * dv) + 4 * B * H * N;
  const auto counted = [&](const fa::Variant& v) {
    return *fa::test::count_forward(v, p).requested;
  };
  CHECK(counted(absorbed()).read == 2 * B * H * N * d * (1 + Nk));
  for (const fa::Variant* v : {&panels(), &exchange()}) {
    CHECK(counted(*v).read == 2 * B * d * (H * N + t * Nk));
    CHECK(counted(*v).write == 2 * B * H * N * dv + 4 * B * H * N);
    CHECK(v->traffic(p).hbm.total() == compulsory);
  }
  const uint64_t s = step17_splits::splits_of(fa::problem_for(splits(), p)).count;
  REQUIRE(s > 1);
  for (const fa::Variant* v : {&splits(), &resident(), &pairs()}) {
    const fa::Bytes of_splits = counted(*v);
    CHECK(of_splits.read == 2 * d * (B * s * H * N + B * t * Nk) + 4 * B * s * H * N * (dv + 128));
    CHECK(of_splits.write == 2 * B * H * N * dv + 4 * B * H * N + 4 * B * s * H * N * (dv + 1));
  }
  // Two splits: without parts, without a merge.
  const fa::Counts of_pairs = fa::test::count_forward(in_two_splits(pairs()), p);
  CHECK(of_pairs.requested->read == 2 * d * (B * 2 * H * N + B * t * Nk));
  CHECK(of_pairs.requested->write == 2 * B * H * N * dv + 4 * B * H * N);
  CHECK(of_pairs.kernels.size() == 1);
  CHECK(pairs().workspace(two_splits(pairs(), p)).empty());
  CHECK(fa::test::count_forward(in_two_splits(resident()), p).kernels.size() == 2);
}

TEST_CASE("step 17: panels computes S twice, the others once", "[step17]") {
  const auto p = latent(64, 128);
  const auto flops = [&](const fa::Variant& v) {
    return *fa::test::count_forward(v, p).tensor_flops;
  };
  CHECK(flops(panels()) == 2 * 64 * 128 * (2 * d + dv));
  for (const fa::Variant* v : {&exchange(), &splits(), &resident(), &pairs()}) {
    CHECK(flops(*v) == 2 * 64 * 128 * (d + dv));
  }
}

TEST_CASE("step 17: what wgmma reads of shared memory, for each tile", "[step17]") {
  const auto kilobytes = [](const fa::Variant& v) {  // of two tiles
    return fa::test::count_forward(v, latent(64, 128)).kernels[0].wgmma_wavefronts * 128 / 1024;
  };
  CHECK(kilobytes(panels()) == 2 * (2 * (72 + 72) + 64));      // S twice, P in registers
  CHECK(kilobytes(exchange()) == 2 * (72 + 72 + 64 + 2 * 8));  // Q, the tile, its value, P twice
  CHECK(kilobytes(splits()) == 2 * (72 + 72 + 64 + 2 * 8));
  for (const fa::Variant* v : {&resident(), &pairs()}) {  // of Q: 16 features and the position
    CHECK(kilobytes(*v) == 2 * (2 + 8 + 72 + 64 + 2 * 8));
  }
}

TEST_CASE("step 17: as many blocks as SMs, unless tiles are few or the merge costs more",
          "[step17]") {
  const auto blocks = [](int B, int Nk, int H) {
    const auto p = fa::problem_for(splits(), latent(H, Nk, 1, B));
    return step17_splits::splits_of(p).count * B * step17::row_blocks_of(p);
  };
  CHECK(blocks(1, 1 << 16, 16) == 128);
  CHECK(blocks(1, 64, 128) == 2);
  CHECK(blocks(8, 1 << 14, 128) == 128);
  CHECK(blocks(128, 1 << 12, 128) == 256);
  CHECK(blocks(1, 1 << 12, 32) == 64);
  CHECK(blocks(1, 1 << 12, 128) ==
        64);  // 32 splits of 2 tiles, where 64 would store twice the parts
  CHECK(blocks(2, 1 << 11, 128) == 64);
  CHECK(fa::test::count_forward(splits(), latent(16, 60)).kernels.size() == 1);
  CHECK(fa::test::count_forward(splits(), latent(16, 200)).kernels.size() == 2);
}

TEST_CASE("step 17: no bank conflicts, whole sectors", "[step17]") {
  const fa::Variant& variant = any();
  CAPTURE(variant.name);
  const fa::Counts counts =
      fa::test::count_forward(variant, fa::problem_for(variant, latent(33, 200, 2)));
  fa::test::require_no_conflicts(counts);
  const fa::BufferCount& O = counts.buffers.at("O");
  CHECK(O.sectors.store * 32 == O.bytes.write);
  if (variant.name != "absorbed") return;  // copies by TMA have no sectors
  const fa::BufferCount& K = counts.buffers.at("K");
  CHECK(K.sectors.load * 32 == K.bytes.read);
}

TEST_CASE("step 17: the analysis finds nothing", "[step17]") {
  const fa::Variant& variant = any();
  const int Nk = GENERATE(1, 65, 257);
  CAPTURE(variant.name, Nk);
  fa::test::count_forward(variant, fa::problem_for(variant, latent(33, Nk, 2)), /*analyse=*/true);
}

TEST_CASE("step 17: the analysis finds nothing in splits of several tiles", "[step17]") {
  const fa::Variant few = fa::test::on_blocks(any_paged(), 1);  // one split
  const auto p = fa::problem_for(few, latent(33, GENERATE(320, 449), 2));
  CAPTURE(few.name, p.Nk);
  fa::test::count_forward(few, p, /*analyse=*/true);
}

TEST_CASE("step 17: the analysis finds nothing in pages", "[step17]") {
  const fa::Variant& variant = any_paged();
  const auto p = fa::problem_for(variant, ragged(GENERATE(0, 64, 128), 33, 2));
  CAPTURE(variant.name, p.cache.page);
  fa::test::count_forward(variant, p, /*analyse=*/true);
}
#endif
