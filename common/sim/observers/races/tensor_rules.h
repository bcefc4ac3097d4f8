/// \file
/// The rules for tensor memory. mma, ld and st of tcgen05 are ordered only among one thread's
/// products, to which cp and shift belong, but for a shift after a cp or shift. (PTX orders fewer
/// pairs: not a cp after a cp, nor after an mma, on which CUTLASS's block-scaled kernels rely.) A
/// later access to the same columns must be ordered after them; instructions of different threads
/// are ordered by their fences alone:
///
///   mma  complete at the mbarrier of a tcgen05.commit, which is a before_thread_sync, too; a
///        thread that waits on it, the issuing one included, needs an after_thread_sync. The mma of
///        another thread needs no completion: before_thread_sync, a barrier, after_thread_sync
///   ld   complete at the warp's wait::ld, st at its wait::st: enough for that warp. Others then
///        need before_thread_sync, a barrier or mbarrier, after_thread_sync
///
/// Freeing columns is synchronous and needs only completion and a barrier.
#pragma once

#include "common/sim/observers/races/async_rules.h"

namespace sim::races {

/// Judges the tcgen05 instructions of one block. The observer tells it of each.
class TensorRules {
 public:
  TensorRules(BlockParts& own, AsyncRules& async, Faults& faults)
      : own_(own), async_(async), faults_(faults) {}

  void begin_block() { state_ = {}; }
  void fence(unsigned thread, bool before);  ///< before_thread_sync, or after_thread_sync
  void issue_product(BlockParts& home, std::span<const SharedOperand>,
                     std::span<const TensorAccess>, Access, const Issue&);
  uint32_t commit(const Issue&);
  void move(TensorUse, const TensorAccess&, const Issue&);
  void finish_moves(unsigned warp, bool loads);

 private:
  void use(BlockParts& home, TensorUse, const TensorAccess&, uint32_t number, const Issue&);
  bool ordered(TensorUse, const Issue&, const Operation&);
  Missing missing(TensorUse, unsigned thread, const Operation&) const;
  void check_swizzle(BlockParts& home, const SharedOperand&, const Issue&) const;

  // A channel has two entries. For a warp's loads, and for its stores: complete before a
  // before_thread_sync; and complete. For a thread's products: complete; and issued before a
  // before_thread_sync.
  struct Latest {
    unsigned channel = 0;
    Stamp stamp = 0;
  };
  struct State {
    /// By thread: its clock at its last after_thread_sync.
    std::unordered_map<unsigned, SharedClock> after_fence;
    std::unordered_map<unsigned, Latest> products;  ///< by thread
    Latest moves[32][2];                            ///< by warp: the latest store, load
    SharedClock from, fenced;                       ///< the latest before_thread_sync
  };
  BlockParts& own_;
  AsyncRules& async_;
  Faults& faults_;
  State state_;
};

}  // namespace sim::races
