#include "common/counts/estimate.h"

#include <algorithm>

namespace fa {

const char* name_of(Part p) {
  static constexpr const char* kNames[] = {
      "L1 lines", "shared memory", "instructions", "exponentials", "tensor cores", "atomics",
      "L2",       "HBM",           "waiting",      "start"};
  return kNames[static_cast<size_t>(p)];
}

const KernelEstimate* Estimate::longest() const {
  const auto at = std::max_element(
      kernels.begin(), kernels.end(),
      [](const KernelEstimate& a, const KernelEstimate& b) { return a.seconds < b.seconds; });
  return at == kernels.end() ? nullptr : &*at;
}

Part Estimate::limit() const {
  const KernelEstimate* k = longest();
  return k && !k->parts.empty() ? k->parts.front().part : Part::start;
}

bool Estimate::arithmetic() const {
  return std::all_of(kernels.begin(), kernels.end(),
                     [](const KernelEstimate& k) { return k.arithmetic; });
}

// --- as JSON and back: docs/json.md --------------------------------------------------------------

namespace {

/// \throws nlohmann::json::exception for an unknown name.
Part part_of(const std::string& name) {
  static const nlohmann::json numbers = [] {
    nlohmann::json j;
    for (int i = 0; i <= static_cast<int>(Part::start); ++i) j[name_of(static_cast<Part>(i))] = i;
    return j;
  }();
  return static_cast<Part>(numbers.at(name).get<int>());
}

}  // namespace

nlohmann::ordered_json to_json(const Estimate& e) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelEstimate& k : e.kernels) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::object();
    for (const PartShare& p : k.parts) parts[name_of(p.part)] = p.share;
    kernels.push_back({{"name", k.name},
                       {"ms", 1e3 * k.seconds},
                       {"blocks", k.blocks},
                       {"sms", k.sms},
                       {"arithmetic", k.arithmetic},
                       {"parts", parts}});
  }
  return {{"gpu", e.gpu},
          {"verified", e.verified},
          {"ms", 1e3 * e.seconds},
          {"limit", name_of(e.limit())},
          {"kernels", kernels}};
}

Estimate estimate_of(const nlohmann::ordered_json& j) {
  Estimate e;
  j.at("gpu").get_to(e.gpu);
  j.at("verified").get_to(e.verified);
  e.seconds = j.at("ms").get<double>() / 1e3;
  for (const auto& row : j.at("kernels")) {
    KernelEstimate k;
    row.at("name").get_to(k.name);
    k.seconds = row.at("ms").get<double>() / 1e3;
    row.at("blocks").get_to(k.blocks);
    row.at("sms").get_to(k.sms);
    row.at("arithmetic").get_to(k.arithmetic);
    for (const auto& [name, share] : row.at("parts").items()) {
      k.parts.push_back({part_of(name), share.get<double>()});
    }
    e.kernels.push_back(std::move(k));
  }
  return e;
}

}  // namespace fa
