#include <map>
#include <nlohmann/json.hpp>

#include "common/counts/files.h"
#include "common/counts/trace.h"
#include "common/harness/inputs.h"
#include "common/harness/problem.h"
#include "common/harness/step.h"
#include "common/harness/tensors.h"
#include "common/harness/trace_file.h"
#include "tests/harness/files.h"
#include "tests/masks.h"
#include "tests/test.h"

using fa::Layout, fa::Problem, fa::TraceKind, fa::TraceSpace;
using nlohmann::json;

namespace {

fa::TraceEvent event(uint32_t block, uint32_t place, TraceKind kind, const char* how) {
  fa::TraceEvent e;
  e.block = block, e.place = place, e.kind = kind, e.how = how;
  e.waits = 2, e.start = 10 * block, e.ticks = 7;
  e.bytes = 64, e.requests = 3, e.transfers = 5, e.hbm_read = 32, e.hbm_write = 16;
  e.touched = {{1, 2, 3, 4}};
  return e;
}

/// One kernel of 2 x 2 x 2 blocks, a buffer and an array in shared memory.
fa::Trace one_kernel(const std::string& buffer) {
  fa::Trace t;
  t.places = {{buffer, TraceSpace::global, 0, 0, 1024, {1, 4, 64, 4}},
              {"sK", TraceSpace::shared, 0, 256, 512, {1, 2, 64, 4}}};
  t.lines = {{"steps/00_none/1.cuh", 12}, {"steps/00_none/1.cuh", 40}};
  t.stacks = {{1, 0}, {0}};
  fa::TraceKernel k;
  k.name = "a_kernel";
  k.grid = {2, 3, 4}, k.block = {32, 1, 1}, k.shared_bytes = 512, k.slots = 264;
  k.start = 100, k.ticks = 50;
  k.events = {event(0, 0, TraceKind::read, "load"), event(0, 1, TraceKind::write, "store"),
              event(11, 0, TraceKind::atomic, "TMA")};
  k.events[1].stack = 1, k.events[1].exact = false;
  t.kernels = {k};
  fa::TraceRequest r;
  r.place = 1, r.stack = 1, r.kind = TraceKind::write, r.how = "store";
  r.lanes = 0b101, r.lane_bytes = 4, r.at[0] = 8, r.at[2] = 16, r.transfers = 1;
  t.requests = {r};
  return t;
}

json written(const fa::Trace& trace, const Problem& p) {
  const fa::test::Folder folder;
  const std::string path = folder.path("t.json");
  fa::write_trace(path, trace, "00_none", "some", "H200", p);
  return json::parse(fa::read_file(path));
}

}  // namespace

TEST_CASE("workspace has the layout of the tensor that is as large", "[trace]") {
  Problem p;
  p.B = 2, p.H = 3, p.Hkv = 1, p.N = 10, p.Nk = 20, p.d = 32;
  const auto of = [&p](const char* name, uint64_t bytes) {
    return fa::workspace_layout(name, bytes, p);
  };
  CHECK(of("x", 4 * 6 * 10 * 32) == Layout{6, 10, 32, 4});  // as Q
  CHECK(of("x", 2 * 6 * 10 * 32) == Layout{6, 10, 32, 2});
  CHECK(of("x", 1 * 6 * 10 * 32) == Layout{6, 10, 32, 1});
  CHECK(of("x", 4 * 2 * 20 * 32) == Layout{2, 20, 32, 4});  // as K
  CHECK(of("x", 1 * 2 * 20 * 32) == Layout{2, 20, 32, 1});
  CHECK(of("x", 4 * 6 * 10) == Layout{6, 10, 1, 4});        // as LSE
  CHECK(of("S", 4 * 6 * 10 * 20) == Layout{6, 10, 20, 4});  // as scores
  CHECK(of("x", 4 * 6 * 10 * 20) == Layout{6, 10, 20, 4});
  CHECK(of("x_parts", 4 * 6 * 10 * 20) == Layout{1, 150, 32, 1});  // no scores
  CHECK(of("x", 2 * 6 * 10) == Layout{1, 1, 120, 1});  // not a row of one number of 2 bytes
  CHECK(of("x", 4 * 32 * 7) == Layout{1, 7, 32, 4});   // padded rows
  CHECK(of("x", 32 * 7) == Layout{1, 7, 32, 1});
  CHECK(of("x", 100) == Layout{1, 1, 100, 1});
  p.H = 12, p.Hkv = 6, p.N = 16;  // the scores of 24 heads are as large as K
  CHECK(of("x", 4 * 24 * 16 * 20) == Layout{12, 20, 32, 4});
  for (const char* name : {"S", "P", "dS", "dP"}) {
    CHECK(of(name, 4 * 24 * 16 * 20) == Layout{24, 16, 20, 4});
  }
}

