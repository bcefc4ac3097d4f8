#include "tests/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <list>
#include <map>

#if !FA_BACKEND_GPU
#include "tests/sim/diagnosis.h"
#endif

namespace fa::test {
namespace {

/// normal_inputs(), computed once: all variants get the same.
const Inputs& known_inputs(const Problem& p, uint64_t seed) {
  struct Known {
    Problem problem;
    Inputs inputs;
  };
  static std::map<uint64_t, std::list<Known>> known;  // by seed
  std::list<Known>& of_seed = known[seed];
  for (const Known& k : of_seed) {
    if (k.problem == p) return k.inputs;
  }
  return of_seed.emplace_back(p, normal_inputs(p, seed)).inputs;
}

/// Every second row scores all keys far below zero.
Inputs inputs_far_below_zero(const Problem& p, uint64_t seed) {
  Inputs in = known_inputs(p, seed);
  const auto d = static_cast<size_t>(p.d);
  const float far = std::round(-112 / (32 * p.scale()));  // exp(112) overflows
  for (size_t i = 0; i < in.Q.size(); i += d) in.Q[i] = i / d % 2 ? far : 0.f;
  for (size_t i = 0; i < in.K.size(); i += d) in.K[i] = 32.f;
  return in;
}

/// In the simulator a forward of another variant, which has its own tests, runs once for the same
/// inputs: then O and LSE are copied. Without LSE the backward also needs the forward's workspace.
Variant with_known_forward(const Variant& v) {
  if (FA_BACKEND_GPU || v.forward_of.empty() || !v.writes_lse) return v;
  struct Results {
    std::string O, LSE;  // bytes
  };
  static std::map<std::string, Results> known;  // by all inputs of a forward
  Variant with = v;
  const auto forward = [v](const Problem& p, const Tensors<void>& t) {
    const auto bytes_at = [&](const char* name, const void* device) {
      std::string bytes(tensor_of(name).bytes(p), '\0');
      cuda_check(cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost));
      return bytes;
    };
    const auto hash = [&](const char* name, const void* device) {
      return " " + std::to_string(std::hash<std::string>()(bytes_at(name, device)));
    };
    const auto [it, is_new] = known.try_emplace(v.forward_of + " " + describe(p) + hash("Q", t.Q) +
                                                hash("K", t.K) + hash("V", t.V));
    Results& r = it->second;
    if (is_new) {
      v.forward(p, t);
      r = {bytes_at("O", t.O), bytes_at("LSE", t.LSE)};
    } else {
      cuda_check(cudaMemcpy(t.O, r.O.data(), r.O.size(), cudaMemcpyHostToDevice));
      cuda_check(cudaMemcpy(t.LSE, r.LSE.data(), r.LSE.size(), cudaMemcpyHostToDevice));
    }
  };
  with.forward = Runner(v.forward.dtype(), forward);
  return with;
}

/// One pass, after passes that it needs, which are not counted.
enum class Pass { prepare, forward, backward };
Counts count_pass(const Variant& v, const Problem& given, Pass pass, const CountOptions& how) {
  const Problem p = problem_for(v, given);
  Session session(p, known_inputs(p, 1), pass == Pass::backward ? with_known_forward(v) : v);
  if (pass == Pass::prepare) return count([&] { session.prepare(); }, how);
  if (v.prepare) session.prepare();
  if (pass == Pass::forward) return count([&] { session.forward(); }, how);
  session.forward();
  return count([&] { session.backward(); }, how);
}

/// With `analyse` the analysis must have examined something, else it could find nothing.
Counts count_pass(const Variant& v, const Problem& p, Pass pass, bool analyse) {
  Counts counts = count_pass(v, p, pass, CountOptions{.analyse = analyse});
  REQUIRE((counts.analysed > 0) == analyse);
  REQUIRE(counts.sites.empty() != analyse);
  return counts;
}

/// The exponents of powers of two: of Q (and inversely K), of V and of dO.
struct Exponents {
  int q, v, dO;
};

/// `scaled` is `plain` times 2^e, up to `tolerance` of the largest element.
void require_scaled(const char* name, const std::vector<float>& plain,
                    const std::vector<float>& scaled, int e, double tolerance) {
  REQUIRE(plain.size() == scaled.size());
  double largest = 0, worst = 0;
  for (const float x : plain) {
    if (std::isfinite(x)) largest = std::max<double>(largest, std::abs(x));
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    const double got = std::ldexp(static_cast<double>(scaled[i]), -e);
    if (got == plain[i]) continue;  // also -inf
    const double error = std::abs(got - plain[i]);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  CAPTURE(name, largest, worst);
  CHECK(worst <= tolerance * largest);
}

}  // namespace

Problem problem(int N, int d, bool causal, int B, int H) {
  Problem p;
  p.B = B;
  p.H = p.Hkv = H;
  p.N = p.Nk = N;
  p.d = d;
  p.causal = causal;
  p.gpu = this_gpu();
  return p;
}

Problem bf16_problem(int N, int Nk, int d, bool causal, int B, int H, int Hkv) {
  Problem p = problem(N, d, causal, B, H);
  p.Nk = Nk;
  p.Hkv = Hkv;
  p.dtype = DType::bf16;
  return p;
}

Variant on_blocks(const Variant& v, int blocks) {
  Variant few = v;
  few.name += " on few blocks";
  few.forward = Runner(v.forward.dtype(), [v, blocks](Problem p, const Tensors<void>& t) {
    p.gpu.sms = blocks > 0 ? blocks : 1 + (p.N + p.Nk + p.d / 64 + p.H + p.causal) % 3;
    v.forward(p, t);
  });
  return few;
}

Outputs run_backward(const Variant& v, const Problem& p, const Inputs& in) {
  return run(with_known_forward(v), p, in);
}

Outputs run_in_order([[maybe_unused]] uint64_t order, const Variant& v, const Problem& p,
                     const Inputs& in) {
#if !FA_BACKEND_GPU
  sim::Options options = sim::options();
  options.block_order = order;
  options.workers = 1;  // else the result also depends on threads
  const sim::test::WithOptions with(options);
#endif
  return run_backward(v, p, in);
}

Problem random_problem(std::mt19937& random, int longest) {
  auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const int N = between(1, longest), Nk = between(1, longest), d = between(1, 2) * 64;
  const bool causal = between(0, 1);
  const int B = between(1, 2), Hkv = between(1, 2), group = between(1, 3);
  return bf16_problem(N, Nk, d, causal, B, Hkv * group, Hkv);
}

static void require_right(const Problem& p, const Inputs& in, const Outputs& out) {
  const CheckResult result = check(p, in, out, sample_of(p, 1, 1e18));
  for (const TensorCheck& t : result.tensors) {
    CAPTURE(t.tensor, t.max_abs_err, t.bound, t.message);
    CHECK((t.ok || (p.method.fp8 && t.lost)));
  }
  CHECK(result.damage.empty());
  REQUIRE((result.ok() || (p.method.fp8 && result.lost())));
  REQUIRE(result.complete);
}

static Inputs own_inputs(const Variant& v, const Problem& p) {
  const uint64_t seed = static_cast<uint64_t>(p.N) * 1000 + p.d;
  // In 8 bits one large feature would take the digits of all others, and those of its own gradient.
  const bool far = !v.fp8 && !v.extras.cache8 && !v.backward;
  return far ? inputs_far_below_zero(p, seed) : known_inputs(problem_for(v, p), seed);
}

void require_right(const Variant& v, Problem p, const Inputs& in) {
  p = problem_for(v, p);
  require_right(p, in, run_backward(v, p, in));
}

void require_right(const Variant& v, const Problem& p) { require_right(v, p, own_inputs(v, p)); }

BothCounts require_right_counted(const Variant& v, const Problem& given, bool analyse) {
  const CountOptions how{.analyse = analyse, .counters = analyse};
  const Problem p = problem_for(v, given);
  const Inputs in = own_inputs(v, given);
  Session session(p, in, with_known_forward(v));
  BothCounts counts;
  if (v.prepare) session.prepare();
  counts.forward = count([&] { session.forward(); }, how);
  if (v.backward) counts.backward = count([&] { session.backward(); }, how);
  REQUIRE(((v.backward ? counts.backward : counts.forward).analysed > 0) == analyse);
  require_right(p, in, session.download());
  return counts;
}

Counts count_prepare(const Variant& v, const Problem& p, bool analyse) {
  return count_pass(v, p, Pass::prepare, analyse);
}
Counts count_forward(const Variant& v, const Problem& p, bool analyse) {
  return count_pass(v, p, Pass::forward, analyse);
}
Counts count_backward(const Variant& v, const Problem& p, bool analyse) {
  return count_pass(v, p, Pass::backward, analyse);
}

void require_equal(Prediction prediction, const Counts& counts) {
  for (const auto& [name, count] : counts.buffers) {
    CAPTURE(name);
    CHECK(count.bytes.read == prediction[name].read);
    CHECK(count.bytes.write == prediction[name].write);
    CHECK(count.bytes.atomic == prediction[name].atomic);
  }
  // A buffer without a byte is not counted: K where all lengths are 0.
  std::erase_if(prediction.buffers, [&](const auto& predicted) {
    return predicted.second.total() == 0 && !counts.buffers.contains(predicted.first);
  });
  REQUIRE(counts.buffers.size() == prediction.buffers.size());
  REQUIRE(counts.requested == prediction.total());
  const uint64_t on_tensor_cores = counts.tensor_flops.value_or(0);
  if (on_tensor_cores > 0 && prediction.flops > 0) CHECK(on_tensor_cores == prediction.flops);
}

void require_prepare_predicted(const Variant& v, const Problem& p) {
  require_equal(v.prepare_traffic(problem_for(v, p)),
                count_pass(v, p, Pass::prepare, CountOptions{.counters = false}));
}
void require_predicted(const Variant& v, const Problem& p) {
  require_equal(v.traffic(problem_for(v, p)),
                count_pass(v, p, Pass::forward, CountOptions{.counters = false}));
}
void require_backward_predicted(const Variant& v, const Problem& p) {
  require_equal(v.backward_traffic(problem_for(v, p)),
                count_pass(v, p, Pass::backward, CountOptions{.counters = false}));
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(e)) return e;  // which fails every <=
    worst = std::max(worst, e);
  }
  return worst;
}

