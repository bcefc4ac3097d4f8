/// \file
/// What may watch a block while it runs. An observer sees every access and every synchronisation;
/// with no observer the simulator only counts bytes.
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

/// Chunks of 16 bytes that a product reads, by their offsets in shared memory, and how their
/// descriptor says that they are permuted.
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

/// What an instruction does to columns of tensor memory.
struct TensorAccess {
  bool writes;
  uint8_t quarters;  ///< bit q: in lanes 32 q to 32 q + 31
  unsigned column, columns;
};
/// Who: tcgen05.mma, ld, st, dealloc.
enum class TensorUse : uint8_t { product, load, store, free };

/// For what a wgmma has registers of a thread in use: it reads A from them, or it alone may touch
/// its accumulators.
enum class RegisterUse : uint8_t { a, accumulator };

/// One instance per OS worker; only that worker calls it (with races or L2: see each observer).
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin_block(Block&) {}
  virtual void end_block(Block&) {}
  /// Where access() writes what it is told. The core takes an access that fits into the log itself,
  /// and tells this observer of the others alone. Null: it wants to hear of each. One observer of a
  /// block may have a log.
  virtual RequestLog* log() { return nullptr; }
  /// Does it want to know what each wgmma reads? See issue_wgmma().
  virtual bool wants_operands() const { return false; }
  /// block.current is the thread that accesses; `space` and `kind` tell the rest.
  virtual void access(Block&, const Access&) {}
  /// The warp that ran until now gives way to another (or the block ends).
  virtual void leave_warp(Block&, unsigned warp) { (void)warp; }
  /// The threads of `met` waited for each other: what each did before is visible to all of them
  /// from now on, and so is what others released to `object` (bar.arrive); null: there are no
  /// others.
  virtual void barrier(Block&, ThreadSet met, const void* object) { (void)met, (void)object; }
  /// The lanes of one warp met in __syncwarp or in another instruction that orders memory.
  virtual void warp_sync(Block&, unsigned warp, uint32_t lanes) { (void)warp, (void)lanes; }
  /// The current thread goes on, but what it did until now is visible to who waits for `object`: an
  /// mbarrier in its phase number `phase`, or a named barrier (phase 0), which barrier() forgets.
  virtual void release(Block&, const void* object, uint32_t phase) { (void)object, (void)phase; }
  /// The same of a relaxed arrival (sim::Order).
  virtual void release_relaxed(Block& b, const void* object, uint32_t phase) {
    release(b, object, phase);
  }
  /// The current thread has waited for all phases of the mbarrier (or of the cluster's barrier) in
  /// front of `phase`.
  virtual void acquire(Block&, const void* object, uint32_t phase) { (void)object, (void)phase; }
  /// The current thread has waited for the mbarrier, in this line, for this parity.
  virtual void waited(Block&, const void* bar, int parity, const Where&) {
    (void)bar, (void)parity;
  }
  /// The same of a relaxed wait.
  virtual void acquire_relaxed(Block& b, const void* object, uint32_t phase) {
    acquire(b, object, phase);
  }
  /// A copy of the current thread to its block's shared memory is on its way (cp.async): until
  /// end_copy() nobody may touch that place. Then access() tells of the store.
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
  /// The current thread waits for bulk stores; its warpgroup, from the warp `first` on, for wgmma.
  virtual void wait_stores(Block&) {}
  virtual void wait_products(Block&, unsigned first) { (void)first; }

  // Asynchronous operations on shared memory, which access() tells of as the engine's. Who wants to
  // follow one gives it a number, not 0.

  /// The current thread executed fence.proxy.async for this memory.
  virtual void proxy_fence(Block&, ProxyFence) {}
  /// The current thread has initialised an mbarrier of its block.
  virtual void init_barrier(Block&, const void* bar, const Where&) { (void)bar; }
  /// The current thread executed fence.mbarrier_init.
  virtual void init_fence(Block&) {}
  /// The current thread issues a TMA load to the store's place, in which it permutes chunks;
  /// `bar`, mostly in the same block, will tell of its end.
  virtual uint32_t issue_load(Block&, const Access&, fa::Swizzle, const void* bar, const Where&) {
    (void)bar;
    return 0;
  }
  /// The data have arrived, or the products are complete, in the mbarrier's phase number `phase`.
  /// `home`: whose they are.
  virtual void landed(Block& home, uint32_t operation, const void* bar, uint32_t phase) {
    (void)home, (void)operation, (void)bar, (void)phase;
  }
  /// The current thread issues its part of a wgmma that reads the 16-byte chunks at these offsets
  /// of shared memory. `operation` is 0 for the first thread of the warpgroup. Told only where an
  /// observer wants_operands().
  virtual uint32_t issue_wgmma(Block&, uint32_t operation, const std::vector<uint32_t>& chunks,
                               const void* pc, const Where&) {
    (void)chunks, (void)pc;
    return operation;
  }
  /// The current thread issues a tcgen05.mma that reads shared memory, and uses tensor memory, of
  /// `home`: its own block, and then, when it is a product of two, the other one of the pair.
  virtual void issue_product(Block&, Block& home, std::span<const SharedOperand>,
                             std::span<const TensorAccess>, const void* pc, const Where&) {
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
  /// The current thread issues a tcgen05.commit to this mbarrier, which is an operation, too.
  virtual uint32_t commit_products(Block&, const void* bar, const Where&) {
    (void)bar;
    return 0;
  }
  /// The current thread issues a bulk store that reads the load's place.
  virtual uint32_t issue_store(Block&, const Access&, const Where&) { return 0; }
  /// The current thread knows by a wait that this wgmma or bulk store, and those of the same
  /// warpgroup or thread before it, have read their operands; with `written` also that they are
  /// done.
  virtual void finished(Block&, uint32_t operation, bool written) {
    (void)operation, (void)written;
  }
  /// The current thread returns without a wait for its bulk store at this line.
  virtual void leave_store(Block&, const Where&) {}
  /// The current thread touches registers that the instruction at `user` has in use: the word
  /// `element` of them.
  virtual void touch_busy(Block&, RegisterUse, size_t element, Kind, const void* pc,
                          const Where& user) {
    (void)element, (void)pc, (void)user;
  }
  /// Something at this line is worth a sentence, but is no fault.
  virtual void remark(Block&, const Where&, const std::string& sentence) { (void)sentence; }
  /// The launch is over: add what was seen. Called once per worker, one after the other.
  virtual void merge(fa::Counts&, fa::KernelCount&) {}
};

