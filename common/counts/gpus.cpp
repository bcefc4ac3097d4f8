#include "common/counts/gpus.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "common/counts/files.h"
#include "common/dialect/errors.h"

namespace fa {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClockFigures::Machine, name, sms, clock, fp32_flops, bf16_flops)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClockFigures, data_pipe, issue, fma, alu, special, mma,
                                   wgmma_columns, reduction, l2_latency, hbm_latency, copy_latency,
                                   tma_latency, tma_bytes, shared_latency, shuffle_latency,
                                   mma_latency, wgmma_latency, barrier_latency, barrier_per_warp,
                                   dependent_latency, independent_chains, block_start, loaded_clock,
                                   l2_bytes_per_second, hbm_share, launch_seconds, timing_seconds)

namespace {

ClockFigures read_clock_figures(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError("the figures of a GPU's clock, " + path + ", cannot be read");
  try {
    const nlohmann::json root = nlohmann::json::parse(file);
    ClockFigures c = root.at("figures").get<ClockFigures>();
    root.at("measured_on").get_to(c.measured_on);
    root.at("verified").get_to(c.verified);
    return c;
  } catch (const nlohmann::json::exception& e) {
    throw UsageError("the figures of a GPU's clock, " + path + ", are damaged: " + e.what());
  }
}

template <class T>
void get_count(const nlohmann::json& row, const char* name, T& to) {
  const double count = row.value(name, static_cast<double>(to));
  if (!(count >= 0 && count < 1u << 31)) {
    throw UsageError("the table of GPUs: " + std::string(name) + " is not from 0 to 2^31 - 1");
  }
  to = static_cast<T>(count);
}

GpuSpec row_of(const nlohmann::json& row) {
  GpuSpec g;
  row.at("name").get_to(g.name);
  row.at("arch").get_to(g.arch);
  get_count(row, "sms", g.sms);
  get_count(row, "sm_threads", g.sm.threads);
  get_count(row, "sm_blocks", g.sm.blocks);
  get_count(row, "sm_registers", g.sm.registers);
  get_count(row, "sm_shared_bytes", g.sm.shared_bytes);
  get_count(row, "l1_bytes", g.sm.l1_bytes);
  get_count(row, "block_reserved_bytes", g.sm.block_reserved_bytes);
  row.at("hbm_bytes_per_s").get_to(g.hbm_bytes_per_s);
  row.at("memory_bytes").get_to(g.memory_bytes);
  row.at("l2_bytes").get_to(g.l2_bytes);
  row.at("fp32_flops").get_to(g.fp32_flops);
  g.bf16_flops = row.value("bf16_flops", 0.0);
  g.fp8_flops = row.value("fp8_flops", 0.0);
  for (const nlohmann::json& link : row.value("links", nlohmann::json::array())) {
    g.links.push_back({link.at("name"), link.at("bytes_per_s")});
  }
  if (g.sms < 1 || g.fp32_flops <= 0 || g.hbm_bytes_per_s <= 0) {
    throw UsageError("the row " + g.name +
                     " of the table of GPUs needs sms, fp32_flops and hbm_bytes_per_s above 0");
  }
  return g;
}

}  // namespace

const ClockFigures& clock_figures(const std::string& gpu) {
  static std::mutex mutex;
  static std::map<std::string, ClockFigures> known;  // by path
  std::string name = gpu;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return std::isspace(c) ? '_' : static_cast<char>(std::tolower(c));
  });
  std::string path = data_file("clock_" + name + ".json");
  if (!std::filesystem::exists(path)) path = data_file("clock_h200.json");
  const std::lock_guard lock(mutex);
  const auto found = known.find(path);
  return found == known.end() ? known.emplace(path, read_clock_figures(path)).first->second
                              : found->second;
}

double product_columns(const GpuSpec& gpu) {
  return gpu.arch == "sm_100" ? 4 : clock_figures(gpu.name).wgmma_columns;
}

bool runs_on(const std::string& arch, const std::string& needs) {
  if (needs.empty()) return true;
  const int has = std::atoi(arch.c_str() + 3), needed = std::atoi(needs.c_str() + 3);  // "sm_"
  return needs.back() == 'a' ? has == needed : has >= needed;
}

std::string given_up_by(const std::string& arch, const std::string& needs) {
  if (!runs_on(arch, needs.substr(0, needs.size() - 1))) return "";  // it is older
  return needs == "sm_90a"    ? ", which has no wgmma"
         : needs == "sm_100a" ? ", which has no tcgen05"
                              : "";
}

std::vector<GpuSpec> read_gpu_table(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError("the table of GPUs, " + path + ", cannot be read");
  std::vector<GpuSpec> table;
  try {
    const nlohmann::json root = nlohmann::json::parse(file);
    for (const nlohmann::json& row : root.at("gpus")) table.push_back(row_of(row));
  } catch (const nlohmann::json::exception& e) {
    throw UsageError("the table of GPUs, " + path + ", is invalid after " +
                     std::to_string(table.size()) + " rows: " + e.what());
  }
  return table;
}

std::vector<GpuSpec> gpu_table() { return read_gpu_table(data_file("gpus.json")); }

GpuSpec find_gpu(const std::string& name) {
  std::string known;
  for (const GpuSpec& gpu : gpu_table()) {
    if (strcasecmp(gpu.name.c_str(), name.c_str()) == 0) return gpu;
    known += (known.empty() ? "" : ", ") + gpu.name;
  }
  throw UsageError("--gpu " + name + ": not in common/data/gpus.json, which holds " + known);
}

}  // namespace fa
