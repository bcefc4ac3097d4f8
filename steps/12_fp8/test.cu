// Tests of step 12. steps/CMakeLists.txt has the sources that it is linked with.
#include "steps/12_fp8/2_tensor.cuh"
#include "steps/12_fp8/beyond/late.cuh"
#include "tests/attention.h"

using fa::test::bf16_problem;

static const fa::Variant& parent() { return fa::linked_variant("10 scheduled"); }
static const fa::Variant& tensor() { return fa::linked_variant("12 tensor"); }
static const fa::Variant& heads() { return fa::linked_variant("12 heads"); }
static const fa::Variant& centred() { return fa::linked_variant("12 centred"); }
static const fa::Variant& blocks() { return fa::linked_variant("12 blocks"); }
static const fa::Variant& rotated() { return fa::linked_variant("12 rotated"); }
static const fa::Variant& late() { return fa::linked_variant("12 late"); }

// With this many blocks instead of one per SM.
template <int kBlocks>
static const fa::Variant& late_on() {
  static const fa::Variant variant = fa::test::on_blocks(late(), kBlocks);
  return variant;
}
static const fa::Variant& few_blocks() { return late_on<0>(); }
static const fa::Variant& rotated_on_few_blocks() {
  static const fa::Variant variant = fa::test::on_blocks(rotated(), 0);
  return variant;
}

// One of them per run of the test.
static const fa::Variant& any() {
  const fa::Variant* variant =
      GENERATE(&tensor(), &heads(), &centred(), &blocks(), &rotated_on_few_blocks(), &few_blocks());
  UNSCOPED_INFO("variant " << variant->name);
  return *variant;
}
// One of those whose attention kernels, or V's, differ.
static const fa::Variant& any_kernel() {
  const fa::Variant* variant = GENERATE(&tensor(), &rotated_on_few_blocks(), &few_blocks());
  UNSCOPED_INFO("variant " << variant->name);
  return *variant;
}

static fa::Inputs with_mean(fa::Inputs in, float mean) {
  for (float& v : in.V) v = fa::round_to(fa::DType::bf16, v + mean);
  return in;
}
static fa::TensorCheck check_of_O(const fa::Variant& v, fa::Problem p, const fa::Inputs& in) {
  p.method.fp8 = v.fp8;
  return fa::check(p, in, fa::run(v, p, in), fa::sample_of(p, 1, 1e18)).tensors.at(0);
}

TEST_CASE("step 12: what every forward on tensor cores is asked", "[step12][all]") {
  fa::test::require_forward(any_kernel(), /*predicted=*/false);
}

TEST_CASE("step 12: the same with other scales", "[step12][all]") {
  const fa::Variant& variant = *GENERATE(&heads(), &centred(), &blocks());
  CAPTURE(variant.name);
  SECTION("rows without keys") { fa::test::require_blind_rows(variant); }
  SECTION("two runs give the same bits") { fa::test::require_same_bits(variant); }
  SECTION("real input and outliers") {
    if (fa::test::is_now(true)) fa::test::require_right_for_real_and_outliers(variant);
  }
#if !FA_BACKEND_GPU
  SECTION("the analysis finds nothing") { fa::test::require_no_finding(variant); }
#endif
}

TEST_CASE("step 12: random shapes", "[step12][all]") {
  fa::test::require_right_for_random_shapes({GENERATE(&few_blocks(), &rotated_on_few_blocks())},
                                            10);
}

TEST_CASE("step 12: a head dimension of 256", "[step12][all]") {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(70, 90), std::pair(128, 64),
                                std::pair(200, 333), std::pair(333, 200));
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(7)) return;
  CAPTURE(N, Nk, causal);
  const auto p = bf16_problem(N, Nk, 256, causal, 1, /*H=*/4, /*Hkv=*/2);
  fa::test::require_right(few_blocks(), p);
  fa::test::require_right(few_blocks(), p, fa::real_inputs(p, 1));
#if !FA_BACKEND_GPU
  fa::test::require_predicted(late(), p);
  fa::test::require_prepare_predicted(late(), p);
#endif
}

TEST_CASE("step 12: V with a mean", "[step12][all]") {
  const fa::Variant& variant = any_kernel();
  const auto p = bf16_problem(150, 200, GENERATE(64, 128), GENERATE(false, true), 1, 2);
  const float mean = GENERATE(1.f, -3.f, 100.f);
  if (!fa::test::one_in(5)) return;
  CAPTURE(p.d, p.causal, mean);
  fa::test::require_right(variant, p, with_mean(fa::normal_inputs(p, 3), mean));
}

