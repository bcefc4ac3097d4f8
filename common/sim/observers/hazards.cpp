// Races, and reads of words that nobody wrote.
//
// A race: two accesses of the same bytes, at least one of them a store, that no synchronisation
// puts in order, whatever order this run happened to take. Found with vector clocks. Every thread
// has a stamp, which grows when the thread synchronises; each 4-byte word remembers the stamp of
// its last store and of its latest loads; and each thread knows up to which stamp the past of every
// other thread is visible to it. Stamps come from one counter, so a barrier of the whole block is
// one number: everything up to now.
//
// What orders accesses: barriers, __syncwarp for its own lanes, mbarriers. Shuffles do not. Who
// arrives without waiting (bar.arrive, mbarrier arrive) hands over what it did until then, not what
// it does until the others have come. Blocks are ordered by one thing only: __threadfence() and then
// an atomic on some word by one block, and later an atomic on the same word by the other ("the last
// block done").
//
// A cp.async writes from its issue to its wait: whoever touches the place in between races with it,
// the copying thread too.
//
// What is not found: races between blocks of one cluster; a load that races with a later store when
// other loads of the same word (shared: by the same warp) came between.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/sim/observers/observer.h"
#include "common/sim/observers/shadow.h"
#include "common/sim/scheduler/block.h"

namespace sim {

namespace {

constexpr unsigned kWord = 4;
constexpr uint8_t kAllBytes = 15;  // of a word, a bit each

using Stamp = uint32_t;

/// By thread of one block: its past up to and including this stamp is visible.
using Clock = std::vector<Stamp>;

/// A word of device memory that blocks synchronise on with atomics.
struct Ticket {
  struct Entry {
    Stamp since;  ///< when the block published for the first time
    std::shared_ptr<const Clock> clock;
  };
  std::unordered_map<uint64_t, Entry> published;  ///< by block
};
/// A ticket that a thread has seen, and when.
struct Seen {
  const Ticket* ticket;
  Stamp when;
};
using Tickets = std::vector<Seen>;

/// What threads have released to an mbarrier or a named barrier.
struct Released {
  uint32_t phase = 0;
  Clock clock;   ///< until now; empty: nothing
  Clock before;  ///< before this phase
  Clock fenced;  ///< the like of ThreadState; empty: nothing
  Tickets tickets;
};

struct ThreadState {
  Stamp stamp = 0;
  Stamp floor = 0;                      ///< everybody's past up to here is visible, ...
  std::shared_ptr<const Clock> clock;   ///< ... and of each thread perhaps more; may be null
  std::shared_ptr<const Clock> fenced;  ///< what an atomic of this thread publishes
  std::shared_ptr<const Tickets> tickets;

  bool sees(unsigned thread, Stamp s) const {
    return s <= floor || (clock && s <= (*clock)[thread]);
  }
};

// --- what all workers share: with races on, only one of them runs at a time --------------------------

struct DeviceWord {
  Stamp wrote, read;
  uint32_t wrote_block, read_block;
  uint32_t wrote_pc, read_pc;  // low 32 bits
  uint16_t wrote_thread, read_thread;
  uint8_t wrote_bytes, read_bytes;  // a bit per byte of the word
  bool atomic;
};

struct LaunchState {
  Stamp now = 0;
  bool fences = false;  // somebody has called __threadfence(): only then atomics are tickets
  PagedShadow<DeviceWord, kHbmSpan / kPage, kPage / kWord> words;
  std::unordered_map<uint64_t, Ticket> tickets;  // by word
};
LaunchState launch_state;

// --- shared memory: [word] one SharedWord, then one SharedRead per warp ------------------------------

struct SharedWord {
  Stamp wrote, read;  // read: the latest of all
  uint32_t pc;
  uint16_t thread;
  uint8_t bytes;
  bool atomic : 1;
  bool in_flight : 1;    // cp.async, issued and not waited for
  bool never_wrote : 1;  // there is only what is in flight
};
struct SharedRead {
  Stamp stamp;
  uint32_t lanes;
  uint32_t pc;
  uint32_t bytes;
};
static_assert(sizeof(SharedWord) == sizeof(SharedRead));

/// The bytes of word `word` that the access touches, a bit each.
uint8_t bytes_of(const Access& a, uint64_t word) {
  const uint64_t begin = word * kWord;
  unsigned bits = 15;
  if (a.at > begin) bits &= 15u << (a.at - begin);
  if (a.at + a.size < begin + kWord) bits &= 15u >> (begin + kWord - a.at - a.size);
  return static_cast<uint8_t>(bits);
}

const char* noun(Kind kind) {
  return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

/// The program's code lies within 2 GiB, so a neighbour tells the high bits.
const void* widen(uint32_t pc, const void* neighbour) {
  const auto near = reinterpret_cast<uintptr_t>(neighbour);
  return reinterpret_cast<const void*>(near +
                                       static_cast<int32_t>(pc - static_cast<uint32_t>(near)));
}
uint32_t low(const void* pc) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc)); }