void require_rows_sum_to_one(const Variant& v, Problem p, double tolerance) {
  p = problem_for(v, p);
  Inputs in = normal_inputs(p, 2);
  std::fill(in.V.begin(), in.V.end(), 1.f);
  if (p.cache.fp8) quantise_cache(p, in);
  const Outputs out = run(v, p, in);
  REQUIRE(max_difference(out.O, std::vector<float>(out.O.size(), 1.f)) <= tolerance);
}

void require_shift_invariance(const Variant& v, const Problem& p, double tolerance) {
  Inputs in = normal_inputs(p, 3);
  for (float& k : in.K) k = std::round(16 * k) / 16;  // bf16 too adds the vector without rounding
  const Outputs before = run(v, p, in);
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] += 0.25f * static_cast<float>(i % p.d % 3);
  REQUIRE(max_difference(run(v, p, in).O, before.O) <= tolerance);
}

void require_key_permutation(const Variant& v, Problem p, double tolerance) {
  REQUIRE(!p.causal);
  p = problem_for(v, p);
  const Inputs in = normal_inputs(p, 4);
  Inputs reversed = in;
  const size_t d = p.d, Nk = p.Nk;
  for (size_t h = 0; h < p.kv_heads(); ++h) {
    for (size_t c = 0; c < Nk; ++c) {
      const size_t from = (h * Nk + c) * d, to = (h * Nk + (Nk - 1 - c)) * d;
      std::copy_n(&in.K[from], d, &reversed.K[to]);
      std::copy_n(&in.V[from], d, &reversed.V[to]);
    }
  }
  REQUIRE(max_difference(run(v, p, in).O, run(v, p, reversed).O) <= tolerance);
}

