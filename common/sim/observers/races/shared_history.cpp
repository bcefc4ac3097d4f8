#include "common/sim/observers/races/shared_history.h"

namespace sim::races {

void SharedHistory::begin(Stamp begun, size_t bytes, unsigned warps) {
  begun_ = begun;
  size_ = bytes;
  warps_ = warps;
  if (!words_) words_ = std::make_unique<SharedShadow>(bytes / kWord + 1, warps);
  guests.clear();
  unwritten.clear();
  under_atomics.clear();
  atomics.clear();
}

void SharedHistory::split(uint64_t number) {
  if (!bytes_) bytes_ = std::make_unique<SharedShadow>(size_ + kWord, warps_);
  const SharedRow row = word(number);
  SharedCell cell = row.cell;
  cell.async = false;
  for (uint64_t i = number * kWord; i < (number + 1) * kWord; ++i) {
    const SharedRow own = byte(i);
    own.cell = cell;
    if (row.cell.read <= begun_) continue;
    for (unsigned warp = 0; warp < warps_; ++warp) own.read(warp) = row.read(warp);
  }
  row.cell.split = true;
}

void SharedHistory::unite(uint64_t number) {
  SharedCell& w = word(number).cell = byte(number * kWord).cell;
  w.read = 0;
}

bool SharedHistory::is_written(uint64_t number) {
  bool written = true;
  for_each_cell(number,
                [&](const SharedRow& row, uint64_t) { written &= row.cell.wrote >= begun_; });
  return written;
}

void SharedHistory::mark_in_flight(uint64_t number, bool in_flight) {
  for_each_cell(number, [&](const SharedRow& row, uint64_t) { row.cell.in_flight = in_flight; });
}

void SharedHistory::note_guest(const Past& access) {
  guests[{access.entry, access.kind == Kind::load || access.arrival}] = access;
}

void SharedHistory::keep_atomic(uint64_t byte, const SharedCell& w, Stamp known) {
  Atomics& kept = atomics[byte];
  if (kept.latest <= known) kept.by_thread.clear();
  kept.latest = w.wrote;
  kept.by_thread[w.thread] = {Kind::atomic, 0, w.thread, w.wrote, w.pc};
}

}  // namespace sim::races
