// All steps over the range of inputs, and with each option. Linked with all of them, as the ladder.
#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <map>

#include "common/counts/backend.h"
#include "tests/attention.h"
#include "tests/masks.h"

namespace {

using fa::Inputs;
using fa::Problem;

struct Case {
  std::string name;
  std::function<void(const Problem&, Inputs&)> change;
  bool only_square = false;  ///< as many queries as keys
};

/// Every step-th element from `first` on becomes by * x + plus.
void change(const Problem& p, std::vector<float>& t, double by, float plus = 0, size_t first = 0,
            size_t step = 1) {
  for (size_t i = first; i < t.size(); i += step) {
    t[i] = fa::round_to(p.dtype, static_cast<float>(t[i] * by) + plus);
  }
}
void change_row(const Problem& p, std::vector<float>& t, double by, size_t row) {
  const size_t d = p.d;
  std::vector<float> one(&t[row * d], &t[row * d] + d);
  change(p, one, by);
  std::copy(one.begin(), one.end(), &t[row * d]);
}
void make_rows_alike(const Problem& p, std::vector<float>& t) {
  for (size_t i = 0; i < t.size(); ++i) t[i] = t[i % p.d];
}

std::vector<Case> cases(const std::vector<int>& decades, const std::vector<float>& sizes) {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const auto& f, bool only_square = false) {
    all.push_back({name, f, only_square});
  };
  for (const int e : decades) {
    const double by = std::pow(10., e);
    const std::string times = " * 1e" + std::to_string(e);
    add("Q" + times, [=](const Problem& p, Inputs& in) { change(p, in.Q, by); });
    add("V" + times, [=](const Problem& p, Inputs& in) { change(p, in.V, by); });
    add("dO" + times, [=](const Problem& p, Inputs& in) { change(p, in.dO, by); });
    add("rows alike, Q" + times, [=](const Problem& p, Inputs& in) {
      make_rows_alike(p, in.Q), make_rows_alike(p, in.K);
      change(p, in.Q, by);
    });
    add(
        "Q = K" + times, [=](const Problem& p, Inputs& in) { change(p, in.Q = in.K, by); }, true);
  }
  for (const float size : sizes) {
    for (const bool first : {true, false}) {
      add(
          std::string("Q = K, ") + (first ? "first" : "last") + " feature + " +
              std::to_string(size),
          [=](const Problem& p, Inputs& in) {
            change(p, in.K, 1, size, first ? 0 : p.d - 1, p.d);
            in.Q = in.K;
          },
          true);
    }
    add("a feature + " + std::to_string(size), [=](const Problem& p, Inputs& in) {
      change(p, in.K, 1, size, 0, p.d), change(p, in.Q, 1, size, 0, p.d);
    });
    add("a key * " + std::to_string(size),
        [=](const Problem& p, Inputs& in) { change_row(p, in.K, size, 5); });
    add("a query * " + std::to_string(size),
        [=](const Problem& p, Inputs& in) { change_row(p, in.Q, size, 2); });
  }
  return all;
}

/// A case and its reference: the same for many variants.
struct Asked {
  Asked(const Case& c, const Problem& of) : p(of), in(fa::normal_inputs(p, 11)) {
    c.change(p, in);
    if (p.cache.fp8) fa::quantise_cache(p, in);
  }
  const Problem p;
  Inputs in;
  fa::Checker right{p, in, fa::sample_of(p, 1, 1e18)};
};
Asked& asked(const Case& c, const Problem& p) {
  static std::map<std::string, std::list<Asked>> all;  // by the case's name
  for (Asked& a : all[c.name]) {
    if (a.p == p) return a;
  }
  return all[c.name].emplace_back(c, p);
}

struct Largest {
  double used = 0;
  std::string where = "-";
  int lost = 0;
};
using Tensors = std::map<std::string, Largest>;

/// The largest share of each tensor's bound that is used. The last variant runs all cases.
Tensors sweep(const fa::Step& step, const fa::Variant& v, const std::vector<Case>& cases) {
  Tensors most;
  auto turn = &v - step.variants.data();
  for (const Case& c : cases) {
    if (&v != &step.variants.back() && turn++ % 2 == 0) continue;
    Problem p;
    const fa::Support support = fa::support_of(step, v);
    p.H = p.Hkv = 1, p.d = fa::test::some_d(support), p.N = p.Nk = 100;
    if (support.most_n) p.N = 3;  // 13
    if (c.only_square && p.N != p.Nk) continue;
    p.dtype = v.forward.dtype();
    p = fa::problem_for(v, p);
    CAPTURE(c.name);
    Asked& a = asked(c, p);
    const fa::CheckResult result = a.right(fa::test::run_backward(v, p, a.in));
    for (const fa::TensorCheck& t : result.tensors) {
      CAPTURE(t.tensor, t.message, t.max_abs_err, t.bound);
      CHECK((t.ok || t.lost));
      Largest& largest = most[t.tensor];
      largest.lost += t.lost;
      if (t.ok && t.used > largest.used) largest.used = t.used, largest.where = c.name;
    }
  }
  return most;
}