TEST_CASE("passes of a trace follow each other, with numbers of their own", "[trace]") {
  fa::Trace all = one_kernel("Q");
  all.append(one_kernel("K"), "backward");
  REQUIRE((all.kernels.size() == 2 && all.places.size() == 4 && all.lines.size() == 4));
  CHECK(all.kernels[0].pass.empty());
  const fa::TraceKernel& k = all.kernels[1];
  CHECK(k.pass == "backward");
  CHECK(k.start == 150 + 100);
  CHECK(k.events[0].start == 150 + 0);
  CHECK(k.events[2].start == 150 + 110);
  CHECK((k.events[0].place == 2 && k.events[1].place == 3));
  CHECK((k.events[0].stack == 2 && k.events[1].stack == 3));
  CHECK(all.stacks == std::vector<std::vector<uint32_t>>{{1, 0}, {0}, {3, 2}, {2}});
  CHECK((all.places[2].kernel == 0 && all.places[3].kernel == 1));
  CHECK((all.requests[1].kernel == 1 && all.requests[1].place == 3 && all.requests[1].stack == 3));
  CHECK((all.requests[0].kernel == 0 && all.requests[0].place == 1));
  all.append(one_kernel("V"), "prepare");
  CHECK(all.kernels[2].start == 300 + 100);  // after the last end
  CHECK(all.places[5].kernel == 2);
}