TEST_CASE("step 12: as many blocks as one likes give the same bits", "[step12][all]") {
  fa::test::require_same_bits_on_blocks(late());
}

TEST_CASE("step 12: near step 10", "[step12][all]") {
  const fa::Variant& variant = any_kernel();
  const auto p = bf16_problem(300, 430, GENERATE(64, 128), GENERATE(false, true), 1, 4, 2);
  if (!fa::test::one_in(5)) return;
  CAPTURE(p.d, p.causal);
  const auto in = fa::normal_inputs(p, 6);
  const fa::Outputs now = fa::run(variant, p, in), before = fa::run(parent(), p, in);
  double squares = 0;
  for (size_t i = 0; i < now.O.size(); ++i) squares += std::pow(now.O[i] - before.O[i], 2);
  CHECK(std::sqrt(squares / double(now.O.size())) < 0.03);  // of numbers of size 1
  CHECK(fa::test::max_difference(now.LSE, before.LSE) < 0.1);
}

// --- the two traps of fp8 ------------------------------------------------------------------------

// With step 10's growth of 2^8 it does: see the exercise full_scale.
TEST_CASE("step 12: a P that a stale maximum lets grow does not saturate", "[step12]") {
  const auto p = bf16_problem(128, 640, 64, false);
  // The maximum of the last tile is e^4 times the others: 2^5.8.
  const auto in = fa::test::inputs_with_scores(p, step12::kGroupRows / 4,
                                               [](int c) { return c < 128 ? 4.f : 0.f; });
  fa::test::require_right(centred(), p, in);
  fa::test::require_right(late(), p, in);
}

TEST_CASE("step 12: sums of 13 bits lose V's mean, unless it is taken out", "[step12]") {
  const auto p = bf16_problem(64, 8192, 64, false);
  const auto in = fa::normal_inputs(p, 5);
  CHECK(check_of_O(tensor(), p, in).ok);  // nothing shows
  const auto one = with_mean(in, 1);
  const fa::TensorCheck lost = check_of_O(tensor(), p, one);
  CHECK_FALSE(lost.ok);
  CHECK(lost.rmse > 0.05);
  for (const fa::Variant* variant : {&centred(), &blocks(), &rotated(), &late()}) {
    const fa::TensorCheck kept = check_of_O(*variant, p, one);
    CAPTURE(variant->name, kept.message);
    CHECK(kept.ok);
    CHECK(kept.rmse < 0.005);
  }
}

TEST_CASE("step 12: a row that attends to keys of another mean still loses it", "[step12]") {
  const auto p = bf16_problem(64, 8192, 64, false);
  // V is around 1 in the first half and around -1 in the second; each row sees one half.
  auto in = fa::test::inputs_with_scores(p, step12::kGroupRows / 4,
                                         [&](int c) { return c < p.Nk / 2 ? 8.f : -8.f; });
  for (size_t i = 0; i < in.V.size(); ++i) {
    in.V[i] = fa::round_to(fa::DType::bf16, in.V[i] + (i < in.V.size() / 2 ? 1.f : -1.f));
  }
  CHECK_FALSE(check_of_O(*GENERATE(&centred(), &late()), p, in).ok);
}

TEST_CASE("step 12: each block of Q and each feature of V has its own scale", "[step12][all]") {
  const fa::Variant& variant = any_kernel();
  const auto p = bf16_problem(250, 300, GENERATE(64, 128), GENERATE(false, true), 2, 4, 2);
  if (!fa::test::one_in(5)) return;
  auto in = fa::normal_inputs(p, 11);
  const size_t d = p.d, head = p.Nk * d;
  for (size_t i = 0; i < in.Q.size(); ++i) in.Q[i] *= std::exp2(float(i / d % p.N / 64 % 3) - 2);
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] *= std::exp2(float(i / d % p.Nk / 64 % 3) - 2);
  for (size_t i = 0; i < in.V.size(); ++i)
    in.V[i] *= std::exp2(float((i % d + 3 * (i / head)) % 7));
  const fa::Outputs out = fa::run(variant, p, in), bf16 = fa::run(parent(), p, in);
  // Relative to each feature's size: the check's bound is relative to the row's largest.
  const size_t group = p.H / p.Hkv;
  for (size_t i = 0; i < out.O.size(); ++i) {
    const size_t kv = i / (p.N * d) / group;
    const float size = std::exp2(float((i % d + 3 * kv) % 7));
    if (std::fabs(out.O[i] - bf16.O[i]) > 0.5f * size) FAIL("O[" << i << "] is " << out.O[i]);
  }
  fa::test::require_right(variant, p, in);
}

