// Races, and reads of words that nobody wrote.
//
// A race: two accesses of the same bytes, at least one of them a store, that no synchronisation
// puts in order, whatever order this run happened to take. Found with vector clocks. Every thread
// has a stamp, which grows when the thread synchronises; each 4-byte word remembers the stamp of
// its last store and of its latest loads; and each thread knows up to which stamp the past of every
// other thread is visible to it. Stamps come from one counter, so a barrier of the whole block is
// one number: everything up to now.
//
// What orders accesses: barriers, __syncwarp for its own lanes, mbarriers, the cluster's barrier.
// Shuffles do not. Who arrives without waiting (bar.arrive, mbarrier arrive) hands over what it did
// until then, not what it does until the others have come. Blocks of different clusters are ordered
// by one thing only: __threadfence() and then an atomic on some word by one block, and later an
// atomic on the same word by the other ("the last block done").
//
// A cp.async writes from its issue to its wait: whoever touches the place in between races with it,
// the copying thread too. TMA and wgmma: async_hazards.cpp.
//
// What is not found: a load that races with a later store when other loads of the same word
// (shared: by the same warp) came between.
#include "common/sim/observers/hazards.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sim {

LaunchState launch_state;

namespace {

/// The bytes of word `word` that the access touches, a bit each.
uint8_t bytes_of(const Access& a, uint64_t word) {
  const uint64_t begin = word * kWord;
  unsigned bits = 15;
  if (a.at > begin) bits &= 15u << (a.at - begin);
  if (a.at + a.size < begin + kWord) bits &= 15u >> (begin + kWord - a.at - a.size);
  return static_cast<uint8_t>(bits);
}

uint32_t low(const void* pc) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc)); }

uint64_t blocks_of_cluster(const Block& b) { return b.cluster ? b.cluster->blocks.size() : 1; }

const char* noun(Kind kind) {
  return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

/// The program's code lies within 2 GiB, so a neighbour tells the high bits.
const void* widen(uint32_t pc, const void* neighbour) {
  const auto near = reinterpret_cast<uintptr_t>(neighbour);
  return reinterpret_cast<const void*>(near +
                                       static_cast<int32_t>(pc - static_cast<uint32_t>(near)));
}

}  // namespace

// --- sentences -----------------------------------------------------------------------------------

std::string block_index(const Block& b, uint64_t linear) {
  const dim3 g = b.launch->config.grid;
  return "(" + std::to_string(linear % g.x) + "," + std::to_string(linear / g.x % g.y) + "," +
         std::to_string(linear / g.x / g.y) + ")";
}

std::string place(const Access& a, uint64_t byte) {
  if (a.space == Space::shared) {
    return shared_name(*a.home, byte) +
           (a.home == self ? "" : ", in block " + block_index(*self, a.home->linear));
  }
  const BufferInfo& b = buffers[a.buffer];
  return b.name + ", byte " + std::to_string(byte - b.begin);
}

// "load of tile, byte 132 at kernel.cuh:14"
static std::string subject(const Access& a, const Actor& actor, uint64_t word) {
  return (actor.words ? actor.words : noun(a.kind) + std::string(" of")) + " " +
         place(a, std::max(a.at, word * kWord)) + " at " +
         (actor.where ? at(*actor.where) : source_of(a.pc));
}

void report_race(const Access& a, uint64_t word, const Actor& actor, const std::string& other,
                 const std::string& missing, const char* end) {
  fail("race on " + std::string(a.space == Space::shared ? "shared" : "device") +
       " memory: " + here() + ": " + subject(a, actor, word) + " and " + other + " have " +
       missing + " between them" + end);
}

void report_unwritten(const Access& a, uint64_t word, const Actor& actor, const char* why) {
  fail("uninitialised " + std::string(a.space == Space::shared ? "shared" : "device") +
       " memory: " + here() + ": " + subject(a, actor, word) + ", " + why);
}

std::string who(const Block& b, unsigned entry, unsigned padded) {
  const unsigned rank = entry / padded;
  return (rank == b.rank ? "" : "block " + block_index(b, b.linear - b.rank + rank) + ", ") +
         thread_name(b, entry % padded);
}

