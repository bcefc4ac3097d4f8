// Options and recordings.
#include "common/sim/sim.h"

#include "common/sim/observers/observer.h"
#include "common/sim/observers/trace.h"
#include "common/sim/recording.h"

namespace sim {

bool told_sms = false;

Options& options() {
  static Options o;
  return o;
}

int multiprocessors() {
  told_sms = true;
  return options().sms;
}
size_t shared_memory_per_block() { return options().block_shared_bytes; }

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
  if (options().trace) trace_begin();
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
  if (options().trace) storage.trace = trace_finish();
  return std::move(storage);
}

}  // namespace sim