struct Option {
  Problem p;
  bool now = false;  ///< also in the short run
};
/// Problems of two batch entries whose heads share keys, where the variant supports it: without and
/// with a causal mask, as in other tests, and additionally with each option.
std::vector<Option> options_of(const fa::Step& step, const fa::Variant& v) {
  using fa::test::packed, fa::test::with_score_mod, fa::test::with_window;
  const fa::Support s = fa::support_of(step, v);
  Problem p = fa::test::problem(s.most_n ? 5 : 30, fa::test::some_d(s), false, /*B=*/2, /*H=*/4);
  if (s.gqa) p.Hkv = v.extras.latent ? 1 : 2;
  if (s.cross) p.Nk = s.most_n ? 333 : 60;
  Problem causal = p;
  causal.causal = true;
  std::vector<Option> all = {{p}, {causal}};
  if (s.smem) all.push_back({p, true}), all.back().p.method.smem = 40 << 10;
  if (s.window) {
    all.push_back({with_window(p, 20, 9), true});
    all.push_back({with_window(causal, 20, -1)});
  }
  if (s.documents) all.push_back({packed(causal, {{13, 20}, {0, 5}, {10, 35}, {7, 0}}), true});
  if (s.predicate) {
    all.push_back({fa::test::with_random_predicate(causal, 1), true});
    all.push_back({fa::test::with_random_tiles(p, p.heads(), 1, 1)});
  }
  if (s.score_mod) {
    all.push_back({with_score_mod(causal, 1.5f, false, false)});
    all.push_back({with_score_mod(p, 0, true, false), true});
    all.push_back({with_score_mod(p, 0, false, true)});
    all.push_back({with_score_mod(with_window(causal, 20, -1), 2, true, true), true});
  }
  if (s.lengths) {
    for (const int page : s.pages ? std::vector{0, 16, 64} : std::vector{0}) {
      all.push_back({page == 16 ? p : causal, true});
      all.back().p.cache.lengths = {3, p.Nk - 1},
      all.back().p.cache.page = page ? std::max(page, s.least_page) : 0;
    }
  }
  return all;
}

/// Does this GPU have what the variant's kernels need? The simulator does.
bool runs_here(const fa::Step& step, const fa::Variant& v) {
  try {
    fa::open_device(step.id, fa::needs_of(step, v));
    return true;
  } catch (const fa::ResourceError&) {
    return false;
  }
}

/// In the short run the last variant of each step, in the other run all others; none for ranks.
void for_each_variant(const auto& f) {
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.extras.sharding || !runs_here(step, v)) continue;
      if (!fa::test::is_now(&v == &step.variants.back())) continue;
      CAPTURE(step.id, v.name);
      f(step, v);
    }
  }
}

}  // namespace

// The checker's bounds: a right step stays well below them, or the inputs are not checkable.
TEST_CASE("every step: whatever the size of the inputs, it is right or not checkable", "[all]") {
  // Below 1e-15 the scales of step 12 end.
  const auto all = cases({-15, -5, 1, 4, 6, 9, 20}, {300, 30000});
  for_each_variant([&](const fa::Step& step, const fa::Variant& v) {
    if (step.id.starts_with("03") && v.name == "naive")
      return;  // it overflows, as its chapter says
    for (const auto& [tensor, largest] : sweep(step, v, all)) {
      CAPTURE(tensor, largest.where, largest.used);
      CHECK(largest.used < (&v == &step.variants.back() ? 0.95 : 1));
      CHECK(largest.lost < 30);  // of 45
    }
  });
}

TEST_CASE("every step: huge and tiny inputs that make the same scores", "[all]") {
  for_each_variant([](const fa::Step& step, const fa::Variant& v) {
    fa::test::require_any_scale(v, fa::support_of(step, v));
  });
}

TEST_CASE("every step: each option, in a batch whose heads share keys", "[all]") {
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.extras.sharding || !runs_here(step, v)) continue;
      if (fa::id_of(step, v) == "03 naive") continue;  // overflows where scores are far below zero
      for (const Option& option : options_of(step, v)) {
        if (!fa::test::is_now(option.now)) continue;
        const Problem p = fa::problem_for(v, option.p);
        CAPTURE(step.id, v.name, fa::describe(p));
#if FA_BACKEND_GPU
        fa::test::require_right(v, p);
#else
        const auto require_predicted = [](fa::Prediction predicted, const fa::Counts& counts) {
          std::erase_if(predicted.buffers, [](const auto& b) { return b.second == fa::Bytes{}; });
          fa::test::require_equal(predicted, counts);
        };
        const auto counts = fa::test::require_right_counted(v, p, /*analyse=*/false);
        if (v.forward_of.empty()) require_predicted(v.traffic(p), counts.forward);
        if (v.backward) require_predicted(v.backward_traffic(p), counts.backward);
#endif
      }
    }
  }
}

