/// \file
/// The rules for TMA and wgmma, which access shared memory through the async proxy. An operation's
/// completion must be visible to a thread before the thread touches what the operation writes, or
/// writes what it reads (operations.h):
///
///   TMA load    writes until the phase of its mbarrier is complete: visible by a wait on it
///   wgmma       reads its operands until wgmma_wait, by each thread of the warpgroup
///   tcgen05.mma reads its operands until the mbarrier of a tcgen05.commit: visible by a wait on it
///   TMA store   reads until tma_store_wait_read, and has written the tensor at tma_store_wait, by
///               the thread that issued it
///
/// Before an operation reads what a thread stored, that thread must have executed fence.proxy.async
/// after the store. Where a load overwrites what threads read or wrote in shared memory, order is
/// enough, as in CUTLASS. Device memory that threads of the launch have stored to needs a fence
/// before a load reads it or a bulk store overwrites it: in the thread that stored or in the one
/// that issues. Between blocks the memory model requires the latter; published kernels have both.
///
/// An mbarrier that a load will signal must have been made visible to TMA by the thread that
/// initialised it: by fence.mbarrier_init, or within its block by fence.proxy.async. For arrivals
/// of threads order is enough, also of other blocks: the cluster's barrier releases and acquires.
#pragma once

#include "common/sim/observers/races/rules.h"

namespace sim::races {

/// Judges what one block's threads issue, and adds it to the operations. The observer tells it of
/// each. `home`: the block whose shared memory the operation uses.
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
  /// The thread issues an operation that reads the word.
  void check_before_read(BlockParts& home, const Use&, uint64_t word) const;

 private:
  void check_init(const BlockParts& waits, const Use&, const void* bar) const;

  BlockParts& own_;
  Rules& rules_;
  Faults& faults_;
  std::vector<uint32_t> need_at_;  // by entry: index in Operation::needs, plus one
};

}  // namespace sim::races
