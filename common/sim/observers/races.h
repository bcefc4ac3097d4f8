/// \file
/// The search for races. Private to observers/: races.cpp has the accesses of threads,
/// async_proxy_races.cpp those of TMA and wgmma, tensor_memory_races.cpp those of tcgen05.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/sim/block.h"
#include "common/sim/memory/lazy_array.h"
#include "common/sim/messages/messages.h"
#include "common/sim/observer.h"
#include "common/sim/observers/findings.h"

namespace sim {

using Stamp = uint32_t;

/// A vector clock: up to and including which stamp each entry is visible. Entries, in this order
/// (those after the vector's end are zero):
///  - the threads of the cluster, block after block, each block padded to whole warps;
///  - for each thread again, its stores before its last fence.proxy.async;
///  - channels: asynchronous operations that complete in order (LaunchState::channels).
using Clock = std::vector<Stamp>;
using SharedClock = std::shared_ptr<const Clock>;

/// A ticket that a thread has seen, and when.
struct Ticket;
struct Seen {
  const Ticket* ticket;
  Stamp when;
};
using Tickets = std::vector<Seen>;
/// What happens before a __threadfence(): by threads of this cluster, and the tickets seen.
struct Fenced {
  Clock clock;
  Tickets tickets;
};
using SharedFenced = std::shared_ptr<const Fenced>;

/// A word of device memory that blocks synchronise on with atomics.
struct Ticket {
  struct Entry {
    Stamp since;          ///< when the block or cluster published this
    SharedFenced fenced;  ///< with all that it had published before
    SharedFenced added;   ///< what the publishing thread had fenced
  };
  /// By cluster of blocks, the latest last. A cluster that has ended keeps one entry.
  std::unordered_map<uint64_t, std::vector<Entry>> published;
  uint64_t latest = 0;  ///< the cluster that used it last

  /// The last entry that the cluster had published by `when`, or null.
  static const Entry* until(const std::vector<Entry>& entries, Stamp when) {
    const auto later = [](Stamp t, const Entry& e) { return t < e.since; };
    const auto next = std::upper_bound(entries.begin(), entries.end(), when, later);
    return next == entries.begin() ? nullptr : &next[-1];
  }
};

/// What threads and copies have released to an mbarrier, a named barrier or the cluster's barrier.
struct Released {
  uint32_t phase = 0;
  uint32_t version = 0;  ///< counts changes
  uint32_t version_before = 0;
  Clock clock;        ///< until now; empty: nothing
  Clock before;       ///< before this phase
  SharedClock added;  ///< whose entries `clock` has; may be null
  Fenced fenced;      ///< as ThreadState::fenced
  Tickets tickets;
};

struct ThreadState {
  Stamp stamp = 0;
  Stamp floor = 0;      ///< all that threads of the block did up to here is visible, ...
  SharedClock clock;    ///< ... and perhaps more of each entry; may be null
  Stamp proxied = 0;    ///< its stores up to here precede its last fence.proxy.async
  SharedFenced fenced;  ///< what an atomic of this thread publishes; may be null
  std::shared_ptr<const Tickets> tickets;
};

/// kPages * kPageSize elements, zero until they are used and again after clear().
template <class T, size_t kPages, size_t kPageSize>
class PagedShadow {
 public:
  T& operator[](uint64_t i) {
    T* page = pages_ ? pages_[i / kPageSize] : nullptr;
    if (!page) [[unlikely]]
      page = new_page(i / kPageSize);
    return page[i % kPageSize];
  }
  void clear() {
    for (size_t number : numbers_) pages_[number] = nullptr;
    numbers_.clear();
    used_.clear();
  }

 private:
  [[gnu::noinline]] T* new_page(size_t number) {
    if (!table_) table_ = std::make_unique<LazyArray<T*>>(kPages);
    pages_ = table_->data();
    used_.push_back(std::make_unique<LazyArray<T>>(kPageSize));
    numbers_.push_back(number);
    return pages_[number] = used_.back()->data();
  }