std::string earlier(const Block& b, const Access& a, Kind kind, unsigned entry, uint32_t pc,
                    unsigned padded) {
  return std::string(kind == Kind::atomic ? "an " : "a ") + noun(kind) + " by " +
         who(b, entry, padded) + " at " + source_of(widen(pc, a.pc));
}

// --- begin, synchronise --------------------------------------------------------------------------

void HazardObserver::begin_block(Block& b) {
  padded_ = b.nwarps * 32;
  base_ = b.rank * padded_;
  total_ = static_cast<unsigned>(blocks_of_cluster(b)) * padded_;
  if (!shadow_) {
    stride_ = 1 + total_ / 32;
    shadow_ = std::make_unique<LazyArray<SharedRead>>((b.shared_size / kWord + 1) * stride_);
  }
  block_floor_ = ++launch_state.now;
  ++launch_state.now;
  for (unsigned t = 0; t < b.nthreads; ++t) {
    threads_[t] = {};
    threads_[t].floor = block_floor_;
    threads_[t].stamp = launch_state.now;
  }
  extended_ = b.cluster != nullptr;
  launch_state.objects.clear();
  launch_state.channels.clear();
  acquired_ = {};
  guests_.clear();
  begin_async();
}

void HazardObserver::end_block(Block& b) {
  if (!races_) return;
  check_loads(b);
  check_guests(b);
}

void HazardObserver::access(Block& b, const Access& a) {
  if (a.space != Space::shared) {
    access_device(b, a);
  } else if (a.lsu) {  // a copy engine's accesses are operations
    access_shared(b, a);
  }
}

void HazardObserver::barrier(Block& b, ThreadSet met, const void* object) {
  const auto released = launch_state.objects.find(object);
  if (released != launch_state.objects.end()) {
    join(b, 0, b.nwarps, met, &released->second);
    launch_state.objects.erase(released);
  } else if (std::equal(met, met + b.nwarps, b.member)) {
    join_all(b);
  } else {
    join(b, 0, b.nwarps, met);
  }
}

void HazardObserver::warp_sync(Block& b, unsigned warp, uint32_t lanes) {
  uint32_t set[32] = {};
  set[warp] = lanes;
  join(b, warp, warp + 1, set);
}

Released& HazardObserver::open(const void* object, uint32_t phase) const {
  Released& released = launch_state.objects[object];
  if (released.phase != phase) {
    released.phase = phase;
    released.before = released.clock;
  }
  ++released.version;
  return released;
}

void HazardObserver::release(Block& b, const void* object, uint32_t phase) {
  ThreadState& me = threads_[b.current->id];
  Released& released = open(object, phase);
  add(released.clock, b.current->id, me);
  if (me.fenced) raise(released.fenced, *me.fenced);
  if (me.tickets) note(released.tickets, *me.tickets);
  me.stamp = ++launch_state.now;  // what follows is not released
}

void HazardObserver::acquire(Block& b, const void* object, uint32_t phase) {
  const auto found = launch_state.objects.find(object);
  if (found == launch_state.objects.end()) return;
  const Released& released = found->second;
  const Clock& clock = released.phase == phase ? released.before : released.clock;
  if (clock.empty()) return;
  note_waited(object, clock);
  ThreadState& me = threads_[b.current->id];
  Acquired& latest = acquired_;
  if (latest.object != object || latest.version != released.version || latest.phase != phase ||
      latest.from != me.clock || !latest.result) {
    Clock sum = clock;
    if (me.clock) raise(sum, *me.clock);
    latest = {me.clock, std::make_shared<const Clock>(std::move(sum)), object, released.version,
              phase};
  }
  me.clock = latest.result;
}

void HazardObserver::fence(Block& b) {
  launch_state.fences = true;
  ThreadState& me = threads_[b.current->id];
  Clock clock;
  add(clock, b.current->id, me);
  me.fenced = std::make_shared<const Clock>(std::move(clock));
  me.stamp = ++launch_state.now;  // what follows is not fenced
}

