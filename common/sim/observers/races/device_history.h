/// \file
/// What threads of a launch have done to device memory (history.h).
#pragma once

#include "common/sim/memory/lazy_array.h"
#include "common/sim/observers/races/history.h"

namespace sim::races {

/// Of one block, two threads that read the cell are kept: `x[t] += x[t + 1]` loads what it stores
/// to.
struct DeviceCell {
  Stamp wrote, read, also_read;
  uint32_t wrote_block, read_block;
  uint32_t wrote_pc, read_pc, also_read_pc;
  uint16_t wrote_by, read_by, also_read_by;  // entries of the clock
  bool atomic;
  bool split;  // a word: its bytes have the rest

  Past last_write() const {
    return {atomic ? Kind::atomic : Kind::store, wrote_block, wrote_by, wrote, wrote_pc};
  }
  Past last_read() const { return {Kind::load, read_block, read_by, read, read_pc}; }
  Past other_read() const {
    return {Kind::load, read_block, also_read_by, also_read, also_read_pc};
  }
  void note_load(uint32_t block, unsigned entry, Stamp now, const void* pc) {
    // A reader in another block is kept: any later store that it is not ordered with is a race.
    if (read && read_block != block) return;
    if (read && read_by != entry) {
      also_read = read, also_read_by = read_by, also_read_pc = read_pc;
    }
    read = now;
    read_block = block;
    read_by = static_cast<uint16_t>(entry);
    read_pc = low(pc);
  }
  void note_store(uint32_t block, unsigned entry, Stamp now, const void* pc, bool is_atomic) {
    wrote = now;
    wrote_block = block;
    wrote_by = static_cast<uint16_t>(entry);
    wrote_pc = low(pc);
    atomic = is_atomic;
  }
};

struct DeviceHistory {
  PagedArray<DeviceCell, kHbmSpan / kPage, kPage / kWord> words;
  PagedArray<DeviceCell, kHbmSpan / kPage, kPage> bytes;
  PlainStores under_atomics;
  UnwrittenReads unwritten;

  /// From now on its bytes have cells of their own: these.
  DeviceCell* split(uint64_t word) {
    DeviceCell *w = &words[word], *cells = &bytes[word * kWord];
    if (!w->split) {
      std::fill_n(cells, kWord, *w);
      w->split = true;
    }
    return cells;
  }
  /// One thread has stored to all of its bytes: whoever is ordered after this store is so after all
  /// that was before it. Not so after an atomic, with which other atomics need not be ordered.
  void unite(uint64_t word) {
    DeviceCell& w = words[word] = bytes[word * kWord];
    w.read = w.also_read = 0;
  }
  const DeviceCell& cell(uint64_t byte) {
    const DeviceCell& w = words[byte / kWord];
    return w.split ? bytes[byte] : w;
  }
};

}  // namespace sim::races