  T** pages_ = nullptr;  // of table_
  std::unique_ptr<LazyArray<T*>> table_;
  std::vector<std::unique_ptr<LazyArray<T>>> used_;
  std::vector<size_t> numbers_;
};

// --- what all workers share: with races on, only one of them runs at a time ----------------------

/// A word that all accesses touch whole, or a byte of one that they touch in parts. Two threads of
/// a block that read it are recorded, because `x[t] += x[t + 1]` also loads what it stores to.
struct DeviceCell {
  Stamp wrote, read, also_read;
  uint32_t wrote_block, read_block;
  uint32_t wrote_pc, read_pc, also_read_pc;  // low 32 bits
  uint16_t wrote_by, read_by, also_read_by;  // entries of the clock
  bool atomic;
  bool split;  // a word: LaunchState::bytes has the rest
};
/// The last plain store to a cell that has since been changed by atomics.
struct PlainStore {
  Stamp stamp;
  uint32_t block, pc;
  uint16_t thread;
};
/// A read of a word that no thread had written. A later store to one of the same bytes that is not
/// ordered after the read is a race that explains it.
struct UnwrittenRead {
  size_t finding;
  Stamp stamp;
  uint32_t block;
  Kind kind;
  unsigned entry;
  const void* pc;
  uint8_t bytes;  ///< of the word
};
using UnwrittenReads = std::unordered_multimap<uint64_t, UnwrittenRead>;  // by word
/// The atomics on a cell of shared memory since its last plain store, except the last of them.
struct Atomics {
  struct One {
    Stamp stamp;
    uint32_t pc;
  };
  Stamp latest = 0;
  std::map<uint16_t, One> by_thread;
};

/// A fence.proxy.async of one thread for device memory.
struct DeviceFence {
  Stamp covers;  ///< what the thread did up to here precedes it
  Stamp seen;    ///< a thread that sees up to here is ordered after it
};

struct LaunchState {
  Stamp now = 0;
  bool fences = false;  // some thread has called __threadfence(): only then are atomics tickets
  PagedShadow<DeviceCell, kHbmSpan / kPage, kPage / 4> words;
  PagedShadow<DeviceCell, kHbmSpan / kPage, kPage> bytes;
  std::unordered_map<uint64_t, PlainStore> under_atomics;  // by the cell's first byte
  UnwrittenReads unwritten;
  std::unordered_map<uint64_t, Ticket> tickets;                          // by word
  std::unordered_map<uint64_t, std::vector<DeviceFence>> device_fences;  // by thread_of()
  // Of the block or cluster that runs:
  std::unordered_map<const void*, Released> objects;
  /// Clock entries of what completes in order: the loads of an mbarrier, the products of a
  /// warpgroup, the bulk stores of a thread (the next entry: they are written).
  std::unordered_map<const void*, unsigned> channels;
  std::vector<unsigned> load_channels;  ///< the loads' entries among them
  /// The first of one entry per thread, for what each has read; 0: no arrival was relaxed.
  unsigned reads = 0;

  /// The accesses of the preceding kernel, until a thread of this one waits for it.
  struct Front {
    std::string kernel;  ///< empty: it is over
    PagedShadow<DeviceCell, kHbmSpan / kPage, kPage / 4> words;
    PagedShadow<DeviceCell, kHbmSpan / kPage, kPage> bytes;
  } front;
  std::string kernel;          ///< that runs, or ran last
  bool kernel_is_over = true;  ///< and the host or a copy has waited for it
};
extern LaunchState launch_state;

// --- shared memory: by word a row of one SharedCell and one SharedRead per warp ------------------
//
// After an access to part of a word its bytes have such rows, until a thread stores the whole word.

struct SharedCell {
  Stamp wrote, read;  // read: the latest
  uint32_t pc;
  uint16_t thread;
  bool stored : 1;  // by a thread, not by TMA
  bool atomic : 1;
  bool in_flight : 1;  // cp.async, issued and not waited for
  bool async : 1;      // a word: AsyncWord has more
  bool split : 1;      // a word: its bytes have the rest
};
struct alignas(16) SharedRead {
  Stamp stamp;
  uint32_t lanes;
  uint32_t first_pc, pc;  // the latest
};
struct SharedRow {
  SharedCell& cell;
  SharedRead* reads;
  size_t rows;
  SharedRead& read(unsigned warp) const { return reads[warp * rows]; }
};
/// Columns are stored apart: a warp touches adjacent words of its own column.
class SharedShadow {
 public:
  SharedShadow(size_t rows, unsigned warps) : rows_(rows), cells_(rows), reads_(rows * warps) {}
  SharedRow operator[](size_t i) { return {cells_[i], &reads_[i], rows_}; }

