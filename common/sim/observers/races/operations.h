/// \file
/// What TMA and the tensor cores do on their own. An operation lasts from its issue to its
/// completion, which is an entry of the clocks. Until its completion is visible to a thread, the
/// thread must not touch what the operation writes, nor write what it reads.
#pragma once

#include "common/dialect/instructions.h"
#include "common/sim/block.h"
#include "common/sim/observers/races/clocks.h"
#include "common/sim/observers/races/shared_history.h"

namespace sim::races {

/// A thread issues an operation.
struct Issue {
  unsigned thread;
  const void*
      channel;  ///< an address that stands for what completes in order; a load: its mbarrier
  const Where& where;
  const Sender* sender = &kTmaLoad;  ///< a load, a product
};
struct Operation {
  enum Engine { load, wgmma, store, product, tensor_load, tensor_store } engine;
  Where where;
  const void* of_channel;
  unsigned issuer;   ///< entry of the (first) thread that issued it
  unsigned channel;  ///< its completion: visible to a thread that has this entry up to `stamp`
  Stamp stamp;
  SharedClock past = nullptr;  ///< load: what was visible to the issuer, released with the data
  fa::Swizzle swizzle{};       ///< load: as in the tensor map
  const Sender* sender = &kTmaLoad;  ///< load, product
  /// wgmma: what must be visible to each thread of the warpgroup when it issues its part.
  struct Need {
    unsigned entry;
    Stamp stamp;
    uint64_t word;
  };
  std::vector<Need> needs = {};
  bool is_visible(const ThreadClock& to) const { return has(to.clock, channel, stamp); }
};
/// The latest operations, by number, on a word of shared memory or a column of some lanes of tensor
/// memory. Numbers of earlier blocks are ignored.
struct LatestOperations {
  static constexpr unsigned kStore = 8, kProduct = 9;
  uint32_t write;      ///< TMA load; tcgen05.mma, tcgen05.st
  uint32_t reads[10];  ///< by warpgroup wgmma or tcgen05.ld; [kStore] TMA store, [kProduct] mma
};

/// The latest wait for an mbarrier.
struct Wait {
  Where where;
  int parity;
  Stamp when;
  SharedClock clock;  ///< the thread's, after the wait
};
using Waits = std::unordered_map<const void*, Wait>;  // of the running cluster, by mbarrier

/// Who initialised an mbarrier, and the stamps of that thread after its first fences since then;
/// 0: none yet.
struct Init {
  Where where;
  unsigned thread;             ///< its entry
  Stamp shown = 0;             ///< to TMA: a fence of either kind
  Stamp shown_to_cluster = 0;  ///< fence.mbarrier_init
};

/// The operations on shared and tensor memory of one block. Every block's rules query these and
/// add their own.
class Operations {
 public:
  static constexpr unsigned kColumns = 512;
  explicit Operations(Waits& waits) : waits_(waits) {}
  void begin(size_t shared_bytes);  ///< a block begins
  /// Returns its number. `by`: the issuing block.
  uint32_t add(BlockClocks& by, Operation::Engine, const Issue&);
  /// Null: of an earlier block.
  Operation* find(uint32_t n) { return n < first_ ? nullptr : &all_[n - first_]; }
  const Operation* find(uint32_t n) const { return n < first_ ? nullptr : &all_[n - first_]; }
  Operation& last() { return all_.back(); }

  /// Those of a word, to change them. A store by a thread has ended them all.
  LatestOperations& open(SharedCell&, uint64_t word);
  const LatestOperations& of_word(uint64_t word) const { return (*words_)[word]; }
  /// A reduction by way of this mbarrier is now the latest operation on a word, after `last`.
  void note_reduction(uint64_t word, uint32_t last, const void* bar);
  /// By word: earlier reductions that add to it by way of other mbarriers than the latest one does.
  std::unordered_map<uint64_t, std::vector<uint32_t>> reductions;

  /// A thread has waited for the mbarrier, which had released this clock.
  void note_waited(const void* bar, const Clock& clock);
  /// The first load whose completion is visible to no thread of the block; null: there is none.
  const Operation* without_wait(const BlockClocks&) const;
  /// The wait for another phase of the load's mbarrier since its issue, or null.
  const Wait* for_other_phase(const Operation& load) const;

  /// By eighth of the lanes and column. Until an instruction uses 16 lanes of a quarter without its
  /// others, the even eighths stand for the quarters.
  LazyArray<LatestOperations> tensor{8 * kColumns};
  bool split = false;
  std::unordered_map<const void*, Init> inits;  ///< by mbarrier
  /// The thread with this entry executes a fence, and has this stamp after it.
  void show_inits(unsigned entry, Stamp fence, bool to_cluster);

 private:
  Waits& waits_;
  size_t shared_bytes_ = 0;
  std::vector<Operation> all_;  // of this block; number first_ + index
  uint32_t first_ = 1;
  std::unique_ptr<LazyArray<LatestOperations>> words_;  // null: no operation yet
  struct Loads {
    uint32_t last = 0;
    Stamp waited = 0;
  };
  std::unordered_map<const void*, Loads> loads_;  // by mbarrier
};

}  // namespace sim::races