/// "tile, byte 132"
std::string place(const Access& a, uint64_t byte) {
  if (a.space == Space::shared) return shared_name(*a.home, byte);
  const BufferInfo& b = buffers[a.buffer];
  return b.name + ", byte " + std::to_string(byte - b.begin);
}

std::string block_index(const Block& b, uint64_t linear) {
  const dim3 g = b.launch->config.grid;
  return "(" + std::to_string(linear % g.x) + "," + std::to_string(linear / g.x % g.y) + "," +
         std::to_string(linear / g.x / g.y) + ")";
}

class HazardObserver final : public Observer {
 public:
  HazardObserver(bool races, bool uninitialised)
      : races_(races), uninitialised_(uninitialised), threads_(1024) {}

  void begin_block(Block& b) override {
    if (!shadow_) {
      stride_ = 1 + b.nwarps;
      shadow_ = std::make_unique<LazyArray<SharedRead>>((b.shared_size / kWord + 1) * stride_);
    }
    block_floor_ = ++launch_state.now;
    ++launch_state.now;
    for (unsigned t = 0; t < b.nthreads; ++t) {
      threads_[t] = {};
      threads_[t].floor = block_floor_;
      threads_[t].stamp = launch_state.now;
    }
    objects_.clear();
  }

  void access(Block& b, const Access& a) override {
    if (a.space == Space::shared) {
      access_shared(b, a);
    } else {
      access_device(b, a);
    }
  }

  void barrier(Block& b, ThreadSet met, const void* object) override {
    const auto released = objects_.find(object);
    if (released != objects_.end()) {
      join(b, 0, b.nwarps, met, &released->second);
      objects_.erase(released);
    } else if (std::equal(met, met + b.nwarps, b.member)) {
      join_all(b);
    } else {
      join(b, 0, b.nwarps, met);
    }
  }

  void warp_sync(Block& b, unsigned warp, uint32_t lanes) override {
    uint32_t set[32] = {};
    set[warp] = lanes;
    join(b, warp, warp + 1, set);
  }

  void release(Block& b, const void* object, uint32_t phase) override {
    ThreadState& me = threads_[b.current->id];
    Released& released = objects_[object];
    if (released.phase != phase) {
      released.phase = phase;
      released.before = released.clock;
    }
    released.clock.resize(b.nthreads);
    add(released.clock, b.current->id, me);
    if (me.fenced) {
      released.fenced.resize(b.nthreads);
      raise(released.fenced, *me.fenced);
    }
    if (me.tickets) note(released.tickets, *me.tickets);
    me.stamp = ++launch_state.now;  // what follows is not released
  }

  void acquire(Block& b, const void* object, uint32_t phase) override {
    const auto found = objects_.find(object);
    if (found == objects_.end()) return;
    const Released& released = found->second;
    Clock clock = released.phase == phase ? released.before : released.clock;
    if (clock.empty()) return;
    ThreadState& me = threads_[b.current->id];
    add(clock, b.current->id, me);
    me.clock = std::make_shared<const Clock>(std::move(clock));
  }

