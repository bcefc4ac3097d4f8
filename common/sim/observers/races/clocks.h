/// \file
/// Who is ordered before whom: vector clocks of a block's threads. All that a thread does until it
/// synchronises again bears its stamp. Its clock says what is before its next step. A barrier of
/// the whole block is one number, the floor: everything in the block until now. Only what orders
/// parts of a block, or several blocks, needs the vector. Its entries, in this order:
///  - the threads of the cluster, block after block, each block padded to whole warps;
///  - the same again: of each thread, the stores before its fence.proxy.async;
///  - channels: operations that complete in order, such as the TMA loads of one mbarrier.
#pragma once

#include <unordered_map>

#include "common/sim/observer.h"
#include "common/sim/observers/races/tickets.h"

namespace sim::races {

struct ThreadClock {
  Stamp stamp = 0;
  Stamp floor = 0;                ///< what the block did up to here is before the next step, ...
  SharedClock clock = nullptr;    ///< ... and, by entry, perhaps more
  Stamp proxied = 0;              ///< its stores up to here are before its fence.proxy.async
  SharedFenced fenced = nullptr;  ///< what an atomic of this thread publishes
  SharedSeen seen = nullptr;      ///< tickets
};

/// What threads and copies have released to an mbarrier, a named barrier or the cluster's barrier.
struct Released {
  uint32_t phase = 0;
  uint32_t version = 0, version_before = 0;  ///< counts changes; before this phase
  Clock clock, before;                       ///< until now (empty: nothing); before this phase
  SharedClock added;                         ///< is contained in `clock`
  Fenced fenced;
  SeenTickets seen;
};

/// A thread's fence.proxy.async for device memory.
struct DeviceFence {
  Stamp covers;  ///< what the thread did up to here is before the fence
  Stamp seen;    ///< a clock that has this stamp of the thread is after the fence
};

/// What the blocks of a launch share. One block, or one cluster, runs at a time.
struct LaunchClocks {
  Stamp now = 0;
  bool fences = false;  ///< some thread has called __threadfence(): from then on there are tickets
  Tickets tickets;
  std::unordered_map<uint64_t, std::vector<DeviceFence>> device_fences;  ///< by block and entry
  // Of the block or cluster that runs:
  std::vector<const class BlockClocks*> blocks;  ///< by rank
  std::unordered_map<const void*, Released> objects;
  std::unordered_map<const void*, unsigned> channels;  ///< entries, by what stands for the channel
  std::vector<unsigned> load_channels;                 ///< those of TMA loads
  unsigned reads = 0;  ///< from here an entry per thread: what it has read, for relaxed arrivals
};

/// The threads of one block, by their number in it.
class BlockClocks {
 public:
  explicit BlockClocks(LaunchClocks& launch) : launch_(launch) {}
  /// A block begins: number `block` of the grid, `rank` in its cluster of so many blocks.
  void begin(uint64_t block, unsigned rank, unsigned blocks, unsigned threads);

