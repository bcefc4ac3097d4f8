// Options and recordings.
#include "common/sim/sim.h"

#include <algorithm>

#include "common/sim/observer.h"

namespace sim {

Options& options() {
  static Options o;
  return o;
}

int multiprocessors() { return options().sms; }
size_t shared_memory_per_block() { return options().block_shared_bytes; }

static fa::Counts* current = nullptr;
static fa::Counts storage;

fa::Counts* recording() { return current; }

void add_remark(fa::Counts& counts, const std::string& remark) {
  auto& all = counts.remarks;
  if (std::find(all.begin(), all.end(), remark) == all.end()) all.push_back(remark);
}

Recording::Recording() {
  storage = {};
  storage.source = "counted";
  current = &storage;
  for (Watcher* w : watchers()) w->begin_recording();
}

Recording::~Recording() { current = nullptr; }

fa::Counts Recording::finish() {
  fa::Bytes requested;
  for (const auto& [name, count] : storage.buffers) requested += count.bytes;
  storage.requested = requested;
  for (Watcher* w : watchers()) w->end_recording(storage);
  current = nullptr;
  return std::move(storage);
}

}  // namespace sim

// libstdc++.so calls a program's copies of these where there are any, and a kernel's file has some:
// the simulator would instrument itself in std::getline(). fa_common, linked first, has all.
template class std::basic_string<char>;
