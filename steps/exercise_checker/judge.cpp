// The judge: `exercise_judge IN OUT` reads a request from its standard input, sends the inputs of
// each problem to the student's program through the pipe OUT, reads through IN what came of them,
// compares, and writes the verdict to its standard output. Both pipes are channel.h's.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "common/counts/backend.h"
#include "common/counts/estimate.h"
#include "common/counts/format.h"
#include "common/counts/gpus.h"
#include "common/harness/check.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "steps/exercise_checker/channel.h"
#include "steps/exercise_checker/judge.h"
#include "steps/exercise_checker/prediction.h"

namespace fa {

namespace {

using nlohmann::json;

/// The student's program says nothing more.
struct Ended {};

/// What it says to `asked`. \throws Ended
json said(Channel& student, const json& asked,
          const std::vector<const std::vector<float>*>& floats = {}) {
  student.put(asked, floats);
  json words = student.get();
  if (!words.is_object()) throw Ended();
  return words;
}

// --- a kernel -----------------------------------------------------------------------------------

std::optional<Fault> wrong_element(const CheckResult& result) {
  if (!result.damage.empty()) {
    const bool left = result.damage[0].find("is not zero after the run") != std::string::npos;
    return Fault{left ? "not reset" : "out of bounds", result.damage[0]};
  }
  for (const TensorCheck& t : result.tensors) {
    if (!t.ok) return Fault{"wrong result", t.message};
  }
  return std::nullopt;
}

/// Yours beside the spec's, per buffer; without a spec, as counted.
json traffic_table(const json& spec, const json& yours) {
  const json none = {{"read", 0}, {"write", 0}, {"atomic", 0}};
  json table = json::object();
  for (const auto& [name, bytes] : spec.items()) table[name] = {{"spec", bytes}, {"yours", none}};
  for (const auto& [name, row] : yours.items()) {
    const json due = spec.is_null() ? row["yours"] : spec.value(name, none);
    table[name] = row;
    table[name]["spec"] = due;
  }
  return table;
}

/// The source line with the most requests of a kind to a buffer.
std::string busiest_line(const json& sites, const std::string& what) {
  const json* most = nullptr;
  for (const json& s : sites) {
    const bool is_one = s["what"].get<std::string>().starts_with(what);
    if (is_one && (!most || s["requests"] > (*most)["requests"])) most = &s;
  }
  return most ? ", most of them at " + (*most)["where"].get<std::string>() : "";
}

std::optional<Fault> too_many_bytes(const json& table, const json& sites) {
  static const struct {
    const char *way, *words, *site;
  } ways[] = {{"read", "read from", " load"},
              {"write", "written to", " store"},
              {"atomic", "added atomically to", " atomic"}};
  for (const auto& [name, row] : table.items()) {
    for (const auto& [way, words, site] : ways) {
      const uint64_t yours = row["yours"][way];
      uint64_t spec = row["spec"][way];
      if (std::string(way) == "atomic") {  // atomicExch may store what the spec stores
        const uint64_t stored = row["yours"]["write"], stores = row["spec"]["write"];
        spec += stores - std::min(stored, stores);
      }
      if (yours <= spec) continue;
      return Fault{"traffic",
                   fmt::format("{} bytes {} {}{}; the spec has {}", grouped(yours), words, name,
                               busiest_line(sites, name + site), grouped(spec))};
    }
  }
  return std::nullopt;
}

/// The worst of the source lines that `matters` says must be ideal.
std::optional<Fault> worst_site(const json& sites, const char* kind, const char* unit,
                                double tolerance, auto&& matters) {
  const json* worst = nullptr;
  const auto excess = [](const json& s) { return double(s["transfers"]) - double(s["ideal"]); };
  for (const json& s : sites) {
    if (!matters(s["what"].get<std::string>())) continue;
    if (double(s["transfers"]) <= tolerance * double(s["ideal"])) continue;
    if (!worst || excess(s) > excess(*worst)) worst = &s;
  }
  if (!worst) return std::nullopt;
  const json& s = *worst;
  const double requests = s["requests"];
  return Fault{kind,
               fmt::format("{} at {}: {:.1f} {} a request, {:.1f} would do",
                           s["what"].get<std::string>(), s["where"].get<std::string>(),
                           double(s["transfers"]) / requests, unit, double(s["ideal"]) / requests)};
}

std::optional<Fault> bank_conflicts(const json& sites) {
  return worst_site(sites, "bank conflicts", "wavefronts", 1,
                    [](const std::string& what) { return what.starts_with("shared "); });
}

/// Rows of odd length begin anywhere in a sector: twice the ideal is still coalesced.
std::optional<Fault> uncoalesced(const json& sites, const std::vector<std::string>& buffers) {
  return worst_site(sites, "coalescing", "sectors", 2, [&](const std::string& what) {
    for (const std::string& name : buffers) {
      if (what.starts_with(name + " ")) return true;
    }
    return false;
  });
}

/// Where the first of two buffers should be copied one tile ahead of the second: KKVKV...V.
std::optional<Fault> wrong_order(const json& orders, const std::string& first,
                                 const std::string& second) {
  for (const std::string order : orders) {  // of a block
    std::string right = first;
    for (size_t n = order.size() / 2; n > 1; --n) right += first + second;
    right += second;
    if (order == right) continue;
    return Fault{"order", fmt::format("a block issues its copies in the order {}; a tile of {} "
                                      "belongs ahead of {} of the tile before it: {}",
                                      order, first, second, right)};
  }
  return std::nullopt;
}

/// One problem; fills in `seen`.
std::optional<Fault> try_problem(const json& request, const json& wanted, const json& facts,
                                 Channel& student, json& seen) {
  const bool backward = request.at("pass") == "backward";
  const uint64_t seed = request.at("seed");
  Variant like;
  like.forward = Runner(facts.at("bf16") ? DType::bf16 : DType::f32, {});
  like.fp8 = facts.at("fp8");
  like.writes_lse = facts.at("writes_lse");
  like.extras.latent = facts.at("latent");
  if (backward) like.backward = Runner(DType::f32, [](const Problem&, const Tensors<void>&) {});
  const Problem p = problem_for(like, problem_of(wanted));
  const Inputs in = inputs_of(wanted, p, seed);
  seen["problem"] = describe(p);
  json sizes = wanted;
  sizes.erase("spec");
  const std::vector<std::string> copies = request.value("copies", std::vector<std::string>{});
  json got = said(student,
                  {{"problem", sizes},
                   {"backward", backward},
                   {"watchdog", request.at("watchdog")},
                   {"copies", copies}},
                  {&in.Q, &in.K, &in.V, &in.dO});
  if (got.contains("kind")) return Fault{got["kind"], got["message"]};
  Outputs out;
  out.damage = got.at("damage");
  for (const json& tensor : got["outputs"]) {
    const Tensor& t = tensor_of(tensor.at("name").get<std::string>());
    out.*t.output = student.numbers(std::min(tensor.at("count").get<size_t>(), t.elements(p)));
  }
  std::vector<const Tensor*> outputs;  // of the pass
  for (const Tensor* t : tensors_of(like, p)) {
    if (t->role == Role::output && (out.*t->output).size() != t->elements(p)) throw Ended();
    if (t->role != (backward ? Role::backward_output : Role::output)) continue;
    if ((out.*t->output).size() != t->elements(p)) throw Ended();
    outputs.push_back(t);
  }
  if (simulated()) {
    // The formulas of several ranks are one rank's.
    const json spec = request.value("any_bytes", false) ? json() : wanted.at("spec");
    seen["traffic"] = traffic_table(spec, got.at("buffers"));
    seen["totals"] = got.at("totals");
  }
  const CheckResult result = check(p, in, out, sample_of(p, seed, 1e18));
  if (auto fault = wrong_element(result)) return fault;
  if (!simulated()) return std::nullopt;
  if (auto fault = made_by_the_host(p, outputs, seen["traffic"])) return fault;
  if (auto fault = too_many_bytes(seen["traffic"], got["sites"])) return fault;
  if (copies.size() == 2) {
    if (auto fault = wrong_order(got["copies"], copies[0], copies[1])) return fault;
  }
  const auto coalesced = request.value("coalesced", std::vector<std::string>{});
  if (auto fault = uncoalesced(got["sites"], coalesced)) return fault;
  return request.value("banks", false) ? bank_conflicts(got["sites"]) : std::nullopt;
}

// --- a prediction -------------------------------------------------------------------------------

GpuRates rates_of(const GpuSpec& gpu) {
  const ClockFigures& c = clock_figures(gpu.name);
  constexpr double kLanes = 128;  // fp32, of an SM; a multiply-add is two operations
  return {.sms = double(gpu.sms),
          .clock = gpu.fp32_flops / (gpu.sms * kLanes * 2),
          .lines = c.data_pipe,
          .wavefronts = c.data_pipe,
          .instructions = c.issue,
          .hbm_bytes_per_s = c.hbm_share * gpu.hbm_bytes_per_s,
          .hbm_latency = c.hbm_latency,
          .launch = c.launch_seconds};
}

/// The kernel's estimate, from the JSON of the step's program.
struct Run {
  double seconds = 0;
  uint64_t blocks = 0;
  double sms = 0;                                     ///< that have a block
  std::vector<std::pair<double, std::string>> parts;  ///< the largest share first

