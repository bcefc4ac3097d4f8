// The smaller of what the machine and the process's control group have left.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>

#include "common/sim/memory/device_memory.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

// The sum of some rows of a file with "key value" rows.
size_t sum_of(const std::string& path, std::initializer_list<std::string> keys) {
  std::ifstream file(path);
  size_t sum = 0, value = 0;
  for (std::string key; file >> key >> value;) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) sum += value;
  }
  return sum;
}

size_t left(const std::string& limit_file, const std::string& usage_file, size_t reclaimable) {
  std::ifstream limits(limit_file), usage(usage_file);
  size_t limit = 0, used = 0;
  if (!(limits >> limit) || !(usage >> used)) return SIZE_MAX;  // no such file, or "max"
  used -= std::min(used, reclaimable);
  return limit - std::min(limit, used);
}

}  // namespace

size_t free_in_control_group(const std::string& folder) {
  const std::string v1 = folder + "/memory";
  return std::min(left(folder + "/memory.max", folder + "/memory.current",
                       sum_of(folder + "/memory.stat", {"inactive_file", "active_file"})),
                  left(v1 + "/memory.limit_in_bytes", v1 + "/memory.usage_in_bytes",
                       sum_of(v1 + "/memory.stat", {"total_inactive_file", "total_active_file"})));
}

size_t free_bytes() {
  size_t available = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (size_t kib; meminfo >> key >> kib; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, free_in_control_group("/sys/fs/cgroup"));
}

}  // namespace sim
