/// \file
/// What was done to a block's shared memory (history.h): each cell has a row of one SharedCell and,
/// by warp of the cluster, one SharedRead.
#pragma once

#include <map>
#include <memory>

#include "common/sim/memory/lazy_array.h"
#include "common/sim/observers/races/history.h"

namespace sim::races {

struct SharedCell {
  Stamp wrote, read;  // read: the latest of all
  uint32_t pc;
  uint16_t thread;  // entry of the clock
  bool stored : 1;  // by a thread, not by TMA
  bool atomic : 1;
  bool in_flight : 1;  // cp.async, issued and not waited for
  bool async : 1;      // a word: operations.h has more
  bool split : 1;      // a word: its bytes have the rest

  void note_store(unsigned entry, Stamp now, const void* at, bool is_atomic) {
    wrote = now;
    pc = low(at);
    thread = static_cast<uint16_t>(entry);
    stored = true;
    atomic = is_atomic;
    in_flight = async = split = false;
  }
};
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
/// The columns lie apart: a warp touches neighbouring words, of its own column.
class SharedShadow {
 public:
  SharedShadow(size_t rows, unsigned warps) : rows_(rows), cells_(rows), reads_(rows * warps) {}
  SharedRow operator[](size_t i) { return {cells_[i], &reads_[i], rows_}; }

 private:
  size_t rows_;
  LazyArray<SharedCell> cells_;
  LazyArray<SharedRead> reads_;
};

class SharedHistory {
 public:
  /// A block begins, whose accesses have stamps after `begun`; all cells keep what earlier blocks
  /// did, which these stamps tell. `warps`: of the cluster.
  void begin(Stamp begun, size_t bytes, unsigned warps);
  Stamp begun() const { return begun_; }
  unsigned warps() const { return warps_; }
  SharedRow word(uint64_t number) { return (*words_)[number]; }
  SharedRow byte(uint64_t number) { return (*bytes_)[number]; }
  /// Calls f(row, first byte) for the word, or for each byte of a split one.
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
  /// An atomic is about to replace another one, `w`. Those up to `known`, which all of the block
  /// know of, are no longer needed: who is ordered after the new one is so after them.
  void keep_atomic(uint64_t byte, const SharedCell& w, Stamp known);

  PlainStores under_atomics;
  UnwrittenReads unwritten;
  /// By cell: the atomics after its last plain store, of each thread the latest; the last is not
  /// among them.
  struct Atomics {
    Stamp latest = 0;
    std::map<unsigned, Past> by_thread;
  };
  std::unordered_map<uint64_t, Atomics> atomics;
  /// The latest uses by threads of other blocks, by entry.
  struct Guest {
    Stamp stamp;
    Kind kind;
    const void* pc;
  };
  std::map<unsigned, Guest> guests;
  void note_guest(unsigned entry, const Guest& use);

 private:
  Stamp begun_ = 0;
  size_t size_ = 0;
  unsigned warps_ = 0;
  std::unique_ptr<SharedShadow> words_, bytes_;  // bytes_: null until a word is split
};

}  // namespace sim::races
