#include "steps/exercise_checker/prediction.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/clock/clock.h"
#include "common/dialect/errors.h"
#include "common/harness/format.h"
#include "common/harness/gpus.h"

namespace fa {

namespace {

using nlohmann::json;

struct Fault {
  std::string kind, text;
};

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
  double sms = 0;                ///< that have a block
  std::vector<PartShare> parts;  ///< the largest first

  /// A part's own time.
  double seconds_of(const std::string& part) const {
    for (const PartShare& p : parts) {
      if (part == name_of(p.part)) return p.share * seconds;
    }
    return 0;
  }
  std::string limit() const { return name_of(parts.at(0).part); }
};

Run run_of(const json& j) {
  Run run{.seconds = j.at("ms").get<double>() / 1e3,
          .blocks = j.at("blocks"),
          .sms = j.at("sms"),
          .parts = {}};
  for (int i = 0; i <= int(Part::start); ++i) {
    const auto found = j.at("parts").find(name_of(Part(i)));
    if (found != j.at("parts").end()) run.parts.push_back({Part(i), found->get<double>()});
  }
  std::stable_sort(run.parts.begin(), run.parts.end(),
                   [](const PartShare& a, const PartShare& b) { return a.share > b.share; });
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
  const std::string limit = run.limit();
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
  for (const PartShare& p : run.parts) {
    if (p.share < 0.1) break;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name_of(p.part),
                       human_time(p.share * run.seconds));
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
  for (const PartShare& p : run.parts) {
    const bool alone = near(yours.seconds, p.share * run.seconds, 0.1);
    if (shorter && alone) {
      return fmt::format("That is what {} alone would take. The parts: {}", name_of(p.part),
                         parts_of(run));
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

json predict_all(const json& request, const GpuRates& gpu,
                 TimePrediction (*predict)(const KernelRun&, const GpuRates&)) {
  json result = {{"ok", true}, {"problems", json::array()}};
  for (const json& wanted : request.at("problems")) {
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
    result["problems"].push_back({{"problem", kernel.variant + ", " + describe(kernel.problem)},
                                  {"prediction",
                                   {{"limit", yours.limit},
                                    {"ms", 1e3 * yours.seconds},
                                    {"estimated_ms", 1e3 * run.seconds}}}});
    std::optional<Fault> fault = wrong_limit(yours, run);
    if (!fault) fault = wrong_time(yours, run, gpu);
    if (!fault) continue;
    result["ok"] = false;
    result["kind"] = fault->kind;
    result["message"] = fault->text;
    break;  // one thing at a time
  }
  return result;
}

}  // namespace

int prediction_main(int argc, char** argv,
                    TimePrediction (*predict)(const KernelRun&, const GpuRates&)) try {
  if (argc != 3) throw UsageError("usage: " + std::string(argv[0]) + " REQUEST.json RESULT.json");
  std::ifstream request(argv[1]);
  if (!request) throw UsageError(std::string(argv[1]) + ": cannot be read");
  const json result = predict_all(json::parse(request), rates_of(find_gpu("H200")), predict);
  std::ofstream file(argv[2]);
  file << result.dump() << "\n";
  file.close();
  if (!file) throw UsageError(std::string(argv[2]) + ": cannot be written");
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

}  // namespace fa
