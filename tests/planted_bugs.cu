// The checker accepts a right kernel on every shape and rejects every planted bug.
#include "tests/planted_bugs.cuh"

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/harness/check.h"
#include "common/harness/inputs.h"
#include "common/harness/run.h"
#include "tests/test.h"
#if !FA_BACKEND_GPU
#include "common/sim/sim.h"
#endif

namespace {

using fa::DType;
using fa::Problem;
using planted::Bug;

Problem problem(int B, int H, int Hkv, int N, int Nk, bool causal) {
  Problem p;
  p.B = B, p.H = H, p.Hkv = Hkv, p.N = N, p.Nk = Nk, p.causal = causal;
  return p;
}

// The default problems. Sizes are no multiples of the tile's 32 unless intended.
const Problem kFull = problem(1, 2, 2, 100, 100, false);
const Problem kCausal = problem(1, 2, 2, 100, 100, true);
const Problem kEven = problem(1, 2, 2, 96, 96, true);
const Problem kBatch = problem(2, 1, 1, 40, 40, false);
const Problem kGroups = problem(2, 4, 2, 40, 75, true);      // Nk > N
const Problem kMaskedRows = problem(1, 4, 2, 75, 40, true);  // rows 0 to 34 see no key
const std::vector<Problem> kProblems = {kFull, kCausal, kEven, kBatch, kGroups, kMaskedRows};

const Problem kLong = problem(1, 1, 1, 400, 400, false);

/// A bug, and the default problems on which it must be rejected.
struct Planted {
  Bug bug;
  const char* name;
  std::vector<Problem> shows_on = kProblems;
};
#define PLANTED(bug, ...) \
  Planted { Bug::bug, #bug __VA_OPT__(, {__VA_ARGS__}) }

std::vector<Planted> forward_bugs() {
  return {
      PLANTED(no_scale),
      PLANTED(scale_twice),
      PLANTED(scale_only_in_max),
      PLANTED(exp2_without_log2e),
      PLANTED(O_not_rescaled),
      PLANTED(l_not_rescaled),
      PLANTED(O_rescaled_twice),
      PLANTED(stale_m),
      PLANTED(O_not_normalised),
      PLANTED(masked_row_divides_by_zero, kMaskedRows),
      PLANTED(mask_shows_one_more, kCausal, kEven, kGroups, kMaskedRows),
      PLANTED(mask_hides_one_more, kCausal, kEven, kGroups, kMaskedRows),
      PLANTED(mask_top_left, kGroups, kMaskedRows),
      PLANTED(mask_ignored, kCausal, kEven, kGroups, kMaskedRows),
      PLANTED(mask_ignored_in_last_tile, kCausal, kEven, kGroups, kMaskedRows),
      PLANTED(tail_not_masked, kFull, kBatch),
      PLANTED(tail_stale, kFull, kBatch),
      PLANTED(last_tile_forgotten, kFull, kCausal, kBatch, kGroups, kMaskedRows),
      PLANTED(N_for_Nk, kGroups),
      PLANTED(first_key_dropped),
      PLANTED(last_key_dropped_at_edge, kFull, kEven, kBatch),
      PLANTED(wrong_head_stride, kFull, kCausal, kEven, kBatch, kGroups, kMaskedRows),
      PLANTED(batch_ignored, kBatch, kGroups),
      PLANTED(kv_heads_interleaved, kGroups, kMaskedRows),
      PLANTED(V_tile_transposed),
      PLANTED(LSE_without_log),
      PLANTED(LSE_without_m),
      PLANTED(last_row_not_written),
      PLANTED(one_element_not_written),
      PLANTED(writes_past_the_end, kFull, kCausal, kBatch, kGroups, kMaskedRows),
      PLANTED(one_nan),
      PLANTED(one_inf),
  };
}

std::vector<Planted> backward_bugs() {
  return {
      PLANTED(no_delta),
      PLANTED(delta_of_dP),
      PLANTED(dS_not_scaled),
      PLANTED(dS_scaled_twice),
      PLANTED(P_without_LSE),
      PLANTED(dV_from_dS),
      PLANTED(dP_from_K),
      PLANTED(dQ_of_last_tile),
      PLANTED(group_overwrites, kGroups, kMaskedRows),
      PLANTED(backward_mask_ignored, kCausal, kEven, kGroups, kMaskedRows),
      PLANTED(dK_and_dV_swapped),
      PLANTED(dQ_row_not_written),
      PLANTED(dK_writes_past_the_end, kFull, kCausal, kBatch, kGroups, kMaskedRows),
      PLANTED(dV_one_nan),
  };
}

fa::Variant variant(DType dtype, bool with_backward) {
  return dtype == DType::f32 ? planted::variant<float>(with_backward)
                             : planted::variant<fa::bf16>(with_backward);
}

std::string reason(const fa::CheckResult& result) {
  if (!result.damage.empty()) return result.damage[0];
  for (const fa::TensorCheck& t : result.tensors) {
    if (!t.ok) return t.message;
  }
  return "";
}

/// Why the run is wrong; empty when it is right.
std::string verdict(Bug bug, Problem p, DType dtype, bool with_backward, const fa::Inputs& in) {
  p.dtype = dtype;
  planted::bug = bug;
  const fa::Outputs out = fa::run(variant(dtype, with_backward), p, in);
  return reason(fa::check(p, in, out, fa::sample_of(p, 1, 1e18)));
}

/// For normal inputs, whose references are computed once for all bugs.
std::string verdict(Bug bug, Problem p, DType dtype, bool with_backward) {
  struct Checked {
    explicit Checked(const Problem& of)
        : p(of), in(fa::normal_inputs(p, 11)), check(p, in, fa::sample_of(p, 1, 1e18)) {}
    Problem p;
    fa::Inputs in;
    fa::Checker check;
  };
  static std::map<std::string, Checked> all;
  p.dtype = dtype;
  std::string key = fa::describe(p);
  for (const int keys : p.cache.lengths) key += " " + std::to_string(keys);
  Checked& of = all.try_emplace(key, p).first->second;
  planted::bug = bug;
  return reason(of.check(fa::run(variant(dtype, with_backward), p, of.in)));
}

bool writes_past(Bug bug) {
  return bug == Bug::writes_past_the_end || bug == Bug::dK_writes_past_the_end;
}

/// In the short run each bug of each type on one problem, a different one in each turn.
void require_rejected(const Planted& fault, size_t turn, DType dtype, bool with_backward) {
  for (const Problem& p : fault.shows_on) {
    if (!fa::test::is_now(&p == &fault.shows_on[turn % fault.shows_on.size()])) continue;
    CAPTURE(fault.name, fa::describe(p), fa::name_of(dtype));
#if !FA_BACKEND_GPU
    if (writes_past(fault.bug)) {  // found at the write itself
      CHECK_THROWS_AS(verdict(fault.bug, p, dtype, with_backward), fa::KernelStopped);
      continue;
    }
#endif
    const std::string message = verdict(fault.bug, p, dtype, with_backward);
    CHECK_FALSE(message.empty());
    if (writes_past(fault.bug)) CHECK_THAT(message, ContainsSubstring("guard band after"));
  }
}

}  // namespace

TEST_CASE("the right kernel is accepted on every shape", "[planted]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const Problem& p : kProblems) {
    CAPTURE(fa::describe(p), fa::name_of(dtype));
    CHECK(verdict(Bug::none, p, dtype, true) == "");
  }
  CHECK(verdict(Bug::none, kLong, dtype, true) == "");
  for (const int N : {1, 2, 31, 32, 33, 65}) {
    for (const bool causal : {false, true}) {
      const Problem p = problem(1, 2, 2, N, N, causal);
      CAPTURE(fa::describe(p), fa::name_of(dtype));
      CHECK(verdict(Bug::none, p, dtype, true) == "");
    }
  }
}