 private:
  size_t rows_;
  LazyArray<SharedCell> cells_;
  LazyArray<SharedRead> reads_;
};

/// The latest asynchronous operations on a word, by number. Numbers of earlier blocks are ignored.
struct AsyncWord {
  uint32_t write;      // a TMA load
  uint32_t reads[10];  // by warpgroup: a wgmma; [8] a bulk store; [9] a product of tcgen05
};

/// The same for a column in one quarter of tensor memory.
struct TensorCell {
  uint32_t write;     // a product, a store
  uint32_t reads[9];  // by warpgroup: a load; [8] a product
};

/// An operation of TMA or the tensor cores on shared memory, from its issue to its completion.
struct Operation {
  enum Engine { load, wgmma, store, product, tensor_load, tensor_store } engine;
  Where where;
  unsigned issuer;   ///< entry of the (first) thread that issued it
  unsigned channel;  ///< its completion: visible to a thread that has this entry up to `stamp`
  Stamp stamp;
  SharedClock past;       ///< load: what was visible to the issuer, released with the data
  fa::Swizzle swizzle{};  ///< load: as in the tensor map
  /// wgmma: what must be visible to each thread of the warpgroup when it issues its part.
  struct Need {
    unsigned entry;
    Stamp stamp;
    uint64_t word;
  };
  std::vector<Need> needs;
};

/// The later access of a pair: a thread's (both null), or an operation's words ("TMA load into").
struct Actor {
  const char* words = nullptr;
  const Where* where = nullptr;
};

/// Races in shared and global memory, and reads of words that no thread wrote.
class RaceObserver final : public Observer {
 public:
  bool wants_operands() const override { return true; }
  void begin_block(Block&) override;
  void end_block(Block&) override;
  void access(Block&, const Access&) override;
  void merge(fa::Counts& counts, fa::KernelCount&) override { counts.analysed += seen_; }
  void barrier(Block&, ThreadSet met, const void* object) override;
  void warp_sync(Block&, unsigned warp, uint32_t lanes) override;
  void release(Block&, const void* object, uint32_t phase) override;
  void acquire(Block&, const void* object, uint32_t phase) override;
  void release_relaxed(Block&, const void* object, uint32_t phase) override;
  void acquire_relaxed(Block&, const void* object, uint32_t phase) override;
  void begin_copy(Block&, const Access&) override;
  void end_copy(Block&, const Access&, uint32_t phase) override;
  void fence(Block&) override;
  void wait_for_kernel(Block&) override;

  void proxy_fence(Block&, ProxyFence) override;
  void init_barrier(Block&, const void* bar, const Where&) override;
  void init_fence(Block&) override;
  uint32_t issue_load(Block&, const Access&, fa::Swizzle, const void* bar, const Where&) override;
  void landed(Block& home, uint32_t operation, const void* bar, uint32_t phase) override;
  uint32_t issue_wgmma(Block&, uint32_t operation, const std::vector<uint32_t>& chunks,
                       const void* pc, const Where&) override;
  void issue_product(Block&, Block& home, std::span<const SharedOperand>,
                     std::span<const TensorAccess>, const void* pc, const Where&) override;
  uint32_t commit_products(Block&, const void* bar, const Where&) override;
  void move_tensor(Block&, TensorUse, const TensorAccess&, const void* pc, const Where&) override;
  void finish_moves(Block&, bool loads) override;
  void allocate_tensor(Block&) override;
  void tensor_fence(Block&, bool before) override;
  uint32_t issue_store(Block&, const Access&, const Where&) override;
  void finished(Block&, uint32_t operation, bool written) override;
  void leave_store(Block&, const Where&) override;
  void touch_busy(Block&, RegisterUse, size_t element, Kind, const void* pc,
                  const Where& user) override;
  void waited(Block&, const void* bar, int parity, const Where&) override;
  void remark(Block&, const Where&, const std::string& sentence) override;

 private:
  // --- happens before ----------------------------------------------------------------------------

