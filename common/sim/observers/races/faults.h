/// \file
/// What the rules report: two uses that nothing orders, reads of what no thread has written, and
/// memory that is left too early.
#pragma once

#include "common/sim/observers/races/operations.h"

namespace sim::races {

/// What a thread of the block does now, or an operation that it issues.
struct Use {
  const Access& access;
  unsigned thread;
  // Of an operation: its words ("TMA load into") and its line.
  const char* words = nullptr;
  const Where* where = nullptr;
};

/// What would have ordered two uses. The last ones are of tensor memory.
enum class Missing : uint8_t {
  order,               ///< a barrier; between clusters __threadfence and an atomic
  copy_wait,           ///< of cp.async
  completion,          ///< a wait for the operation
  proxy_fence,         ///< fence.proxy.async by the other thread
  own_proxy_fence,     ///< ... by this one
  device_proxy_fence,  ///< ... for device memory
  init_fence,          ///< fence.mbarrier_init
  kernel_wait,         ///< griddepcontrol.wait
  fences,              ///< both fences and a barrier between them
  commit,              ///< a wait for a tcgen05.commit
  move_wait,           ///< wait::ld or wait::st
  others_move_wait,    ///< ... by the other warp
  before_fence,        ///< tcgen05.fence::before_thread_sync
  after_fence,         ///< tcgen05.fence::after_thread_sync
  barrier
};
struct Race {
  const Use& use;
  uint64_t byte;  ///< where the word or byte begins
  Missing missing;
  // The earlier use: a thread's, or an instruction at `where` (an mbarrier.init, an operation).
  Past past{};
  bool stores = false;  ///< both are plain stores by threads
  const Where* where = nullptr;
  const Operation* operation = nullptr;
  const Wait* wait = nullptr;  ///< for another phase of the load's mbarrier
};
/// A use of a column of tensor memory.
struct TensorPlace {
  TensorUse use;
  bool writes;
  unsigned column;
  bool in_pair;  ///< of the pair's other block
  const Where& where;
  const char* by = nullptr;  ///< a product's name
};

/// Receives what the rules find: Words (findings.h), or a test.
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
  virtual void left(const Past&) = 0;
  virtual void left(const Operation& load, const Wait* other_phase) = 0;
  virtual void tensor_race(const TensorPlace&, const Operation&, Missing) = 0;
  virtual void tensor_unwritten(const TensorPlace&) = 0;
  virtual void other_swizzle(const SharedOperand&, const Issue&, const Operation& load) = 0;
};

}  // namespace sim::races
