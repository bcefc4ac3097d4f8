// What runs in one process with the student's code: kernels run and are counted here, and nothing
// is judged.
#include "steps/exercise_checker/exercise.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>

#include "common/counts/backend.h"
#include "common/counts/format.h"
#include "common/counts/json.h"
#include "common/dialect/errors.h"
#include "common/harness/run.h"
#include "steps/exercise_checker/channel.h"
#include "steps/exercise_checker/prediction.h"

namespace fa {

namespace {

using nlohmann::json;

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
json fault_of(const KernelStopped& e) {
  const auto& [kind, text] = e.findings[0];
  const size_t others = e.findings.size() - 1 + e.more;
  const char* s = others == 1 ? "" : "s";
  const std::string more =
      others == 0 ? "" : fmt::format(" (and {} more finding{} at other lines)", others, s);
  return {{"kind", kWords.at(kind)}, {"message", text + more}};
}

/// Per buffer, and of it by kernels: copies and memsets are none. Sites, and shared memory's time.
json counted(const Counts& counts) {
  json buffers = json::object(), sites = json::array();
  std::map<std::string, Bytes> by_kernels;
  for (const auto& [name, count] : counts.buffers) by_kernels[name] = count.bytes;
  uint64_t wavefronts = 0, ideal = 0;
  for (const KernelCount& k : counts.kernels) {
    by_kernels[k.buffer].read -= k.buffer.empty() ? 0 : k.bytes.read;
    by_kernels[k.buffer].write -= k.buffer.empty() ? 0 : k.bytes.write;
    wavefronts += k.shared_wavefronts;
    ideal += k.shared_ideal;
  }
  for (const auto& [name, count] : counts.buffers) {
    buffers[name] = {{"yours", to_json(count.bytes)},
                     {"requests", {{"read", count.requests.load}, {"write", count.requests.store}}},
                     {"sectors", {{"read", count.sectors.load}, {"write", count.sectors.store}}},
                     {"by_kernels", to_json(by_kernels[name])}};
  }
  for (const SiteCount& s : counts.sites) sites.push_back(json(to_json(s)));
  return {{"buffers", buffers},
          {"sites", sites},
          {"totals", {{"wavefronts", wavefronts}, {"wavefronts_ideal", ideal}}}};
}

/// In which order each block issued its copies of these buffers: {"KKVKV", ...}, each once.
json copies_of(const Trace& trace, const std::vector<std::string>& buffers) {
  std::map<std::pair<size_t, uint32_t>, std::string> orders;
  for (size_t k = 0; k < trace.kernels.size(); ++k) {
    for (const TraceEvent& e : trace.kernels[k].events) {
      const std::string& name = trace.places[e.place].name;
      const bool wanted = std::find(buffers.begin(), buffers.end(), name) != buffers.end();
      if (wanted && e.how == "TMA" && e.kind == TraceKind::read) orders[{k, e.block}] += name;
    }
  }
  std::set<std::string> once;
  for (const auto& [block, order] : orders) once.insert(order);
  return once;
}

/// What comes before the pass in question: its findings count, its bytes and its outputs do not.
void run_before(Session& session, const Variant& variant, bool backward) {
  if (variant.prepare && simulated()) {
    count([&] { session.prepare(); }, {.analyse = true});
  } else if (variant.prepare) {
    session.prepare();
  }
  if (variant.prepare) session.forget_forward();
  if (backward) session.forward();
}

/// Runs one problem and says what came of it.
void answer(Channel& judge, const json& asked, const Variant& yours) {
  const bool backward = asked.at("backward");
  const Problem p = problem_for(yours, problem_of(asked.at("problem")));
  Inputs in;
  for (std::vector<float>* x : {&in.Q, &in.K, &in.V, &in.dO}) {
    *x = judge.numbers(x == &in.K || x == &in.V ? p.kv_size() : p.q_size());
  }
  configure({.watchdog_s = asked.at("watchdog")});
  Session session(p, in, yours);
  in = {};  // from here on they are in device memory alone
  const auto run = [&] { backward ? session.backward() : session.forward(); };
  const std::vector<std::string> copies = asked.at("copies");
  json said = json::object();
  try {
    run_before(session, yours, backward);
    if (simulated()) {
      const Counts counts = count(run, {.analyse = true, .trace = !copies.empty()});
      said = counted(counts);
      if (counts.trace) said["copies"] = copies_of(*counts.trace, copies);
    } else {
      run();
    }
  } catch (const KernelStopped& e) {
    return judge.put(fault_of(e));
  } catch (const std::logic_error& e) {  // of ranks that misuse their messages
    return judge.put({{"kind", "messages"}, {"message", e.what()}});
  }
  const Outputs out = session.download();
  std::vector<const std::vector<float>*> floats;
  said["damage"] = out.damage;
  for (const Tensor& t : all_tensors()) {
    if (!t.output || (out.*t.output).empty()) continue;
    floats.push_back(&(out.*t.output));
    said["outputs"].push_back({{"name", t.name}, {"count", floats.back()->size()}});
  }
  judge.put(said, floats);
}

/// Answers what the judge asks through the pipes `argv` names, until it asks no more. The exit
/// status.
int serve(int argc, char** argv, auto&& answer) try {
  Channel judge(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  for (json asked = judge.get(); !asked.is_null(); asked = judge.get()) answer(judge, asked);
  return 0;
} catch (const ResourceError& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 3;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

KernelRun run_of(const json& j) {
  return {.problem = problem_of(j),
          .variant = j.value("variant", ""),
          .instructions = j.value("instructions", 0.)};
}

/// predict(run, rates) says what the student's function says.
int predict_main(int argc, char** argv, auto&& predict) {
  return serve(argc, argv, [&](Channel& judge, const json& asked) {
    const json& r = asked.at("rates");
    const GpuRates gpu = {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]};
    judge.put(predict(run_of(asked.at("problem")), gpu));
  });
}

}  // namespace

int exercise_main(int argc, char** argv, const Variant& yours) {
  bool open = false;
  return serve(argc, argv, [&](Channel& judge, const json& asked) {
    if (!open) open_device("exercise", "");
    open = true;
    if (asked.contains("problem")) return answer(judge, asked, yours);
    judge.put({{"bf16", yours.forward.dtype() == DType::bf16},
               {"fp8", yours.fp8},
               {"writes_lse", yours.writes_lse},
               {"latent", yours.extras.latent}});
  });
}

int prediction_main(int argc, char** argv,
                    TimePrediction (*predict)(const KernelRun&, const GpuRates&)) {
  return predict_main(argc, argv, [&](const KernelRun& run, const GpuRates& gpu) -> json {
    const TimePrediction yours = predict(run, gpu);
    return {{"limit", yours.limit}, {"seconds", yours.seconds}};
  });
}

int prediction_main(int argc, char** argv, double (*predict)(const Problem&)) {
  return predict_main(argc, argv, [&](const KernelRun& run, const GpuRates&) -> json {
    return {{"bytes", predict(run.problem)}};
  });
}

int prediction_main(int argc, char** argv,
                    std::string (*predict)(const Problem&, const GpuRates&)) {
  return predict_main(argc, argv, [&](const KernelRun& run, const GpuRates& gpu) -> json {
    return {{"faster", predict(run.problem, gpu)}};
  });
}

}  // namespace fa
