/// \file
/// What the rules tell of: two uses that nothing orders, reads of what was not written, and memory
/// that is left too early.
#pragma once

#include "common/sim/observers/races/operations.h"

namespace sim::races {

/// What this thread of the block does now, or makes an operation do.
struct Use {
  const Access& access;
  unsigned thread;
  // Of an operation: its words ("TMA load into") and its line.
  const char* words = nullptr;
  const Where* where = nullptr;
};

/// What would have ordered two uses.
enum class Missing : uint8_t {
  order,               ///< a barrier; between clusters a __threadfence and an atomic
  copy_wait,           ///< of cp.async
  completion,          ///< a wait for the operation
  proxy_fence,         ///< fence.proxy.async by the other thread
  own_proxy_fence,     ///< ... by this one
  device_proxy_fence,  ///< ... for device memory
  init_fence,          ///< fence.mbarrier_init
  kernel_wait,         ///< griddepcontrol.wait
};
struct Race {
  const Use& use;
  uint64_t byte;  ///< where the word or byte begins
  Missing missing;
  // The earlier use is a thread's, or an instruction at `where`: an mbarrier.init, an operation.
  Past past{};
  bool stores = false;  ///< both are plain stores by threads
  const Where* where = nullptr;
  const Operation* operation = nullptr;
  const Wait* wait = nullptr;  ///< for another phase of that load's mbarrier
};
/// A use of a column of tensor memory.
struct TensorPlace {
  TensorUse use;
  bool writes;
  unsigned column;
  bool in_pair;  ///< of the other block
  const Where& where;
};
enum class TensorMissing : uint8_t { order, commit, wait, others_wait, before, after, barrier };

/// Hears of what the rules find. words.h says it.
class Faults {
 public:
  virtual ~Faults() = default;
  virtual void race(const Race&) = 0;
  /// A read of what no thread (shared memory: of this block) has written. Returns its number.
  virtual size_t unwritten(const Use&, uint64_t byte) = 0;
  virtual void explained(size_t unwritten) = 0;  ///< by a race
  /// The other block, whose shared memory is used, has ended, or may not have begun.
  virtual void absent(const Use&, bool ended) = 0;
  /// The block may end before another block's thread, or a load, has used its shared memory.
  virtual void left(unsigned entry, const SharedHistory::Guest&) = 0;
  virtual void left(const Operation& load, const Wait* other_phase) = 0;
  virtual void tensor_race(const TensorPlace&, const Operation&, TensorMissing) = 0;
  virtual void tensor_unwritten(const TensorPlace&) = 0;
  virtual void other_swizzle(const SharedOperand&, const Where&, const Operation& load) = 0;
};

}  // namespace sim::races