// --- who knows what ------------------------------------------------------------------------------

// Adds what the thread did and what is visible to it.
void HazardObserver::add(Clock& clock, unsigned id, const ThreadState& thread) const {
  if (clock.size() < total_) clock.resize(total_);
  for (unsigned t = base_; t < base_ + padded_; ++t) clock[t] = std::max(clock[t], thread.floor);
  if (thread.clock) raise(clock, *thread.clock);
  set(clock, entry(id), thread.stamp);
  if (thread.proxied) set(clock, total_ + entry(id), thread.proxied);
}

template <class F>
void HazardObserver::for_each(unsigned first_warp, unsigned last_warp, const uint32_t* set, F&& f) {
  for (unsigned w = first_warp; w < last_warp; ++w) {
    for (uint32_t m = set[w]; m; m &= m - 1) {
      const unsigned t = w * 32 + std::countr_zero(m);
      f(t, threads_[t]);
    }
  }
}

// A barrier of the whole block: everything until now is visible to everybody.
void HazardObserver::join_all(Block& b) {
  if (extended_) join(b, 0, b.nwarps, b.member);
  const Stamp floor = launch_state.now++;
  for (unsigned t = 0; t < b.nthreads; ++t) {
    ThreadState& thread = threads_[t];
    thread.floor = floor;
    thread.stamp = launch_state.now;
    if (!extended_ && thread.clock) thread.clock.reset();
  }
  if (!extended_ && launch_state.fences) join_blocks(b, 0, b.nwarps, b.member, nullptr);
}

// The threads of `set` meet; `released`: what others have handed over to them.
void HazardObserver::join(Block& b, unsigned first_warp, unsigned last_warp, const uint32_t* set,
                          const Released* released) {
  Clock clock(total_);
  const Clock* added = nullptr;
  Stamp floor = 0;
  for_each(first_warp, last_warp, set, [&](unsigned t, ThreadState& thread) {
    floor = std::max(floor, thread.floor);
    if (thread.clock && thread.clock.get() != added) {
      added = thread.clock.get();
      raise(clock, *added);
    }
    clock[entry(t)] = std::max(clock[entry(t)], thread.stamp);
    if (thread.proxied) HazardObserver::set(clock, total_ + entry(t), thread.proxied);
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
void HazardObserver::join_blocks(Block&, unsigned first_warp, unsigned last_warp,
                                 const uint32_t* set, const Released* released) {
  Clock fenced;
  Tickets tickets;
  const Tickets* added = nullptr;
  if (released) {
    fenced = released->fenced;
    tickets = released->tickets;
  }
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
    if (thread.fenced) raise(fenced, *thread.fenced);
    if (thread.tickets && thread.tickets.get() != added) {
      added = thread.tickets.get();
      note(tickets, *added);
    }
  });
  if (fenced.empty() && tickets.empty()) return;
  auto shared_fenced = fenced.empty() ? nullptr : std::make_shared<const Clock>(std::move(fenced));
  auto shared_tickets =
      tickets.empty() ? nullptr : std::make_shared<const Tickets>(std::move(tickets));
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
    if (shared_fenced) thread.fenced = shared_fenced;
    if (shared_tickets) thread.tickets = shared_tickets;
  });
}

void HazardObserver::note(Tickets& tickets, const Seen& seen) {
  for (Seen& old : tickets) {
    if (old.ticket == seen.ticket) {
      old.when = std::max(old.when, seen.when);
      return;
    }
  }
  tickets.push_back(seen);
}
void HazardObserver::note(Tickets& tickets, const Tickets& others) {
  for (const Seen& seen : others) note(tickets, seen);
}

// An atomic on a word of device memory: publishes what was fenced, and sees what others published.
void HazardObserver::use_ticket(Block& b, uint64_t word) {
  ThreadState& me = threads_[b.current->id];
  Ticket& ticket = launch_state.tickets[word];
  const Stamp when = ++launch_state.now;
  if (me.fenced) {
    Ticket::Entry& entry =
        ticket.published.try_emplace(b.linear / blocks_of_cluster(b), when, nullptr).first->second;
    Clock clock = *me.fenced;
    if (entry.clock) raise(clock, *entry.clock);
    entry.clock = std::make_shared<const Clock>(std::move(clock));
  }
  Tickets tickets;
  if (me.tickets) tickets = *me.tickets;
  note(tickets, {&ticket, when});
  me.tickets = std::make_shared<const Tickets>(std::move(tickets));
}

