// microbenchmarks -- measures the constants of the clock on a GPU.
//
//   microbenchmarks > FILE.json        all groups (report.h); each figure is also printed to stderr
//   microbenchmarks l1 shared          these groups, and the clock
//
// Exit status: 0 all measured; 1 a group failed, "failures" says why; 2 bad use; 3 no GPU.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/counts/format.h"
#include "common/counts/gpus.h"
#include "common/dialect/cuda.h"
#include "common/gpu/microbenchmarks/report.h"

namespace fa::microbenchmarks {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kSecondsAtMost = 300;  // of all groups: an H200 needs less than 90

struct Group {
  std::string name;
  void (*measure)();
  std::string needs = "sm_80";
};

const std::vector<Group> groups = {{"clock", measure_clock},  // first: others use its figure
                                   {"l1", measure_l1},
                                   {"shared", measure_shared},
                                   {"pipes", measure_pipes},
                                   {"mma", measure_mma},
                                   {"wgmma", measure_wgmma, "sm_90a"},
                                   {"latency", measure_latency},
                                   {"atomics", measure_atomics},
                                   {"l2", measure_l2},
                                   {"tma", measure_tma, "sm_90a"},
                                   {"hbm", measure_hbm},
                                   {"launch", measure_launch}};

std::string lines_of(const Json& object) {
  std::string text;
  for (const auto& [name, entry] : object.items()) {
    text += fmt::format("{}\n  {}: {}", text.empty() ? "" : ",", Json(name).dump(), entry.dump());
  }
  return "{" + text + "}";
}

/// Six significant digits: no figure is more accurate.
double rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

void print_json(const std::string& device, const Json& left_out, const Json& failures) {
  Json constants = Json::object();
  for (const Figure& f : figures) {
    if (!std::isfinite(f.value)) continue;  // JSON has no infinity; it is listed as a failure
    constants[f.name] = {{"value", rounded(f.value)}, {"unit", f.unit}, {"what", f.what}};
  }
  Json head;
  head["schema"] = 1;
  head["device"] = device;
  head["toolkit"] = toolkit();
  head["sms"] = multiprocessors();
  head["clock_hz"] = std::llround(clock_hz);
  std::string opened = head.dump();
  opened.pop_back();  // its brace is closed after the rest
  fmt::print("{},\n \"constants\": {},\n \"left_out\": {},\n \"failures\": {}}}\n", opened,
             lines_of(constants), lines_of(left_out), lines_of(failures));
}

int run(const std::vector<std::string>& wanted) {
  cudaDeviceProp device;
  if (const cudaError_t status = cudaGetDeviceProperties(&device, 0); status != cudaSuccess) {
    fmt::print(stderr, "microbenchmarks: no GPU found: {}\n", cudaGetErrorString(status));
    return 3;
  }
  const std::string arch = fmt::format("sm_{}{}", device.major, device.minor);
  if (!runs_on(arch, "sm_80")) {
    fmt::print(stderr, "microbenchmarks: needs sm_80 or newer; this GPU is {}\n", arch);
    return 3;
  }
  alarm(kSecondsAtMost);  // ends a kernel that hangs; the figures so far are on stderr
  Json left_out = Json::object(), failures = Json::object();
  for (const Group& group : groups) {
    if (!wanted.empty() && group.name != "clock" &&
        std::find(wanted.begin(), wanted.end(), group.name) == wanted.end()) {
      continue;
    }
    if (!runs_on(arch, group.needs)) {
      left_out[group.name] = fmt::format("needs {}; this GPU is {}", group.needs, arch);
      fmt::print(stderr, "{}: left out: needs {}; this GPU is {}\n", group.name, group.needs, arch);
      continue;
    }
    try {
      group.measure();
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}: {}\n", group.name, e.what());
      failures[group.name] = e.what();
      // Without the clock other groups have no figure; after a lost context nothing can run.
      if (clock_hz == 0 || cudaDeviceSynchronize() != cudaSuccess) break;
    }
  }
  for (const Figure& f : figures) {
    if (!std::isfinite(f.value)) failures[f.name] = "not a number";
  }
  print_json(device.name, left_out, failures);
  return failures.empty() ? 0 : 1;
}

}  // namespace

}  // namespace fa::microbenchmarks

int main(int argc, char** argv) {
  using namespace fa::microbenchmarks;
  std::vector<std::string> names, wanted;
  for (const Group& group : groups) names.push_back(group.name);
  CLI::App app("Measures the constants of the clock on a GPU, and prints them as JSON");
  app.add_option("groups", wanted, "all, unless some are named")->check(CLI::IsMember(names));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return run(wanted);
}