TEST_CASE("the right kernel is accepted on the real input and on outliers", "[planted]") {
  Problem p = problem(1, 4, 4, 200, 200, true);
  p.dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(fa::name_of(p.dtype));
  CHECK(verdict(Bug::none, p, p.dtype, true, fa::real_inputs(p, 1)) == "");
  CHECK(verdict(Bug::none, p, p.dtype, true, fa::outlier_inputs(p, 1)) == "");
}

TEST_CASE("every forward bug is rejected", "[planted][all]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  size_t turn = dtype == DType::bf16;
  for (const Planted& fault : forward_bugs()) require_rejected(fault, turn++, dtype, false);
}

// The missing key has 1 / 40000 of the row's weight: below O's last bit, but visible in fp32 LSE.
TEST_CASE("a light key that is missing at a tile's edge is seen in LSE", "[planted]") {
  Problem p = problem(1, 2, 2, 64, 65, false);
  p.dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(fa::name_of(p.dtype));
  fa::Inputs in = fa::normal_inputs(p, 12);
  const auto d = static_cast<size_t>(p.d);
  for (size_t r = 0; r < p.rows(); ++r) in.Q[r * d] = 8;  // 1 / scale
  for (size_t c = 0; c < p.kv_heads() * p.Nk; ++c) in.K[c * d] = c % p.Nk == 64 ? -6 : 0;
  CHECK(verdict(Bug::none, p, p.dtype, false, in) == "");
  const std::string message = verdict(Bug::last_key_dropped_at_edge, p, p.dtype, false, in);
  CHECK_THAT(message, ContainsSubstring(p.dtype == DType::f32 ? "O[" : "LSE["));
}

