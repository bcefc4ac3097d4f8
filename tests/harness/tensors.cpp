#include "common/harness/tensors.h"
#include "common/counts/trace.h"

#include <map>

#include "common/harness/problem.h"
#include "common/harness/step.h"
#include "tests/test.h"

using fa::Layout, fa::Problem;

TEST_CASE("each tensor has these axes, this layout and this size", "[tensors]") {
  Problem p;
  p.B = 2, p.H = 6, p.Hkv = 3, p.N = 10, p.Nk = 33, p.d = 64, p.dtype = fa::DType::bf16;
  p.cache.page = 16;
  struct Want {
    const char* shape;
    Layout layout;
    const char* role;
    bool of_keys;
  };
  const Want queries{"[B, H, N, d]", {12, 10, 64, 2}, "output", false};
  const Want keys{"[B, Hkv, Nk, d]", {6, 33, 64, 2}, "backward output", true};
  const std::map<std::string, Want> all = {
      {"Q", {queries.shape, queries.layout, "input", false}},
      {"K", {keys.shape, keys.layout, "input", true}},
      {"V", {keys.shape, keys.layout, "input", true}},
      {"K_scale", {"[B, Hkv]", {1, 2, 3, 4}, "input", false}},
      {"V_scale", {"[B, Hkv]", {1, 2, 3, 4}, "input", false}},
      {"lengths", {"[B]", {1, 2, 1, 4}, "input", false}},
      {"table", {"[B, pages]", {1, 2, 3, 4}, "input", false}},
      {"sinks", {"[H]", {1, 6, 1, 4}, "input", false}},
      {"O", queries},
      {"LSE", {"[B, H, N]", {12, 10, 1, 4}, "output", false}},
      {"dO", {queries.shape, queries.layout, "backward input", false}},
      {"dQ", {queries.shape, queries.layout, "backward output", false}},
      {"dK", keys},
      {"dV", keys},
      {"dsinks", {"[B, H, 1]", {12, 1, 1, 4}, "backward output", false}}};
  CHECK(fa::all_tensors().size() == all.size());
  for (const fa::Tensor& t : fa::all_tensors()) {
    CAPTURE(t.name);
    const Want& want = all.at(t.name);
    CHECK(t.shape_text(p) == want.shape);
    CHECK((t.layout(p) == want.layout));
    CHECK(std::string(fa::name_of(t.role)) == want.role);
    CHECK(t.of_keys() == want.of_keys);
    const Layout& l = want.layout;
    CHECK(t.elements(p) == l.matrices * l.rows * l.columns);
    CHECK(t.bytes(p) == t.elements(p) * l.element_bytes);
    CHECK(fa::tensor_of(t.name).role == t.role);
  }
  CHECK_THROWS_WITH(fa::tensor_of("dLSE"), "no tensor 'dLSE'");
}

TEST_CASE("a variant reads and writes the tensors of its problem", "[tensors]") {
  Problem p;
  fa::Variant v;
  const auto names = [&] {
    std::string all;
    for (const fa::Tensor* t : fa::tensors_of(v, p)) all += std::string(t->name) + " ";
    return all;
  };
  CHECK(names() == "Q K V O ");
  v.writes_lse = true;
  CHECK(names() == "Q K V O LSE ");
  p.score_mod.sinks = true;
  CHECK(names() == "Q K V sinks O LSE ");
  v.backward = fa::Runner(fa::DType::f32, [](const Problem&, const fa::Tensors<void>&) {});
  CHECK(names() == "Q K V sinks O LSE dO dQ dK dV dsinks ");
  v = {}, p = {};
  p.cache.fp8 = true;
  CHECK(names() == "Q K_scale V_scale K V O ");
  p.cache = {.lengths = {7}, .page = 0, .fp8 = false};
  CHECK(names() == "Q lengths K V O ");
  p.cache = {.lengths = {}, .page = 16, .fp8 = false};
  CHECK(names() == "Q table K V O ");
}
