/// \file
/// What was last done to a place. A cell is a word or, once an access has touched only part of the
/// word, each of its bytes: the word is then split. Here is what all histories share, and device
/// memory; shared_history.h has shared memory, operations.h what TMA and the tensor cores do.
#pragma once

#include <unordered_map>

#include "common/sim/memory/lazy_array.h"
#include "common/sim/memory/memory.h"
#include "common/sim/observers/races/stamps.h"

namespace sim::races {

/// The low half of a code address: a program's code lies within 2 GiB.
inline uint32_t low(const void* pc) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc));
}

/// Calls f(word, which of its bytes) for each word of an access.
void for_each_word(const Access& a, auto&& f) {
  const uint64_t at = a.at, size = a.size, last = (at + size - 1) / kWord;
  const bool whole = at % kWord == 0 && size % kWord == 0;
  for (uint64_t word = at / kWord; word <= last; ++word) {
    f(word, whole ? kAllBytes : bytes_of_word(at, size, word));
  }
}

/// An earlier access by a thread.
struct Past {
  Kind kind = Kind::load;
  uint64_t block = 0;
  unsigned entry = 0;  ///< in the clocks of the block's cluster
  Stamp stamp = 0;
  uint32_t pc = 0;
  bool arrival = false;  ///< at an mbarrier; only of SharedHistory::guests
};
/// A read of a word that no thread had written. A later store to one of the same bytes that is not
/// ordered after the read is a race that explains it.
struct UnwrittenRead {
  size_t finding;
  Past past;
  uint8_t bytes;  ///< of the word
};
/// What the histories of both memories have.
struct History {
  /// The last plain store to a cell that atomics have changed since, by the cell's first byte.
  std::unordered_map<uint64_t, Past> under_atomics;
  std::unordered_multimap<uint64_t, UnwrittenRead> unwritten;  ///< by word
};

/// A word of device memory, or a byte. Two threads of a block that read it are recorded, because
/// `x[t] += x[t + 1]` also loads what it stores to.
struct DeviceCell {
  Stamp wrote, read, also_read;
  uint32_t wrote_block, read_block;
  uint32_t wrote_pc, read_pc, also_read_pc;
  uint16_t wrote_by, read_by, also_read_by;  // entries of the clock
  bool atomic;
  bool split;

  Past last_write() const {
    return {atomic ? Kind::atomic : Kind::store, wrote_block, wrote_by, wrote, wrote_pc};
  }
  Past last_read() const { return {Kind::load, read_block, read_by, read, read_pc}; }
  Past other_read() const {
    return {Kind::load, read_block, also_read_by, also_read, also_read_pc};
  }
  void note_load(uint32_t block, unsigned entry, Stamp now, const void* pc) {
    // A reader in another block stays recorded: any later store that is not ordered after it races.
    if (read && read_block != block) return;
    if (read && read_by != entry) {
      also_read = read, also_read_by = read_by, also_read_pc = read_pc;
    }
    read = now, read_block = block, read_by = static_cast<uint16_t>(entry), read_pc = low(pc);
  }
  void note_store(uint32_t block, unsigned entry, Stamp now, const void* pc, bool is_atomic) {
    wrote = now, wrote_block = block, wrote_by = static_cast<uint16_t>(entry), wrote_pc = low(pc);
    atomic = is_atomic;
  }
};

/// What the threads of a launch did to device memory. The rules ask, and note each access.
struct DeviceHistory : History {
  PagedArray<DeviceCell, kHbmSpan / kPage, kPage / kWord> words;
  PagedArray<DeviceCell, kHbmSpan / kPage, kPage> bytes;

  /// Splits the word, if it is not split yet. Returns the cells of its bytes.
  DeviceCell* split(uint64_t word) {
    DeviceCell *w = &words[word], *cells = &bytes[word * kWord];
    if (!w->split) {
      std::fill_n(cells, kWord, *w);
      w->split = true;
    }
    return cells;
  }
  /// One thread has stored to all bytes: an access ordered after this store is ordered after all
  /// before it. (Not so after an atomic, which need not be ordered after other atomics.)
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
