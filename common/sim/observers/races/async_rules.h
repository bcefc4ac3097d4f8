/// \file
/// The rules of TMA and of the tensor cores' operands. An operation lasts from its issue to its
/// completion (operations.h); only a thread that has learnt of the completion may touch what it
/// writes, or write what it reads:
///
///   TMA load    writes until the phase of its mbarrier is complete: learnt by waiting on it
///   wgmma       reads its operands until wgmma_wait: learnt by each thread of the warpgroup
///   tcgen05.mma reads its operands until the mbarrier of a tcgen05.commit: learnt by waiting on it
///   TMA store   reads until tma_store_wait_read, and has written the tensor at tma_store_wait:
///               learnt by the thread that issued it
///
/// Before an operation reads what a thread stored, that thread must have executed
/// fence.proxy.async after the store. Where a load overwrites what threads read or wrote in shared
/// memory, order is enough, as in CUTLASS. An mbarrier that a load will signal must have been shown
/// to TMA by the thread that initialised it: by fence.mbarrier_init, or in its own block by
/// fence.proxy.async. For the arrivals of threads order is enough.
#pragma once

#include "common/sim/observers/races/rules.h"

namespace sim::races {

/// Of what one block's threads issue. `home`: the block whose memory the operation uses.
class AsyncRules {
 public:
  AsyncRules(BlockParts& own, Rules& rules, Faults& faults)
      : own_(own), rules_(rules), faults_(faults) {}

  /// Its channel is the mbarrier, in the memory of the block `waits`, at the place of `signal`.
  uint32_t issue_load(BlockParts& home, const BlockParts& waits, const Access&,
                      const Access& signal, fa::Swizzle, const Issue&);
  /// One thread's part; `number`: 0, or that of the first thread's part.
  uint32_t issue_wgmma(uint32_t number, const std::vector<uint32_t>& chunks, Access, const Issue&);
  uint32_t issue_store(const Access&, const Issue&);
  /// The thread has waited for it.
  void finished(uint32_t number, bool written, unsigned thread);
  /// An operation that the thread issues is about to read the word.
  void check_before_read(BlockParts& home, const Use&, uint64_t word) const;

 private:
  void check_init(const BlockParts& waits, const Use&, const void* bar) const;

  BlockParts& own_;
  Rules& rules_;
  Faults& faults_;
  std::vector<uint32_t> need_at_;  // by entry: place in Operation::needs, plus one
};

}  // namespace sim::races