void require_any_score_size(const Variant& v, Problem p) {
  p = problem_for(v, p);
  for (const float factor : {300.f, 1e-6f}) {
    CAPTURE(factor);
    Inputs in = normal_inputs(p, 5);
    for (float& q : in.Q) q = round_to(p.dtype, q * factor);
    require_right(v, p, in);
  }
}

void require_right_at_edges_fp32(const Variant& v) {
  const int N = GENERATE(1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 129, 257);
  const int d = GENERATE(32, 64, 96, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(v.name, N, d, causal);
  require_right(v, problem(N, d, causal));
}

void require_fp32_properties(const Variant& v, size_t smem) {
  CAPTURE(v.name);
  Problem heads = problem(70, 64, true, /*B=*/3, /*H=*/5);
  Problem full = problem(75, 64, false), causal = problem(75, 64, true);
  for (Problem* p : {&heads, &full, &causal}) p->method.smem = smem;
  require_right(v, heads, real_inputs(heads, 1));
  require_right(v, heads, outlier_inputs(heads, 1));
  for (const Problem& p : {full, causal}) {
    require_rows_sum_to_one(v, p, 2e-6);
    require_shift_invariance(v, p, 2e-5);
    require_any_score_size(v, p);
  }
  require_key_permutation(v, full, 2e-6);
}

void require_agrees_fp32(const Variant& v, const Variant& parent) {
  const Problem p = problem(130, 96, GENERATE(false, true));
  CAPTURE(v.name, p.causal);
  const Inputs in = normal_inputs(p, 6);
  const Outputs now = run(v, p, in), before = run(parent, p, in);
  REQUIRE(max_difference(now.O, before.O) <= 2e-6);
  if (v.writes_lse && parent.writes_lse) REQUIRE(max_difference(now.LSE, before.LSE) <= 4e-6);
  if (!v.backward || !parent.backward) return;
  REQUIRE(max_difference(now.dQ, before.dQ) <= 5e-6);
  REQUIRE(max_difference(now.dK, before.dK) <= 5e-6);
  REQUIRE(max_difference(now.dV, before.dV) <= 5e-6);
}

void require_predicted_fp32(const Variant& v) {
  const int d = GENERATE(32, 64, 96, 128);
  const int N = d == 32 ? GENERATE(1, 17, 64, 100, 257, 1024) : GENERATE(1, 17, 64, 100, 257);
  const bool causal = GENERATE(false, true);
  if (!one_in(7)) return;
  CAPTURE(v.name, N, d, causal);
  const bool batch = causal && N < 1024;
  require_predicted(v, problem(N, d, causal, batch ? 3 : 1, batch || N == 1024 ? 1 : 3));
}

void require_no_finding_fp32(const Variant& v) {
  const int N = GENERATE(1, 33, 75);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(v.name, N, causal);
  count_forward(v, problem(N, 64, causal), /*analyse=*/true);
}

void require_no_conflicts(const Counts& counts) {
  for (const KernelCount& k : counts.kernels) {
    CAPTURE(k.name);
    CHECK(k.shared_wavefronts == k.shared_ideal);
  }
}

Counts require_loads_by_tma(const Variant& v, const Problem& p) {
  const Counts counts = count_forward(v, p, /*analyse=*/true);
  REQUIRE(counts.kernels.size() == 1);
  require_no_conflicts(counts);
  CHECK(counts.kernels[0].requests.load == 0);
  return counts;
}

void require_clean_accesses(const Counts& counts) {
  require_no_conflicts(counts);
  for (const KernelCount& k : counts.kernels) {
    CAPTURE(k.name);
    CHECK(k.sectors.load * 32 == k.bytes.read);
  }
}

void require_clean_accesses_fp32(const Variant& v) {
  const Problem p = problem(128, GENERATE(32, 64, 96, 128), GENERATE(false, true));
  if (!one_in(5)) return;
  CAPTURE(v.name, p.d, p.causal);
  require_clean_accesses(count_forward(v, p));
}

#if !FA_BACKEND_GPU
Counts require_with_shared_memory(size_t bytes, const Variant& v, Problem p) {
  CAPTURE(v.name, describe(p));
  sim::Options less = sim::options();
  less.block_shared_bytes = bytes;
  const sim::test::WithOptions with(less);
  p.gpu = this_gpu();
  const BothCounts both = require_right_counted(v, p, /*analyse=*/true);
  const Counts& counts = v.backward ? both.backward : both.forward;
  require_equal(v.backward ? v.backward_traffic(p) : v.traffic(p), counts);
  require_no_conflicts(counts);
  return counts;
}
#endif

/// With as many keys as rows, and a key head per query head, where required.
static Problem as_supported(const Variant& v, Problem p) {
  if (v.support && !v.support->cross) p.Nk = p.N;
  if (v.support && !v.support->gqa) p.Hkv = p.H;
  if (v.support && std::ranges::find(v.support->d, p.d) == v.support->d.end()) {
    p.d = v.support->d.front();
  }
  return p;
}

/// One more and one less than the rows and keys of tiles, warps and products.
void require_right_at_edges(const Variant& v) {
  const int N = GENERATE(1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 192, 200, 257);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, d, causal);
  require_right(v, bf16_problem(N, N, d, causal, /*B=*/1, /*H=*/2, /*Hkv=*/2));
}