  /// A part's own time.
  double seconds_of(const std::string& part) const {
    for (const auto& [share, name] : parts) {
      if (part == name) return share * seconds;
    }
    return 0;
  }
  const std::string& limit() const { return parts.at(0).second; }
};

Run run_of(const json& j) {
  Run run{.seconds = j.at("ms").get<double>() / 1e3,
          .blocks = j.at("blocks"),
          .sms = j.at("sms"),
          .parts = {}};
  for (const auto& [name, share] : j.at("parts").items()) run.parts.emplace_back(share, name);
  std::sort(run.parts.rbegin(), run.parts.rend());
  if (run.seconds <= 0 || run.parts.empty()) throw UsageError("an estimate without a time");
  return run;
}

/// "L1 lines, shared memory, ..."
std::string part_names() {
  std::string out;
  for (int i = 0; i <= int(Part::start); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(Part(i)));
  }
  return out;
}

std::optional<Fault> wrong_limit(const TimePrediction& yours, const Run& run) {
  const std::string& limit = run.limit();
  if (yours.limit == limit) return std::nullopt;
  if ((", " + part_names() + ",").find(", " + yours.limit + ",") == std::string::npos) {
    return Fault{"wrong limiter", fmt::format("the limiter is \"{}\", and the parts are called {}",
                                              yours.limit, part_names())};
  }
  return Fault{"wrong limiter",
               fmt::format("{}: {} of the kernel's {}, but {}: {}. Is {} forgotten, or counted too "
                           "low, or {} too high?",
                           yours.limit, human_time(1e3 * run.seconds_of(yours.limit)),
                           human_time(1e3 * run.seconds), limit,
                           human_time(1e3 * run.seconds_of(limit)), limit, yours.limit)};
}

/// The parts that take a tenth of the time or more, with their own times.
std::string parts_of(const Run& run) {
  std::string out;
  for (const auto& [share, name] : run.parts) {
    if (share < 0.1) break;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                       human_time(1e3 * share * run.seconds));
  }
  return out;
}

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * b; }

