/// \file
/// Which pairs of accesses are faults. Here are the rules for threads' own accesses; async_rules.h
/// has those for TMA and wgmma, tensor_rules.h those for tcgen05.
///
/// A race: two accesses of the same bytes, at least one of them a store, of which neither happens
/// before the other, whatever their order in this run. What orders accesses: barriers, __syncwarp
/// among its lanes, mbarriers, the cluster's barrier, and between clusters tickets.h. Shuffles do
/// not. An arrival that does not wait (bar.arrive, mbarrier arrive) releases what its thread did
/// before it and nothing later (clocks.cpp). A cp.async writes from its issue to its wait: an
/// access in between races with it, also one of the copying thread.
#pragma once

#include "common/sim/observers/races/faults.h"

namespace sim::races {

/// What the search knows of one block, ...
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
  /// Of the preceding kernel while it may still run, or null.
  std::unique_ptr<DeviceHistory> preceding;
  std::map<unsigned, Stamp> waited;  ///< threads of the cluster that have waited for it, by entry
};

/// Judges the accesses of one block's threads by clocks and histories, and notes them there. The
/// observer tells it of each access. `home`: the block of the cluster to which the shared memory
/// belongs.
class Rules {
 public:
  /// \param written by word of device memory: bit b, its byte b is written.
  Rules(BlockParts& own, LaunchParts& launch, Faults& faults, uint8_t* const& written)
      : own_(own), launch_(launch), device_(*launch.device), faults_(faults), written_(written) {}

  void access_shared(BlockParts& home, const Access&, unsigned thread);
  void access_device(const Access&, unsigned thread);
  void begin_copy(const Access&, unsigned thread);  ///< cp.async: a store, but nothing is written
  void end_copy(const Access&);
  /// In a kernel launched early: a wait for the preceding kernel must happen before the access.
  void check_preceding(const Access&, unsigned thread);
  /// A block whose shared memory another one uses must have begun and must not have ended.
  void check_neighbour(const BlockParts& home, const Use&, bool ended) const;
  void end_block() const;  ///< other blocks' accesses to its shared memory must happen before

  // Also for operations.
  /// The last store to the cell must happen before the use. Returns whether it does.
  bool check_writer(const BlockParts& home, const Use&, uint64_t byte, const SharedCell&) const;
  /// All loads must happen before the store.
  void check_readers(const BlockParts& home, const Use&, uint64_t byte, const SharedRow&) const;
  /// Operations in flight on the word must be complete before the use.
  /// `adds`: it is a reduction (Sender::adds), whose order with others does not matter.
  void check_operations(const BlockParts& home, const Use&, uint64_t word, bool writes,
                        bool adds = false) const;
  Past past(const SharedCell&) const;  ///< its last store
  /// `in_flight`: the earlier access is a copy's, which has not written yet.
  void race(const Use&, uint64_t byte, const Past&, Missing = Missing::order,
            bool in_flight = false) const;

 private:
  Past now(const Access&, unsigned thread) const;
  void access_word(BlockParts& home, const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  void access_bytes(BlockParts&, const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  void access_cell(BlockParts&, const Access&, unsigned thread, uint64_t byte, const SharedRow&);
  void check_atomics(BlockParts& home, const Use&, uint64_t byte);
  bool note_plain_load(const Access&, unsigned thread, uint64_t word);
  void device_words(const Access&, unsigned thread);
  void device_word(const Access&, unsigned thread, uint64_t word, uint8_t bytes);
  void device_cell(const Access&, unsigned thread, uint64_t byte, DeviceCell&);
  void note_unwritten(History&, const Use&, uint64_t byte) const;
  void explain(History&, const Use&, uint64_t byte, auto&& ordered) const;
  void check_under_atomics(History&, const Use&, uint64_t byte, const Past& last, bool stored,
                           auto&& ordered) const;

  BlockParts& own_;
  LaunchParts& launch_;
  DeviceHistory& device_;
  Faults& faults_;
  uint8_t* const& written_;
};

}  // namespace sim::races
