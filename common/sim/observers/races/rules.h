/// \file
/// Which pairs of accesses are faults. clocks.h knows who is ordered before whom, the histories
/// (shared_history.h, device_history.h, operations.h) what was last done to a place. Here are the
/// rules for threads' own accesses; async_rules.h has those for TMA and the tensor cores.
///
/// A race: two accesses of the same bytes, at least one of them a store, that no synchronisation
/// orders, whatever order this run took. What orders them: barriers, __syncwarp for its own lanes,
/// mbarriers, the cluster's barrier; shuffles do not. A thread that arrives without waiting
/// (bar.arrive, mbarrier arrive) hands over what it did until then. Between clusters: tickets.h.
/// A cp.async writes from its issue to its wait, also for the copying thread.
#pragma once

#include "common/sim/observers/races/device_history.h"
#include "common/sim/observers/races/faults.h"

namespace sim::races {

/// What the search keeps of one block, ...
struct BlockParts {
  BlockClocks clocks;
  SharedHistory memory;
  Operations operations;
};
/// ... and what the blocks of a launch share.
struct LaunchParts {
  LaunchClocks clocks;
  std::unique_ptr<DeviceHistory> device = std::make_unique<DeviceHistory>();
  Waits waits;
  /// Of the preceding kernel, beside which this one may run; null: it is over.
  std::unique_ptr<DeviceHistory> preceding;
  std::map<unsigned, Stamp> waited;  ///< threads of the cluster that have waited for it, by entry
};

/// Of one block's threads. `home`: the block of the cluster that the shared memory belongs to.
class Rules {
 public:
  /// \param written by word of device memory: bit b, its byte b is written.
  Rules(BlockParts& own, LaunchParts& launch, Faults& faults, uint8_t* const& written)
      : own_(own), launch_(launch), device_(*launch.device), faults_(faults), written_(written) {}

  void access_shared(BlockParts& home, const Access&, unsigned thread);
  void access_device(const Access&, unsigned thread);
  void begin_copy(const Access&, unsigned thread);  ///< cp.async: a store, but nothing is written
  void end_copy(const Access&);
  /// The kernel was launched early, and the thread has not waited for the preceding one.
  void check_preceding(const Access&, unsigned thread);
  /// A block whose shared memory another one uses must have begun, and not have ended.
  void check_neighbour(const BlockParts& home, const Use&, bool ended) const;
  void end_block() const;  ///< what others did to its shared memory must happen before
  /// The bulk store that is being issued writes as this entry, with this stamp.
  void bulk_store(unsigned entry, Stamp s) { store_entry_ = entry, store_stamp_ = s; }

  // Of an operation as well. The last store to the cell is before the use; returns whether it is.
  bool check_writer(const BlockParts& home, const Use&, uint64_t byte, const SharedCell&) const;
  /// All loads are before the store.
  void check_readers(const BlockParts& home, const Use&, uint64_t byte, const SharedRow&) const;
  /// Operations on the word that the use must come after are complete.
  void check_operations(const BlockParts& home, const Use&, uint64_t word, bool writes) const;
  Past past(const SharedCell&) const;  ///< its last store
  void race(const Use&, uint64_t byte, const Past&, Missing = Missing::order,
            bool stores = false) const;

 private:
  template <bool kCluster>
  void access_word(BlockParts& home, const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  template <bool kCluster>
  void access_bytes(BlockParts&, const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  template <bool kCluster>
  void access_cell(BlockParts&, const Access&, unsigned thread, uint64_t byte, const SharedRow&);
  void check_under_atomics(BlockParts& home, const Use&, uint64_t byte, const SharedCell&);
  void check_atomics(BlockParts& home, const Use&, uint64_t byte);
  bool note_plain_load(const Access&, unsigned thread, uint64_t word);
  void device_words(const Access&, unsigned thread);
  void device_word(const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  void device_cell(const Access&, unsigned thread, uint64_t byte, DeviceCell&);
  void note_unwritten(UnwrittenReads&, const Use&, uint64_t byte) const;
  void explain(UnwrittenReads&, const Use&, uint64_t byte, auto&& ordered) const;

  BlockParts& own_;
  LaunchParts& launch_;
  DeviceHistory& device_;
  Faults& faults_;
  uint8_t* const& written_;
  unsigned store_entry_ = 0;
  Stamp store_stamp_ = 0;
};

}  // namespace sim::races
