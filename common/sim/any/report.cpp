// The text at a program's end.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/counts/json.h"
#include "common/sim/any/session.h"
#include "common/sim/messages/symbols.h"

namespace sim::any {

namespace {

using fa::grouped;

std::string row(const std::string& name, const char* what, uint64_t bytes, uint64_t requests,
                uint64_t sectors) {
  if (bytes == 0) return "";
  const std::string shown = name.size() > 23 ? name.substr(0, 20) + "..." : name;
  std::string text = fmt::format("  {:<24}{:<7}{:>16}", shown, what, grouped(bytes));
  if (requests) {
    text += fmt::format(" {:>14} {:>15.1f}", grouped(requests),
                        static_cast<double>(sectors) / static_cast<double>(requests));
  }
  return text + "\n";
}

std::string limits_of(const KernelRecord& k) {
  std::vector<std::pair<double, fa::Part>> parts;
  for (const auto& [part, seconds] : k.parts) parts.emplace_back(seconds / k.estimated_s, part);
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (size_t i = 0; i < parts.size() && i < 3; ++i) {
    if (i > 0 && parts[i].first < 0.25) break;
    text +=
        fmt::format("{}{} {:.0f}%", i ? ", " : "", name_of(parts[i].second), 100 * parts[i].first);
  }
  return text;
}

std::string shared_text(const fa::KernelCount& k) {
  std::string text = row("shared memory", "read", k.shared_read, 0, 0) +
                     row("shared memory", "write", k.shared_write, 0, 0) +
                     row("shared memory", "atomic", k.shared_atomic, 0, 0);
  if (k.shared_ideal > 0) {
    const double times = static_cast<double>(k.shared_wavefronts) / k.shared_ideal;
    text += fmt::format("  bank conflicts: {} wavefronts, {:.2f} times the {} without any\n",
                        grouped(k.shared_wavefronts), times, grouped(k.shared_ideal));
  }
  return text;
}

std::string kernel_text(const KernelRecord& k) {
  std::string head = fmt::format("{}, {} {}", spoken(k.name), grouped(k.launches),
                                 k.launches == 1 ? "launch" : "launches");
  if (!k.shape.empty()) head += (k.same_shape ? " of " : ", the first of ") + k.shape;
  std::string text = fa::wrapped("", head, 2);
  for (const auto& [name, b] : k.buffers) {
    text += row(name, "read", b.bytes.read, b.requests.load, b.sectors.load);
    text += row(name, "write", b.bytes.write, b.requests.store, b.sectors.store);
    text += row(name, "atomic", b.bytes.atomic, b.requests.atomic, b.sectors.atomic);
  }
  text += shared_text(k.count);
  if (k.count.hbm.total() > 0) {
    text += fmt::format("  HBM (L2 model): {} read, {} written\n",
                        fa::human_bytes(k.count.hbm.read), fa::human_bytes(k.count.hbm.write));
  }
  if (k.stopped) {
    text += "  stopped inside a launch: of that one the counts are partial, and no estimate\n";
  }
  if (k.estimated_s > 0) {
    text += fa::wrapped("  estimated ",
                        fa::human_time(1e3 * k.estimated_s / (k.launches - k.stopped)) +
                            (k.launches > 1 ? " a launch: " : ": ") + limits_of(k),
                        4);
  }
  return text;
}

std::string lines_text(const Session& s) {
  if (s.sites.empty()) return "";
  std::string text =
      fmt::format("{:<26}{:<28}{:>11}{:>14}\n", "line", "what", "requests", "times ideal");
  std::vector<const fa::SiteCount*> sites;
  for (const auto& [key, site] : s.sites) sites.push_back(&site);
  std::stable_sort(sites.begin(), sites.end(),
                   [](auto* a, auto* b) { return a->transfers > b->transfers; });
  for (const fa::SiteCount* site : sites) {
    const double times = site->ideal ? static_cast<double>(site->transfers) / site->ideal : 0;
    text += fmt::format("{:<26}{:<28}{:>11}{:>14.2f}\n", site->where, site->what,
                        grouped(site->requests), times);
  }
  return text;
}

nlohmann::ordered_json json_of(const KernelRecord& k) {
  nlohmann::ordered_json buffers = nlohmann::ordered_json::object();
  for (const auto& [name, b] : k.buffers) {
    if (b.bytes.total() == 0) continue;
    buffers[name] = {{"bytes", to_json(b.bytes)},
                     {"requests", to_json(b.requests)},
                     {"sectors", to_json(b.sectors)}};
  }
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& [part, seconds] : k.parts) parts[name_of(part)] = seconds / k.estimated_s;
  return {{"name", k.name},
          {"launches", k.launches},
          {"first_shape", k.shape},
          {"blocks", k.count.blocks},
          {"threads", k.count.threads},
          {"bytes", to_json(k.count.bytes)},
          {"requests", to_json(k.count.requests)},
          {"sectors", to_json(k.count.sectors)},
          {"lines", to_json(k.count.lines)},
          {"hbm", to_json(k.count.hbm)},
          {"shared",
           {{"read", k.count.shared_read},
            {"write", k.count.shared_write},
            {"atomic", k.count.shared_atomic},
            {"requests", k.count.shared_requests},
            {"wavefronts", k.count.shared_wavefronts},
            {"ideal", k.count.shared_ideal},
            {"load_wavefronts", k.count.load_wavefronts},
            {"store_wavefronts", k.count.store_wavefronts}}},
          {"buffers", buffers},
          {"estimated_ms", 1e3 * k.estimated_s},
          {"arithmetic", k.arithmetic},
          {"stopped", k.stopped > 0},
          {"parts", parts}};
}

// By FaultKind.
constexpr const char* kRules[] = {"race",         "uninitialised-read", "deadlock",
                                  "endless-loop", "misaligned-access",  "out-of-bounds",
                                  "invalid-use"};

nlohmann::ordered_json json_of(const Told& f) {
  nlohmann::ordered_json places = nlohmann::ordered_json::array();
  for (const Place& p : places_in(f.text)) {
    std::error_code error;
    const auto file = std::filesystem::absolute(p.file, error);
    places.push_back({{"file", error ? p.file : file.string()}, {"line", p.line}});
  }
  return {{"rule", kRules[static_cast<int>(f.kind)]},
          {"message", f.text},
          {"places", places},
          {"times", f.times}};
}

nlohmann::ordered_json json_of(const BarrierStep& b) {
  return {{"kernel", b.kernel}, {"what", b.what},   {"barrier", b.barrier},   {"line", b.line},
          {"thread", b.thread}, {"phase", b.phase}, {"arrivals", b.arrivals}, {"bytes", b.bytes}};
}

nlohmann::ordered_json json_of(const Session& s) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelRecord& k : s.kernels) kernels.push_back(json_of(k));
  nlohmann::ordered_json sites = nlohmann::ordered_json::array();
  for (const auto& [key, site] : s.sites) sites.push_back(to_json(site));
  nlohmann::ordered_json barriers = nlohmann::ordered_json::array();
  for (const BarrierStep& step : s.barriers) barriers.push_back(json_of(step));
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Told& f : s.findings) findings.push_back(json_of(f));
  return {{"schema", 2},
          {"program", s.wishes.program},
          {"gpu", s.gpu.name},
          {"analysed", s.wishes.analyse},
          {"complete", s.complete},
          {"kernels", kernels},
          {"sites", sites},
          {"barriers", barriers},
          {"findings", findings},
          {"more_findings", s.more},
          {"remarks", s.remarks}};
}