  // As a store for whoever comes, but nothing is written yet.
  void begin_copy(Block& b, const Access& a) override {
    for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) {
      const SharedWord before = word_of(word);
      const bool never_wrote = before.wrote < block_floor_ || before.never_wrote;
      access_word(b, a, word, kAllBytes);
      mark(word, true, never_wrote);
    }
  }
  void end_copy(Block&, const Access& a) override {
    for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) {
      mark(word, false, false);
    }
  }

  void fence(Block& b) override {
    launch_state.fences = true;
    ThreadState& me = threads_[b.current->id];
    Clock clock(b.nthreads);
    add(clock, b.current->id, me);
    me.fenced = std::make_shared<const Clock>(std::move(clock));
    me.stamp = ++launch_state.now;  // what follows is not fenced
  }

 private:
  // --- who knows what ----------------------------------------------------------------------------------

  static void raise(Clock& clock, const Clock& other) {
    for (size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], other[t]);
  }
  // Adds what thread `id` did and what is visible to it.
  static void add(Clock& clock, unsigned id, const ThreadState& thread) {
    for (Stamp& s : clock) s = std::max(s, thread.floor);
    if (thread.clock) raise(clock, *thread.clock);
    clock[id] = std::max(clock[id], thread.stamp);
  }

  // Calls f(thread number, state) for the threads of a set.
  template <class F>
  void for_each(unsigned first_warp, unsigned last_warp, const uint32_t* set, F&& f) {
    for (unsigned w = first_warp; w < last_warp; ++w) {
      for (uint32_t m = set[w]; m; m &= m - 1) {
        const unsigned t = w * 32 + std::countr_zero(m);
        f(t, threads_[t]);
      }
    }
  }

  // A barrier of the whole block: everything until now is visible to everybody.
  void join_all(Block& b) {
    const Stamp floor = launch_state.now++;
    for (unsigned t = 0; t < b.nthreads; ++t) {
      ThreadState& thread = threads_[t];
      thread.floor = floor;
      thread.stamp = launch_state.now;
      if (thread.clock) thread.clock.reset();
    }
    if (launch_state.fences) join_blocks(b, 0, b.nwarps, b.member, nullptr);
  }

  // The threads of `set` meet; `released`: what others have handed over to them.
  void join(Block& b, unsigned first_warp, unsigned last_warp, const uint32_t* set,
            const Released* released = nullptr) {
    Clock clock(b.nthreads);
    const Clock* added = nullptr;
    Stamp floor = 0;
    for_each(first_warp, last_warp, set, [&](unsigned t, ThreadState& thread) {
      floor = std::max(floor, thread.floor);
      if (thread.clock && thread.clock.get() != added) {
        added = thread.clock.get();
        raise(clock, *added);
      }
      clock[t] = std::max(clock[t], thread.stamp);
    });
    if (released) raise(clock, released->clock);
    auto shared = std::make_shared<const Clock>(std::move(clock));
    ++launch_state.now;
    for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
      thread.floor = std::max(thread.floor, floor);
      thread.clock = shared;
      thread.stamp = launch_state.now;
    });
    if (launch_state.fences) join_blocks(b, first_warp, last_warp, set, released);
  }

  // The same for what goes beyond the block: fenced stores, tickets seen.
  void join_blocks(Block& b, unsigned first_warp, unsigned last_warp, const uint32_t* set,
                   const Released* released) {
    Clock fenced(b.nthreads);
    Tickets tickets;
    bool any_fence = false;
    const Tickets* added = nullptr;
    if (released) {
      any_fence = !released->fenced.empty();
      if (any_fence) fenced = released->fenced;
      tickets = released->tickets;
    }
    for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
      if (thread.fenced) {
        any_fence = true;
        raise(fenced, *thread.fenced);
      }
      if (thread.tickets && thread.tickets.get() != added) {
        added = thread.tickets.get();
        note(tickets, *added);
      }
    });
    if (!any_fence && tickets.empty()) return;
    auto shared_fenced = any_fence ? std::make_shared<const Clock>(std::move(fenced)) : nullptr;
    auto shared_tickets =
        tickets.empty() ? nullptr : std::make_shared<const Tickets>(std::move(tickets));
    for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
      if (shared_fenced) thread.fenced = shared_fenced;
      if (shared_tickets) thread.tickets = shared_tickets;
    });
  }

  static void note(Tickets& tickets, const Seen& seen) {
    for (Seen& old : tickets) {
      if (old.ticket == seen.ticket) {
        old.when = std::max(old.when, seen.when);
        return;
      }
    }
    tickets.push_back(seen);
  }
  static void note(Tickets& tickets, const Tickets& others) {
    for (const Seen& seen : others) note(tickets, seen);
  }

  // An atomic on a word of device memory: publishes what was fenced, and sees what others published.
  void use_ticket(Block& b, uint64_t word) {
    ThreadState& me = threads_[b.current->id];
    Ticket& ticket = launch_state.tickets[word];
    const Stamp when = ++launch_state.now;
    if (me.fenced) {
      Ticket::Entry& entry = ticket.published.try_emplace(b.linear, when, nullptr).first->second;
      Clock clock = *me.fenced;
      if (entry.clock) raise(clock, *entry.clock);
      entry.clock = std::make_shared<const Clock>(std::move(clock));
    }
    Tickets tickets;
    if (me.tickets) tickets = *me.tickets;
    note(tickets, {&ticket, when});
    me.tickets = std::make_shared<const Tickets>(std::move(tickets));
  }

  // Has the other block's thread, at its stamp, happened before the current thread's now?
  bool ordered_across_blocks(const Block& b, uint64_t block, unsigned thread, Stamp stamp,
                             uint64_t word, bool atomic) const {
    if (b.cluster && block / b.cluster->blocks.size() == b.linear / b.cluster->blocks.size()) {
      return true;  // not followed
    }
    const ThreadState& me = threads_[b.current->id];
    if (!me.tickets) return false;
    const auto own = launch_state.tickets.find(word);
    for (const Seen& seen : *me.tickets) {
      // Atomics on one word come one after the other.
      if (atomic && own != launch_state.tickets.end() && seen.ticket == &own->second &&
          stamp <= seen.when) {
        return true;
      }
      const auto entry = seen.ticket->published.find(block);
      if (entry == seen.ticket->published.end() || entry->second.since > seen.when) continue;
      const Clock& clock = *entry->second.clock;
      if (thread < clock.size() && stamp <= clock[thread]) return true;
    }
    return false;
  }

  // --- shared memory --------------------------------------------------------------------------------------

  SharedRead* shadow_of(uint64_t word) { return &(*shadow_)[word * stride_]; }
  SharedWord word_of(uint64_t word) {
    SharedWord w;
    std::memcpy(&w, shadow_of(word), sizeof w);
    return w;
  }
  void mark(uint64_t word, bool in_flight, bool never_wrote) {
    SharedWord w = word_of(word);
    w.in_flight = in_flight;
    w.never_wrote = never_wrote;
    std::memcpy(shadow_of(word), &w, sizeof w);
  }

  void access_shared(Block& b, const Access& a) {
    const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
    if (a.home != &b) {  // another block of the cluster: only initialisation is followed
      for (auto& o : a.home->observers) {
        auto* other = dynamic_cast<HazardObserver*>(o.get());
        if (other && a.kind != Kind::load) other->initialise(first, last);
      }
      return;
    }
    for (uint64_t word = first; word <= last; ++word) {
      access_word(b, a, word, a.at % kWord || a.size % kWord ? bytes_of(a, word) : kAllBytes);
    }
  }

  [[gnu::always_inline]] void access_word(Block& b, const Access& a, uint64_t word, uint8_t bytes) {
    const unsigned me = b.current->id;
    const ThreadState& mine = threads_[me];
    SharedRead* shadow = shadow_of(word);
    SharedWord w;
    std::memcpy(&w, shadow, sizeof w);
    const bool ordered = w.thread == me || mine.sees(w.thread, w.wrote);
    if (races_ && w.in_flight) {
      race(b, a, word, Kind::store, thread_name(b, w.thread), w.pc,
           ordered ? "no cp.async wait" : "no barrier");
    }
    if (uninitialised_ && a.kind != Kind::store && (w.wrote < block_floor_ || w.never_wrote)) {
      unwritten(a, word, "which this block has not written yet");
    }
    if (races_ && !ordered && (w.bytes & bytes) && !(w.atomic && a.kind == Kind::atomic)) {
      race(b, a, word, w.atomic ? Kind::atomic : Kind::store, thread_name(b, w.thread), w.pc);
    }
    if (a.kind == Kind::load) {
      SharedRead& r = shadow[1 + me / 32];
      if (r.stamp != mine.stamp) r = {mine.stamp, 0, 0, 0};
      r.lanes |= 1u << me % 32;
      r.bytes |= bytes;
      r.pc = low(a.pc);
      w.read = mine.stamp;
    } else {
      if (races_ && w.read > mine.floor) check_readers(b, a, word, bytes, shadow);
      const bool again = w.wrote == mine.stamp && w.thread == me;
      w = {mine.stamp,
           w.read,
           low(a.pc),
           static_cast<uint16_t>(me),
           static_cast<uint8_t>(again ? w.bytes | bytes : bytes),
           a.kind == Kind::atomic,
           false,
           false};
    }
    std::memcpy(shadow, &w, sizeof w);
  }

  // A store after loads: all of them must be visible to the thread that stores.
  void check_readers(Block& b, const Access& a, uint64_t word, uint8_t bytes, SharedRead* shadow) {
    const unsigned me = b.current->id;
    const ThreadState& mine = threads_[me];
    for (unsigned w = 0; w < b.nwarps; ++w) {
      const SharedRead& r = shadow[1 + w];
      if (r.stamp <= mine.floor || !(r.bytes & bytes)) continue;
      for (uint32_t m = r.lanes; m; m &= m - 1) {
        const unsigned other = w * 32 + std::countr_zero(m);
        if (other == me || mine.sees(other, r.stamp)) continue;
        race(b, a, word, Kind::load, thread_name(b, other), r.pc);
      }
    }
  }

  // Words that another block wrote: known, and ordered with everything here.
  void initialise(uint64_t first, uint64_t last) {
    for (uint64_t word = first; word <= last; ++word) {
      const SharedWord w{block_floor_, 0, 0, 0, 0, false, false, false};
      std::memcpy(shadow_of(word), &w, sizeof w);
    }
  }

  // --- device memory --------------------------------------------------------------------------------------

  void access_device(Block& b, const Access& a) {
    const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
    if (uninitialised_ && a.kind != Kind::store) {
      for (uint64_t word = first; word <= last; ++word) {
        if (!hbm_written[word]) unwritten(a, word, "which nobody has written");
      }
    }
    if (!races_) return;
    if (a.kind == Kind::atomic && launch_state.fences) use_ticket(b, first);
    for (uint64_t word = first; word <= last; ++word) check_device_word(b, a, word);
  }

  void check_device_word(Block& b, const Access& a, uint64_t word) {
    const unsigned me = b.current->id;
    const ThreadState& mine = threads_[me];
    const auto block = static_cast<uint32_t>(b.linear);
    const uint8_t bytes = bytes_of(a, word);
    DeviceWord& w = launch_state.words[word];
    const auto ordered = [&](uint32_t other_block, unsigned thread, Stamp stamp, bool atomic) {
      if (other_block != block) {
        return ordered_across_blocks(b, other_block, thread, stamp, word, atomic);
      }
      return thread == me || mine.sees(thread, stamp) ||
             (mine.tickets && ordered_across_blocks(b, block, thread, stamp, word, atomic));
    };
    if (w.wrote && (w.wrote_bytes & bytes) && !(w.atomic && a.kind == Kind::atomic) &&
        !ordered(w.wrote_block, w.wrote_thread, w.wrote, w.atomic)) {
      race_across(b, a, word, w.atomic ? Kind::atomic : Kind::store, w.wrote_block, w.wrote_thread,
                  w.wrote_pc);
    }
    if (a.kind == Kind::load) {
      // A reader in another block stays on record: whoever stores later races with it.
      if (w.read && w.read_block != block) return;
      const bool again = w.read == mine.stamp && w.read_thread == me;
      w.read = mine.stamp;
      w.read_block = block;
      w.read_thread = static_cast<uint16_t>(me);
      w.read_pc = low(a.pc);
      w.read_bytes = static_cast<uint8_t>(again ? w.read_bytes | bytes : bytes);
      return;
    }
    if (w.read && (w.read_bytes & bytes) && !ordered(w.read_block, w.read_thread, w.read, false)) {
      race_across(b, a, word, Kind::load, w.read_block, w.read_thread, w.read_pc);
    }
    const bool again = w.wrote == mine.stamp && w.wrote_block == block && w.wrote_thread == me;
    w.wrote = mine.stamp;
    w.wrote_block = block;
    w.wrote_thread = static_cast<uint16_t>(me);
    w.wrote_pc = low(a.pc);
    w.wrote_bytes = static_cast<uint8_t>(again ? w.wrote_bytes | bytes : bytes);
    w.atomic = a.kind == Kind::atomic;
  }

  // --- sentences -----------------------------------------------------------------------------------------

  [[noreturn, gnu::noinline, gnu::cold]] static void unwritten(const Access& a, uint64_t word,
                                                               const char* why) {
    fail("uninitialised " + std::string(a.space == Space::shared ? "shared" : "device") +
         " memory: " + here() + ": " + noun(a.kind) + " of " +
         place(a, std::max(a.at, word * kWord)) + " at " + source_of(a.pc) + ", " + why);
  }

  [[noreturn, gnu::noinline, gnu::cold]] static void race(Block&, const Access& a, uint64_t word,
                                                          Kind other, const std::string& who,
                                                          uint32_t pc,
                                                          const char* missing = "no barrier") {
    fail("race on " + std::string(a.space == Space::shared ? "shared" : "device") + " memory: " +
         here() + ": " + noun(a.kind) + " of " + place(a, std::max(a.at, word * kWord)) + " at " +
         source_of(a.pc) + " and " + (other == Kind::atomic ? "an " : "a ") + noun(other) + " by " +
         who + " at " + source_of(widen(pc, a.pc)) + " have " + missing + " between them");
  }

  [[noreturn, gnu::noinline, gnu::cold]] static void race_across(Block& b, const Access& a,
                                                                 uint64_t word, Kind other,
                                                                 uint64_t block, unsigned thread,
                                                                 uint32_t pc) {
    if (block == b.linear) race(b, a, word, other, thread_name(b, thread), pc);
    race(b, a, word, other, "block " + block_index(b, block) + ", " + thread_name(b, thread), pc,
         "no order (__threadfence and an atomic)");
  }

  const bool races_, uninitialised_;
  std::vector<ThreadState> threads_;
  Stamp block_floor_ = 0;  // before the block's first access
  std::unordered_map<const void*, Released> objects_;

  // Stamps only grow, so the shadow of shared memory need not be cleared between blocks.
  std::unique_ptr<LazyArray<SharedRead>> shadow_;
  size_t stride_ = 0;
};

}  // namespace

std::unique_ptr<Observer> make_hazard_observer(bool races, bool uninitialised) {
  return std::make_unique<HazardObserver>(races, uninitialised);
}

void hazards_begin_launch() {
  launch_state.now = 0;
  launch_state.fences = false;
  launch_state.words.clear();
  launch_state.tickets.clear();
}

}  // namespace sim
