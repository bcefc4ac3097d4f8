// step_main() with steps that need no kernel: for one query and one key, O is V.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/counts/backend.h"
#include "common/harness/inputs.h"
#include "common/harness/npy.h"
#include "common/harness/step.h"
#include "common/harness/step_options.h"
#include "common/program/program.h"
#include "tests/harness/files.h"
#include "tests/test.h"

namespace {

void copy_v(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::cuda_check(cudaMemcpy(t.O, t.V, 4 * p.q_size(), cudaMemcpyDeviceToDevice));
}
void all_zero(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::cuda_check(cudaMemset(t.O, 0, 4 * p.q_size()));
}
void nothing(const fa::Problem&, const fa::Tensors<float>&) {}
void stopped(const fa::Problem&, const fa::Tensors<float>&) {
  throw fa::KernelStopped(fa::FaultKind::race, "kernel f, thread (1,0,0): race on sK");
}
fa::Prediction copy_traffic(const fa::Problem& p) {
  fa::Prediction t;
  t["V"].read = t["O"].write = 4 * p.q_size();
  return t;
}
/// For one query and one key P is 1, so dV is dO, and nothing depends on Q and K.
void backward_of_copy(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::cuda_check(cudaMemcpy(t.dV, t.dO, 4 * p.q_size(), cudaMemcpyDeviceToDevice));
  fa::cuda_check(cudaMemset(t.dQ, 0, 4 * p.q_size()));
  fa::cuda_check(cudaMemset(t.dK, 0, 4 * p.kv_size()));
}
fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t;
  t["dO"].read = t["dQ"].write = t["dK"].write = t["dV"].write = 4 * p.q_size();
  return t;
}
/// A prepare that copies V into workspace, and a forward that finds it there.
void copy_to_workspace(const fa::Problem& p, const fa::Tensors<float>& t) {
  void* to = t.scratch<void>("ready");
  fa::cuda_check(cudaMemcpy(to, t.V, 4 * p.q_size(), cudaMemcpyDeviceToDevice));
}
void copy_from_workspace(const fa::Problem& p, const fa::Tensors<float>& t) {
  const void* from = t.scratch<void>("ready");
  fa::cuda_check(cudaMemcpy(t.O, from, 4 * p.q_size(), cudaMemcpyDeviceToDevice));
}
fa::Prediction prepare_traffic(const fa::Problem& p) {
  fa::Prediction t;
  t["V"].read = t["ready"].write = 4 * p.q_size();
  t.hbm = {.read = 4 * p.q_size(), .write = 4 * p.q_size()};
  return t;
}
fa::Prediction prepared_traffic(const fa::Problem& p) {
  fa::Prediction t;
  t["ready"].read = t["O"].write = 4 * p.q_size();
  return t;
}
fa::Prediction no_traffic(const fa::Problem&) { return {}; }

fa::Step step_of(fa::Runner forward, fa::PredictFn traffic) {
  fa::Step step;
  step.id = "99_copy";
  step.idea = "O is V";
  fa::Variant v;
  v.name = "kernel";
  v.idea = "a copy";
  v.forward = std::move(forward);
  v.traffic = traffic;
  step.variants = {v};
  return step;
}

struct Ran {
  int status;
  std::string printed;  ///< standard output
  std::string said;     ///< standard error
  nlohmann::json json;  ///< null when none was written
};

std::string words_of(const std::string& path) {
  std::stringstream words;
  words << std::ifstream(path).rdbuf();
  return words.str();
}

Ran run_program(const fa::Step& step, std::vector<const char*> more = {},
                fa::World* world = nullptr) {
  const fa::test::Folder folder;
  const std::string json = folder.path("run.json"), printed = folder.path("out.txt");
  const std::string said = folder.path("error.txt");
  std::vector<const char*> argv = {"99_copy", "--n", "1",      "--input",    "normal",
                                   "--iters", "2",   "--json", json.c_str(), "--details"};
  argv.insert(argv.end(), more.begin(), more.end());

  std::fflush(stdout);
  const int terminal = dup(STDOUT_FILENO), errors = dup(STDERR_FILENO);
  REQUIRE(std::freopen(printed.c_str(), "w", stdout));
  REQUIRE(std::freopen(said.c_str(), "w", stderr));
  Ran ran;
  const auto argc = static_cast<int>(argv.size());
  char** const words = const_cast<char**>(argv.data());
  ran.status =
      world ? fa::run_program(argc, words, step, *world) : fa::step_main(argc, words, step);
  std::fflush(stdout), std::fflush(stderr);
  dup2(terminal, STDOUT_FILENO), dup2(errors, STDERR_FILENO);
  close(terminal), close(errors);

  ran.printed = words_of(printed), ran.said = words_of(said);
  if (std::ifstream file(json); file) ran.json = nlohmann::json::parse(file);
  return ran;
}

