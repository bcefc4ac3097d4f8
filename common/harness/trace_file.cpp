#include "common/harness/trace_file.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/harness/problem_json.h"

namespace fa {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr const char* kKinds[] = {"read", "write", "atomic"};
constexpr const char* kSpaces[] = {"global", "shared", "tensor"};

const char* space_of(const TracePlace& p) { return kSpaces[static_cast<int>(p.space)]; }
bool is_global(const TracePlace& p) { return p.space == TraceSpace::global; }

/// The sums of one buffer's events, equal to the report's counts to the byte.
struct Totals {
  uint64_t bytes[3] = {}, requests[3] = {}, sectors[3] = {};
  uint64_t hbm_read = 0, hbm_write = 0;
};

Json by_kind(const uint64_t (&n)[3]) { return {{"read", n[0]}, {"write", n[1]}, {"atomic", n[2]}}; }

Json totals_of(const Trace& trace) {
  std::map<std::string, std::map<std::string, Totals>> passes;
  for (const TraceKernel& k : trace.kernels) {
    for (const TraceEvent& e : k.events) {
      const TracePlace& place = trace.places[e.place];
      if (!is_global(place)) continue;
      Totals& t = passes[k.pass][place.name];
      const auto kind = static_cast<int>(e.kind);
      t.bytes[kind] += e.bytes;
      t.requests[kind] += e.requests;
      t.sectors[kind] += e.how == "TMA" ? 0 : e.transfers;
      t.hbm_read += e.hbm_read;
      t.hbm_write += e.hbm_write;
    }
  }
  Json all = Json::object();
  for (const auto& [pass, buffers] : passes) {
    for (const auto& [name, t] : buffers) {
      all[pass][name] = {{"bytes", by_kind(t.bytes)},
                         {"requests", by_kind(t.requests)},
                         {"sectors", by_kind(t.sectors)},
                         {"first_touch", {{"read", t.hbm_read}, {"write", t.hbm_write}}}};
    }
  }
  return all;
}

Json layout_of(const Layout& l) {
  return {{"matrices", l.matrices},
          {"rows", l.rows},
          {"columns", l.columns},
          {"element_bytes", l.element_bytes}};
}

Json places_of(const Trace& trace) {
  Json all = Json::array();
  for (const TracePlace& p : trace.places) {
    Json row = {{"name", p.name}, {"space", space_of(p)}};
    if (!is_global(p)) row["kernel"] = p.kernel, row["offset"] = p.offset;
    row["bytes"] = p.bytes;
    row["layout"] = layout_of(p.layout);
    all.push_back(row);
  }
  return all;
}

/// The text of a file of the project; empty where it is missing.
std::vector<std::string> text_of(const std::string& path) {
  std::ifstream file(data_file("../../" + path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

Json lines_of(const Trace& trace) {
  std::map<std::string, std::vector<std::string>> files;
  Json all = Json::array();
  for (const TraceLine& line : trace.lines) {
    const auto [at, fresh] = files.try_emplace(line.path);
    if (fresh) at->second = text_of(line.path);
    const auto index = static_cast<size_t>(line.number - 1);
    const std::string text = index < at->second.size() ? at->second[index] : "";
    all.push_back({{"path", line.path}, {"number", line.number}, {"text", text}});
  }
  return all;
}

Json requests_of(const Trace& trace) {
  Json all = Json::array();
  for (const TraceRequest& r : trace.requests) {
    Json at = Json::array();
    for (unsigned lane = 0; lane < r.at.size(); ++lane) {
      at.push_back(r.lanes >> lane & 1 ? Json(r.at[lane]) : Json(nullptr));
    }
    all.push_back({{"kernel", r.kernel},
                   {"place", r.place},
                   {"stack", r.stack},
                   {"kind", kKinds[static_cast<int>(r.kind)]},
                   {"how", r.how},
                   {"lane_bytes", r.lane_bytes},
                   {"transfers", r.transfers},
                   {"at", at}});
  }
  return all;
}

Json kernels_of(const Trace& trace) {
  Json all = Json::array();
  for (const TraceKernel& k : trace.kernels) {
    all.push_back({{"name", k.name},
                   {"pass", k.pass},
                   {"grid", k.grid},
                   {"block", k.block},
                   {"shared_bytes", k.shared_bytes},
                   {"slots", k.slots},
                   {"start", k.start},
                   {"ticks", k.ticks}});
  }
  return all;
}

std::string where(const TraceLine& line) {
  const size_t slash = line.path.rfind('/');
  return line.path.substr(slash == line.path.npos ? 0 : slash + 1) + ":" +
         std::to_string(line.number);
}

Json event_of(const Trace& trace, size_t kernel, const TraceEvent& e) {
  const TracePlace& place = trace.places[e.place];
  Json touched = Json::array();
  for (const TraceRectangle& r : e.touched) {
    touched.push_back(Json::array({r.row, r.rows, r.column, r.columns}));
  }
  const std::vector<uint32_t>& stack = trace.stacks[e.stack];
  const char* kind = kKinds[static_cast<int>(e.kind)];
  Json args = {{"line", stack.empty() ? "" : where(trace.lines[stack.front()])},
               {"place", e.place},
               {"stack", e.stack},
               {"kind", kind},
               {"how", e.how},
               {"bytes", e.bytes},
               {"requests", e.requests},
               {is_global(place) ? "sectors" : "wavefronts", e.transfers},
               {"waits", e.waits}};
  if (is_global(place)) args["first_touch"] = Json::array({e.hbm_read, e.hbm_write});
  args[e.exact ? "touched" : "around"] = touched;
  return {{"name", place.name + " " + kind},
          {"cat", space_of(place)},
          {"ph", "X"},
          {"pid", kernel},
          {"tid", e.block},
          {"ts", e.start},
          {"dur", e.ticks},
          {"args", args}};
}

Json name_of_track(const char* what, size_t pid, std::optional<uint32_t> tid,
                   const std::string& name) {
  Json row = {{"name", what}, {"ph", "M"}, {"pid", pid}};
  if (tid) row["tid"] = *tid;
  row["args"] = {{"name", name}};
  return row;
}

/// The members of a cache that are set.
Json problem_of(const Problem& p) {
  Json j;
  for (const Size& size : kSizes) j[size.key()] = p.*size.of;
  j["causal"] = p.causal;
  j["dtype"] = p.method.fp8 ? "e4m3" : name_of(p.dtype);
  if (!p.cache.lengths.empty()) j["lengths"] = p.cache.lengths;
  if (p.cache.page != 0) j["page"] = p.cache.page;
  if (p.cache.fp8) j["cache8"] = true;
  put_rare(p, j);
  return j;
}

}  // namespace

Layout workspace_layout(const std::string& name, uint64_t bytes, const Problem& p) {
  const uint64_t heads = p.heads(), kv_heads = p.kv_heads();
  const uint64_t N = static_cast<uint64_t>(p.N), Nk = static_cast<uint64_t>(p.Nk);
  const uint64_t d = static_cast<uint64_t>(p.dv());
  const Layout scores{heads, N, Nk}, vector{heads, N, 1};
  std::vector<Layout> known{{heads, N, d}, {kv_heads, Nk, d}, vector};
  if (!name.ends_with("_parts")) known.push_back(scores);  // splits * d may be Nk
  if (name == "S" || name == "P" || name == "dS" || name == "dP") {
    known.insert(known.begin(), scores);
  }
  for (const unsigned element : {4u, 2u, 1u}) {
    for (Layout l : known) {
      l.element_bytes = element;
      const bool whole = l.matrices * l.rows * l.columns * element == bytes;
      if (whole && (element == 4 || l.columns == d)) return l;
    }
  }
  for (const unsigned element : {4u, 1u}) {  // padded rows
    if (bytes % (d * element) == 0) return {1, bytes / (d * element), d, element};
  }
  return {1, 1, bytes, 1};
}

void write_trace(const std::string& path, const Trace& trace, const std::string& step,
                 const std::string& variant, const std::string& gpu, const Problem& p) {
  const Json about = {
      {"schema", kSchema},
      {"step", step},
      {"variant", variant},
      {"model_gpu", gpu},
      {"problem", problem_of(p)},
      {"tick",
       "one sector of device memory, one wavefront of shared memory or 128 bytes of tensor memory, "
       "in the order of the simulated block: no GPU time"},
      {"kernels", kernels_of(trace)},
      {"places", places_of(trace)},
      {"lines", lines_of(trace)},
      {"stacks", trace.stacks},
      {"requests", requests_of(trace)},
      {"totals", totals_of(trace)}};
  write_file(path, [&](std::ostream& file) {
    file << "{\"displayTimeUnit\":\"ns\",\n\"flash_steps\":" << about.dump()
         << ",\n\"traceEvents\":[";
    const char* separator = "\n";
    const auto put = [&](const Json& row) {
      file << separator << row.dump();
      separator = ",\n";
    };
    for (size_t k = 0; k < trace.kernels.size(); ++k) {
      const TraceKernel& kernel = trace.kernels[k];
      put(name_of_track("process_name", k, {}, kernel.name));
      std::optional<uint32_t> named;
      for (const TraceEvent& e : kernel.events) {
        if (named == e.block) continue;
        named = e.block;
        const auto [x, y, z] = std::tuple(kernel.grid[0], kernel.grid[1], e.block);
        put(name_of_track("thread_name", k, e.block,
                          fmt::format("block ({},{},{})", z % x, z / x % y, z / x / y)));
      }
      for (const TraceEvent& e : kernel.events) put(event_of(trace, k, e));
    }
    file << "\n]}\n";
  });
}

}  // namespace fa