void require_right_with_shared_heads(const Variant& v) {
  const int Hkv = GENERATE(8, 4, 2, 1);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(Hkv, d, causal);
  require_right(v, bf16_problem(70, 90, d, causal, /*B=*/2, /*H=*/8, Hkv));
}

static void require_right_for_lengths(const Variant& v) {
  const auto [N, Nk] = GENERATE(from_range(kLengths));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, d, causal);
  require_right(v, bf16_problem(N, Nk, d, causal));
}

/// A row without keys gives O = 0 and LSE = -inf; no other row does.
void require_blind_rows(const Variant& v) {
  // One row; whole tiles of rows and a partial one; all but the last row.
  const auto [N, Nk] = GENERATE(std::pair(65, 64), std::pair(300, 20), std::pair(130, 1));
  const int d = GENERATE(64, 128);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, d);
  const auto p = problem_for(
      v, bf16_problem(N, Nk, d, /*causal=*/true, /*B=*/1, /*H=*/FA_BACKEND_GPU ? 64 : 2));
  const auto in = normal_inputs(p, 9);
  require_right(v, p, in);
  const Outputs out = run(v, p, in);
  const auto features = static_cast<size_t>(d);
  for (size_t row = 0; row < p.rows(); ++row) {
    const bool sees = p.visible(static_cast<int>(row % p.N), row / p.N / p.H) > 0;
    const auto O = out.O.begin() + row * features;
    const bool zero = std::all_of(O, O + features, [](float o) { return o == 0; });
    const bool infinite = out.LSE[row] == -INFINITY;
    if (zero == sees || infinite == sees) FAIL("row " << row << " sees " << sees);
  }
}

