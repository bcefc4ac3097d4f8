#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/counts/estimate.h"
#include "common/counts/files.h"
#include "common/dialect/errors.h"

namespace fa {

namespace {

using Table = std::map<std::string, InstructionMix>;

Table read_table(const std::string& path) {
  Table table;
  std::ifstream file(path);
  if (!file) return table;
  try {
    const nlohmann::json root = nlohmann::json::parse(file);
    for (const auto& [kernel, row] : root.at("kernels").items()) {
      table[kernel] = {row.at("all").get<double>(), row.at("fma").get<double>(),
                       row.at("alu").get<double>(), row.at("special").get<double>()};
    }
  } catch (const nlohmann::json::exception& e) {
    throw UsageError("the kernels' instructions, " + path + ", are damaged after " +
                     std::to_string(table.size()) + " kernels: " + e.what());
  }
  return table;
}

}  // namespace

std::optional<InstructionMix> instruction_mix(const std::string& kernel) {
  static const Table table = read_table(data_file("instructions.json"));
  const auto found = table.find(kernel);
  if (found != table.end()) return found->second;
  // Tiles of another size, for the same d: "step06::flash_fwd_kernel<64, 32>" for "..., 64>".
  const size_t comma = kernel.find(',');
  if (comma == std::string::npos) return std::nullopt;
  const std::string same = kernel.substr(0, comma + 1);
  const auto other = table.lower_bound(same);
  if (other == table.end() || !other->first.starts_with(same)) return std::nullopt;
  return other->second;
}

}  // namespace fa