/// Do the launches of this host thread overlap with the preceding kernel?
bool launches_overlap();

/// This block's observer of that type: all blocks of a launch have the same ones.
template <class T, class B>
T& observer_of(B& block) {
  for (auto& o : block.observers) {
    if (auto* found = dynamic_cast<T*>(o.get())) return *found;
  }
  __builtin_unreachable();
}

/// The recording in progress, to which launches and copies add; null while nothing is recorded.
fa::Counts* recording();
/// Each is said once.
void add_remark(fa::Counts&, const std::string& remark);

/// Who watches launches, whatever their number of workers: makes the observers, and keeps what
/// outlives them. All but observe() is called on the host thread.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// By the options, does it watch what happens next?
  virtual bool wanted() const = 0;
  /// Must one worker, or one cluster, run alone? So findings repeat exactly.
  virtual bool alone() const { return false; }

  virtual void begin_recording() {}
  /// cudaMemset, or one end of cudaMemcpy on the device.
  virtual void copy(const char* what, uint16_t buffer, uint64_t offset, uint64_t bytes,
                    bool write) {
    (void)what, (void)buffer, (void)offset, (void)bytes, (void)write;
  }
  virtual void end_recording(fa::Counts&) {}

  /// The modelled GPU holds `resident` blocks at a time.
  virtual void begin_launch(const Launch&, uint64_t resident) { (void)resident; }
  /// Appends an observer to those of this worker's block.
  virtual void observe(Block&) {}
  virtual void end_launch() {}  ///< of an abandoned one too
  /// Ahead of Observer::merge().
  virtual void count(fa::KernelCount&) {}
  /// Behind it. \param fault what ended the launch, or nothing.
  /// \throws fa::KernelStopped when there is more to say than that.
  virtual void report(fa::Counts&, const std::optional<fa::Finding>& fault) { (void)fault; }
};
/// Those that are wanted now, in the order in which a block tells their observers. observers/ has
/// them.
std::vector<Watcher*> watchers();

}  // namespace sim
