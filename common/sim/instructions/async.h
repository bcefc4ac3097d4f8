/// \file
/// A block's operations in flight: copies, mbarriers, wgmma groups. Private to instructions/.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/dialect/instructions.h"
#include "common/sim/block.h"
#include "common/sim/messages/messages.h"

namespace sim {

/// Issued operations, and those committed to groups, oldest group first.
template <class T>
struct Groups {
  std::vector<T> open;
  std::vector<std::vector<T>> committed;

  void commit() {
    committed.push_back(std::move(open));
    open.clear();
  }
  /// Performs the oldest groups until `pending` remain.
  void wait(size_t pending, auto&& perform) {
    while (committed.size() > pending) {
      for (T& operation : committed.front()) perform(operation);
      committed.erase(committed.begin());
    }
  }
};

/// One cp.async.
struct AsyncCopy {
  void* to;
  const void* from;
  uint32_t bytes, from_bytes;
  const void* pc;
  uint32_t phase;  ///< of the block's barriers in which it was issued
};

/// One bulk store, performed at its wait, or at the end of the block.
struct BulkStore {
  std::function<void()> perform;
  Where where;
  uint32_t operation;  ///< the observers' number; 0: none
  bool done = false;
};

/// The state of an mbarrier. Its 8 bytes in shared memory hold a copy, to detect overwriting.
struct Mbarrier {
  uint32_t phase = 0;         ///< number of completed phases
  int expected = 0;           ///< arrivals per phase
  int pending = 0;            ///< missing arrivals
  int64_t tx = 0;             ///< missing bytes; negative while copies are ahead of expect_tx
  uint32_t refused[32] = {};  ///< by warp: lanes whose first try in this phase failed
  std::vector<std::pair<Block*, unsigned>> waiters;
};

/// One wgmma of all 128 threads, which run ahead of each other: the k-th of each belong together.
struct WgmmaEvent {
  bool commit = false;  ///< commit_group instead of a product
  Wgmma product{};
  Where where;
  float* d[128] = {};
  std::vector<uint32_t> a_registers;  ///< [128][4], as they were at issue
  bool told = false;                  ///< the observers know its operands
  uint32_t operation = 0;             ///< and this is their number; 0: none
};

/// Registers of one thread that a wgmma uses.
struct BusyRegisters {
  uintptr_t begin, end;
  RegisterUse use;
  unsigned group;  ///< the thread's last group that uses them
  Where where;     ///< a product of it
};

struct Warpgroup {
  std::vector<std::unique_ptr<WgmmaEvent>> events;  ///< since the last wait
  unsigned issued[128] = {};                        ///< events of each thread
  bool fenced[128] = {};                            ///< wgmma.fence since the last wait
  Groups<std::unique_ptr<WgmmaEvent>> groups;
  uint32_t finished = 0;                 ///< the observers' number of the last completed product
  unsigned committed[128] = {};          ///< groups of each thread
  unsigned performed = 0;                ///< groups
  std::vector<BusyRegisters> busy[128];  ///< by thread; only while races are looked for
  Barrier wait;
};

/// barrier.cluster. Lives in the block of rank 0.
struct ClusterBarrier {
  uint32_t phase = 0;
  unsigned arrived = 0;
  std::vector<std::pair<Block*, unsigned>> waiters;
};

struct TensorMemory;  // tcgen05.cpp

struct AsyncState {
  std::vector<Groups<AsyncCopy>> copies;                   ///< by thread
  std::vector<Groups<std::shared_ptr<BulkStore>>> stores;  ///< by thread
  std::unordered_map<const void*, Mbarrier> mbarriers;
  Warpgroup warpgroups[8];
  ClusterBarrier cluster_barrier;
  std::shared_ptr<TensorMemory> tensor;  ///< null until tcgen05 is used
  int registers[8] = {};                 ///< by warpgroup: the smallest setmaxnreg; 0: none
  std::string asks_for_registers;        ///< the first thread that wants more than the launch gave
  Where register_line;                   ///< a setmaxnreg
  std::vector<unsigned> setmaxnregs;     ///< executed, by thread; empty: none
  std::vector<uint32_t> cluster_phase;   ///< by thread: the phase it arrived in, plus one
};

AsyncState& make_async(Block&);
/// The state of a block, created at its first use; place_block() discards the previous block's.
inline AsyncState& async_of(Block& b) { return b.async ? *b.async : make_async(b); }

/// Finding unless [p, p + bytes) is shared memory of this block, aligned to `alignment`.
void need_own_shared(const char* what, const void* p, size_t bytes, size_t alignment, const Where&);
/// Finding unless the block is one of a pair, as cta_group::2 needs.
void need_pair(const char* what, const Where&);

/// Finding when the instruction adds to a register that this thread has never set.
void need_set(const char* what, unsigned thread, const void* registers, size_t words, const Where&);

// .sync.aligned instructions, of whole warps.

constexpr uint32_t kWholeWarp = 0xffffffff;
/// Finding unless every lane of the current thread's warp exists and runs.
void need_whole_warp(const char* what, const Where&);
/// Finding when a lane has returned while the others waited, leaving no operands.
void need_all_lanes(const WarpMeeting&);
template <class Frame>
Frame& frame_of(WarpMeeting& m, int lane) {
  return *static_cast<Frame*>(m.frame[lane]);
}

/// An operand of an operation, at [p, p + bytes) of `home`'s shared memory, for the observers.
Access async_operand(Block& home, const void* p, size_t bytes, Kind, const void* pc);
/// The current thread returns: tells observers of bulk stores that may still read shared memory.
void tell_stores_left();
/// The block's last thread returns: finding for columns left, or setmaxnreg in part of a warpgroup.
void need_tensor_memory_freed();
void need_whole_warpgroups();
/// `bytes` of a copy have landed: mbarrier complete_tx.
void mbarrier_complete_tx(Block& home, uint64_t* bar, int64_t bytes);
/// The tcgen05.commit at this line arrives.
void mbarrier_arrive_later(Block& home, uint64_t* bar, const Where&);
/// The number of complete phases of the mbarrier; 0: not initialised.
uint32_t mbarrier_phase(Block& home, const void* bar);
/// Finding unless `bar` is an initialised mbarrier of this block.
void need_mbarrier(uint64_t* bar, const char* what, const Where&);

}  // namespace sim