/// What may have been forgotten.
std::string reason(const TimePrediction& yours, const Run& run, const GpuRates& gpu) {
  const bool shorter = yours.seconds < run.seconds;
  if (near(yours.seconds, run.seconds * run.sms, 0.5)) {
    return fmt::format("Forgotten: {} SMs share the work", run.sms);
  }
  for (const auto& [share, name] : run.parts) {
    if (shorter && near(yours.seconds, share * run.seconds, 0.1)) {
      return fmt::format("That is what {} alone would take. The parts: {}", name, parts_of(run));
    }
  }
  const std::string few =
      run.sms < gpu.sms
          ? fmt::format("{} blocks for {} SMs: the others do nothing. ", run.blocks, gpu.sms)
          : "";
  return fmt::format("{}The parts: {}. Is one of them {}?", few, parts_of(run),
                     shorter ? "forgotten, or counted too low" : "counted too high");
}

std::optional<Fault> wrong_time(const TimePrediction& yours, const Run& run, const GpuRates& gpu) {
  const double off = yours.seconds / run.seconds - 1;
  if (std::abs(off) <= kAllowedOff) return std::nullopt;  // not so for NaN
  const std::string how = !std::isfinite(off) || yours.seconds <= 0 ? "is no time"
                          : off < 0 ? fmt::format("is {:.0f}% too short", -100 * off)
                          : off < 1 ? fmt::format("is {:.0f}% too long", 100 * off)
                                    : fmt::format("is {:.3g} times too long", 1 + off);
  return Fault{"wrong time",
               fmt::format("{} {}: the run is estimated at {}. {}", human_time(1e3 * yours.seconds),
                           how, human_time(1e3 * run.seconds), reason(yours, run, gpu))};
}