TEST_CASE("step 12: each head of several parts has its own means and scales", "[step12]") {
  const auto [variant, d] =
      GENERATE(std::pair(&centred(), 128), std::pair(&blocks(), 64), std::pair(&late(), 128));
  CAPTURE(variant->name, d);  // parts of 1024 keys or, if d is 128, of 512
  const auto p = bf16_problem(30, 1100, d, false, /*B=*/2, /*H=*/2, /*Hkv=*/2);
  fa::Inputs in = fa::normal_inputs(p, 12);
  for (size_t i = 0; i < in.V.size(); ++i) {
    const int head = static_cast<int>(i / d / p.Nk);
    const float v = in.V[i] + 2.f * static_cast<float>(head);
    in.V[i] = fa::round_to(fa::DType::bf16, std::ldexp(v, 6 * (head ^ 1)));
  }
  fa::test::require_right(*variant, p, in);
}

TEST_CASE("step 12: a constant V is exact without its mean", "[step12]") {
  const fa::Variant& variant = *GENERATE(&centred(), &rotated(), &late());
  const auto p = bf16_problem(75, 140, GENERATE(64, 128), GENERATE(false, true));
  auto in = fa::normal_inputs(p, 2);
  std::fill(in.V.begin(), in.V.end(), 0.75f);
  for (const float o : fa::run(variant, p, in).O) REQUIRE(o == 0.75f);
}

TEST_CASE("step 12: a scale for each head is for each head", "[step12]") {
  const auto p = bf16_problem(64, 128, 64, false, 1, /*H=*/2, /*Hkv=*/2);
  auto in = fa::normal_inputs(p, 3);
  // Most of Q's head 1 is below what the tensor's scale preserves; its scores are not small.
  for (size_t i = in.Q.size() / 2; i < in.Q.size(); ++i) in.Q[i] *= 0x1p-17f;
  for (size_t i = in.K.size() / 2; i < in.K.size(); ++i) in.K[i] *= 0x1p14f;
  for (size_t i = in.V.size() / 2; i < in.V.size(); ++i) in.V[i] *= 0x1p10f;
  const fa::Outputs one = fa::run(tensor(), p, in), each = fa::run(heads(), p, in);
  float most = 0;
  for (size_t row = 64; row < 128; ++row) {
    most = std::max(most, std::fabs(one.LSE[row] - each.LSE[row]));
  }
  CHECK(most > 0.01f);
  fa::test::require_right(heads(), p, in);
}

TEST_CASE("step 12: rotating makes outliers' errors smaller", "[step12]") {
  const auto p = bf16_problem(512, 512, 128, false);
  const auto in = fa::outlier_inputs(p, 1);
  const double before = check_of_O(blocks(), p, in).rmse, after = check_of_O(rotated(), p, in).rmse;
  CAPTURE(before, after);
  CHECK(after < 0.85 * before);
}

// --- maxima --------------------------------------------------------------------------------------

TEST_CASE("step 12: maxima that grow slowly, fast, not at all", "[step12][all]") {
  fa::test::require_right_for_any_maxima(*GENERATE(&rotated_on_few_blocks(), &few_blocks()),
                                         step12::kGroupRows / 4, 64);
}

TEST_CASE("step 12: a jump of the maximum that a late question must survive", "[step12][all]") {
  const auto p = bf16_problem(128, 448, 64, GENERATE(false, true));
  const float jump = GENERATE(3.f, 4.f, 12.f, 28.f, 30.f, 40.f, 90.f, 200.f);
  const int peak = GENERATE(0, 63, 64, 200, 300, 447);
  if (!fa::test::one_in(7)) return;
  CAPTURE(p.causal, jump, peak);
  fa::test::require_right(few_blocks(), p,
                          fa::test::inputs_with_scores(p, step12::kGroupRows / 4, [&](int c) {
                            return c == peak ? jump : 0.f;
                          }));
  fa::test::require_right(few_blocks(), p,
                          fa::test::inputs_with_scores(p, step12::kGroupRows / 4, [&](int c) {
                            return c == peak ? jump / 2 : -jump / 2;
                          }));
}