/// Nk - N, and Nk, around each multiple of 16 up to 192, the sizes of key tiles: a comparison for
/// the tile at the diagonal or the end may be off by one at just one of them.
void require_right_for_every_remainder(const Variant& v) {
  constexpr int kTile = 128;
  const int d = GENERATE(64, 128);
  for (int more = kTile / 2; more < kTile + kTile / 2; ++more) {
    if ((more + 3) % 16 > 5 || !is_now((more + 1) % 16 < 3)) continue;
    CAPTURE(d, more);
    require_right(v, bf16_problem(3, 3 + more, d, /*causal=*/true));
    if ((more + 1) % 8 < 3) require_right(v, bf16_problem(1, more, d, false));
  }
}

void require_right_for_random_shapes(const std::vector<const Variant*>& variants, unsigned seed) {
  int first = 0, end = FA_BACKEND_GPU ? 1000 : 20;
  const char* many = std::getenv("FLASH_STEPS_SHAPES");
  if (many) REQUIRE(std::sscanf(many, "%d-%d", &first, &end) == 2);
  std::mt19937 random(seed);
  for (int i = 0; i < end; ++i) {
    const Variant& v = *variants[i % variants.size()];
    const Problem p = as_supported(v, many ? random_problem(random, 500) : random_problem(random));
    if (i < first || (!many && !is_now(i % 4 == 0))) continue;
    CAPTURE(i, v.name, describe(p));
    require_right(v, p);
#if !FA_BACKEND_GPU
    if (many) require_equal(v.traffic(problem_for(v, p)), count_forward(v, p, /*analyse=*/true));
#endif
  }
}

void require_right_for_real_and_outliers(const Variant& v) {
  const int d = GENERATE(64, 128);
  const auto p =
      problem_for(v, as_supported(v, bf16_problem(150, 200, d, true, /*B=*/2, /*H=*/2, /*Hkv=*/1)));
  require_right(v, p, real_inputs(p, 1));
  require_right(v, p, outlier_inputs(p, 1));
}

static void require_bf16_properties(const Variant& v) {
  const int d = GENERATE(64, 128);
  const auto full = bf16_problem(75, 140, d, false), causal = bf16_problem(75, 140, d, true);
  // One rounding each of P and O, to 8 bits.
  require_rows_sum_to_one(v, full, 0x1p-8);
  require_rows_sum_to_one(v, causal, 0x1p-8);
  require_shift_invariance(v, full, 0x1p-6);
  require_shift_invariance(v, causal, 0x1p-6);
  require_key_permutation(v, full, 0x1p-6);
  require_any_score_size(v, causal);
}

void require_same_bits(const Variant& v) {
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(d, causal);
  const auto p = problem_for(v, bf16_problem(330, 400, d, causal, 1, FA_BACKEND_GPU ? 64 : 2));
  const auto in = normal_inputs(p, 7);
  const Outputs once = run(v, p, in), twice = run(v, p, in);
  REQUIRE(once.O == twice.O);
  REQUIRE(once.LSE == twice.LSE);
}

void require_same_bits_on_blocks(const Variant& v) {
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(d, causal);
  const auto p = bf16_problem(330, 400, d, causal, 1, /*H=*/FA_BACKEND_GPU ? 64 : 2);
  const auto in = normal_inputs(p, 7);
  const Outputs one = run(on_blocks(v, 1), p, in);
  for (const int blocks : {2, 3}) {
    const Outputs out = run(on_blocks(v, blocks), p, in);
    REQUIRE(out.O == one.O);
    REQUIRE(out.LSE == one.LSE);
  }
}