  // Questions.
  const ThreadClock& operator[](unsigned thread) const { return threads_[thread]; }
  const ThreadClock& of_entry(unsigned entry) const;  ///< of any thread of the cluster
  unsigned entry(unsigned thread) const { return base_ + thread; }
  bool is_own(unsigned entry) const { return entry - base_ < padded_; }
  unsigned threads() const { return padded_; }  ///< with those that fill the last warp
  unsigned entries() const { return total_; }   ///< of the cluster's threads
  unsigned cluster_size() const { return blocks_; }
  uint64_t block() const { return block_; }
  uint64_t block_of(unsigned entry) const { return block_ - rank_ + entry / padded_; }
  bool is_near(uint64_t block) const {  ///< in the same cluster
    return block == block_ || (blocks_ > 1 && block / blocks_ == block_ / blocks_);
  }
  Stamp begun() const { return begun_; }  ///< before the block's first access
  /// Is what `entry` of the cluster did at that stamp before the next step of thread `me`?
  bool sees(unsigned me, unsigned entry, Stamp s) const {
    return entry == base_ + me || knows(threads_[me], entry, s);
  }
  bool sees_read(unsigned me, unsigned entry, Stamp s) const {  ///< a load
    const SharedClock& clock = threads_[me].clock;
    return sees(me, entry, s) || (clock && has_read(*clock, entry, s));
  }
  bool has_read(const Clock& clock, unsigned entry, Stamp s) const {
    return launch_.reads && has(clock, launch_.reads + entry, s);
  }
  /// The same of any block, by tickets. `atomic`: both are atomics, on that word.
  bool sees_across(const ThreadClock& me, uint64_t block, unsigned entry, Stamp, uint64_t word,
                   bool atomic) const;
  /// Are these stores before a fence.proxy.async of which the thread knows?
  bool proxied(unsigned me, unsigned writer, Stamp) const;
  /// The same for device memory, with either side's fence.
  bool device_proxied(unsigned me, uint64_t block, unsigned writer, Stamp, uint64_t word,
                      bool atomic) const;
  bool any_has(unsigned entry, Stamp) const;  ///< some thread's clock
  Clock all() const;                          ///< what is before the end of the block

  // Events.
  void barrier(ThreadSet met, ThreadSet members, const void* object);
  void warp_sync(unsigned warp, uint32_t lanes);
  void release(unsigned me, const void* object, uint32_t phase);
  void release_relaxed(unsigned me, const void* object, uint32_t phase);
  const Clock* acquire(unsigned me, const void* object, uint32_t phase);  ///< null: nothing
  void acquire_relaxed(unsigned me, const void* object, uint32_t phase);
  /// An operation that knew `past` is complete, and releases that to the object.
  void complete(const SharedClock& past, unsigned channel, Stamp, const void* object,
                uint32_t phase);
  void fence(unsigned me);                       ///< __threadfence()
  void use_ticket(unsigned me, uint64_t word);   ///< an atomic on a word of device memory
  Stamp proxy_fence(unsigned me, bool device);   ///< fence.proxy.async
  Stamp tick(unsigned me);                       ///< what the thread does next has a new stamp
  Stamp tick();                                  ///< a stamp for something else
  unsigned channel(const void* of, bool loads);  ///< two entries: this one and the next
  void learn(unsigned me, unsigned entry, Stamp);
  void learn(unsigned me, const SharedClock& more) { threads_[me].clock = more; }
  SharedClock past(unsigned me);  ///< what the thread did and knows; it gets a new stamp

 private:
  bool knows(const ThreadClock& thread, unsigned entry, Stamp s) const {
    return (s <= thread.floor && is_own(entry)) || has(thread.clock, entry, s);
  }
  void add(Clock&, unsigned thread, bool acquired = true) const;
  Clock of(unsigned thread) const;
  Released& open(const void* object, uint32_t phase);
  void hand_over_reads(Clock& to, const Clock& from, bool loads);
  void join_all(ThreadSet members);
  void join(unsigned first_warp, unsigned last_warp, ThreadSet, const Released* = nullptr);
  void join_across(unsigned first_warp, unsigned last_warp, ThreadSet, const Released*);
  void for_each(unsigned first_warp, unsigned last_warp, ThreadSet, auto&& f);

  LaunchClocks& launch_;
  std::vector<ThreadClock> threads_;
  uint64_t block_ = 0;
  unsigned rank_ = 0, blocks_ = 1;
  unsigned base_ = 0, padded_ = 0, total_ = 0;  // entries: the first, of a block, of the cluster
  Stamp begun_ = 0;
  bool extended_ = false;                                      // clocks say more than floors can
  std::unordered_map<unsigned, ThreadClock> at_device_fence_;  // by thread, its last one
  // The latest answers of acquire() and learn(), for which other threads of a warp will ask again.
  struct Answer {
    SharedClock from, result;
    const void* object = nullptr;
    uint32_t one = 0, other = 0;  // version and phase; entry and stamp
  } acquired_, learnt_;
};

}  // namespace sim::races