TEST_CASE("the file of a trace says what was recorded", "[trace]") {
  Problem p;
  p.B = 1, p.H = 2, p.Hkv = 1, p.N = 4, p.Nk = 5, p.d = 64, p.causal = true;
  fa::Trace trace;
  trace.append(one_kernel("Q"), "forward");
  trace.lines.push_back({.path = "README.md", .number = 1});
  const json file = written(trace, p), &about = file["flash_steps"];
  CHECK(about["step"] == "00_none");
  CHECK(about["variant"] == "some");
  CHECK(about["model_gpu"] == "H200");
  CHECK(about["problem"] == json::parse(R"({"b": 1, "h": 2, "hkv": 1, "n": 4, "nk": 5, "d": 64,
                                            "causal": true, "dtype": "fp32"})"));
  CHECK(about["kernels"] == json::parse(R"([{"name": "a_kernel", "pass": "forward",
      "grid": [2, 3, 4], "block": [32, 1, 1], "shared_bytes": 512, "slots": 264, "start": 100,
      "ticks": 50}])"));
  CHECK(about["places"] == json::parse(R"([
      {"name": "Q", "space": "global", "bytes": 1024,
       "layout": {"matrices": 1, "rows": 4, "columns": 64, "element_bytes": 4}},
      {"name": "sK", "space": "shared", "kernel": 0, "offset": 256, "bytes": 512,
       "layout": {"matrices": 1, "rows": 2, "columns": 64, "element_bytes": 4}}])"));
  CHECK(about["lines"][1] ==
        json::parse(R"({"path": "steps/00_none/1.cuh", "number": 40, "text": ""})"));
  std::string first;
  std::ifstream readme(fa::data_file("../../README.md"));
  CHECK((std::getline(readme, first) && about["lines"][2]["text"] == first));
  CHECK(about["stacks"] == json::parse("[[1, 0], [0]]"));
  json at = json::array({8, nullptr, 16});
  while (at.size() < 32) at.push_back(nullptr);
  CHECK(about["requests"] == json::array({{{"kernel", 0},
                                           {"place", 1},
                                           {"stack", 1},
                                           {"kind", "write"},
                                           {"how", "store"},
                                           {"lane_bytes", 4},
                                           {"transfers", 1},
                                           {"at", at}}}));
  CHECK(about["totals"] == json::parse(R"({"forward": {"Q": {
      "bytes": {"read": 64, "write": 0, "atomic": 64},
      "requests": {"read": 3, "write": 0, "atomic": 3},
      "sectors": {"read": 5, "write": 0, "atomic": 0},
      "first_touch": {"read": 64, "write": 32}}}})"));  // TMA makes no sectors of warps
  CHECK(file["traceEvents"] == json::parse(R"j([
      {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "a_kernel"}},
      {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "block (0,0,0)"}},
      {"name": "thread_name", "ph": "M", "pid": 0, "tid": 11, "args": {"name": "block (1,2,1)"}},
      {"name": "Q read", "cat": "global", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 7,
       "args": {"line": "1.cuh:40", "place": 0, "stack": 0, "kind": "read", "how": "load",
                "bytes": 64, "requests": 3, "sectors": 5, "waits": 2, "first_touch": [32, 16],
                "touched": [[1, 2, 3, 4]]}},
      {"name": "sK write", "cat": "shared", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 7,
       "args": {"line": "1.cuh:12", "place": 1, "stack": 1, "kind": "write", "how": "store",
                "bytes": 64, "requests": 3, "wavefronts": 5, "waits": 2,
                "around": [[1, 2, 3, 4]]}},
      {"name": "Q atomic", "cat": "global", "ph": "X", "pid": 0, "tid": 11, "ts": 110, "dur": 7,
       "args": {"line": "1.cuh:40", "place": 0, "stack": 0, "kind": "atomic", "how": "TMA",
                "bytes": 64, "requests": 3, "sectors": 5, "waits": 2, "first_touch": [32, 16],
                "touched": [[1, 2, 3, 4]]}}])j"));
}

TEST_CASE("a trace names the cache, the mask and the type that there are", "[trace]") {
  Problem p;
  const auto problem = [&p] { return written({}, p)["flash_steps"]["problem"]; };
  for (const char* key : {"lengths", "page", "cache8", "window", "row_starts", "key_starts", "mask",
                          "cap", "alibi", "sinks"}) {
    CHECK_FALSE(problem().contains(key));
  }
  p.cache.lengths = {3, 4}, p.cache.page = 16, p.cache.fp8 = true, p.dtype = fa::DType::bf16;
  CHECK(problem()["lengths"] == json::array({3, 4}));
  CHECK(problem()["page"] == 16);
  CHECK(problem()["cache8"] == true);
  CHECK(problem()["dtype"] == "bf16");
  p.method.fp8 = true;
  CHECK(problem()["dtype"] == "e4m3");
  p = fa::test::with_score_mod(fa::test::packed(Problem{}, {{3, 4}, {5, 6}}), 2.5f, true, true);
  p = fa::test::with_random_predicate(fa::test::with_window(p, 7, -1), 9);
  CHECK(problem()["window"] == json::array({7, -1}));
  CHECK(problem()["row_starts"] == json::array({0, 3, 8}));
  CHECK(problem()["key_starts"] == json::array({0, 4, 10}));
  CHECK(problem()["mask"] == "random:9");
  CHECK(problem()["cap"] == 2.5);
  CHECK((problem()["alibi"] == true && problem()["sinks"] == true));
}

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