Inputs inputs_with_scores(const Problem& p, int rows, const std::function<float(int)>& score) {
  REQUIRE((p.d == 64 && p.kv_heads() == 1));  // 1 / sqrt(64) is a power of two
  Inputs in = normal_inputs(p, 8);
  std::fill(in.Q.begin(), in.Q.end(), 0.f);
  constexpr float kFactors[] = {1, -1, 0.5f, 0.25f};
  for (size_t r = 0; r < p.rows(); ++r) {
    in.Q[r * p.d] = (r / rows % 2 ? kFactors[r % 4] : 1) / p.scale();
  }
  bool exact = true;
  for (int c = 0; c < p.Nk; ++c) {
    const float s = score(c);
    exact &= s == round_to(p.dtype, s);
    in.K[static_cast<size_t>(c) * p.d] = s;
  }
  REQUIRE(exact);
  return in;
}

static void require_right_for_growing_maxima(const Variant& v, int rows, int Bc) {
  const auto p = bf16_problem(128, 7 * Bc, 64, GENERATE(false, true));
  // 2^8 is e^5.545: a tile's step of 5.5 leaves O unchanged, one of 5.75 does not.
  const float step = GENERATE(0.f, 1.f, 2.75f, 5.5f, 5.75f, 6.f, 20.f, 100.f);
  const float sign = GENERATE(1.f, -1.f);
  if (!one_in(5)) return;
  CAPTURE(p.causal, step, sign);
  require_right(v, p, inputs_with_scores(p, rows, [&](int c) {
                  return sign * step * static_cast<float>(c / Bc);
                }));
  require_right(v, p, inputs_with_scores(p, rows, [&](int c) {  // up and down
                  return sign * (c / Bc % 2 ? step : -step);
                }));
  require_right(v, p, inputs_with_scores(p, rows, [&](int c) {  // also within a tile
                  return sign * step * static_cast<float>(c % 5);
                }));
}

static void require_right_far_from_zero(const Variant& v, int rows) {
  const auto p = bf16_problem(128, 448, 64, GENERATE(false, true));
  const float far = GENERATE(-30000.f, -2000.f, 2000.f, 30000.f);
  const int peak = GENERATE(0, 63, 64, 127, 128, 300, 447);
  if (!one_in(5)) return;
  CAPTURE(p.causal, far, peak);
  require_right(v, p, inputs_with_scores(p, rows, [&](int c) {
                  return round_to(DType::bf16, far * (c % 3 ? 1 : 1.125f));
                }));
  require_right(v, p, inputs_with_scores(p, rows, [&](int c) { return c == peak ? 64.f : 0.f; }));
}

void require_right_for_any_maxima(const Variant& v, int rows, int Bc) {
  SECTION("maxima that grow slowly, fast, not at all") {
    require_right_for_growing_maxima(v, rows, Bc);
  }
  SECTION("far from zero, and one key that outweighs all others") {
    require_right_far_from_zero(v, rows);
  }
}

/// Scores below -1e30, which bf16 can produce.
static void require_right_for_huge_negative_scores(const Variant& v) {
  const auto [N, Nk] = GENERATE(std::pair(40, 150), std::pair(150, 40));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), /*causal=*/true);
  const float q = GENERATE(-0x1p93f, -0x1p103f, -0x1p114f);  // -1e28 .. -2e34
  CAPTURE(N, Nk, p.d, q);
  Inputs in = normal_inputs(p, 10);
  // Powers of two: such large scores have no digit left for rounding to change.
  std::fill(in.Q.begin(), in.Q.end(), q);
  std::fill(in.K.begin(), in.K.end(), 1.f);
  require_right(v, p, in);  // O: the mean of V
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] = i / p.d % 3 ? 1.f : 2.f;
  require_right(v, p, in);
}

/// A batch, and heads that share keys.
void require_predicted_for_lengths(const Variant& v) {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(17, 65), std::pair(129, 129),
                                std::pair(257, 131), std::pair(131, 257), std::pair(300, 20));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, d, causal);
  require_predicted(v,
                    as_supported(v, bf16_problem(N, Nk, d, causal, /*B=*/2, /*H=*/2, /*Hkv=*/1)));
}

