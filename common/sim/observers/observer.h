/// \file
/// What may watch a block while it runs. An observer sees every access and every synchronisation;
/// with no observer the simulator only counts bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/sim/memory/memory.h"

namespace fa {
struct Counts;
struct KernelCount;
}  // namespace fa

namespace sim {

struct Block;
struct Where;
class RequestSink;  // trace.h

/// Lanes by warp: bit l of [w] is thread 32 w + l of the block.
using ThreadSet = const uint32_t (&)[32];

/// One instance per OS worker; only that worker calls it (with races or L2: see each observer).
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin_block(Block&) {}
  virtual void end_block(Block&) {}
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
  /// The current thread has waited for all phases of the mbarrier (or of the cluster's barrier) in
  /// front of `phase`.
  virtual void acquire(Block&, const void* object, uint32_t phase) { (void)object, (void)phase; }
  /// A copy of the current thread to its block's shared memory is on its way (cp.async): until
  /// end_copy() nobody may touch that place. Then access() tells of the store.
  virtual void begin_copy(Block&, const Access&) {}
  virtual void end_copy(Block&, const Access&) {}
  /// The current thread's warp waits now for wgmma or for a bulk store, or issues a copy whose end
  /// others wait for: Block::clocks must know what it has loaded before.
  virtual void before_clocks(Block&) {}
  /// The current thread executed __threadfence().
  virtual void fence(Block&) {}

  // Asynchronous operations on shared memory, which access() tells of as the engine's. They are
  // told only when the search for races or uninitialised reads is on, or a row per source line is
  // asked for. Each has a number, not 0, that the search gives.

  /// The current thread executed fence.proxy.async for shared memory, device memory, or both.
  virtual void proxy_fence(Block&, bool shared, bool device) { (void)shared, (void)device; }
  /// The current thread has initialised an mbarrier of its block.
  virtual void init_barrier(Block&, const void* bar, const Where&) { (void)bar; }
  /// The current thread executed fence.mbarrier_init.
  virtual void init_fence(Block&) {}
  /// The current thread arrives at an mbarrier of another block, `home`.
  virtual void arrive_remote(Block&, Block& home, const void* bar, const Where&) {
    (void)home, (void)bar;
  }
  /// The current thread issues a TMA load to the store's place; `bar`, in the same block, will tell
  /// of its end.
  virtual uint32_t issue_load(Block&, const Access&, const void* bar, const Where&) {
    (void)bar;
    return 0;
  }
  /// The data have arrived, in the mbarrier's phase number `phase`. `home`: who received them.
  virtual void landed(Block& home, uint32_t operation, const void* bar, uint32_t phase) {
    (void)home, (void)operation, (void)bar, (void)phase;
  }
  /// The current thread issues its part of a wgmma that reads the 16-byte chunks at these offsets
  /// of shared memory. `operation` is 0 for the first thread of the warpgroup.
  virtual uint32_t issue_wgmma(Block&, uint32_t operation, const std::vector<uint32_t>& chunks,
                               const void* pc, const Where&) {
    (void)chunks, (void)pc;
    return operation;
  }
  /// The current thread issues a bulk store that reads the load's place.
  virtual uint32_t issue_store(Block&, const Access&, const Where&) { return 0; }
  /// The current thread knows by a wait that this wgmma or bulk store, and those of the same
  /// warpgroup or thread before it, have read their operands; with `written` also that they are
  /// done.
  virtual void finished(Block&, uint32_t operation, bool written) {
    (void)operation, (void)written;
  }
  /// The launch is over: add what was seen. Called once per worker, one after the other.
  virtual void merge(fa::Counts&, fa::KernelCount&) {}
};

/// Requests, sectors and bank wavefronts; with `l2` the sectors feed the L2 model.
/// \param sink told of each request; or null
std::unique_ptr<Observer> make_request_observer(bool sites, bool l2, RequestSink* sink);
/// Races in shared and global memory, and reads of words that nobody wrote.
/// \param strict with races: Options::strict
std::unique_ptr<Observer> make_hazard_observer(bool races, bool uninitialised, bool strict);

// --- hooks for state that outlives one worker ----------------------------------------------------

/// Called by run_grid around each launch, on the host thread.
void l2_begin_recording(double l2_bytes);  ///< cold cache, counters zero
/// The modelled GPU has room for `resident` blocks of this launch at a time. With `times` > 1 so
/// many problems like this one run in it, and the L2 is empty at first.
void l2_begin_launch(uint64_t blocks, uint64_t resident, double times);
/// What was written goes to DRAM now.
void l2_write_back();
void l2_end_launch();  ///< of an abandoned one too
/// Bytes that have moved to and from DRAM since the recording began; what waits in the L2 to be
/// written back is not among them.
void l2_dram(uint64_t& read, uint64_t& write);
/// cudaMemset, cudaMemcpy on the device
void l2_copy(uint64_t offset, uint64_t bytes, bool write);
void l2_end_recording(uint64_t& dram_read, uint64_t& dram_write);  ///< dirty lines written back
void hazards_begin_launch();

}  // namespace sim