bool simulated() { return fa::open_device("99_copy", "").kind == "sim"; }

}  // namespace

TEST_CASE("the exit status is 0 for a right run and 1 for any other", "[step_main]") {
  struct Case {
    fa::Runner forward;
    fa::PredictFn traffic;
    int status;
    const char* printed;
  };
  std::vector<Case> cases = {
      {copy_v, copy_traffic, 0, "\nright "},
      {all_zero, no_traffic, 1, "\nWRONG "},
      {nothing, no_traffic, 1, "of O were never written"},
      {stopped, copy_traffic, 1, "\nfinding: kernel f, thread (1,0,0): race on sK\n"}};
  if (simulated()) {
    cases.push_back({copy_v, no_traffic, 1, "the result is right, but the prediction differs"});
    cases.push_back({copy_v, no_traffic, 1, "prediction differs from the count in: O, V"});
  }
  for (const Case& c : cases) {
    const Ran ran = run_program(step_of(c.forward, c.traffic));
    CHECK(ran.status == c.status);
    CHECK(ran.json["ok"] == (c.status == 0));
    CHECK_THAT(ran.printed, ContainsSubstring(c.printed));
  }
}

// A step whose runs share a counter: a persistent kernel that does not reset it.
namespace {
int runs = 0;
void right_once(const fa::Problem& p, const fa::Tensors<float>& t) {
  if (runs++ == 0) copy_v(p, t);
}
void wrong_later(const fa::Problem& p, const fa::Tensors<float>& t) {
  runs++ == 0 ? copy_v(p, t) : all_zero(p, t);
}
void right_always(const fa::Problem& p, const fa::Tensors<float>& t) {
  ++runs;
  copy_v(p, t);
}
void dirty_later(const fa::Problem& p, const fa::Tensors<float>& t) {
  copy_v(p, t);
  if (runs++ > 0) fa::cuda_check(cudaMemset(t.scratch<char>("taken"), 1, 1));
}
void prepare_once(const fa::Problem& p, const fa::Tensors<float>& t) {
  if (runs++ == 0) copy_to_workspace(p, t);
}
void backward_once(const fa::Problem& p, const fa::Tensors<float>& t) {
  if (runs++ == 0) backward_of_copy(p, t);
}
fa::Step persistent(fa::Runner forward) {
  fa::Step step = step_of(std::move(forward), copy_traffic);
  step.variants[0].workspace = [](const fa::Problem&) {
    return std::vector<fa::Scratch>{{.name = "taken", .bytes = 4, .zeroed = true}};
  };
  runs = 0;
  return step;
}
}  // namespace

TEST_CASE("a later run that is wrong ends with status 1", "[step_main]") {
  SECTION("a forward") {
    const auto [forward, why] =
        GENERATE(table<void (*)(const fa::Problem&, const fa::Tensors<float>&), const char*>(
            {{right_once, "never written"},  // results of the first run do not count
             {wrong_later, "O["},
             {dirty_later, "taken is not zero after the run"}}));
    const Ran ran = run_program(persistent(forward));
    CHECK(ran.status == 1);
    CHECK(ran.json["ok"] == false);
    CHECK(ran.json["check"][0]["ok"] == true);
    CHECK(ran.json["check_again"]["ok"] == false);
    CHECK_THAT(ran.json["check_again"]["message"].get<std::string>(), ContainsSubstring(why));
  }
  SECTION("a prepare: what its first run wrote does not count") {
    fa::Step step = persistent(copy_from_workspace);
    step.variants[0].prepare = prepare_once;
    step.variants[0].prepare_traffic = prepare_traffic;
    step.variants[0].traffic = prepared_traffic;
    step.variants[0].workspace = [](const fa::Problem& p) {
      return std::vector<fa::Scratch>{{"ready", 4 * p.q_size()},
                                      {.name = "taken", .bytes = 4, .zeroed = true}};
    };
    const Ran ran = run_program(step);
    CHECK(ran.status == 1);
    CHECK(ran.json["check"][0]["ok"] == true);
    CHECK(ran.json["check_again"]["ok"] == false);
  }
  SECTION("a backward") {
    fa::Step step = persistent(copy_v);
    step.variants[0].backward = backward_once;
    step.variants[0].backward_traffic = backward_traffic;
    CHECK(run_program(step).status == 1);
  }
}