void require_header_formulas(const Variant& v, int Br) {
  const uint64_t d = GENERATE(64, 128), N = GENERATE(65, 193), Nk = 300, H = 4, Hkv = 2;
  if (!one_in(5)) return;
  CAPTURE(N, d);
  const auto p = bf16_problem(N, Nk, d, /*causal=*/false, /*B=*/3, H, Hkv);
  const uint64_t BH = 3 * H, BHkv = 3 * Hkv, Tr = (N + Br - 1) / Br;
  const Bytes counted = *count_forward(v, p).requested;
  CHECK(counted.read == 2 * BH * (N * d + 2 * Tr * Nk * d));
  CHECK(counted.write == 2 * BH * N * d + 4 * BH * N);
  const Bytes least = v.traffic(p).hbm;
  CHECK(least.read + least.write == 2 * (2 * BH * N * d + 2 * BHkv * Nk * d) + 4 * BH * N);
}

/// And keys once per group of heads.
void require_compulsory_hbm(const Variant& v) {
  const uint64_t N = 256, d = 64;
  const auto p = as_supported(v, bf16_problem(N, 512, d, false, 1, /*H=*/4, /*Hkv=*/2));
  CHECK(v.traffic(p).hbm == Bytes{.read = 2 * (4 * N + 2 * uint64_t(p.Hkv) * p.Nk) * d,
                                  .write = 4 * (2 * N * d + 4 * N)});
  const Counts counts = count_forward(v, p);
  REQUIRE(counts.hbm);
  CHECK(*counts.hbm == v.traffic(p).hbm);
}

void require_no_finding(const Variant& v) {
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(33, 33), std::pair(75, 130),
                                std::pair(150, 70), std::pair(300, 20), std::pair(129, 400));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(N, Nk, d, causal);
  count_forward(v, as_supported(v, bf16_problem(N, Nk, d, causal, 1, /*H=*/2)), /*analyse=*/true);
}

void require_forward(const Variant& v, [[maybe_unused]] bool predicted) {
  SECTION("right at the edges of tiles and products") { require_right_at_edges(v); }
  SECTION("right for real input and outliers") {
    if (is_now(true)) require_right_for_real_and_outliers(v);
  }
#if !FA_BACKEND_GPU
  SECTION("predicted bytes are counted bytes") {
    if (predicted) require_predicted_for_lengths(v);
  }
  SECTION("HBM sees inputs and outputs only") {
    if (!v.fp8 && is_now(true)) require_compulsory_hbm(v);
  }
  SECTION("the analysis finds nothing") { require_no_finding(v); }
#endif
  if (v.support && !v.support->cross) return;
  SECTION("right where heads share keys") { require_right_with_shared_heads(v); }
  SECTION("right for as many keys as one likes") { require_right_for_lengths(v); }
#if !FA_BACKEND_GPU
  SECTION("no race in a walk longer than any ring of stages") {
    const Problem p = bf16_problem(65, 1100, 64, /*causal=*/false, 1, /*H=*/1);
    require_right_counted(v, as_supported(v, p), /*analyse=*/true);
  }
#endif
  SECTION("a row without keys gives O = 0 and LSE = -inf") { require_blind_rows(v); }
  SECTION("right whatever remains of a tile") { require_right_for_every_remainder(v); }
  SECTION("two runs give the same bits") { require_same_bits(v); }
  if (v.fp8) return;
  SECTION("behaves as attention must") {
    if (is_now(true)) require_bf16_properties(v);
  }
  SECTION("right for scores below -1e30") {
    if (is_now(true)) require_right_for_huge_negative_scores(v);
  }
}

void require_agrees(const Variant& v, const Variant& parent) {
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!one_in(5)) return;
  CAPTURE(v.name, d, causal);
  const Problem p = bf16_problem(300, 430, d, causal, 1, /*H=*/4, /*Hkv=*/2);
  const Inputs in = normal_inputs(p, 6);
  const Outputs now = run(v, p, in), before = run(parent, p, in);
  REQUIRE(max_difference(now.O, before.O) <= 0x1p-6);
  REQUIRE(max_difference(now.LSE, before.LSE) <= 2e-5);
}

int some_d(const Support& support) {
  const std::vector<int>& all = support.d;
  return std::find(all.begin(), all.end(), 64) == all.end() ? all.front() : 64;
}