#if !FA_BACKEND_GPU
TEST_CASE("every step: two batch entries share only tables and sinks") {
  const auto require_double = [](const fa::Variant& v, const fa::PredictFn& predict, Problem one) {
    if (!predict) return;
    Problem two = one;
    two.B = 2, two.cache.lengths.insert(two.cache.lengths.end(), one.cache.lengths.begin(),
                                        one.cache.lengths.end());
    CAPTURE(fa::describe(two));
    const fa::Prediction once = predict(one), twice = predict(two);
    uint64_t shared = one.score_mod.sinks ? 4 * one.H : 0;  // bytes
    const std::vector<fa::Table> tables = fa::tables_of(v, one), more = fa::tables_of(v, two);
    for (size_t i = 0; i < tables.size(); ++i) {
      if (!once.buffers.contains(tables[i].name)) continue;
      shared += 4 * (2 * tables[i].values.size() - more[i].values.size());
    }
    CHECK(2 * once.hbm.read - twice.hbm.read == shared);
    CHECK(2 * once.hbm.write == twice.hbm.write);
    CHECK(2 * once.flops == twice.flops);
  };
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.extras.sharding) continue;
      for (Option& option : options_of(step, v)) {
        option.p.B = 1;
        if (!option.p.cache.lengths.empty()) option.p.cache.lengths.pop_back();
        const Problem one = fa::problem_for(v, option.p);
        CAPTURE(step.id, v.name);
        require_double(v, v.traffic, one);
        require_double(v, v.backward_traffic, one);
        require_double(v, v.prepare_traffic, one);
      }
    }
  }
}

TEST_CASE("every step: a backward streams a group's keys once a kernel, and their gradients once") {
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.extras.sharding || !v.backward || !fa::support_of(step, v).gqa) continue;
      for (const Option& option : options_of(step, v)) {
        const Problem grouped = fa::problem_for(v, option.p);
        Problem alone = grouped;
        alone.Hkv = alone.H;
        CAPTURE(step.id, v.name, fa::describe(grouped));
        const fa::Prediction few = v.backward_traffic(grouped), many = v.backward_traffic(alone);
        const auto of_keys = 4.0 * (alone.kv_size() - grouped.kv_size());  // K and V in bf16
        const bool twice = v.name == "wide" || v.name == "deterministic";  // dQ has its own kernel
        const double read = double(many.hbm.read - few.hbm.read);          // and a table, or bounds
        CHECK(read == Approx((twice ? 2 : 1) * of_keys).epsilon(0.01));
        CHECK(double(many.hbm.write - few.hbm.write) == Approx(of_keys).epsilon(0.01));
        CHECK(many.flops == few.flops);
      }
    }
  }
}

TEST_CASE("every step: the predicted HBM bytes of a forward are what its L2 misses") {
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      // Step 12's prediction leaves out its scales.
      if (v.extras.sharding || v.fp8 || !v.forward_of.empty()) continue;
      if (fa::id_of(step, v) == "03 naive") continue;  // overflows
      for (const Option& option : options_of(step, v)) {
        if (!option.now && option.p.causal) continue;
        const Problem p = fa::problem_for(v, option.p);
        CAPTURE(step.id, v.name, fa::describe(p));
        const fa::Counts counts = fa::test::count_forward(v, p);
        const fa::Prediction predicted = v.traffic(p);
        REQUIRE(counts.hbm);
        // Sectors of which a part is asked for: a counter's, and the last one that is stored for
        // each entry that has its own length.
        const uint64_t written = 32 * (1 + (p.cache.lengths.empty() ? 0 : p.B));
        CHECK(counts.hbm->read <= predicted.hbm.read + 32 * predicted.buffers.size());
        CHECK(counts.hbm->write <= predicted.hbm.write + written);
        CHECK(counts.hbm->write >= predicted.hbm.write);
        // A second kernel finds its operands in the L2; a mask may leave keys out.
        const bool all_keys =
            p.mask.row_starts.empty() && !p.mask.predicate.sees && !p.mask.has_tiles();
        if (all_keys && counts.kernels.size() == 1) {
          CHECK(counts.hbm->read >= predicted.hbm.read);
        }
      }
    }
  }
}
#endif

TEST_CASE("every step: more than 2^31 elements", "[.][large]") {
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      // Each step's result, and for 13 also the last variant without an 8-bit cache.
      const bool once = step.id == "13_decode" && v.name == "once";
      if (v.extras.latent) continue;  // its heads share one K
      if (v.extras.sharding || !(once || &v == &step.variants.back())) continue;
      DYNAMIC_SECTION(step.id << ' ' << v.name) {
        fa::test::require_right_beyond_2_31(v, fa::support_of(step, v).most_n ? 1 : 257);
      }
    }
  }
}