TEST_CASE("every backward bug is rejected", "[planted][all]") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  size_t turn = dtype == DType::bf16;
  for (const Planted& fault : backward_bugs()) require_rejected(fault, turn++, dtype, true);
}

TEST_CASE("sums of too little precision are rejected", "[planted]") {
  for (const Bug bug : {Bug::bf16_accumulator, Bug::fp16_accumulator, Bug::bf16_l}) {
    for (const Problem& p : kProblems) {
      CAPTURE(static_cast<int>(bug), fa::describe(p));
      CHECK(verdict(bug, p, DType::f32, false) != "");
    }
  }
  CHECK(verdict(Bug::dK_bf16_accumulator, kFull, DType::f32, true) != "");
  // bf16 outputs hide a few roundings to bf16, not hundreds of them.
  CHECK(verdict(Bug::bf16_accumulator, kLong, DType::bf16, false) != "");
  CHECK(verdict(Bug::dK_bf16_accumulator, kLong, DType::bf16, true) != "");
  // They hide fp16's 11 bits longer: until a sum is so large that its terms no longer count.
  Problem p = problem(1, 1, 1, 8, 2048, false);
  p.dtype = DType::bf16;
  fa::Inputs in = fa::normal_inputs(p, 11);
  for (float& v : in.V) v = std::abs(v);
  CHECK(verdict(Bug::none, p, p.dtype, false, in) == "");
  CHECK(verdict(Bug::fp16_accumulator, p, p.dtype, false, in) != "");
}

// --- inputs that leave the scores few digits, or none --------------------------------------------

namespace {

struct Scores {
  const char* name;
  bool digits;  // enough for a kernel of fp32 or bf16
  std::function<void(const Problem&, fa::Inputs&)> make;
};

void scale_queries(const Problem& p, fa::Inputs& in, float by) {
  for (float& q : in.Q) q = fa::round_to(p.dtype, q * by);
}
void make_rows_alike(const Problem& p, fa::Inputs& in) {
  for (size_t i = 0; i < in.Q.size(); ++i) in.Q[i] = in.Q[i % p.d];
  for (size_t i = 0; i < in.K.size(); ++i) in.K[i] = in.K[i % p.d];
}

const std::vector<Scores> kScores = {
    {"ordinary", true, [](const Problem&, fa::Inputs&) {}},
    {"1e-20", true, [](const Problem& p, fa::Inputs& in) { scale_queries(p, in, 1e-20f); }},
    {"1e5", true, [](const Problem& p, fa::Inputs& in) { scale_queries(p, in, 1e5f); }},
    {"1e7", false, [](const Problem& p, fa::Inputs& in) { scale_queries(p, in, 1e7f); }},
    {"1e20", false, [](const Problem& p, fa::Inputs& in) { scale_queries(p, in, 1e20f); }},
    {"alike", true, [](const Problem& p, fa::Inputs& in) { make_rows_alike(p, in); }},
    {"alike, 1e7", false,
     [](const Problem& p, fa::Inputs& in) {
       make_rows_alike(p, in);
       scale_queries(p, in, 1e7f);
     }},
    {"a large feature", true,
     [](const Problem& p, fa::Inputs& in) {
       for (size_t i = 0; i < in.K.size(); i += p.d) in.K[i] = 300;
       in.Q = in.K;
     }},
};

/// The tensor that a bug changes, from the start of its name: "O", "LSE", "dQ".
const std::vector<Planted> kOutputBugs = {
    PLANTED(O_is_minus_V),  PLANTED(O_is_negated),    PLANTED(O_is_zero),
    PLANTED(LSE_is_zero),   PLANTED(O_is_mean_of_V),  PLANTED(O_of_next_row),
    PLANTED(LSE_plus_one),  PLANTED(LSE_of_next_row), PLANTED(dQ_is_negated),
    PLANTED(dQ_is_zero),    PLANTED(dK_is_negated),   PLANTED(dK_is_zero),
    PLANTED(dV_is_negated), PLANTED(dV_is_zero)};

/// A bug changes the tensor by half of the largest element, LSE by 1/2, and a right kernel errs far
/// less: where one key has all of P, dQ and dK are what rounding leaves of 0.
bool shows(const char* name, const fa::Outputs& bug, const fa::Outputs& right,
           const fa::CheckResult& verdict) {
  const std::string tensor = std::string(name).substr(0, std::string(name).find('_'));
  const auto output = fa::tensor_of(tensor).output;
  const std::vector<float>&a = bug.*output, &b = right.*output;
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max<double>(difference, std::abs(a[i] - b[i]));
    largest = std::max<double>(largest, std::abs(b[i]));
  }
  if (tensor == "LSE") return difference > 0.5;
  for (const fa::TensorCheck& t : verdict.tensors) {
    if (t.tensor == tensor && t.max_abs_err > 0.1 * largest) return false;
  }
  return difference > 0.5 * largest;
}

}  // namespace