constexpr int kNear = 16;  // lines: with more, the findings leave a screen of 24

std::string repeated(const Told& f) {
  if (f.times < 2) return "";
  return fmt::format("; in {} {}", grouped(f.times), f.of_launches ? "launches" : "calls");
}

// The findings, repeated where they are `far` above; the last line: were races searched for?
std::string verdict_of(const Session& s, bool far) {
  std::string text;
  for (const Told& f : s.findings) far |= f.times > 1;
  if (!s.findings.empty()) {
    text = fmt::format("{} finding{}{}{}\n", s.findings.size(), s.findings.size() == 1 ? "" : "s",
                       s.more ? fmt::format(" and {} more at other lines", s.more) : "",
                       far ? ":" : ", reported above");
    for (const Told& f : s.findings) text += far ? fa::wrapped("  ", f.text + repeated(f), 4) : "";
    if (s.wishes.analyse) text += "races were looked for\n";
  } else if (!s.kernels.empty()) {
    text = !s.wishes.analyse ? "no access out of bounds"
           : s.complete
               ? "no finding: no race, no uninitialised read of memory, no access out of bounds"
               : "no race and no other finding";
    text += s.complete ? "\n" : " until it was ended: the rest did not run\n";
  }
  if (!s.wishes.analyse && !s.kernels.empty()) {
    text += "races were not looked for: " + s.wishes.looks + "\n";
  }
  return text;
}

}  // namespace

std::string json_text(const Session& s) { return json_of(s).dump(); }

bool tell(const Session& s) {
  std::string text;
  bool arithmetic = true;
  for (const KernelRecord& k : s.kernels) {
    text += kernel_text(k);
    arithmetic &= k.arithmetic;
  }
  if (text.empty()) {
    text = "no kernel ran\n";
  } else {
    text = fmt::format("{:<33}{:>16} {:>14} {:>15}\n", "simulated, modelling " + s.gpu.name,
                       "bytes requested", "requests", "sectors/request") +
           text;
    if (!arithmetic) {
      text += fa::wrapped("estimates are without plain arithmetic, ",
                          "which is not known here: a GPU may take longer", 2);
    }
  }
  text += lines_text(s);
  for (const std::string& remark : s.remarks) text += fa::wrapped("remark: ", remark, 2);
  text += verdict_of(s, std::count(text.begin(), text.end(), '\n') > kNear);
  if (!s.wishes.quiet) std::fprintf(stderr, "\n%s", text.c_str());
  if (!s.wishes.json.empty()) {
    try {
      fa::write_file(s.wishes.json, [&s](std::ostream& f) { f << json_of(s).dump(1) << "\n"; });
    } catch (const std::exception& e) {
      std::fprintf(stderr, "sim: --json %s\n", e.what());
      return false;
    }
  }
  return true;
}

}  // namespace sim::any