// Has what the other block's entry stands for, at its stamp, happened before the current thread's
// now?
bool HazardObserver::ordered_across_blocks(const Block& b, uint64_t block, unsigned entry,
                                           Stamp stamp, uint64_t word, bool atomic) const {
  const ThreadState& me = threads_[b.current->id];
  if (!me.tickets) return false;
  const auto own = launch_state.tickets.find(word);
  for (const Seen& seen : *me.tickets) {
    // Atomics on one word come one after the other.
    if (atomic && own != launch_state.tickets.end() && seen.ticket == &own->second &&
        stamp <= seen.when) {
      return true;
    }
    const auto published = seen.ticket->published.find(block / blocks_of_cluster(b));
    if (published == seen.ticket->published.end() || published->second.since > seen.when) continue;
    if (has(published->second.clock, entry, stamp)) return true;
  }
  return false;
}

// --- shared memory -------------------------------------------------------------------------------

HazardObserver& HazardObserver::of(Block& home) {
  for (auto& o : home.observers) {
    if (auto* found = dynamic_cast<HazardObserver*>(o.get())) return *found;
  }
  __builtin_unreachable();  // all blocks of a launch have the same observers
}

void HazardObserver::mark(uint64_t word, bool in_flight, bool never_wrote) {
  SharedWord w = word_of(word);
  w.in_flight = in_flight;
  w.never_wrote = never_wrote;
  store(word, w);
}

// As a store for whoever comes, but nothing is written yet.
void HazardObserver::begin_copy(Block& b, const Access& a) {
  for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) {
    const SharedWord before = word_of(word);
    const bool never_wrote = before.wrote < block_floor_ || before.never_wrote;
    access_word<false>(b, *this, a, word, kAllBytes);
    mark(word, true, never_wrote);
  }
}
void HazardObserver::end_copy(Block&, const Access& a) {
  for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) {
    mark(word, false, false);
  }
}

void HazardObserver::access_shared(Block& b, const Access& a) {
  const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
  const bool whole = a.at % kWord == 0 && a.size % kWord == 0;
  if (b.cluster) {
    HazardObserver& home = of(*a.home);
    ThreadState& me = threads_[b.current->id];
    if (me.stamp <= home.block_floor_) me.stamp = ++launch_state.now;  // that block began later
    if (races_ && a.home != &b) {
      check_neighbour(b, a, home, {});
      home.guests_[entry(b.current->id)] = {me.stamp, a.kind, a.pc};
    }
    for (uint64_t word = first; word <= last; ++word) {
      home.access_word<true>(b, *this, a, word, whole ? kAllBytes : bytes_of(a, word));
    }
    return;
  }
  for (uint64_t word = first; word <= last; ++word) {
    access_word<false>(b, *this, a, word, whole ? kAllBytes : bytes_of(a, word));
  }
}

// A block whose shared memory another one uses must have begun, and not have ended.
void HazardObserver::check_neighbour(Block& b, const Access& a, const HazardObserver& home,
                                     const Actor& actor) const {
  const auto refuse = [&](const char* why) {
    fail(here() + ": " + subject(a, actor, a.at / kWord) + ", but that block " + why);
  };
  if (a.home->live == 0) refuse("has ended (a cluster_sync() at the end would hold it)");
  const SharedClock& known = threads_[b.current->id].clock;
  for (unsigned t = 0; t < a.home->nthreads; ++t) {
    if (has(known, home.entry(t), home.block_floor_ + 1)) return;
  }
  refuse("may not have begun (a cluster_sync() would tell)");
}