TEST_CASE("a step that keeps state is run again, one that does not is not simulated twice",
          "[step_main]") {
  const Ran ran = run_program(persistent(right_always));
  CHECK(ran.status == 0);
  CHECK(ran.json["check_again"]["ok"] == true);
  CHECK(runs >= 2);
  if (!simulated()) return;
  CHECK(runs == 2);
  runs = 0;
  CHECK(run_program(step_of(right_always, copy_traffic)).json["check_again"].is_null());
  CHECK(runs == 1);
}

TEST_CASE("a finding leaves no trace, nor an older one", "[step_main]") {
  if (!simulated()) return;
  namespace fs = std::filesystem;
  const fa::test::Folder folder;
  const std::string trace = folder.path("trace");
  CHECK(run_program(step_of(copy_v, copy_traffic), {"--trace", trace.c_str()}).status == 0);
  CHECK(fs::exists(trace));
  CHECK(run_program(step_of(stopped, copy_traffic), {"--trace", trace.c_str()}).status == 1);
  CHECK(!fs::exists(trace));
}

TEST_CASE("a backward is checked and counted beside the forward", "[step_main]") {
  fa::Step step = step_of(copy_v, copy_traffic);
  step.variants[0].backward = backward_of_copy;
  step.variants[0].backward_traffic = backward_traffic;
  const Ran ran = run_program(step);
  CHECK(ran.status == 0);
  CHECK(ran.json["check"].size() == 4);  // O, dQ, dK, dV
  CHECK(ran.json["backward"]["flops"] == 2.5 * ran.json["flops"].get<double>());
  step.variants[0].backward = all_zero;  // writes no gradient
  CHECK(run_program(step).status == 1);
}

TEST_CASE("a prepare runs before the forward, and is counted and judged by itself", "[step_main]") {
  fa::Step step = step_of(copy_from_workspace, prepared_traffic);
  fa::Variant& v = step.variants[0];
  v.workspace = [](const fa::Problem& p) {
    return std::vector<fa::Scratch>{{"ready", 4 * p.q_size()}};
  };
  CHECK(run_program(step).status == 1);  // the forward reads unwritten memory
  v.prepare = copy_to_workspace;
  v.prepare_traffic = prepare_traffic;
  const Ran ran = run_program(step);
  CHECK(ran.status == 0);
  CHECK(ran.json["prepare"]["flops"] == 0);
  if (!simulated()) CHECK(ran.json["prepare"]["time"]["median_ms"].get<double>() > 0);

  v.prepare_traffic = copy_traffic;  // a wrong formula of a right kernel
  const Ran wrong = run_program(step);
  CHECK(wrong.status == (simulated() ? 1 : 0));
  if (simulated()) {
    CHECK(wrong.json["traffic"]["prediction_ok"] == true);
    CHECK(wrong.json["prepare"]["traffic"]["prediction_ok"] == false);
  }
  v.prepare_traffic = nullptr;
  CHECK(run_program(step, {"--predict"}).status == 2);
  CHECK(run_program(step).status == 0);
  v.prepare = stopped;
  CHECK(run_program(step).json["finding"] == "kernel f, thread (1,0,0): race on sK");
}

TEST_CASE("the parent is asked about its own kind of problem, where it has one", "[step_main]") {
  fa::Step step = step_of(copy_v, copy_traffic);
  step.support.smem = true;
  step.variants[0].parent = "98 before";
  step.parents = {{.id = "98 before", .traffic = [](const fa::Problem& p) {
                     fa::Prediction t;
                     t["V"].read = 1000 + p.method.smem + (p.cache.fp8 ? 8 : 0);
                     return t;
                   }}};
  const auto parent = [&] { return run_program(step, {"--smem", "64"}).json["parent"]; };
  const auto bytes = [&] { return parent()["requested"]["predicted"]["read"].get<int>(); };
  CHECK(parent()["step"] == "98 before");
  CHECK(bytes() == 1000);  // without tiles to choose
  step.parents[0].support.smem = true;
  CHECK(bytes() == 1064);
  step.parents[0].extras.cache8 = true;
  CHECK(bytes() == 1072);
  step.parents[0].support.d = {128};
  CHECK(parent().is_null());
  step.parents[0].support.d = {64}, step.parents[0].traffic = nullptr;
  CHECK(parent().is_null());
}