  unsigned entry(unsigned thread) const { return base_ + thread; }
  static bool has(const Clock& clock, unsigned entry, Stamp s) {
    return entry < clock.size() && s <= clock[entry];
  }
  static bool has(const SharedClock& clock, unsigned entry, Stamp s) {
    return clock && has(*clock, entry, s);
  }
  bool sees(const ThreadState& thread, unsigned entry, Stamp s) const {
    return (s <= thread.floor && entry - base_ < padded_) || has(thread.clock, entry, s);
  }
  /// The same for a read.
  bool sees_read(const ThreadState& thread, unsigned entry, Stamp s) const {
    return sees(thread, entry, s) ||
           (launch_state.reads && has(thread.clock, launch_state.reads + entry, s));
  }
  void hand_over_reads(Clock& to, const Clock& from, bool loads) const;
  static void set(Clock& clock, unsigned entry, Stamp s) {
    if (entry >= clock.size()) clock.resize(entry + 1);
    clock[entry] = std::max(clock[entry], s);
  }
  static void raise(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (size_t t = 0; t < other.size(); ++t) clock[t] = std::max(clock[t], other[t]);
  }
  void add(Clock& clock, unsigned thread, const ThreadState&, bool acquired = true) const;
  Released& open(const void* object, uint32_t phase) const;
  void join_all(Block&);
  void join(Block&, unsigned first_warp, unsigned last_warp, const uint32_t* set,
            const Released* = nullptr);
  void join_blocks(Block&, unsigned first_warp, unsigned last_warp, const uint32_t* set,
                   const Released*);
  /// Calls f(thread number, state) for the threads of a set.
  void for_each(unsigned first_warp, unsigned last_warp, const uint32_t* set, auto&& f);
  static void note(Tickets&, const Seen&);
  static void note(Tickets&, const Tickets&);
  static void raise(Fenced& fenced, const Fenced& other) {
    raise(fenced.clock, other.clock);
    note(fenced.tickets, other.tickets);
  }
  void use_ticket(Block&, uint64_t word);
  static bool same_cluster(const Block& b, uint64_t block) {
    return block == b.linear ||
           (b.cluster && block / b.cluster->blocks.size() == b.linear / b.cluster->blocks.size());
  }
  /// Whether it happens before what is visible to `by`.
  bool ordered_across_blocks(const ThreadState& by, const Block&, uint64_t block, unsigned entry,
                             Stamp, uint64_t word, bool atomic) const;

  // --- accesses of threads -----------------------------------------------------------------------

  SharedRow row_of(uint64_t word) { return (*words_)[word]; }
  SharedRow row_of_byte(uint64_t byte) { return (*bytes_)[byte]; }
  SharedCell& word_of(uint64_t word) { return row_of(word).cell; }
  /// Calls f(row, first byte) for the word, or for each byte of a split one.
  void for_each_cell(uint64_t word, auto&& f) {
    const SharedRow row = row_of(word);
    if (!row.cell.split) [[likely]] {
      f(row, word * kWord);
    } else {
      for (uint64_t byte = word * kWord; byte < (word + 1) * kWord; ++byte) {
        f(row_of_byte(byte), byte);
      }
    }
  }
  bool is_written(uint64_t word);
  void mark(uint64_t word, bool in_flight);
  void access_shared(Block&, const Access&);
  template <bool kCluster>
  void access_word(Block&, const RaceObserver& by, const Access&, uint64_t word, uint8_t bytes);
  template <bool kCluster>
  void access_bytes(Block&, const RaceObserver& by, const Access&, uint64_t word, uint8_t bytes);
  template <bool kCluster>
  void access_cell(Block&, const RaceObserver& by, const Access&, uint64_t byte, const SharedRow&);
  void split(const Block&, uint64_t word);
  void check_under_atomics(Block&, const RaceObserver& by, const Access&, uint64_t byte,
                           const SharedCell&);
  void note_atomic(const RaceObserver& by, const Block&, uint64_t byte, const SharedCell&);
  void check_atomics(Block&, const RaceObserver& by, const Access&, uint64_t byte);
  void note_unwritten(UnwrittenReads&, const Block&, const Access&, uint64_t byte,
                      const char* why) const;
  /// Before a store. `ordered(read)`: it is after that read; `race(read)`: it is not.
  static void explain(UnwrittenReads&, const Access&, uint64_t byte, auto&& ordered, auto&& race);
  void explain_shared(Block&, const RaceObserver& by, const Access&, uint64_t byte);
  void check_readers(Block&, const RaceObserver& by, const Access&, uint64_t byte, const SharedRow&,
                     const Actor&);
  /// The current thread, of this block, accesses shared memory of `home`, in the same cluster.
  void check_neighbour(Block&, const Access&, const RaceObserver& home, const Actor&) const;
  void check_guests(Block&);
  void access_device(Block&, const Access&);
  bool note_plain_load(const Block&, const Access&, uint64_t word);
  void note_load(const Block&, const Access&, DeviceCell&) const;
  void check_front(const Block&, const Access&);
  void check_device_word(Block&, const Access&, uint64_t word, uint8_t bytes);
  void check_device_cell(Block&, const Access&, uint64_t byte, DeviceCell&);
  void race_across(Block&, const Access&, uint64_t byte, Kind, uint64_t block, unsigned entry,
                   uint32_t pc);
  std::string earlier_across(const Block&, const Access&, Kind, uint64_t block, unsigned entry,
                             uint32_t pc) const;
  /// The access races with an earlier one by a thread of the block or cluster.
  void race_with(const Block&, const Access&, uint64_t byte, const Actor&, Kind, unsigned entry,
                 uint32_t pc, const char* missing = "no barrier", bool stores = false) const;
  /// A number for a thread of the launch.
  static uint64_t thread_of(uint64_t block, unsigned entry) { return block << 16 | entry; }

