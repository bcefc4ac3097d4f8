/// \file
/// What TMA and the tensor cores do on their own. An operation lasts from its issue to its
/// completion, which is an entry of the clocks: who has it there knows that it is over. Only then
/// may a thread touch what the operation writes, or write what it reads.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "common/dialect/instructions.h"
#include "common/sim/block.h"
#include "common/sim/observers/races/clocks.h"
#include "common/sim/observers/races/shared_history.h"

namespace sim::races {

struct Operation {
  enum Engine { load, wgmma, store, product, tensor_load, tensor_store } engine;
  Where where;
  unsigned issuer;   ///< entry of the (first) thread that issued it
  unsigned channel;  ///< who has this entry up to `stamp` knows that it is complete
  Stamp stamp;
  const void* bar = nullptr;   ///< load: the mbarrier that it signals
  SharedClock past = nullptr;  ///< load: what the issuer knew, handed over with the data
  fa::Swizzle swizzle{};       ///< load: as in the tensor map
  /// wgmma: what each thread of the warpgroup must know when it issues its part.
  struct Need {
    unsigned entry;
    Stamp stamp;
    uint64_t word;
  };
  std::vector<Need> needs = {};
  bool is_known(const ThreadClock& thread) const { return has(thread.clock, channel, stamp); }
};

/// The latest operations on a word of shared memory, by number. Numbers of earlier blocks count for
/// nothing.
struct AsyncWord {
  static constexpr unsigned kStore = 8, kProduct = 9;
  uint32_t write;      ///< a TMA load
  uint32_t reads[10];  ///< by warpgroup: a wgmma; [kStore] a bulk store; [kProduct] of tcgen05
};

/// The latest wait for an mbarrier.
struct Wait {
  Where where;
  int parity;
  Stamp when;
  SharedClock knows;  ///< the thread, after the wait
};
using Waits = std::unordered_map<const void*, Wait>;  // of the cluster that runs, by mbarrier

/// Who has initialised an mbarrier, and the stamps of that thread after its first fences since
/// then; 0: there is none yet.
struct Init {
  Where where;
  unsigned thread;             ///< its entry
  Stamp shown = 0;             ///< to TMA: either fence
  Stamp shown_to_cluster = 0;  ///< fence.mbarrier_init
};

/// The same for a column in one quarter of tensor memory.
struct TensorCell {
  static constexpr unsigned kProduct = 8;
  uint32_t write;     ///< a product, a store
  uint32_t reads[9];  ///< by warpgroup: a load; [kProduct] a product
};

/// A thread issues an operation.
struct Issue {
  unsigned thread;
  const void* channel;  ///< an address that stands for what completes in order
  const Where& where;
};

/// On one block's shared and tensor memory.
class Operations {
 public:
  explicit Operations(Waits& waits) : waits_(waits) {}
  void begin(size_t shared_bytes);  ///< a block begins
  /// Returns its number. `by`: the issuing block.
  uint32_t add(BlockClocks& by, Operation::Engine, const Issue&);
  Operation* find(uint32_t number) {  ///< null: of an earlier block
    return number < first_ ? nullptr : &all_[number - first_];
  }
  const Operation* find(uint32_t number) const {
    return const_cast<Operations*>(this)->find(number);
  }
  Operation& last() { return all_.back(); }

  /// The word's operations: what it has, or after a store by a thread none.
  AsyncWord& open(SharedCell&, uint64_t word);
  const AsyncWord& of_word(uint64_t word) const { return (*words_)[word]; }

  /// A load is the last one of its mbarrier; a thread has waited, and knows of loads up to a stamp.
  void note_load(uint32_t number, const void* bar);
  void note_waited(const void* bar, const Clock& knows);
  /// The first load whose completion no thread of the block knows; null: there is none.
  const Operation* without_wait(const BlockClocks&) const;
  /// After the load's issue a thread has waited for another phase of its mbarrier: there; or null.
  const Wait* for_other_phase(const Operation& load) const;

  std::vector<TensorCell> tensor;               ///< by quarter and column
  std::unordered_map<const void*, Init> inits;  ///< by mbarrier
  /// The thread with this entry executes a fence, and has this stamp after it.
  void show_inits(unsigned entry, Stamp fence, bool to_cluster);

 private:
  Waits& waits_;
  size_t shared_bytes_ = 0;
  std::vector<Operation> all_;  // of this block; number first_ + index
  uint32_t first_ = 1;
  std::unique_ptr<LazyArray<AsyncWord>> words_;  // null: no operation yet
  struct Loads {
    uint32_t last = 0;
    Stamp waited = 0;
  };
  std::unordered_map<const void*, Loads> loads_;  // by mbarrier
};

}  // namespace sim::races
