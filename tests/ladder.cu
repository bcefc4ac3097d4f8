// The steps' descriptions against each other: this test is linked with all of them.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/harness/step.h"
#include "tests/test.h"

namespace {

std::string number_of(const fa::Step& step) { return step.id.substr(0, step.id.find('_')); }

const fa::Step& step_of(const std::string& id) {
  for (const fa::Step& step : fa::linked_steps()) {
    if (number_of(step) == id.substr(0, id.find(' '))) return step;
  }
  throw std::out_of_range(id);
}

fa::Problem problem_of(const fa::Variant& v) {
  fa::Problem p;
  p.H = p.Hkv = 3;
  p.N = p.Nk = 333;
  p.dtype = v.forward.dtype();
  return p;
}

}  // namespace

TEST_CASE("the ladder: steps and variants have names of their own") {
  std::set<std::string> seen;
  for (const fa::Step& step : fa::linked_steps()) {
    CAPTURE(step.id);
    CHECK(seen.insert(number_of(step)).second);
    CHECK(!step.idea.empty());
    REQUIRE(!step.variants.empty());
    for (const fa::Variant& v : step.variants) {
      CAPTURE(v.name);
      CHECK(seen.insert(number_of(step) + " " + v.name).second);
      CHECK(!v.idea.empty());
      CHECK(v.traffic);
      CHECK(static_cast<bool>(v.prepare) == (v.prepare_traffic != nullptr));
      CHECK(static_cast<bool>(v.backward) == (v.backward_traffic != nullptr));
    }
  }
}

TEST_CASE("the ladder: a step is called as its folder") {
  std::set<std::string> folders = {
#include "steps_of_the_build.inc"  // written by tests/CMakeLists.txt
  };
  for (const fa::Step& step : fa::linked_steps()) {
    CAPTURE(step.id);
    CHECK(folders.erase(step.id) == 1);
  }
  CHECK(folders.empty());
}

TEST_CASE("the ladder: the older of two architectures does for some variants") {
  for (const fa::Step& step : fa::linked_steps()) {
    CAPTURE(step.id);
    std::set<std::string> needs;
    for (const fa::Variant& v : step.variants) needs.insert(needs_of(step, v));
    CHECK(needs.size() == (step.newer.empty() ? 1 : 2));
  }
}

TEST_CASE("the ladder: a step adds the options that its variants support, and no others") {
  using S = fa::Support;
  const std::pair<const char*, std::vector<bool S::*>> needs[] = {
      {"--lengths", {&S::lengths, &S::documents}},
      {"--page", {&S::pages}},
      {"--table", {&S::pages}},
      {"--window", {&S::window}},
      {"--mask", {&S::predicate}},
      {"--tiles", {&S::predicate}},
      {"--cap", {&S::score_mod}},
      {"--alibi", {&S::score_mod}},
      {"--sinks", {&S::score_mod}}};
  size_t found = 0;
  for (const fa::Step& step : fa::linked_steps()) {
    CAPTURE(step.id);
    std::set<std::string> supported, options;
    for (const fa::Variant& v : step.variants) {
      for (const auto& [option, flags] : needs) {
        for (const auto flag : flags) {
          if (fa::support_of(step, v).*flag) supported.insert(option);
        }
      }
      if (v.extras.sharding) supported.insert("--limit");
    }
    for (const fa::StepOption& option : step.options) options.insert(option.name);
    CHECK(options == supported);
    found += options.size();
  }
  CHECK(found >= 10);  // of steps 13 to 15
}

TEST_CASE("the ladder: a parent is a variant, with its formula and what it supports") {
  size_t parents = 0;
  const auto check = [&](const fa::Step& step, const fa::Variant& v, const std::string& id,
                         fa::PredictFn fa::Parent::*ours, fa::PredictFn fa::Variant::*theirs) {
    if (id.empty()) return;
    CAPTURE(step.id, v.name, id);
    const fa::Parent parent = parent_of(step, id);
    const fa::Variant& named = fa::linked_variant(id);
    CHECK(parent.*ours == named.*theirs);
    fa::Support support = fa::support_of(step_of(id), named);
    support.smem = false;  // the parent need not support the child's M
    // A borrowed forward may support more than the step that borrows it.
    if (id != v.forward_of) CHECK(parent.support == support);
    ++parents;
  };
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      check(step, v, v.parent.empty() ? v.forward_of : v.parent, &fa::Parent::traffic,
            &fa::Variant::traffic);
      check(step, v, v.backward_parent, &fa::Parent::backward_traffic,
            &fa::Variant::backward_traffic);
    }
    for (const fa::Parent& parent : step.parents) {  // none is left over
      CAPTURE(step.id, parent.id);
      const auto names = [&](const fa::Variant& v) {
        return v.parent == parent.id || v.backward_parent == parent.id;
      };
      CHECK(std::any_of(step.variants.begin(), step.variants.end(), names));
    }
  }
  CHECK(parents >= 20);
}

TEST_CASE("the ladder: a forward that is another variant's asks for the same bytes") {
  size_t borrowed = 0;
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.forward_of.empty()) continue;
      CAPTURE(step.id, v.name, v.forward_of);
      const fa::Variant& owner = fa::linked_variant(v.forward_of);
      CHECK(static_cast<bool>(v.backward));
      CHECK(v.writes_lse == owner.writes_lse);
      const fa::Problem p = problem_of(v);
      CHECK(v.traffic(p).buffers == owner.traffic(p).buffers);
      CHECK(v.prepare_traffic == owner.prepare_traffic);
      ++borrowed;
    }
  }
  CHECK(borrowed >= 6);
}

TEST_CASE("the ladder: what is not linked is not found") {
  CHECK_THROWS_WITH(fa::linked_variant("04 fast"), ContainsSubstring("04 fast"));
  CHECK_THROWS_WITH(fa::linked_variant("77 fused"), ContainsSubstring("77 fused"));
  CHECK_THROWS_WITH(fa::linked_variant("04"), ContainsSubstring("04"));
  CHECK_THROWS_WITH(fa::linked_variant("04_fus fused"), ContainsSubstring("04_fus"));
}
