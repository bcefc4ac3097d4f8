/// \file
/// Who is ordered before whom: vector clocks of a block's threads. Every thread has a stamp, which
/// grows when the thread synchronises, and knows up to which stamp the past of every other thread
/// is visible to it. After a barrier of the whole block that is one number, the floor. Order within
/// parts of a block, or between blocks, needs the vector. Its entries, in this order:
///  - the threads of the cluster, block after block, each block padded to whole warps;
///  - for each thread again, its stores before its last fence.proxy.async;
///  - channels: operations that complete in order, such as the TMA loads of one mbarrier.
#pragma once

#include "common/sim/observer.h"
#include "common/sim/observers/races/tickets.h"

namespace sim::races {

struct ThreadClock {
  Stamp stamp = 0;
  Stamp floor = 0;                ///< all that the block did up to here is visible, ...
  SharedClock clock = nullptr;    ///< ... and perhaps more of each entry
  Stamp proxied = 0;              ///< its stores up to here precede its last fence.proxy.async
  SharedFenced fenced = nullptr;  ///< what an atomic of this thread publishes
  SharedSeen seen = nullptr;      ///< tickets
};

/// What threads and copies have released to an mbarrier, a named barrier or the cluster's barrier.
struct Released {
  uint32_t phase = 0;
  uint32_t version = 0, version_before = 0;  ///< counts changes; before this phase
  Clock clock, before;                       ///< until now (empty: nothing); before this phase
  SharedClock added, added_reads;  ///< contained in `clock`: whole; as a relaxed arrival's
  Fenced fenced;
  SeenTickets seen;
  struct Event {
    unsigned entry = 0;
    Stamp stamp = 0;  ///< 0: none
  };
  Event last, ended[2];          ///< the latest in this phase; what ended the one and two before it
  std::vector<uint32_t> passed;  ///< by entry: phases that end before its latest step here
};

/// A thread's fence.proxy.async for device memory.
struct DeviceFence {
  Stamp covers;  ///< what the thread did up to here precedes the fence
  Stamp seen;    ///< a thread to which this stamp is visible is ordered after the fence
};

/// What the blocks of a launch share. One block, or one cluster, runs at a time.
struct LaunchClocks {
  Stamp now = 0;
  bool fences = false;  ///< some thread has called __threadfence(): only then are there tickets
  Tickets tickets;
  std::unordered_map<uint64_t, std::vector<DeviceFence>> device_fences;  ///< by block and entry
  // Of the block or cluster that runs:
  std::vector<const class BlockClocks*> blocks;  ///< by rank
  std::unordered_map<const void*, Released> objects;
  std::unordered_map<const void*, unsigned> channels;  ///< entries, by Issue::channel
  std::vector<unsigned> load_channels;                 ///< those of TMA loads
  unsigned reads = 0;  ///< from here an entry per thread: what it has read, for relaxed arrivals
};

/// What is visible to each thread of a block. The observer tells it of every synchronisation; the
/// rules ask whether something happens before a thread's next step. Threads are numbered as in the
/// block, entries as in the clocks.
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
  /// What `entry` did at this stamp happens before the next step of thread `me`.
  bool sees(unsigned me, unsigned entry, Stamp s) const {
    return entry == base_ + me || is_visible(threads_[me], entry, s);
  }
  bool sees_read(unsigned me, unsigned entry, Stamp s) const {  ///< the same for a load
    const SharedClock& clock = threads_[me].clock;
    return sees(me, entry, s) || (clock && has_read(*clock, entry, s));
  }
  bool has_read(const Clock& clock, unsigned entry, Stamp s) const {
    return launch_.reads && has(clock, launch_.reads + entry, s);
  }
  /// The same for any block, by tickets. `atomic`: what it did is an atomic on that word.
  bool sees_across(const ThreadClock& me, uint64_t block, unsigned entry, Stamp, uint64_t word,
                   bool atomic) const;
  /// The writer's stores up to this stamp precede a fence.proxy.async that is visible to `me`.
  bool proxied(unsigned me, unsigned writer, Stamp) const;
  /// The same for device memory, with a fence on either side.
  bool device_proxied(unsigned me, uint64_t block, unsigned writer, Stamp, uint64_t word,
                      bool atomic) const;
  bool any_has(unsigned entry, Stamp) const;  ///< some thread's clock has it
  Clock all() const;                          ///< what happens before the end of the block

  // Events.
  void barrier(ThreadSet met, ThreadSet members, const void* object);
  void warp_sync(unsigned warp, uint32_t lanes);
  void release(unsigned me, const void* object, uint32_t phase);
  void release_relaxed(unsigned me, const void* object, uint32_t phase);
  /// Returns what it acquires, or null.
  const Clock* acquire(unsigned me, const void* object, uint32_t phase, bool relaxed = false);
  /// A wait that ends in this phase may also end two phases before it, when the parity is the same:
  /// nothing orders the wait after the phase between them. Before acquire().
  bool may_end_early(unsigned me, const void* object, uint32_t phase) const;
  /// An operation completes, and releases `past` and its completion to the object.
  void complete(const SharedClock& past, unsigned channel, Stamp, const void* object,
                uint32_t phase);
  void fence(unsigned me);                       ///< __threadfence()
  void use_ticket(unsigned me, uint64_t word);   ///< an atomic on a word of device memory
  Stamp proxy_fence(unsigned me, bool device);   ///< fence.proxy.async; the stamp after it
  Stamp tick(unsigned me);                       ///< the thread's next step has a new stamp
  Stamp tick();                                  ///< a stamp for something else
  unsigned channel(const void* of, bool loads);  ///< the first of its two entries
  // An entry is added to the thread's clock; the clock is replaced by a later one.
  void learn(unsigned me, unsigned entry, Stamp);
  void learn(unsigned me, const SharedClock& later) { threads_[me].clock = later; }
  SharedClock past(unsigned me);  ///< what is visible to the thread, which gets a new stamp

 private:
  bool is_visible(const ThreadClock& to, unsigned entry, Stamp s) const {
    return (s <= to.floor && is_own(entry)) || has(to.clock, entry, s);
  }
  void add(Clock&, unsigned thread, bool acquired = true) const;
  Clock of(unsigned thread) const;
  Released& open(const void* object, uint32_t phase);
  void pass(unsigned thread, Released& object, uint32_t phases) const;
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
  bool extended_ = false;                                      // clocks hold more than floors can
  std::unordered_map<unsigned, ThreadClock> at_device_fence_;  // by thread, its last one
  // The latest answers of acquire() and learn(), which other threads of a warp will need again.
  struct Answer {
    SharedClock from, result;
    const void* object = nullptr;
    uint32_t one = 0, other = 0, relaxed = 0;  // version and phase; entry and stamp
  } acquired_, learnt_;
};

}  // namespace sim::races
