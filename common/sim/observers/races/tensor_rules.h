/// \file
/// The rules of tensor memory. A thread that uses columns must know that earlier operations on them
/// are complete; tcgen05 instructions of different threads are ordered by their fences alone:
///
///   mma  complete at the mbarrier of a tcgen05.commit, which is a before_thread_sync, too; a
///        thread that waits on it, the issuing one included, needs an after_thread_sync. Another
///        thread's mma needs no completion: before_thread_sync, a barrier, after_thread_sync
///   ld   complete at the warp's wait::ld, st at its wait::st: enough for that warp. For others
///        then before_thread_sync, a barrier or mbarrier, after_thread_sync
///
/// Freeing columns is synchronous and needs completion and a barrier only.
#pragma once

#include <span>

#include "common/sim/observers/races/async_rules.h"

namespace sim::races {

/// Of one block's tcgen05 instructions.
class TensorRules {
 public:
  TensorRules(BlockParts& own, AsyncRules& async, Faults& faults)
      : own_(own), async_(async), faults_(faults) {}

  void begin_block();
  void allocate();
  void fence(unsigned thread, bool before);  ///< before_thread_sync, or after_thread_sync
  void issue_product(BlockParts& home, std::span<const SharedOperand>,
                     std::span<const TensorAccess>, Access, const Issue&);
  uint32_t commit(const Issue&);
  void move(TensorUse, const TensorAccess&, const Issue&);
  void finish_moves(unsigned warp, bool loads);

 private:
  void use(BlockParts& home, TensorUse, const TensorAccess&, uint32_t number, const Issue&) const;
  bool ordered(TensorUse, unsigned thread, const Operation&) const;
  TensorMissing missing(TensorUse, unsigned thread, const Operation&) const;
  void check_swizzle(BlockParts& home, const SharedOperand&, const Where&) const;

  // A channel has two entries. Of a warp's loads, and of its stores: complete and before a
  // before_thread_sync; the next one, complete. Of a thread's products: complete; the next one,
  // issued before a before_thread_sync.
  struct Latest {
    unsigned channel = 0;
    Stamp stamp = 0;
  };
  BlockParts& own_;
  AsyncRules& async_;
  Faults& faults_;
  bool used_ = false;
  std::vector<SharedClock> after_fence_;  // by thread: what it knew at its last after_thread_sync
  Latest moves_[32][2];                   // by warp: the latest store, load
  std::unordered_map<unsigned, Latest> products_;  // by thread
  struct Fencing {
    SharedClock from, result;
  } fencing_;  // the latest before_thread_sync
};

}  // namespace sim::races
