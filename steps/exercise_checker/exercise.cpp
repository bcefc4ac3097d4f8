#include "steps/exercise_checker/exercise.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/clock/clock.h"
#include "common/dialect/errors.h"
#include "common/harness/backend.h"
#include "common/harness/check.h"
#include "common/harness/format.h"
#include "common/harness/gpus.h"
#include "common/harness/inputs.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "steps/exercise_checker/prediction.h"

namespace fa {

namespace {

using nlohmann::json;

/// The first thing that is wrong.
struct Fault {
  std::string kind;  ///< a few words: "race", "wrong result"
  std::string text;  ///< one sentence that says where
};

/// Asks each problem for its fault, up to the first one: the result. `fault_of(wanted, seen)` also
/// writes down what it has seen.
template <class F>
json result_of(const json& problems, F&& fault_of) {
  json result = {{"ok", true}, {"problems", json::array()}};
  for (const json& wanted : problems) {
    json& seen = result["problems"].emplace_back(json::object());
    const std::optional<Fault> fault = fault_of(wanted, seen);
    if (!fault) continue;
    result["ok"] = false;
    result["kind"] = fault->kind;
    result["message"] = fault->text;
    break;  // one thing at a time
  }
  return result;
}

/// `program REQUEST.json RESULT.json`: writes what `judge(request)` returns. The exit status.
template <class F>
int answer(int argc, char** argv, F&& judge) try {
  if (argc != 3) throw UsageError("usage: " + std::string(argv[0]) + " REQUEST.json RESULT.json");
  std::ifstream request(argv[1]);
  if (!request) throw UsageError(std::string(argv[1]) + ": cannot be read");
  const json result = judge(json::parse(request));
  std::ofstream file(argv[2]);
  file << result.dump() << "\n";
  file.close();
  if (!file) throw UsageError(std::string(argv[2]) + ": cannot be written");
  return 0;
} catch (const ResourceError& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 3;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

// --- a kernel -----------------------------------------------------------------------------------

/// hkv and nk: as h and n where they are not given.
Problem problem_of(const json& j, DType dtype) {
  Problem p;
  p.B = j.value("b", 1);
  p.H = j.value("h", 1);
  p.Hkv = j.value("hkv", p.H);
  p.N = j.at("n");
  p.Nk = j.value("nk", p.N);
  p.d = j.at("d");
  p.causal = j.value("causal", false);
  p.dtype = dtype;
  validate(p, {.gqa = true, .cross = true});
  return p;
}

Inputs inputs_of(const json& j, const Problem& p, uint64_t seed) {
  Inputs in =
      j.value("input", "normal") == "outliers" ? outlier_inputs(p, seed) : normal_inputs(p, seed);
  const float factor = j.value("factor", 1.f);  // how far apart the scores of a row are
  for (float& q : in.Q) q = round_to(p.dtype, q * factor);
  return in;
}

std::optional<Fault> wrong_element(const CheckResult& result) {
  if (!result.damage.empty()) return Fault{"out of bounds", result.damage[0]};
  for (const TensorCheck& t : result.tensors) {
    if (!t.ok) return Fault{"wrong result", t.message};
  }
  return std::nullopt;
}

/// What the simulator found, in the words of the exercises.
const std::map<FaultKind, std::string> kWords = {
    {FaultKind::race, "race"},
    {FaultKind::uninitialised, "uninitialised"},
    {FaultKind::deadlock, "deadlock"},
    {FaultKind::endless_loop, "endless loop"},
    {FaultKind::misaligned, "misaligned"},
    {FaultKind::out_of_bounds, "out of bounds"},
    {FaultKind::refused, "refused"},
};

/// The first finding, and how many others there are.
Fault fault_of(const KernelStopped& e) {
  const auto& [kind, text] = e.findings[0];
  const size_t others = e.findings.size() - 1 + e.more;
  const char* s = others == 1 ? "" : "s";
  const std::string more =
      others == 0 ? "" : fmt::format(" (and {} more finding{} at other lines)", others, s);
  return {kWords.at(kind), text + more};
}

json to_json(const Bytes& b) {
  return {{"read", b.read}, {"write", b.write}, {"atomic", b.atomic}};
}

Prediction spec_of(const json& wanted) {
  Prediction spec;
  for (const auto& [name, b] : wanted.at("spec").items()) {
    spec[name] = {.read = b.at("read"), .write = b.at("write"), .atomic = b.at("atomic")};
  }
  return spec;
}

/// What was counted.
Prediction spec_of(const Counts& counts) {
  Prediction spec;
  for (const auto& [name, count] : counts.buffers) spec[name] = count.bytes;
  return spec;
}

/// Yours beside the spec's, per buffer.
json traffic_table(const Prediction& spec, const Counts& yours) {
  json table = json::object();
  for (const auto& [name, bytes] : spec.buffers) {
    table[name] = {{"spec", to_json(bytes)}, {"yours", to_json({})}};
  }
  for (const auto& [name, count] : yours.buffers) {
    if (!table.contains(name)) table[name]["spec"] = to_json({});
    table[name]["yours"] = to_json(count.bytes);
    table[name]["requests"] = {{"read", count.requests.load}, {"write", count.requests.store}};
    table[name]["sectors"] = {{"read", count.sectors.load}, {"write", count.sectors.store}};
  }
  return table;
}

/// The source line with the most requests of a kind to a buffer.
std::string busiest_line(const Counts& counts, const std::string& what) {
  const SiteCount* most = nullptr;
  for (const SiteCount& s : counts.sites) {
    if (s.what.starts_with(what) && (!most || s.requests > most->requests)) most = &s;
  }
  return most ? ", most of them at " + most->where : "";
}

std::optional<Fault> too_many_bytes(const json& table, const Counts& counts) {
  static const struct {
    const char *way, *words, *site;
  } ways[] = {{"read", "read from", " load"},
              {"write", "written to", " store"},
              {"atomic", "added atomically to", " atomic"}};
  for (const auto& [name, row] : table.items()) {
    for (const auto& [way, words, site] : ways) {
      const uint64_t yours = row["yours"][way], spec = row["spec"][way];
      if (yours <= spec) continue;
      return Fault{"traffic",
                   fmt::format("{} bytes {} {}{}; the spec has {}", grouped(yours), words, name,
                               busiest_line(counts, name + site), grouped(spec))};
    }
  }
  return std::nullopt;
}

/// An input that no kernel read, or an output that kernels have not written all of: then the host
/// did their work. Copies and memsets count for nothing here.
std::optional<Fault> made_by_the_host(const Problem& p, const Prediction& spec,
                                      const Counts& counts, const Variant& yours, bool backward) {
  std::map<std::string, Bytes> moved;  // by kernels
  for (const auto& [name, count] : counts.buffers) moved[name] = count.bytes;
  for (const KernelCount& k : counts.kernels) {
    moved[k.buffer].read -= k.buffer.empty() ? 0 : k.bytes.read;
    moved[k.buffer].write -= k.buffer.empty() ? 0 : k.bytes.write;
  }
  std::map<std::string, uint64_t> outputs;
  for (const Tensor* t : tensors_of(yours, p)) {
    if (t->role == (backward ? Role::backward_output : Role::output))
      outputs[t->name] = t->bytes(p);
  }
  for (const auto& [name, bytes] : outputs) {
    const uint64_t written = moved[name].write + moved[name].atomic;
    // What is added to may have rows to which nothing is added.
    if (written >= (moved[name].atomic != 0 ? 1 : bytes)) continue;
    return Fault{"not in a kernel", fmt::format("{} has {} bytes, and kernels wrote {} of them",
                                                name, grouped(bytes), grouped(written))};
  }
  for (const char* name : {"Q", "K", "V", "dO"}) {
    const auto due = spec.buffers.find(name);
    if (due == spec.buffers.end() || due->second.read == 0 || moved[name].read != 0) continue;
    return Fault{"not in a kernel", fmt::format("no kernel read {}", name)};
  }
  return std::nullopt;
}

/// The worst of the source lines that `counts` says must be ideal.
template <class F>
std::optional<Fault> worst_site(const Counts& counts, const char* kind, const char* unit,
                                double tolerance, F&& matters) {
  const SiteCount* worst = nullptr;
  for (const SiteCount& s : counts.sites) {
    if (!matters(s) || double(s.transfers) <= tolerance * double(s.ideal)) continue;
    if (!worst || s.transfers - s.ideal > worst->transfers - worst->ideal) worst = &s;
  }
  if (!worst) return std::nullopt;
  const double requests = double(worst->requests);
  return Fault{kind, fmt::format("{} at {}: {:.1f} {} a request, {:.1f} would do", worst->what,
                                 worst->where, double(worst->transfers) / requests, unit,
                                 double(worst->ideal) / requests)};
}

std::optional<Fault> bank_conflicts(const Counts& counts) {
  return worst_site(counts, "bank conflicts", "wavefronts", 1,
                    [](const SiteCount& s) { return s.what.starts_with("shared "); });
}

/// Rows of odd length begin anywhere in a sector: twice the ideal is still coalesced.
std::optional<Fault> uncoalesced(const Counts& counts, const std::vector<std::string>& buffers) {
  return worst_site(counts, "coalescing", "sectors", 2, [&](const SiteCount& s) {
    for (const std::string& name : buffers) {
      if (s.what.starts_with(name + " ")) return true;
    }
    return false;
  });
}

/// What it took the shared memory, and what it takes without bank conflicts.
json totals(const Counts& counts) {
  uint64_t wavefronts = 0, ideal = 0;
  for (const KernelCount& k : counts.kernels) {
    wavefronts += k.shared_wavefronts;
    ideal += k.shared_ideal;
  }
  return {{"wavefronts", wavefronts}, {"wavefronts_ideal", ideal}};
}

/// What comes before the pass in question: its findings count, its bytes do not.
void run_before(Session& session, const Variant& variant, bool backward) {
  if (variant.prepare && simulated()) {
    count([&] { session.prepare(); }, {.analyse = true});
  } else if (variant.prepare) {
    session.prepare();
  }
  if (backward) session.forward();
}

/// One problem; fills in `seen`.
std::optional<Fault> try_problem(const json& request, const json& wanted, const Variant& yours,
                                 json& seen) {
  const bool backward = request.at("pass") == "backward";
  const uint64_t seed = request.at("seed");
  const Problem p = problem_for(yours, problem_of(wanted, yours.forward.dtype()));
  const Inputs in = inputs_of(wanted, p, seed);
  seen["problem"] = describe(p);
  Session session(p, in, yours);
  const auto run = [&] { backward ? session.backward() : session.forward(); };
  Counts counts;
  Prediction spec;
  if (simulated()) {
    try {
      run_before(session, yours, backward);
      counts = count(run, {.analyse = true});
    } catch (const KernelStopped& e) {
      return fault_of(e);
    }
    // The formulas of several ranks are one rank's.
    spec = request.value("any_bytes", false) ? spec_of(counts) : spec_of(wanted);
    seen["traffic"] = traffic_table(spec, counts);
    seen["totals"] = totals(counts);
  } else {
    run_before(session, yours, backward);
    run();
  }
  const CheckResult result = check(p, in, session.download(), sample_of(p, seed, 1e18));
  if (auto fault = wrong_element(result)) return fault;
  if (!simulated()) return std::nullopt;
  if (auto fault = made_by_the_host(p, spec, counts, yours, backward)) return fault;
  if (auto fault = too_many_bytes(seen["traffic"], counts)) return fault;
  if (auto fault = uncoalesced(counts, request.value("coalesced", std::vector<std::string>{}))) {
    return fault;
  }
  return request.value("banks", false) ? bank_conflicts(counts) : std::nullopt;
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

/// As a step's program prints it: "0.264 ms", "26.4 us"
std::string human_time(double seconds) {
  if (seconds >= 1e-4) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::optional<Fault> wrong_limit(const TimePrediction& yours, const Run& run) {
  const std::string& limit = run.limit();
  if (yours.limit == limit) return std::nullopt;
  if ((", " + part_names() + ",").find(", " + yours.limit + ",") == std::string::npos) {
    return Fault{"wrong limiter", fmt::format("the limiter is \"{}\", and the parts are called {}",
                                              yours.limit, part_names())};
  }
  return Fault{
      "wrong limiter",
      fmt::format("{}: {} of the kernel's {}, but {}: {}. Is {} forgotten, or counted too "
                  "low, or {} too high?",
                  yours.limit, human_time(run.seconds_of(yours.limit)), human_time(run.seconds),
                  limit, human_time(run.seconds_of(limit)), limit, yours.limit)};
}

/// The parts that take a tenth of the time or more, with their own times.
std::string parts_of(const Run& run) {
  std::string out;
  for (const auto& [share, name] : run.parts) {
    if (share < 0.1) break;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, human_time(share * run.seconds));
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
               fmt::format("{} {}: the run is estimated at {}. {}", human_time(yours.seconds), how,
                           human_time(run.seconds), reason(yours, run, gpu))};
}

/// One problem; fills in `seen`.
std::optional<Fault> try_prediction(const json& wanted, const GpuRates& gpu,
                                    TimePrediction (*predict)(const KernelRun&, const GpuRates&),
                                    json& seen) {
  KernelRun kernel;
  kernel.problem.H = kernel.problem.Hkv = wanted.at("h");
  kernel.problem.N = kernel.problem.Nk = wanted.at("n");
  kernel.problem.d = wanted.at("d");
  kernel.variant = wanted.at("variant");
  const Run run = run_of(wanted.at("estimate"));
  // Instructions that keep the schedulers busy for as long as the estimate says.
  kernel.instructions =
      run.seconds_of(name_of(Part::instructions)) * gpu.clock * gpu.instructions * run.sms;
  const TimePrediction yours = predict(kernel, gpu);
  seen["problem"] = kernel.variant + ", " + describe(kernel.problem);
  seen["prediction"] = {
      {"limit", yours.limit}, {"ms", 1e3 * yours.seconds}, {"estimated_ms", 1e3 * run.seconds}};
  if (auto fault = wrong_limit(yours, run)) return fault;
  return wrong_time(yours, run, gpu);
}

}  // namespace

int exercise_main(int argc, char** argv, const Variant& yours) {
  return answer(argc, argv, [&](const json& request) {
    open_device("exercise", "");
    configure({.watchdog_s = request.at("watchdog")});
    return result_of(request.at("problems"), [&](const json& wanted, json& seen) {
      return try_problem(request, wanted, yours, seen);
    });
  });
}

int prediction_main(int argc, char** argv,
                    TimePrediction (*predict)(const KernelRun&, const GpuRates&)) {
  return answer(argc, argv, [&](const json& request) {
    const GpuRates gpu = rates_of(find_gpu("H200"));
    return result_of(request.at("problems"), [&](const json& wanted, json& seen) {
      return try_prediction(wanted, gpu, predict, seen);
    });
  });
}

}  // namespace fa