TEST_CASE("step 12: rows whose first tile is all masked", "[step12][all]") {
  // The diagonal begins anywhere in a tile: Nk - N is no multiple of 16.
  const int more = GENERATE(range(-130, 131, 13));
  const auto p = bf16_problem(200, 200 + more, GENERATE(64, 128), /*causal=*/true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(p.Nk, p.d);
  fa::test::require_right(few_blocks(), p);
}

TEST_CASE("step 12: where its quantisation takes longer than it saves, it says so", "[step12]") {
  const auto says = [](int N, int Nk, int d, bool causal, int H = 2, int Hkv = 2) {
    const std::string words = tensor().advice(bf16_problem(N, Nk, d, causal, 3, H, Hkv));
    const size_t from = words.find(" from ") + 6, to = words.find(" queries and keys on");
    return words.empty() ? 0 : std::stoi(words.substr(from, to - from));
  };
  CHECK((says(8191, 8191, 64, false) == 8192 && says(8192, 8192, 64, false) == 0));
  CHECK((says(4095, 4095, 128, false) == 4096 && says(4096, 4096, 128, false) == 0));
  CHECK((says(8191, 8191, 128, true) == 8192 && says(8192, 8192, 128, true) == 0));
  CHECK(says(64, 64, 256, false) == 0);
  // Heads that share keys have fewer rows to quantise; of two lengths the shorter one decides.
  CHECK((says(4095, 4095, 64, false, 4, 1) == 8192 && says(4096, 4096, 64, false, 4, 1) == 0));
  CHECK((says(5460, 1 << 20, 64, false) > 0 && says(5520, 1 << 20, 64, false) == 0));
  CHECK((says(1 << 20, 2730, 64, false) > 0 && says(1 << 20, 2760, 64, false) == 0));
}

// --- the quantisation ----------------------------------------------------------------------------

// The prepare and the attention define these sizes separately.
static_assert(step12::kKeyRows == step12_tensor::Tiling<64, true>::Bc);
static_assert(step12::kKeyRows == step12_tensor::Tiling<128, true>::Bc);
static_assert(step12::kQueryRows == step12::kGroupRows);

TEST_CASE("step 12: places of V^T hold each key once, as P's bytes do", "[step12]") {
  bool held[step12::kPlaces] = {};
  for (int p = 0; p < step12::kPlaces; ++p) held[step12::key_at(p)] = true;
  for (const bool h : held) CHECK(h);
}

TEST_CASE("step 12: zeros, very small and very large numbers", "[step12][all]") {
  const fa::Variant& variant = any();
  const auto p = bf16_problem(40, 600, 64, GENERATE(false, true));
  if (!fa::test::one_in(5)) return;
  auto in = fa::normal_inputs(p, 4);
  std::fill(in.Q.begin(), in.Q.end(), 0.f);
  fa::test::require_right(variant, p, in);
  std::fill(in.V.begin(), in.V.end(), 0.f);
  fa::test::require_right(variant, p, in);
  std::fill(in.V.begin(), in.V.end(), 0x1p120f);  // their sum is no float
  fa::test::require_right(variant, p, in);
  for (std::vector<float>* x : {&in.Q, &in.K}) std::fill(x->begin(), x->end(), 0x1p-125f);
  std::fill(in.V.begin(), in.V.end(), 0x1p-40f);
  in.Q[3] = in.K[3] = in.V[3] = 0;
  fa::test::require_right(variant, p, in);
}

TEST_CASE("step 12: a NaN is not hidden", "[step12]") {
  const fa::Variant& variant = any();
  const auto p = bf16_problem(130, 200, 64, false);
  auto in = fa::normal_inputs(p, 4);
  std::vector<float>& where = *GENERATE_REF(&in.Q, &in.K, &in.V);
  where[70 * 64 + 5] = NAN;
  const fa::Outputs out = fa::run(variant, p, in);
  size_t seen = 0;
  for (const float o : out.O) seen += std::isnan(o);
  CHECK(seen > 0);
}

// --- bytes ---------------------------------------------------------------------------------------

#if !FA_BACKEND_GPU
// Of those whose forwards differ.
static const fa::Variant& any_forward() { return *GENERATE(&rotated(), &late()); }

TEST_CASE("step 12: predicted bytes are counted bytes", "[step12][all]") {
  fa::test::require_predicted_for_lengths(any_forward());
}

TEST_CASE("step 12: predicted bytes of the quantisation are counted bytes", "[step12][all]") {
  const fa::Variant& variant =
      *GENERATE(&tensor(), &heads(), &centred(), &blocks(), &rotated(), &late());
  const auto [N, Nk] = GENERATE(from_range(fa::test::kLengths));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), GENERATE(false, true), 1, 4, 2);
  if (!fa::test::one_in(5)) return;
  CAPTURE(variant.name, N, Nk, p.d, p.causal);
  fa::test::require_prepare_predicted(variant, p);
}

