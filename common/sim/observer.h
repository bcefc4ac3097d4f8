/// \file
/// Observers of a running block. An observer sees every access and every synchronisation; without
/// observers the simulator only counts bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/counts/counts.h"
#include "common/dialect/errors.h"
#include "common/dialect/instructions.h"
#include "common/sim/memory/memory.h"

namespace sim {

/// The 16-byte chunks that a product reads, by offsets in shared memory, and their permutation.
struct SharedOperand {
  const char* name;  ///< "A"
  fa::Swizzle swizzle;
  std::vector<uint32_t> chunks;
};

struct Block;
struct Launch;
struct Where;
enum class ProxyFence;
class RequestLog;  // memory/request_log.h

/// Lanes by warp: bit l of [w] is thread 32 w + l of the block.
using ThreadSet = const uint32_t (&)[32];

/// An instruction's access to columns of tensor memory.
struct TensorAccess {
  bool writes;
  uint8_t eighths;  ///< bit e: lanes 16 e to 16 e + 15
  unsigned column, columns;
};
/// The instruction: tcgen05.mma, ld, st, dealloc.
enum class TensorUse : uint8_t { product, load, store, free };

/// The instruction that writes to shared memory and signals an mbarrier, for messages. `adds`: also
/// to what others of its kind add to, in any order.
struct Sender {
  const char *by = "TMA load by ", *into = "TMA load into", *signals = "TMA load that signals";
  bool adds = false;
};
inline constexpr Sender kTmaLoad;
inline constexpr Sender kSender[] = {
    {"st.async by ", "st.async into", "st.async that signals"},
    {"clusterlaunchcontrol.try_cancel by ", "clusterlaunchcontrol.try_cancel into",
     "clusterlaunchcontrol.try_cancel that signals"},
    {"red.async by ", "red.async into", "red.async that signals", true},
    {"cp.reduce.async.bulk by ", "cp.reduce.async.bulk into", "cp.reduce.async.bulk that signals",
     true}};
/// The same of what a tcgen05.commit tracks: who issued it, what reads shared memory, its name.
inline constexpr Sender kTensorSender[] = {
    {"tcgen05.mma by ", "tcgen05.mma that reads", "tcgen05.mma"},
    {"tcgen05.cp by ", "tcgen05.cp that reads", "tcgen05.cp"},
    {"tcgen05.shift by ", "tcgen05.shift that reads", "tcgen05.shift"}};

/// How a wgmma uses registers of a thread: it reads A, or has exclusive use of its accumulators.
enum class RegisterUse : uint8_t { a, accumulator };

/// One instance per OS worker; only that worker calls it (for races and L2 see each observer).
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin_block(Block&) {}
  virtual void end_block(Block&) {}
  /// Where access() writes. The core puts accesses that fit into the log directly, and tells this
  /// observer only of the others. Null: of all. One observer of a block may have a log.
  virtual RequestLog* log() { return nullptr; }
  /// Does it need to know what each wgmma reads? See issue_wgmma().
  virtual bool wants_operands() const { return false; }
  /// block.current is the accessing thread.
  virtual void access(Block&, const Access&) {}
  /// The warp that ran so far gives way to another (or the block ends).
  virtual void leave_warp(Block&, unsigned warp) { (void)warp; }
  /// The threads of `met` waited for each other: what each did before is visible to all of them
  /// from now on, and so is what others released to `object` (bar.arrive); null: no others.
  virtual void barrier(Block&, ThreadSet met, const void* object) { (void)met, (void)object; }
  /// The lanes of one warp met in __syncwarp or another instruction that orders memory.
  virtual void warp_sync(Block&, unsigned warp, uint32_t lanes) { (void)warp, (void)lanes; }
  /// The current thread continues, but its work so far is visible to waiters on `object`: an
  /// mbarrier in its phase number `phase`, or a named barrier (phase 0), which barrier() forgets.
  virtual void release(Block&, const void* object, uint32_t phase) { (void)object, (void)phase; }
  /// The same for a relaxed arrival (sim::Order).
  virtual void release_relaxed(Block& b, const void* object, uint32_t phase) {
    release(b, object, phase);
  }
  /// The current thread has waited for all phases before `phase` of the mbarrier or cluster.
  virtual void acquire(Block&, const void* object, uint32_t phase) { (void)object, (void)phase; }
  /// The current thread has waited for this parity of the mbarrier, at this line.
  virtual void waited(Block&, const void* bar, int parity, const Where&) {
    (void)bar, (void)parity;
  }
  /// The same for a relaxed wait.
  virtual void acquire_relaxed(Block& b, const void* object, uint32_t phase) {
    acquire(b, object, phase);
  }
  /// A copy by the current thread to its block's shared memory (cp.async) is in flight: until
  /// end_copy() no thread may touch its target. Then access() reports the store.
  /// `phase`: Block::phase when it began.
  virtual void begin_copy(Block&, const Access&) {}
  virtual void end_copy(Block&, const Access&, uint32_t phase) { (void)phase; }
  /// The current thread, launched early, has waited for the preceding kernel.
  virtual void wait_for_kernel(Block&) {}
  /// The current thread executed __threadfence().
  virtual void fence(Block&) {}
  /// The lanes of a warp did a shuffle, an mma.
  virtual void shuffle(Block&, unsigned warp, unsigned line, int distance) {
    (void)warp, (void)line, (void)distance;
  }
  virtual void product(Block&, unsigned warp) { (void)warp; }
  /// The current thread waits for bulk stores; its warpgroup, from warp `first` on, for wgmma.
  virtual void wait_stores(Block&) {}
  virtual void wait_products(Block&, unsigned first) { (void)first; }

