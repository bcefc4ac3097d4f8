#include "steps/exercise_checker/exercise.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/harness/backend.h"
#include "common/harness/check.h"
#include "common/harness/format.h"
#include "common/harness/inputs.h"
#include "common/harness/report.h"
#include "common/harness/run.h"

namespace fa {

namespace {

using nlohmann::json;

/// The first thing that is wrong.
struct Fault {
  std::string kind;  ///< a few words: "race", "wrong result"
  std::string text;  ///< one sentence that says where
};

struct Request {
  bool backward = false;
  uint64_t seed = 1;
  json problems;
  bool banks = false;
  bool any_bytes = false;  ///< several ranks: the step's formulas are one rank's
  std::vector<std::string> coalesced;
  double watchdog_s;
};

Request read_request(const char* path) {
  std::ifstream file(path);
  if (!file) throw UsageError(std::string(path) + ": cannot be read");
  const json j = json::parse(file);
  return {.backward = j.at("pass") == "backward",
          .seed = j.at("seed"),
          .problems = j.at("problems"),
          .banks = j.value("banks", false),
          .any_bytes = j.value("any_bytes", false),
          .coalesced = j.value("coalesced", std::vector<std::string>{}),
          .watchdog_s = j.at("watchdog")};
}

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
std::string words_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::race:
      return "race";
    case FaultKind::uninitialised:
      return "uninitialised";
    case FaultKind::deadlock:
      return "deadlock";
    case FaultKind::endless_loop:
      return "endless loop";
    case FaultKind::misaligned:
      return "misaligned";
    case FaultKind::out_of_bounds:
      return "out of bounds";
    case FaultKind::refused:
      return "refused";
  }
  return "";
}

/// The first finding, and how many others there are.
Fault fault_of(const KernelStopped& e) {
  const auto& [kind, text] = e.findings[0];
  const size_t others = e.findings.size() - 1 + e.more;
  if (others == 0) return {words_of(kind), text};
  return {words_of(kind), fmt::format("{} (and {} more {} at other lines)", text, others,
                                      others == 1 ? "finding" : "findings")};
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

/// Counts the pass in question.
Counts counted(Session& session, bool backward) {
  const CountOptions options{.analyse = true};
  if (!backward) return count([&] { session.forward(); }, options);
  return count([&] { session.backward(); }, options);
}

/// Requires that kernels made the outputs, and within the bounds of the exercise.
std::optional<Fault> over_the_bound(const Request& request, const Problem& p,
                                    const Prediction& spec, const Counts& counts,
                                    const Variant& yours, const json& traffic) {
  if (auto fault = made_by_the_host(p, spec, counts, yours, request.backward)) return fault;
  if (auto fault = too_many_bytes(traffic, counts)) return fault;
  if (auto fault = uncoalesced(counts, request.coalesced)) return fault;
  if (request.banks) return bank_conflicts(counts);
  return std::nullopt;
}

/// One problem; fills in `seen`.
std::optional<Fault> try_problem(const Request& request, const json& wanted, const Variant& yours,
                                 json& seen) {
  const Problem p = problem_for(yours, problem_of(wanted, yours.forward.dtype()));
  const Inputs in = inputs_of(wanted, p, request.seed);
  seen["problem"] = describe(p);
  Session session(p, in, yours);
  Counts counts;
  Prediction spec;
  if (simulated()) {
    try {
      run_before(session, yours, request.backward);
      counts = counted(session, request.backward);
    } catch (const KernelStopped& e) {
      return fault_of(e);
    }
    spec = spec_of(wanted);
    if (request.any_bytes) spec = spec_of(counts);
    seen["traffic"] = traffic_table(spec, counts);
    seen["totals"] = totals(counts);
  } else {
    run_before(session, yours, request.backward);
    request.backward ? session.backward() : session.forward();
  }
  const CheckResult result = check(p, in, session.download(), sample_of(p, request.seed, 1e18));
  if (auto fault = wrong_element(result)) return fault;
  if (!simulated()) return std::nullopt;
  return over_the_bound(request, p, spec, counts, yours, seen["traffic"]);
}

json try_all(const Request& request, const Variant& yours) {
  json result = {{"ok", true}, {"problems", json::array()}};
  for (const json& wanted : request.problems) {
    json& seen = result["problems"].emplace_back(json::object());
    const std::optional<Fault> fault = try_problem(request, wanted, yours, seen);
    if (!fault) continue;
    result["ok"] = false;
    result["kind"] = fault->kind;
    result["message"] = fault->text;
    break;  // one thing at a time
  }
  return result;
}

}  // namespace

int exercise_main(int argc, char** argv, const Variant& yours) try {
  if (argc != 3) throw UsageError("usage: " + std::string(argv[0]) + " REQUEST.json RESULT.json");
  const Request request = read_request(argv[1]);
  open_device("exercise", "");
  configure({.watchdog_s = request.watchdog_s});
  const json result = try_all(request, yours);
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

}  // namespace fa