// What other blocks of the cluster did to its shared memory has happened before a block ends, or it
// could have ended first.
void HazardObserver::check_guests(Block& b) {
  if (guests_.empty()) return;
  Clock known;
  for (unsigned t = 0; t < b.nthreads; ++t) add(known, t, threads_[t]);
  for (const auto& [entry, guest] : guests_) {
    if (entry < known.size() && guest.stamp <= known[entry]) continue;
    fail("kernel " + kernel_name(b.launch->kernel) + ", block " + block_index(b, b.linear) +
         " may end before the " + noun(guest.kind) + " by " + who(b, entry, padded_) + " at " +
         source_of(guest.pc) +
         " has used its shared memory: no barrier between them (a cluster_sync() at the end)");
  }
}

// The current thread, of block `b` and of the observer `by`, touches a word of this block.
template <bool kCluster>
[[gnu::always_inline]] inline void HazardObserver::access_word(Block& b, const HazardObserver& by,
                                                               const Access& a, uint64_t word,
                                                               uint8_t bytes) {
  const unsigned me = by.entry(b.current->id);
  const ThreadState& mine = by.threads_[b.current->id];
  SharedRead* shadow = shadow_of(word);
  SharedWord w;
  std::memcpy(&w, shadow, sizeof w);
  const bool ordered = w.thread == me || by.sees(mine, w.thread, w.wrote) ||
                       (kCluster && w.wrote < block_floor_);  // of an earlier block
  if (races_ && w.in_flight) {
    report_race(a, word, {}, earlier(b, a, Kind::store, w.thread, w.pc, padded_),
                ordered ? "no cp.async wait" : "no barrier");
  }
  if (races_ && w.async) [[unlikely]] {
    check_async(by, b, a, word, a.kind != Kind::load, {});
  }
  if (uninitialised_ && a.kind != Kind::store && (w.wrote < block_floor_ || w.never_wrote)) {
    report_unwritten(a, word, {}, "which this block has not written yet");
  }
  if (races_ && !ordered && (w.bytes & bytes) && !(w.atomic && a.kind == Kind::atomic)) {
    report_race(a, word, {},
                earlier(b, a, w.atomic ? Kind::atomic : Kind::store, w.thread, w.pc, padded_),
                "no barrier");
  }
  if (a.kind == Kind::load) {
    SharedRead& r = shadow[1 + me / 32];
    if (r.stamp != mine.stamp) r = {mine.stamp, 0, 0, 0};
    r.lanes |= 1u << me % 32;
    r.bytes |= bytes;
    r.pc = low(a.pc);
    w.read = mine.stamp;
  } else {
    if (races_ && w.read > (kCluster ? block_floor_ : mine.floor)) {
      check_readers(b, by, a, word, bytes, {});
    }
    const bool again = w.wrote == mine.stamp && w.thread == me;
    w = {mine.stamp,
         w.read,
         low(a.pc),
         static_cast<uint16_t>(me),
         static_cast<uint8_t>(again ? w.bytes | bytes : bytes),
         a.kind == Kind::atomic,
         false,
         false,
         false};
  }
  std::memcpy(shadow, &w, sizeof w);
}

// A store after loads: all of them must be visible to the thread that stores.
void HazardObserver::check_readers(Block& b, const HazardObserver& by, const Access& a,
                                   uint64_t word, uint8_t bytes, const Actor& actor) {
  const unsigned me = by.entry(b.current->id);
  const ThreadState& mine = by.threads_[b.current->id];
  const SharedRead* reads = shadow_of(word) + 1;
  for (unsigned w = 0; w < total_ / 32; ++w) {
    const SharedRead& r = reads[w];
    if (r.stamp <= block_floor_ || !(r.bytes & bytes)) continue;
    if (w * 32 - by.base_ < by.padded_ && r.stamp <= mine.floor) continue;
    for (uint32_t m = r.lanes; m; m &= m - 1) {
      const unsigned other = w * 32 + std::countr_zero(m);
      if (other == me || by.sees(mine, other, r.stamp)) continue;
      report_race(a, word, actor, earlier(b, a, Kind::load, other, r.pc, padded_), "no barrier");
    }
  }
}

// --- device memory -------------------------------------------------------------------------------