  // Asynchronous operations on shared memory, accessed by the engine. An observer may number them.

  /// The current thread executed fence.proxy.async for this memory.
  virtual void proxy_fence(Block&, ProxyFence) {}
  /// The current thread has initialised an mbarrier of its block.
  virtual void init_barrier(Block&, const void* bar, const Where&) { (void)bar; }
  /// The current thread executed fence.mbarrier_init.
  virtual void init_fence(Block&) {}
  /// The current thread issues a TMA load to the store's target; `bar` signals its completion.
  virtual uint32_t issue_load(Block&, const Access&, fa::Swizzle, const void* bar, const Where&,
                              const Sender&) {
    (void)bar;
    return 0;
  }
  /// The data have arrived, or the products are complete, in `phase` of the mbarrier, in `home`.
  virtual void landed(Block& home, uint32_t operation, const void* bar, uint32_t phase) {
    (void)home, (void)operation, (void)bar, (void)phase;
  }
  /// The current thread issues its part of a wgmma that reads the 16-byte chunks at these offsets
  /// of shared memory. `operation`: 0 for the warpgroup's first thread. Requires wants_operands().
  virtual uint32_t issue_wgmma(Block&, uint32_t operation, const std::vector<uint32_t>& chunks,
                               const void* pc, const Where&) {
    (void)chunks, (void)pc;
    return operation;
  }
  /// The current thread issues a tcgen05.mma, cp or shift that reads shared memory and uses tensor
  /// memory of `home`: its block and then, for one of a pair, the pair's other block.
  virtual void issue_product(Block&, Block& home, std::span<const SharedOperand>,
                             std::span<const TensorAccess>, const void* pc, const Where&,
                             const Sender&) {
    (void)home, (void)pc;
  }
  /// The current thread's warp issues a tcgen05.ld or st, or frees columns.
  virtual void move_tensor(Block&, TensorUse, const TensorAccess&, const void* pc, const Where&) {
    (void)pc;
  }
  /// The current thread's warp has waited for its tcgen05.ld, or st.
  virtual void finish_moves(Block&, bool loads) { (void)loads; }
  /// The current thread's warp allocates columns.
  virtual void allocate_tensor(Block&) {}
  /// The current thread executed tcgen05.fence::before_thread_sync, or after_thread_sync.
  virtual void tensor_fence(Block&, bool before) { (void)before; }
  /// The current thread issues a tcgen05.commit to this mbarrier, which is also an operation.
  virtual uint32_t commit_products(Block&, const void* bar, const Where&) {
    (void)bar;
    return 0;
  }
  /// The current thread issues a bulk store that reads the load's range.
  virtual uint32_t issue_store(Block&, const Access&, const Where&) { return 0; }
  /// The current thread knows by a wait that this wgmma or bulk store, and earlier ones of the same
  /// warpgroup or thread, have read their operands; with `written` also that they are complete.
  virtual void finished(Block&, uint32_t operation, bool written) {
    (void)operation, (void)written;
  }
  /// The current thread returns without waiting for its bulk store at this line.
  virtual void leave_store(Block&, const Where&) {}
  /// The current thread touches word `element` of registers that the instruction at `user` uses.
  virtual void touch_busy(Block&, RegisterUse, size_t element, Kind, const void* pc,
                          const Where& user) {
    (void)element, (void)pc, (void)user;
  }
  /// A remark about this line, not a fault.
  virtual void remark(Block&, const Where&, const std::string& sentence) { (void)sentence; }
  /// The launch has ended: adds the results. Called for one worker after another.
  virtual void merge(fa::Counts&, fa::KernelCount&) {}
};

/// Do the launches of this host thread overlap with the preceding kernel?
bool launches_overlap();

/// This block's observer of the given type: all blocks of a launch have the same ones.
template <class T, class B>
T& observer_of(B& block) {
  for (auto& o : block.observers) {
    if (auto* found = dynamic_cast<T*>(o.get())) return *found;
  }
  __builtin_unreachable();
}

/// The recording in progress, to which launches and copies add; null while nothing is recorded.
fa::Counts* recording();
/// Adds a remark once.
void add_remark(fa::Counts&, const std::string& remark);

/// Makes observers for launches with any number of workers, and keeps what outlives them. All
/// functions but observe() are called on the host thread.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// Do the options request it for the next launch?
  virtual bool wanted() const = 0;
  /// Must one worker, or one cluster, run alone, so that findings repeat exactly?
  virtual bool alone() const { return false; }

  virtual void begin_recording() {}
  /// cudaMemset, or one end of cudaMemcpy on the device.
  virtual void copy(const char* what, uint16_t buffer, uint64_t offset, uint64_t bytes,
                    bool write) {
    (void)what, (void)buffer, (void)offset, (void)bytes, (void)write;
  }
  virtual void end_recording(fa::Counts&) {}

  /// The modelled GPU holds `resident` blocks at once.
  virtual void begin_launch(const Launch&, uint64_t resident) { (void)resident; }
  /// Appends an observer to those of this worker's block.
  virtual void observe(Block&) {}
  virtual void end_launch() {}  ///< also of an abandoned launch
  /// Before Observer::merge().
  virtual void count(fa::KernelCount&) {}
  /// After it. \param fault why the launch ended, or nothing.
  /// \throws fa::KernelStopped for further findings.
  virtual void report(fa::Counts&, const std::optional<fa::Finding>& fault) { (void)fault; }
};
/// The requested watchers, in the order in which a block tells their observers. See observers/.
std::vector<Watcher*> watchers();

}  // namespace sim