void require_any_scale(const Variant& v, const Support& support) {
  Problem p = problem(support.most_n ? 5 : 60, some_d(support), /*causal=*/true);
  if (v.extras.latent) p.Hkv = 1;
  if (support.cross && !v.backward) p.Nk = 150;  // sums of dQ over blocks have any order
  p.dtype = v.forward.dtype();
  p = problem_for(v, p);
  Inputs in = normal_inputs(p, 15);
  for (float& x : in.V) x = round_to(p.dtype, x + 1);  // V has a mean
  for (std::vector<float>* tensor : {&in.Q, &in.K, &in.V, &in.dO}) {
    std::fill_n(tensor->begin() + p.d, p.d, 0.f);  // a row of zeros, and one of equal numbers
    std::fill_n(tensor->begin() + 2 * p.d, p.d, 0.75f);
  }
  const auto run_with = [&](const Exponents& e) {
    Inputs scaled = in;
    const std::pair<std::vector<float>*, int> tensors[] = {
        {&scaled.Q, e.q}, {&scaled.K, -e.q}, {&scaled.V, e.v}, {&scaled.dO, e.dO}};
    for (const auto& [tensor, exponent] : tensors) {
      for (float& x : *tensor) x = std::ldexp(x, exponent);
    }
    if (p.cache.fp8) quantise_cache(p, scaled);
    return run_backward(v, p, scaled);
  };
  const Outputs plain = run_with({0, 0, 0});
  const auto require = [&](const Exponents& e, double tolerance) {
    CAPTURE(v.name, e.q, e.v, e.dO);
    const Outputs got = run_with(e);
    require_scaled("LSE", plain.LSE, got.LSE, 0, tolerance);
    const int of_values = p.cache.latent ? -e.q : e.v;  // K, of which V is a part, has -e.q
    require_scaled("O", plain.O, got.O, of_values, tolerance);
    require_scaled("dQ", plain.dQ, got.dQ, e.v + e.dO - e.q, tolerance);
    require_scaled("dK", plain.dK, got.dK, e.v + e.dO + e.q, tolerance);
    require_scaled("dV", plain.dV, got.dV, e.dO, tolerance);
  };
  for (const int e : {-60, -7, 7, 60}) {
    require({e, 0, 0}, 0);
    require({0, e, -e}, 0);
  }
  // One rounding, or all of P's where it has 8 bits, since another maximum may be chosen.
  const double near = v.fp8 ? 0x1p-4 : p.dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
  for (const int e : {-100, 100}) {
    require({e, -e / 2, e / 2}, near);
    require({0, e, -e}, near);
    require({e / 100 * 115, 0, 0}, 0x1p-4);
  }
  for (std::vector<float> Inputs::*tensor : {&Inputs::Q, &Inputs::K, &Inputs::V, &Inputs::dO}) {
    Inputs zero = in;
    std::fill((zero.*tensor).begin(), (zero.*tensor).end(), 0.f);
    if (p.cache.fp8) quantise_cache(p, zero);
    require_right(v, p, zero);
  }
}

void require_right_beyond_2_31(const Variant& v, int N) {
  if (!FA_BACKEND_GPU) {
    WARN("not run: the simulator would take hours for more than 2^31 elements");
    return;
  }
  CAPTURE(v.name);
  const int few = 3, heads = 65535, Nk = 257, d = 128;  // a grid has no more in y and z
  const auto of_heads = [&](int H) {
    Problem p = bf16_problem(N, Nk, d, /*causal=*/true, /*B=*/1, H, H);
    p.dtype = v.forward.dtype();
    return problem_for(v, p);
  };
  const Problem small = of_heads(few), large = of_heads(heads);
  REQUIRE(large.kv_size() > size_t{1} << 31);
  const Inputs in = normal_inputs(small, 21);
  const Outputs want = run(v, small, in);
  const auto repeat = [&](const std::vector<float>& t) {
    std::vector<float> all(t.size() / few * heads);
    for (size_t i = 0; i < all.size(); i += t.size()) {
      std::copy_n(t.begin(), std::min(t.size(), all.size() - i), all.begin() + i);
    }
    return all;
  };
  Inputs many = in;
  for (auto t : {&Inputs::Q, &Inputs::K, &Inputs::V, &Inputs::dO}) many.*t = repeat(in.*t);
  try {
    const Outputs got = run(v, large, many);
    for (auto t : {&Outputs::O, &Outputs::LSE, &Outputs::dQ, &Outputs::dK, &Outputs::dV}) {
      const std::vector<float>&small_t = want.*t, &large_t = got.*t;
      const size_t head = small_t.size() / few;
      for (size_t i = 0; i < large_t.size(); ++i) {
        const float expected = small_t[i % small_t.size()];
        if (std::abs(large_t[i] - expected) <= 0x1p-6f * (1 + std::abs(expected))) continue;
        if (large_t[i] == expected) continue;  // -inf
        FAIL("head " << i / head << " is not as head " << i / head % few << ": element " << i
                     << " is " << large_t[i] << ", not " << expected);
      }
    }
    CHECK(got.damage.empty());
  } catch (const ResourceError& e) {
    WARN("not run: " << e.what());
  }
}

}  // namespace fa::test