void HazardObserver::access_device(Block& b, const Access& a) {
  const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
  if (uninitialised_ && a.kind != Kind::store) {
    for (uint64_t word = first; word <= last; ++word) {
      if (!hbm_written[word]) report_unwritten(a, word, {}, "which nobody has written");
    }
  }
  if (!races_) return;
  if (a.kind == Kind::atomic && a.lsu && launch_state.fences) use_ticket(b, first);
  for (uint64_t word = first; word <= last; ++word) check_device_word(b, a, word);
}

void HazardObserver::check_device_word(Block& b, const Access& a, uint64_t word) {
  const ThreadState& mine = threads_[b.current->id];
  // Who will have done it: the thread, or the bulk store that it issues.
  const bool bulk_store = !a.lsu && a.kind != Kind::load;
  const unsigned me = bulk_store ? store_entry_ : entry(b.current->id);
  const Stamp now = bulk_store ? store_stamp_ : mine.stamp;
  const auto block = static_cast<uint32_t>(b.linear);
  const uint8_t bytes = bytes_of(a, word);
  DeviceWord& w = launch_state.words[word];
  const uint64_t cluster = blocks_of_cluster(b);
  const auto ordered = [&](uint32_t other_block, unsigned other, Stamp stamp, bool atomic) {
    if (other_block / cluster == block / cluster &&
        ((other == entry(b.current->id) && other_block == block) || sees(mine, other, stamp))) {
      return true;
    }
    return ordered_across_blocks(b, other_block, other, stamp, word, atomic);
  };
  const auto race = [&](Kind kind, uint32_t other_block, unsigned other, uint32_t pc) {
    race_across(b, a, word, kind, other_block, other, pc);
  };
  if (w.wrote && (w.wrote_bytes & bytes) && !(w.atomic && a.kind == Kind::atomic) &&
      !ordered(w.wrote_block, w.wrote_by, w.wrote, w.atomic)) {
    race(w.atomic ? Kind::atomic : Kind::store, w.wrote_block, w.wrote_by, w.wrote_pc);
  }
  if (a.kind == Kind::load) {
    // A reader in another block stays on record: whoever stores later races with it.
    if (w.read && w.read_block != block) return;
    const bool again = w.read == now && w.read_by == me;
    w.read = now;
    w.read_block = block;
    w.read_by = static_cast<uint16_t>(me);
    w.read_pc = low(a.pc);
    w.read_bytes = static_cast<uint8_t>(again ? w.read_bytes | bytes : bytes);
    return;
  }
  if (w.read && (w.read_bytes & bytes) && !ordered(w.read_block, w.read_by, w.read, false)) {
    race(Kind::load, w.read_block, w.read_by, w.read_pc);
  }
  const bool again = w.wrote == now && w.wrote_block == block && w.wrote_by == me;
  w.wrote = now;
  w.wrote_block = block;
  w.wrote_by = static_cast<uint16_t>(me);
  w.wrote_pc = low(a.pc);
  w.wrote_bytes = static_cast<uint8_t>(again ? w.wrote_bytes | bytes : bytes);
  w.atomic = a.kind == Kind::atomic;
}

void HazardObserver::race_across(Block& b, const Access& a, uint64_t word, Kind kind,
                                 uint64_t block, unsigned entry, uint32_t pc) {
  const bool near = block / blocks_of_cluster(b) == b.linear / blocks_of_cluster(b);
  const std::string line = source_of(widen(pc, a.pc));
  if (entry >= total_) {
    report_race(a, word, {}, "a bulk store by block " + block_index(b, block) + " at " + line,
                near ? "no order (tma_store_wait, then a barrier)"
                     : "no order (tma_store_wait, __threadfence and an atomic)");
  }
  const std::string thread = thread_name(b, entry % padded_);
  report_race(a, word, {},
              (kind == Kind::atomic ? "an " : "a ") + std::string(noun(kind)) + " by " +
                  (block == b.linear ? thread : "block " + block_index(b, block) + ", " + thread) +
                  " at " + line,
              near ? "no barrier" : "no order (__threadfence and an atomic)");
}

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
