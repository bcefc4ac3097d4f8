// Options and recordings.
#include "common/sim/sim.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/sim/observers/observer.h"
#include "common/sim/recording.h"

namespace sim {

Options& options() {
  static Options o;
  return o;
}

static fa::Counts* current = nullptr;
static fa::Counts storage;

fa::Counts* recording() { return current; }

void add_tensor_flops(fa::Counts& counts, uint64_t flops) {
  counts.tensor_flops = counts.tensor_flops.value_or(0) + flops;
}

Recording::Recording() {
  storage = {};
  storage.source = "counted";
  current = &storage;
  if (options().l2_bytes > 0) l2_begin_recording(options().l2_bytes);
}

Recording::~Recording() { current = nullptr; }

fa::Counts Recording::finish() {
  current = nullptr;
  fa::Bytes requested;
  for (const auto& [name, count] : storage.buffers) requested += count.bytes;
  storage.requested = requested;
  if (options().l2_bytes > 0) {
    fa::Bytes hbm;
    l2_end_recording(hbm.read, hbm.write);
    storage.hbm = hbm;
  }
  return std::move(storage);
}

// The smallest of what the machine and the process's control group leave.
size_t free_bytes() {
  size_t available = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (size_t kib; meminfo >> key >> kib; std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  std::ifstream max("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  size_t limit = 0, taken = 0;
  if (max >> limit && used >> taken)
    available = std::min(available, limit - std::min(limit, taken));
  return available;
}

}  // namespace sim