TEST_CASE("step 12: the formulas of the headers", "[step12]") {
  const uint64_t N = 384, Nk = 400, BH = 12, BHkv = 6;
  const uint64_t d = GENERATE(64, 128);
  const auto p = bf16_problem(N, Nk, d, false, /*B=*/3, /*H=*/4, /*Hkv=*/2);
  const uint64_t Br = d == 64 ? 192 : 128, Tr = N / Br, Nkp = 512;
  CHECK((step12::padded_keys(p) == Nkp && step12::stored_keys(p) == Nkp));
  const fa::Counts counts = fa::test::count_forward(tensor(), p);
  const auto read = [&](const char* name) { return counts.buffers.at(name).bytes.read; };
  CHECK(read("Q8") == BH * N * d);
  CHECK(read("K8") == Tr * BH * Nk * d);
  CHECK(read("V8") == Tr * BH * Nkp * d);
  CHECK(read("K_scale") == BH * (N / 64) * 4 * 512);
  const fa::Counts prepare = fa::test::count_prepare(tensor(), p);
  CHECK(prepare.buffers.at("Q").bytes.read == 2 * 2 * BH * N * d);
  CHECK(prepare.buffers.at("V").bytes.read == 2 * 2 * BHkv * Nk * d);
  CHECK(prepare.buffers.at("K8").bytes.write == BHkv * Nk * d);
  const fa::Counts once = fa::test::count_prepare(blocks(), p);
  CHECK(once.buffers.at("Q").bytes.read == 2 * BH * N * d);
}

TEST_CASE("step 12: no bank conflicts in the attention", "[step12]") {
  const fa::Variant& variant = any_forward();
  const auto p = bf16_problem(70, 70, GENERATE(64, 128), GENERATE(false, true));
  CAPTURE(p.d, p.causal, variant.name);
  fa::test::require_no_conflicts(fa::test::count_forward(variant, p, /*analyse=*/true));
}

TEST_CASE("step 12: the analysis finds nothing in the quantisation", "[step12]") {
  const fa::Variant& variant = *GENERATE(&tensor(), &centred(), &rotated(), &late());
  fa::test::count_prepare(variant, bf16_problem(90, 150, GENERATE(64, 128), true, 1, 2), true);
}

TEST_CASE("step 12: the analysis finds nothing at the seam between work tiles", "[step12][all]") {
  const fa::Variant& variant = *GENERATE(&late_on<1>(), &late_on<2>());
  const int d = GENERATE(64, 128, 256);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  CAPTURE(d, causal);
  fa::test::count_forward(variant, bf16_problem(300, 300, d, causal, 1, /*H=*/3),
                          /*analyse=*/true);
}

TEST_CASE("step 12: HBM sees each operand of the forward once, of the quantisation once a kernel",
          "[step12][all]") {
  const fa::Variant& variant = any();
  const uint64_t H = 2, N = 1024, d = GENERATE(64, 128), elements = H * N * d;
  if (!fa::test::one_in(5)) return;
  const auto p = bf16_problem(N, N, d, false, 1, H, H);
  CAPTURE(variant.name, d);
  const fa::Bytes forward = variant.traffic(p).hbm;
  const fa::Counts counts = fa::test::count_forward(variant, p);
  REQUIRE(counts.hbm);
  CHECK(double(counts.hbm->read) == Approx(double(forward.read)).epsilon(0.02));
  CHECK(double(counts.hbm->write) == Approx(double(forward.write)).epsilon(0.02));
  // Scales of a block need no kernel that first finds the largest of all. V is read twice.
  const std::string name = variant.name;
  const uint64_t passes = name == "tensor" || name == "heads" || name == "centred" ? 6 : 4;
  const fa::Bytes prepare = variant.prepare_traffic(p).hbm;
  CHECK(double(prepare.read) == Approx(2. * passes * elements).epsilon(0.02));
  CHECK(double(prepare.write) == Approx(3. * elements).epsilon(0.02));
}
#endif