  // --- asynchronous operations -------------------------------------------------------------------

  void begin_async();
  /// By this block, issued by the current thread of `by`. `channel_of`: the channel's address.
  void keep_past(unsigned thread, Operation&);
  uint32_t new_operation(Block&, RaceObserver& by, Operation::Engine, const void* channel_of,
                         const Where&);
  /// Null: of an earlier block.
  const Operation* find(uint32_t number) const;
  void learn(ThreadState&, unsigned entry, Stamp);
  void note_waited(const void* object, const Clock&);
  void check_loads(const Block&);
  bool fenced_for_async(const ThreadState&, unsigned me, unsigned writer, Stamp) const;
  /// Operations in flight on this block's `word` that must be complete before the access.
  void check_async(const RaceObserver& by, const Block&, const Access&, uint64_t word, bool writes,
                   const Actor&) const;
  /// \returns whether it is ordered.
  bool check_writer(const RaceObserver& by, const Block&, const Access&, uint64_t byte,
                    const SharedCell&, const Actor&) const;
  void check_before_read(const RaceObserver& by, const Block&, const Access&, uint64_t word,
                         const Actor&);
  void show_inits(const Block&, Stamp fence, bool to_cluster);
  void check_init(const Block&, const void* bar, const Actor&) const;
  void check_device_fence(const Block&, const Access&, uint64_t byte, const DeviceCell&) const;
  std::string describe(const Block&, const Operation&) const;
  /// Says that a thread has waited for another phase of the load's mbarrier since its issue.
  std::string other_phase(const void* bar, const Operation&) const;
  static std::string missing(const RaceObserver& by, const Block&, const Operation&);

  // --- tensor memory -----------------------------------------------------------------------------

  void begin_tensor();
  void check_swizzle(const Block&, const SharedOperand&, uint64_t word, const Where&);
  void use_tensor(const RaceObserver& by, const Block&, TensorUse, const TensorAccess&,
                  uint32_t number, const Where&);
  bool ordered(TensorUse, unsigned thread, const Operation&) const;
  std::string missing(TensorUse, unsigned thread, const Operation&) const;

  std::vector<ThreadState> threads_ = std::vector<ThreadState>(1024);
  unsigned base_ = 0;         // this block's first entry
  unsigned padded_ = 0;       // threads of a block, rounded up to whole warps
  unsigned total_ = 0;        // of the cluster
  Stamp block_floor_ = 0;     // before the block's first access
  bool extended_ = false;     // clocks hold more than floors can
  unsigned store_entry_ = 0;  // the writer of device memory for the bulk store being issued
  Stamp store_stamp_ = 0;

