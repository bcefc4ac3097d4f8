#include "common/sim/scheduler/residency.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/counts/files.h"
#include "common/dialect/errors.h"

namespace sim {

ResourceTable read_resource_table(const std::string& path) {
  ResourceTable table;
  std::ifstream file(path);
  if (!file) return table;
  try {
    const nlohmann::json root = nlohmann::json::parse(file);
    for (const auto& [kernel, instances] : root.at("kernels").items()) {
      for (const auto& [arguments, row] : instances.items())
        table[kernel + arguments] = {row.at(0).get<unsigned>(), row.at(1).get<size_t>()};
    }
  } catch (const nlohmann::json::exception& e) {
    throw fa::UsageError("the kernels' registers, " + path + ", are damaged after " +
                         std::to_string(table.size()) + " kernels: " + e.what());
  }
  return table;
}

Resources resources_of(const std::string& kernel) {
  static const ResourceTable table = read_resource_table(fa::data_file("registers.json"));
  const auto found = table.find(kernel);
  return found == table.end() ? Resources{} : found->second;
}

unsigned blocks_per_sm(const fa::SmSpec& sm, unsigned threads, size_t dynamic_bytes,
                       const Resources& r) {
  constexpr unsigned kWarp = 32, kUnit = 256;  // registers are allocated per warp, in such units
  constexpr unsigned kQuarters = 4;            // parts of an SM's warps and registers
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  unsigned blocks = std::min(sm.blocks, sm.threads / kWarp / warps);
  if (r.registers > 0) {
    const unsigned per_warp = (r.registers * kWarp + kUnit - 1) / kUnit * kUnit;
    blocks = std::min(blocks, sm.registers / kQuarters / per_warp * kQuarters / warps);
  }
  const size_t shared = dynamic_bytes + r.shared_bytes + sm.block_reserved_bytes;
  if (shared > 0)
    blocks = static_cast<unsigned>(std::min<size_t>(blocks, sm.shared_bytes / shared));
  return std::max(1u, blocks);
}

}  // namespace sim