TEST_CASE("a modelled GPU that cannot run the step is refused, and any on a GPU", "[step_main]") {
  fa::Step step = step_of(copy_v, copy_traffic);
  step.needs = "sm_80";
  CHECK(run_program(step, {"--gpu", "T4"}).status == 2);
  CHECK(run_program(step, {"--gpu", "RTX 4090"}).status == (simulated() ? 0 : 2));
}

TEST_CASE("a variant may need more than its step; by default the last one runs that can",
          "[step_main]") {
  if (!simulated()) return;
  fa::Step step = step_of(copy_v, copy_traffic);
  step.needs = "sm_80";
  step.variants.push_back(step.variants[0]);
  step.variants[0].name = "old", step.variants[1].name = "new";
  step.variants[1].newer = true, step.newer = "sm_90a";
  const auto variant = [](const Ran& ran) { return ran.json["variant"].get<std::string>(); };
  CHECK(variant(run_program(step, {})) == "new");
  CHECK(variant(run_program(step, {"--gpu", "H100"})) == "new");
  for (const char* gpu : {"A100", "B200"}) {
    CHECK(variant(run_program(step, {"--gpu", gpu})) == "old");
  }
  CHECK(variant(run_program(step, {"--gpu", "A100", "--variant", "old"})) == "old");
  CHECK(run_program(step, {"--gpu", "A100", "--variant", "new"}).status == 2);
  CHECK(run_program(step, {"--gpu", "T4"}).status == 2);
}

namespace {
void copy_bf16(const fa::Problem& p, const fa::Tensors<fa::bf16>& t) {
  fa::cuda_check(cudaMemcpy(t.O, t.V, 2 * p.q_size(), cudaMemcpyDeviceToDevice));
}
fa::Prediction many_products(const fa::Problem&) {
  fa::Prediction t;
  t.flops = 1'000'000'000'000'000;
  return t;
}
}  // namespace

TEST_CASE("arithmetic is bounded by the roof of what is multiplied", "[step_main]") {
  if (!simulated()) return;
  const auto bound_ms = [](const fa::Step& step) {
    return run_program(step, {"--gpu", "H100"}).json["bound_ms"].get<double>();
  };
  fa::Step step = step_of(copy_bf16, many_products);
  CHECK(bound_ms(step_of(copy_v, many_products)) == Approx(1e18 / 66.9e12));
  CHECK(bound_ms(step) == Approx(1e18 / 989.4e12));
  step.variants[0].fp8 = true;
  CHECK(bound_ms(step) == Approx(1e18 / 1978.9e12));
}

TEST_CASE("--predict says what the formulas say and runs nothing", "[step_main]") {
  runs = 0;
  const fa::Step step = step_of(right_always, copy_traffic);
  const Ran ran = run_program(step, {"--predict", "--n", "1000000", "--b", "1000"});
  CHECK(ran.status == 0);
  CHECK(runs == 0);
  CHECK(ran.json["ok"].is_null());
  CHECK(ran.json["check"].empty());
  CHECK(ran.json["traffic"]["requested"]["counted"].is_null());
  if (simulated()) {  // for the GPU that is modelled
    const fa::Step sms = step_of(right_always, [](const fa::Problem& p) {
      fa::Prediction t;
      t["V"].read = p.gpu.sms;
      return t;
    });
    const Ran a100 = run_program(sms, {"--predict", "--gpu", "A100", "--estimate-heads", "4"});
    CHECK(a100.json["traffic"]["requested"]["predicted"]["read"] == 108);
  }
  CHECK(run_program(step, {"--predict", "--analyse"}).status == 2);
  CHECK(run_program(step, {"--predict", "--d", "48"}).status == 2);
}