/// "12,300"; a student's may be anything
std::string bytes_text(double bytes) {
  return bytes >= 0 && bytes < 1e18 ? grouped(uint64_t(bytes)) : fmt::format("{:.3g}", bytes);
}

std::optional<Fault> wrong_bytes(double yours, double counted) {
  if (std::isnan(yours)) {
    return Fault{"wrong bytes",
                 fmt::format("no number, where the kernels request {} bytes", bytes_text(counted))};
  }
  if (std::abs(yours - counted) < 0.5) return std::nullopt;
  return Fault{"wrong bytes",
               fmt::format("{} bytes, where the kernels request {}: {:.4g} times as many",
                           bytes_text(yours), bytes_text(counted), yours / counted)};
}

/// Of measured times, {name: ms}
std::optional<Fault> wrong_choice(const std::string& yours, const json& measured, json& seen) {
  std::string names, fastest;
  for (const auto& [name, ms] : measured.items()) {
    names += fmt::format("{}{}: {}", names.empty() ? "" : ", ", name, human_time(ms));
    if (fastest.empty() || ms < measured[fastest]) fastest = name;
  }
  seen["measured"] = names;
  if (yours == fastest) return std::nullopt;
  return Fault{"wrong choice",
               fmt::format("\"{}\" is not the faster one; measured were {}", yours, names)};
}

/// One problem; fills in `seen`.
std::optional<Fault> try_prediction(const json& wanted, const GpuRates& gpu, Channel& student,
                                    json& seen) {
  json asked = {{"problem", wanted},
                {"rates",
                 {gpu.sms, gpu.clock, gpu.lines, gpu.wavefronts, gpu.instructions,
                  gpu.hbm_bytes_per_s, gpu.hbm_latency, gpu.launch}}};
  asked["problem"].erase("expected");
  const json& expected = wanted.at("expected");
  const std::string name =
      wanted.contains("variant") ? wanted["variant"].get<std::string>() + ", " : "";
  const std::string sizes = describe(problem_of(wanted));
  seen["problem"] =
      name + sizes.substr(0, sizes.rfind(' '));  // without the type, which is not said
  if (expected.is_number()) {
    const json yours = said(student, asked)["bytes"];
    const double bytes = yours.is_number() ? double(yours) : std::nan("");
    seen["bytes"] = {{"yours", yours}, {"counted", expected}};
    return wrong_bytes(bytes, expected);
  }
  if (!expected.contains("parts")) {
    return wrong_choice(said(student, asked).at("faster"), expected, seen);
  }
  const Run run = run_of(expected);
  // Instructions that keep the schedulers busy for as long as the estimate says.
  asked["problem"]["instructions"] =
      run.seconds_of(name_of(Part::instructions)) * gpu.clock * gpu.instructions * run.sms;
  const json words = said(student, asked);
  const json& seconds = words.at("seconds");  // null where it is NaN
  const TimePrediction yours = {.limit = words.at("limit"),
                                .seconds = seconds.is_number() ? double(seconds) : std::nan("")};
  seen["prediction"] = {
      {"limit", yours.limit}, {"ms", 1e3 * yours.seconds}, {"estimated_ms", 1e3 * run.seconds}};
  if (auto fault = wrong_limit(yours, run)) return fault;
  return wrong_time(yours, run, gpu);
}

