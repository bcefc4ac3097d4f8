/// \file
/// What was last done to shared memory by threads (history.h).
#pragma once

#include <map>

#include "common/sim/observers/races/history.h"

namespace sim::races {

struct SharedCell {
  Stamp wrote, read;  // read: the latest
  uint32_t pc;
  uint16_t thread;  // entry of the clock
  bool stored : 1;  // by a thread, not by TMA
  bool atomic : 1;
  bool in_flight : 1;  // cp.async, issued and not waited for
  bool async : 1;      // a word: operations.h has more
  bool split : 1;

  void note_store(unsigned entry, Stamp now, const void* at, bool is_atomic) {
    wrote = now;
    pc = low(at);
    thread = static_cast<uint16_t>(entry);
    stored = true;
    atomic = is_atomic;
    in_flight = async = split = false;
  }
};
/// The latest loads of a cell by one warp.
struct alignas(16) SharedRead {
  Stamp stamp;
  uint32_t lanes;
  uint32_t first_pc, pc;  // the latest
};
struct SharedRow {
  SharedCell& cell;
  SharedRead* reads;
  size_t rows;
  SharedRead& read(unsigned warp) const { return reads[warp * rows]; }
  void note_load(unsigned entry, Stamp now, const void* pc) const {
    SharedRead& r = read(entry / 32);
    if (r.stamp != now) r = {now, 0, low(pc), 0};
    r.lanes |= 1u << entry % 32;
    r.pc = low(pc);
    cell.read = now;
  }
};
/// Per cell one SharedCell, and one SharedRead per warp of the cluster. The columns are stored
/// apart: a warp touches adjacent words of its own column.
class SharedShadow {
 public:
  SharedShadow(size_t rows, unsigned warps) : rows_(rows), cells_(rows), reads_(rows * warps) {}
  SharedRow operator[](size_t i) { return {cells_[i], &reads_[i], rows_}; }

 private:
  size_t rows_;
  LazyArray<SharedCell> cells_;
  LazyArray<SharedRead> reads_;
};

/// What threads did to the shared memory of one block. The rules of every block of the cluster ask,
/// and note each access.
class SharedHistory : public History {
 public:
  /// A block begins. Its accesses have stamps after `begun`, so the cells may keep those of earlier
  /// blocks. `warps`: of the cluster.
  void begin(Stamp begun, size_t bytes, unsigned warps);
  Stamp begun() const { return begun_; }
  unsigned warps() const { return warps_; }
  SharedRow word(uint64_t number) { return (*words_)[number]; }
  SharedRow byte(uint64_t number) { return (*bytes_)[number]; }
  /// Calls f(row, first byte) for each cell of the word.
  void for_each_cell(uint64_t number, auto&& f) {
    const SharedRow row = word(number);
    if (!row.cell.split) [[likely]] {
      f(row, number * kWord);
    } else {
      for (uint64_t i = number * kWord; i < (number + 1) * kWord; ++i) f(byte(i), i);
    }
  }
  void split(uint64_t word);
  void unite(uint64_t word);  ///< as DeviceHistory's
  bool is_written(uint64_t word);
  void mark_in_flight(uint64_t word, bool in_flight);
  /// The atomic `w` is about to be replaced by another one. Earlier ones up to `known`, visible to
  /// the whole block, are dropped: what is ordered after the new one is ordered after them.
  void keep_atomic(uint64_t byte, const SharedCell& w, Stamp known);

  /// By cell: each thread's latest atomic after the last plain store, but not the last one of all.
  struct Atomics {
    Stamp latest = 0;
    std::map<unsigned, Past> by_thread;
  };
  std::unordered_map<uint64_t, Atomics> atomics;
  /// The latest accesses by threads of other blocks, by entry; false: those that a later arrival
  /// must order, true: loads and arrivals.
  std::map<std::pair<unsigned, bool>, Past> guests;
  void note_guest(const Past&);

 private:
  Stamp begun_ = 0;
  size_t size_ = 0;
  unsigned warps_ = 0;
  std::unique_ptr<SharedShadow> words_, bytes_;  // bytes_: null until a word is split
};

}  // namespace sim::races
