#include "common/counts/json.h"

namespace fa {

using Json = nlohmann::ordered_json;

Json to_json(const Bytes& b) {
  return {{"read", b.read}, {"write", b.write}, {"atomic", b.atomic}};
}
Json to_json(const Ops& o) { return {{"load", o.load}, {"store", o.store}, {"atomic", o.atomic}}; }
Json to_json(const SiteCount& s) {
  return {{"where", s.where},
          {"what", s.what},
          {"requests", s.requests},
          {"transfers", s.transfers},
          {"ideal", s.ideal}};
}

// --- estimates -----------------------------------------------------------------------------------

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

Json to_json(const Estimate& e) {
  Json kernels = Json::array();
  for (const KernelEstimate& k : e.kernels) {
    Json parts = Json::object();
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

Estimate estimate_of(const Json& j) {
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