/// The verdict: `ok`, `kind` and `message` of the first thing that is wrong, and `problems`: what
/// was seen of each. `ended` where the student's program says nothing more, or nothing of sense.
json judge(const json& request, Channel& student) {
  json verdict = {{"ok", true}, {"problems", json::array()}};
  const bool predicts = request.at("problems").at(0).contains("expected");
  try {
    const json facts = predicts ? json() : said(student, json::object());
    const GpuRates gpu = rates_of(find_gpu("H200"));
    for (const json& wanted : request.at("problems")) {
      json& seen = verdict["problems"].emplace_back(json::object());
      const std::optional<Fault> fault = predicts
                                             ? try_prediction(wanted, gpu, student, seen)
                                             : try_problem(request, wanted, facts, student, seen);
      if (!fault) continue;
      verdict["ok"] = false;
      verdict["kind"] = fault->kind;
      verdict["message"] = fault->text;
      return verdict;  // one thing at a time
    }
  } catch (const Ended&) {
    verdict["ended"] = true;
  } catch (const json::exception&) {
    verdict["ended"] = true;
  }
  verdict["ok"] = !verdict.contains("ended");
  return verdict;
}

}  // namespace

Inputs inputs_of(const json& j, const Problem& p, uint64_t seed) {
  Inputs in =
      j.value("input", "normal") == "outliers" ? outlier_inputs(p, seed) : normal_inputs(p, seed);
  const float factor = j.value("factor", 1.f);  // how far apart the scores of a row are
  for (float& q : in.Q) q = round_to(p.dtype, q * factor);
  const float mean = j.value("mean", 0.f);  // of V
  for (float& v : in.V) v = round_to(p.dtype, v + mean);
  return in;
}

// Copies and memsets count for nothing here.
std::optional<Fault> made_by_the_host(const Problem& p, const std::vector<const Tensor*>& outputs,
                                      const json& table) {
  const auto moved = [&](const std::string& name, const char* way) -> uint64_t {
    const bool known = table.contains(name) && table[name].contains("by_kernels");
    return known ? table[name]["by_kernels"][way].get<uint64_t>() : 0;
  };
  for (const Tensor* t : outputs) {
    const uint64_t added = moved(t->name, "atomic"), written = moved(t->name, "write") + added;
    // What is added to may have rows to which nothing is added.
    if (written >= (added != 0 ? 1 : t->bytes(p))) continue;
    return Fault{"not in a kernel", fmt::format("{} has {} bytes, and kernels wrote {} of them",
                                                t->name, grouped(t->bytes(p)), grouped(written))};
  }
  for (const char* name : {"Q", "K", "V", "dO"}) {
    if (!table.contains(name) || table[name]["spec"]["read"] == 0) continue;
    if (moved(name, "read") != 0) continue;
    return Fault{"not in a kernel", fmt::format("no kernel read {}", name)};
  }
  return std::nullopt;
}

}  // namespace fa

int main(int argc, char** argv) try {
  if (argc == 1) return fa::judge_extension();
  if (argc != 3) throw fa::UsageError("usage: exercise_judge IN OUT");
  std::signal(SIGPIPE, SIG_IGN);  // the student's program may end at any time
  const fa::json request = fa::json::parse(std::cin);
  fa::Channel student(argv[1], argv[2]);
  std::cout << fa::judge(request, student).dump(-1, ' ', false, fa::json::error_handler_t::replace)
            << std::endl;
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