TEST_CASE("a kernel without its formulas is checked and counted, and compared with nothing",
          "[step_main]") {
  const auto require_unpredicted = [](const Ran& ran) {
    CHECK(ran.status == 0);
    CHECK(ran.json["ok"] == true);
    CHECK(ran.json["check"][0]["ok"] == true);
    const nlohmann::json& traffic = ran.json["traffic"];
    CHECK(traffic["prediction_ok"].is_null());
    CHECK(traffic["requested"]["predicted"].is_null());
    CHECK(traffic["hbm"]["predicted"].is_null());
    CHECK(ran.json["parent"].is_null());
    CHECK(ran.json["flops_executed"] == ran.json["flops"]);
    if (!simulated()) return;
    CHECK(traffic["requested"]["counted"]["read"] == 4 * 4 * 64);
    CHECK(traffic["requested"]["buffers"]["V"]["predicted"].is_null());
  };
  fa::Step step = step_of(copy_v, no_traffic);  // a wrong formula, ignored by --no-predict
  step.variants[0].parent = "98 before";
  step.parents = {{.id = "98 before", .traffic = copy_traffic}};
  require_unpredicted(run_program(step, {"--no-predict"}));
  CHECK(run_program(step, {"--no-predict", "--predict"}).status == 2);
  step.variants[0].traffic = nullptr;
  require_unpredicted(run_program(step));
  CHECK(run_program(step, {"--predict"}).status == 2);

  step.variants[0].backward = backward_of_copy;
  step.variants[0].backward_traffic = backward_traffic;
  const Ran half = run_program(step);
  CHECK(half.status == 0);
  CHECK(half.json["traffic"]["prediction_ok"].is_null());
  if (simulated()) CHECK(half.json["backward"]["traffic"]["prediction_ok"] == true);
  step.variants[0].backward_traffic = copy_traffic;  // wrong: it is still compared
  CHECK(run_program(step).status == (simulated() ? 1 : 0));
}

TEST_CASE("a link to a file that is not there stays a link", "[step_main]") {
  namespace fs = std::filesystem;
  const fa::test::Folder folder;
  const std::string link = folder.path("link.npy"), target = folder.path("target.npy");
  fs::create_symlink(target, link);
  const fa::Step step = step_of(copy_v, copy_traffic);
  CHECK(run_program(step, {"--out", link.c_str(), "--out-dir", "/dev/null/x"}).status == 2);
  CHECK(fs::is_symlink(link));
  CHECK(!fs::exists(target));
  CHECK(run_program(step, {"--out", link.c_str()}).status == 0);
  CHECK(fs::is_symlink(link));
  CHECK(fs::exists(target));
}

// --- shared by the runs of one process -----------------------------------------------------------

TEST_CASE("a run takes over the inputs of the one before only where its own are the same",
          "[step_main]") {
  const fa::test::Folder folder;
  const std::string out = folder.path("O.npy"), file = folder.path("v.npy");
  fa::Step step = step_of(copy_v, nullptr);
  step.support.cross = true;
  const auto O = [&](std::vector<const char*> words) {
    words.insert(words.end(), {"--out", out.c_str()});
    CHECK(run_program(step, words).status == 0);
    return fa::read_npy(out).data;
  };
  fa::Problem p;
  p.N = p.Nk = 1;
  const std::vector<float> first = fa::normal_inputs(p, 1).V;
  CHECK(O({}) == first);
  CHECK(O({"--seed", "2"}) == fa::normal_inputs(p, 2).V);
  CHECK(O({}) == first);
  CHECK(O({"--input", "real"}) == fa::real_inputs(p, 1).V);
  CHECK(O({"--input", "outliers", "--seed", "77"}) == fa::outlier_inputs(p, 77).V);
  CHECK(O({}) == first);
  p.d = 32;
  CHECK(O({"--d", "32"}) == fa::normal_inputs(p, 1).V);
  p.d = 64, p.H = p.Hkv = 3;
  CHECK(O({"--h", "3"}) == fa::normal_inputs(p, 1).V);
  p.H = p.Hkv = 4, p.B = 2;
  CHECK(O({"--b", "2"}) == fa::normal_inputs(p, 1).V);
  CHECK(O({}) == first);

  for (const float value : {7.f, 8.f}) {  // the same file, with other numbers
    folder.tensor("v.npy", {1, 4, 1, 64}, [=](size_t) { return value; });
    CHECK(O({"--v", file.c_str()}) == std::vector<float>(256, value));
  }
  CHECK(O({}) == first);
  CHECK(O({"--q", file.c_str()}) == first);  // the rest as before
  CHECK(O({"--k", file.c_str(), "--seed", "2"}) == fa::normal_inputs({.N = 1, .Nk = 1}, 2).V);

  CHECK(O({}) == first);  // without dO, which the next run needs
  step.variants[0].backward = backward_of_copy;
  CHECK(O({}) == first);
  step.variants[0].backward = {};
  CHECK(O({}) == first);
}