  // The latest answers, which the other threads of a warp will need again.
  struct Acquired {
    SharedClock from, result;
    const void* object = nullptr;
    uint32_t version = 0, phase = 0;
  } acquired_;
  struct Learnt {
    SharedClock from, result;
    unsigned entry = 0;
    Stamp stamp = 0;
  } learnt_;

  // This block's mbarriers.
  struct Init {
    Where where;
    unsigned thread;  // entry of the thread that initialised it
    // Its thread's first fences after it, as DeviceFence::seen; 0: none yet.
    Stamp shown;             // to TMA: of either kind
    Stamp shown_to_cluster;  // fence.mbarrier_init
  };
  std::unordered_map<const void*, Init> inits_;
  bool hidden_inits_ = false;  // one of them has not been shown

  // By thread: what was visible to it at its last fence.proxy.async for device memory.
  std::unordered_map<unsigned, ThreadState> at_device_fence_;

  // The threads that have waited for the preceding kernel, by entry, and when.
  std::map<unsigned, Stamp> waited_for_front_;

  // The latest accesses of other blocks' threads to this block's shared memory, by entry.
  struct Guest {
    Stamp stamp;
    Kind kind;
    const void* pc;
  };
  std::map<unsigned, Guest> guests_;

  // Stamps only grow, so the shadow of shared memory survives from block to block.
  std::unique_ptr<SharedShadow> words_, bytes_;             // bytes_: null until a word is split
  std::unordered_map<uint64_t, PlainStore> under_atomics_;  // by the cell's first byte
  UnwrittenReads unwritten_;
  std::unordered_map<uint64_t, Atomics> atomics_;  // by the cell's first byte
  uint64_t seen_ = 0;                              // accesses
  std::unique_ptr<LazyArray<AsyncWord>> async_;    // null until TMA or wgmma is used
  std::vector<Operation> operations_;              // of this block; number first_ + index
  std::vector<uint32_t> need_at_;                  // by entry: index in Operation::needs, plus one
  uint32_t first_ = 1;
  // Tensor memory: its cells, by quarter and column; by thread, what was visible to it at its last
  // after_thread_sync, and its latest product; by warp, the latest store and load.
  struct Latest {
    unsigned channel = 0;
    Stamp stamp = 0;
  };
  bool tensor_used_ = false;
  std::vector<TensorCell> tensor_;
  std::vector<SharedClock> behind_fence_;
  Latest moves_[32][2];
  std::unordered_map<unsigned, Latest> products_;
  struct Fencing {
    SharedClock from, result;
  } fencing_;  // the latest before_thread_sync
  // Loads: the last one issued per mbarrier, and up to which stamp a thread has waited.
  struct Loads {
    uint32_t last;
    Stamp waited;
  };
  std::unordered_map<const void*, Loads> loads_;
  // The latest wait for each of this block's mbarriers.
  struct Wait {
    Where where;
    int parity;
    Stamp when;
    SharedClock knows;  // visible to the thread after the wait
  };
  std::unordered_map<const void*, Wait> waits_;
};

// --- phrases used by several files ---------------------------------------------------------------

/// "tile, byte 132"
std::string place(const Access&, uint64_t byte);
std::string block_index(const Block&, uint64_t linear);
uint64_t blocks_of_cluster(const Block&);
/// The thread of a clock's entry, as named in block `b`.
std::string who(const Block& b, unsigned entry, unsigned padded);
/// A race between the access, in the word or byte that begins at `byte`, and an earlier one at
/// `other`. Returns the finding if it has no sentence yet. `stores`: both are stores of threads.
Findings::Finding* note_race(const Access&, uint64_t byte, const Actor&, const Line& other,
                             bool stores);
/// `other`: "a store by thread (0,0,0) at kernel.cuh:12"; `missing`: "no barrier".
std::string race_sentence(const Access&, uint64_t byte, const Actor&, const std::string& other,
                          const std::string& missing, const char* end = "");
Findings::Finding& report_unwritten(const Access&, uint64_t byte, const Actor&, const char* why);
/// "a store by thread (0,0,0) at kernel.cuh:12"
std::string earlier(const Block&, const Access&, Kind, unsigned entry, uint32_t pc,
                    unsigned padded);
/// The program's code lies within 2 GiB, so a nearby address supplies the high bits.
const void* widen(uint32_t pc, const void* neighbour);

}  // namespace sim