TEST_CASE("whatever the scores: a right kernel is not wrong, a bug is not right", "[planted]") {
  const std::string type = GENERATE("fp32", "bf16", "e4m3");
  Problem p = problem(1, 1, 1, 40, 40, false);
  p.dtype = type == "fp32" ? DType::f32 : DType::bf16;
  p.method.fp8 = type == "e4m3";
  const bool backward = !p.method.fp8;
  int hidden = 0;
  for (const Scores& scores : kScores) {
    CAPTURE(type, scores.name);
    fa::Inputs in = fa::normal_inputs(p, 11);
    scores.make(p, in);
    fa::Checker check(p, in, fa::sample_of(p, 1, 1e18));
    const auto run = [&](Bug bug) {
      planted::bug = bug;
      return fa::run(variant(p.dtype, backward), p, in);
    };
    const fa::Outputs right = run(Bug::none);
    const fa::CheckResult verdict = check(right);
    CHECK((verdict.ok() || verdict.lost()));
    if (scores.digits) CHECK(verdict.ok());
    for (const fa::TensorCheck& t : verdict.tensors) {
      CAPTURE(t.tensor, t.message);
      if (t.ok) CHECK(t.used < 0.9);
    }
    for (const Planted& fault : kOutputBugs) {
      if (!backward && fault.name[0] == 'd') continue;
      CAPTURE(fault.name);
      const fa::Outputs out = run(fault.bug);
      if (!shows(fault.name, out, right, verdict)) {  // the mean of V where all keys are equal
        ++hidden;
        continue;
      }
      const fa::CheckResult found = check(out);
      CHECK_FALSE(found.ok());
      const bool of_forward = fault.name[0] != 'd';
      if (scores.digits && !p.method.fp8 && of_forward) CHECK_FALSE(found.lost());
    }
  }
  CHECK(hidden < 40);  // of 64 to 112
}

// Its kernel uses Nk keys of each batch entry, whatever the lengths.
TEST_CASE("a kernel that takes what lies after the last key is rejected", "[planted]") {
  Problem p = problem(2, 2, 2, 40, 40, false);
  p.cache.lengths = {40, 40};
  CHECK(verdict(Bug::none, p, DType::f32, false) == "");
  p.cache.lengths = {40, 39};
  CHECK_THAT(verdict(Bug::none, p, DType::f32, false), ContainsSubstring("O[b=1, h=0, row=0"));
#if !FA_BACKEND_GPU
  const sim::Options saved = sim::options();
  sim::options().analyse = true;
  sim::options().workers = 1;
  CHECK_THROWS_WITH(verdict(Bug::none, p, DType::f32, false),
                    ContainsSubstring("uninitialised device memory") &&
                        ContainsSubstring("load of K, byte 30464"));  // row 39 of head 2
  p.cache.lengths = {40, 40};
  CHECK(verdict(Bug::none, p, DType::f32, false) == "");
  sim::options() = saved;
#endif
}

#if !FA_BACKEND_GPU

// On a GPU a missing barrier may give the right result by luck; the simulator finds the race.
TEST_CASE("a dropped barrier is found as a race", "[planted]") {
  const sim::Options saved = sim::options();
  sim::options().analyse = true;
  sim::options().workers = 1;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // Two tiles of keys in each direction, so that one is loaded over another: more would not help.
    for (const Problem& p : {problem(1, 1, 1, 40, 40, false), problem(1, 2, 1, 33, 40, true)}) {
      CAPTURE(fa::describe(p), fa::name_of(dtype));
      sim::Recording recording;
      CHECK(verdict(Bug::none, p, dtype, true) == "");
      CHECK(recording.finish().analysed > 0);
      CHECK_THROWS_WITH(verdict(Bug::no_barrier_after_load, p, dtype, true),
                        ContainsSubstring("planted_bugs.cuh"));
      CHECK_THROWS_WITH(verdict(Bug::no_barrier_before_load, p, dtype, true),
                        ContainsSubstring("race"));
      CHECK_THROWS_WITH(verdict(Bug::backward_no_barrier, p, dtype, true),
                        ContainsSubstring("race"));
    }
  }
  sim::options() = saved;
}

#endif