TEST_CASE("files whose numbers fp32 cannot carry on are refused", "[step_main]") {
  const fa::test::Folder folder;
  const auto file = [&](const char* name, float value) {
    return folder.tensor(name, {1, 4, 1, 64}, [=](size_t) { return value; });
  };
  fa::Step step = step_of(copy_v, copy_traffic);
  const std::string huge = file("huge.npy", 1e38f), large = file("large.npy", 1e25f);
  const Ran ran = run_program(step, {"--v", huge.c_str()});
  CHECK(ran.status == 2);
  CHECK_THAT(ran.said, ContainsSubstring("99_copy: V reaches 1.0e+38: sums of P V may pass"));
  CHECK(run_program(step, {"--v", large.c_str()}).status == 0);
  step.variants[0].backward = backward_of_copy;
  const Ran both = run_program(step, {"--v", large.c_str(), "--do", large.c_str()});
  CHECK(both.status == 2);
  CHECK_THAT(both.said, ContainsSubstring("gradients or dO V^T may pass"));
}

TEST_CASE("what a program refuses besides its options", "[step_main]") {
  const fa::test::Folder folder;
  const std::string inside = folder.file("file", "") + "/x";
  fa::Step step = step_of(copy_v, nullptr);
  const auto said = [&](const std::vector<const char*>& words) {
    const Ran ran = run_program(step, words);
    CHECK(ran.status == 2);
    CHECK(ran.printed.empty());
    CHECK(ran.json.is_null());
    return ran.said;
  };
  CHECK(said({"--out-dir", inside.c_str()}) ==
        "99_copy: --out-dir " + inside + ": cannot be created: Not a directory\n");
  said({"--d", "48"}), said({"--gpu", "none"});
  CHECK(said({"--predict"}) == "99_copy: the step has no traffic formula for its forward\n");
  step.variants[0].traffic = copy_traffic, step.variants[0].backward = backward_of_copy;
  CHECK(said({"--predict"}) == "99_copy: the step has no traffic formula for its backward\n");
  if (!simulated()) return;
  CHECK(said({"--no-counters"}) ==
        "99_copy: --no-counters needs a GPU: the simulator measures no time\n");
  CHECK(said({"--only-hbm"}) == "99_copy: --only-hbm needs a GPU, whose counters it chooses\n");
  CHECK(said({"--estimate", "x.json"}) ==
        "99_copy: --estimate needs a GPU, whose time the estimate is compared with\n");
}

// --- several ranks, the other one simulated by a stub --------------------------------------------

namespace {

/// Rank 0 or 1 of two. The other one repeats its messages, changed, and has the same numbers.
class Two : public fa::World {
 public:
  explicit Two(int rank = 0) : World(rank, 2) {}
  std::function<void(nlohmann::json&)> change = [](nlohmann::json&) {};
  std::vector<std::string> told;  ///< the run's options, as from told()
  double limit = 0;
  bool closed = false;

  bool alone() const override { return false; }
  void set_limit(double seconds) override { limit = seconds; }
  void close_peers() override { closed = true; }
  std::vector<std::vector<float>> gather(const std::vector<float>& mine) override {
    return {mine, mine};
  }
  void start(const std::string&, const std::vector<fa::Message>& send,
             const std::vector<fa::Message>&) override {
    count(send);
  }

 protected:
  std::vector<std::string> tell_all(const std::string& mine) override {
    nlohmann::json said = nlohmann::json::from_cbor(mine);
    if (said.is_array() && said.size() > 10) told = said.get<std::vector<std::string>>();
    change(said);
    const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(said);
    return {mine, {bytes.begin(), bytes.end()}};
  }
};

int backwards = 0;
/// O is V, a copy of which goes to the other rank; the gradients are 0 in the first backward only.
class CopyOnRanks : public fa::RankAttention {
 public:
  CopyOnRanks(const fa::Problem& p, fa::Ranks& ranks) : n_(p.q_size() / 2), ranks_(ranks) {}
  void forward(const fa::Tensors<void>& t) override {
    ranks_.start("V", {fa::message(1, static_cast<const float*>(t.V), n_)}, {});
    ranks_.finish();
    fa::cuda_check(cudaMemcpy(t.O, t.V, 4 * n_, cudaMemcpyDeviceToDevice));
  }
  void backward(const fa::Tensors<void>& t) override {
    const int byte = backwards++ ? 0x40 : 0;
    for (void* each : {t.dQ, t.dK, t.dV}) fa::cuda_check(cudaMemset(each, byte, 4 * n_));
  }
  size_t workspace_bytes() const override { return 77; }

 private:
  size_t n_;
  fa::Ranks& ranks_;
};

uint64_t sent_too_much = 0;

fa::Step step_on_ranks() {
  fa::Step step = step_of(copy_v, copy_traffic);
  fa::Sharding sharding;
  sharding.validate = [](const fa::Problem& p, int ranks) {
    if (p.N % ranks != 0) throw fa::UsageError("--n " + std::to_string(p.N) + ": is odd");
  };
  sharding.rows = [](const fa::Problem& p, int rank, int ranks) {
    return std::vector<fa::Rows>{{rank * p.N / ranks, (rank + 1) * p.N / ranks}};
  };
  sharding.make = [](const fa::Problem& p, fa::Ranks& ranks) {
    return std::make_unique<CopyOnRanks>(p, ranks);
  };
  sharding.predict = [](const fa::Problem& p, int, int) {
    return fa::RankPrediction{4 * p.q_size() / 2 + sent_too_much, 0, {p.scores() / 2}};
  };
  step.variants[0].extras.sharding = std::make_shared<fa::Sharding>(sharding);
  step.options = fa::rank_options();
  sent_too_much = 0;
  return step;
}

/// All rows of V are equal, so O is V however many rows a query sees.
std::string alike_v(const fa::test::Folder& folder) {
  return folder.tensor("v.npy", {1, 4, 2, 64},
                       [](size_t i) { return static_cast<float>(i / 128 * 64 + i % 64); });
}

}  // namespace

TEST_CASE("ranks share a problem: the whole is checked and written, bytes sent are compared",
          "[step_main]") {
  const fa::test::Folder folder;
  const std::string v = alike_v(folder), out = folder.path("O.npy");
  const std::vector<const char*> words = {"--n",   "2",         "--v",     v.c_str(),
                                          "--out", out.c_str(), "--limit", "9"};
  fa::Step step = step_on_ranks();
  Two two;
  const Ran ran = run_program(step, words, &two);
  CAPTURE(ran.said);
  CHECK(ran.status == 0);
  CHECK((two.closed && two.limit == 9));
  CHECK(fa::read_npy(out).shape == std::vector<size_t>{1, 4, 2, 64});
  CHECK(fa::read_npy(out).data == fa::read_npy(v).data);
  CHECK_THAT(ran.printed, ContainsSubstring("\nranks     2; messages by none\n"));
  REQUIRE(ran.json["ranks"].size() == 2);
  for (int r = 0; r < 2; ++r) {
    const nlohmann::json& rank = ran.json["ranks"][r];
    CHECK(rank["rows"] == nlohmann::json{{r, r + 1}});
    CHECK(rank["sent"]["forward"]["counted"] == 4 * 4 * 64);
    CHECK(rank["sent"]["forward"]["predicted"] == 4 * 4 * 64);
    CHECK(rank["workspace_bytes"] == 77);
    CHECK(rank["memory_bytes"] == 4 * 4 * 4 * 64);  // Q, K, V and O of its row
  }
  CHECK(ran.json["workspace_bytes"] == 77);
  if (simulated()) {
    CHECK(ran.json["ranks"][1]["estimated_ms"]["forward"].get<double>() > 0);
    CHECK_THAT(ran.printed, ContainsSubstring(", limited by "));
  }
  CHECK(ran.json["check"][0]["rows_checked"] == 8);
  CHECK(ran.json["check_again"]["ok"] == true);
  CHECK(ran.json["gradients_checked"] == true);
  CHECK(ran.json["carrier"] == "none");

  sent_too_much = 4;
  CHECK(run_program(step, words, &two).status == 1);
  sent_too_much = 0;
  const Ran predicted = run_program(step, {"--n", "2", "--predict"}, &two);
  CHECK(predicted.status == 0);
  CHECK_THAT(predicted.printed, ContainsSubstring("not run, predicted to send 1.02 kB"));

  two.change = [](nlohmann::json& said) {  // "O and LSE have the same bits": no
    if (said == 1) said = 0;
  };
  const Ran other_bits = run_program(step, words, &two);
  CHECK(other_bits.status == 1);
  CHECK(other_bits.json["check_again"]["message"] == "rank 1: O or LSE has other bits");
  two.change = [](nlohmann::json& said) {
    if (said.is_array() && said.empty()) said = {"a guard band"};
  };
  const Ran damaged = run_program(step, words, &two);
  CHECK(damaged.status == 1);
  CHECK(damaged.json["damage"] == nlohmann::json{"rank 1: a guard band"});
  two.change = [](nlohmann::json& said) {
    if (said.is_object() && said.contains("sentence")) said = {{"status", 3}, {"sentence", "no"}};
  };
  const Ran failed = run_program(step, words, &two);
  CHECK(failed.status == 3);
  CHECK(failed.said == "99_copy: rank 1: no\n");
}

TEST_CASE("ranks whose later gradients are wrong end with status 1", "[step_main]") {
  const fa::test::Folder folder;
  const std::string v = alike_v(folder),
                    none = folder.tensor("do.npy", {1, 4, 2, 64}, [](size_t) { return 0.f; });
  fa::Step step = step_on_ranks();
  step.variants[0].backward = backward_of_copy;
  Two two;
  backwards = 0;
  const Ran ran = run_program(step, {"--n", "2", "--v", v.c_str(), "--do", none.c_str()}, &two);
  CAPTURE(ran.said);
  CHECK(ran.status == 1);
  CHECK(ran.json["check"][1]["ok"] == true);
  CHECK(ran.json["check_again"]["ok"] == false);
}

TEST_CASE("ranks that were started with other options are told of the first", "[step_main]") {
  const fa::test::Folder folder;
  const std::string v = alike_v(folder), dir = folder.path("out");
  const fa::Step step = step_on_ranks();
  Two two;
  const std::vector<const char*> words = {"--n",    "2",         "--v",      v.c_str(), "--causal",
                                          "--seed", "7",         "--iters",  "3",       "--input",
                                          "real",   "--out-dir", dir.c_str()};
  CHECK(run_program(step, words, &two).status == 0);
  std::vector<std::string> told = two.told;
  std::string joined;
  for (const std::string& one : told) joined += one + "|";
  CHECK(joined ==
        "99_copy|--variant kernel|--b 1|--h 4|--hkv 4|--n 2|--nk 2|--d 64|--causal true|"
        "--input real|--seed 7|--q |--k |--v " +
            v +
            "|--do |--iters 3|--predict false|"
            "--out-dir " +
            dir + "|messages by none|");
  for (size_t i = 0; i < told.size(); ++i) {
    two.change = [i](nlohmann::json& said) {
      if (said.is_array() && said.size() > 10) said[i] = "--another 5", said.back() = "last";
    };
    const Ran ran = run_program(step, words, &two);
    CHECK(ran.status == 2);
    CHECK(ran.said == "99_copy: rank 1 was started with " +
                          std::string(i + 1 < told.size() ? "--another 5" : "last") +
                          ", rank 0 with " + told[i] + ": give all ranks the same problem\n");
  }
}

TEST_CASE("what one rank does alone is refused of two, in one sentence", "[step_main]") {
  fa::Step step = step_on_ranks();
  Two two;
  const auto said = [&](const std::vector<const char*>& words) {
    const Ran ran = run_program(step, words, &two);
    CHECK(ran.status == 2);
    CHECK(ran.printed.empty());
    return ran.said;
  };
  const std::string one = " works with one rank: start it without mpirun\n";
  CHECK(said({"--n", "2", "--trace", "t"}) == "99_copy: --trace" + one);
  CHECK(said({"--n", "2", "--estimate", "t"}) == "99_copy: --estimate" + one);
  CHECK(said({"--n", "3"}) == "99_copy: --n 3: is odd\n");
  CHECK(said({"--n", "2", "--gpu", "none"}).starts_with("99_copy: --gpu none: "));
  CHECK(run_program(step, {"--n", "3", "--help"}, &two).printed != "");
  Two second(1);  // says nothing
  const Ran help = run_program(step, {"--n", "3", "--help"}, &second);
  CHECK((help.status == 0 && help.printed.empty()));
  const Ran odd = run_program(step, {"--n", "3"}, &second);
  CHECK((odd.status == 2 && odd.said.empty()));
  step.variants[0].extras.sharding = nullptr;
  CHECK(said({"--n", "2"}) == "99_copy: --variant kernel" + one);
}
