// Races, and reads of words that no thread wrote.
//
// A race: two accesses of the same bytes, at least one of them a store, of which neither happens
// before the other, whatever their order in this run. Found with vector clocks. Every thread has a
// stamp, which grows when the thread synchronises; each 4-byte word remembers the stamps of its
// last store and of its latest loads; and each thread knows up to which stamp the past of every
// other thread is visible to it. Stamps are drawn from one counter, so a barrier of the whole block
// is one number: everything up to now. A word that is accessed in parts has this for each byte.
//
// What orders accesses: barriers, __syncwarp among its lanes, mbarriers, the cluster's barrier.
// Shuffles do not. An arrival that does not wait (bar.arrive, mbarrier arrive) releases what its
// thread did before it and nothing later. Blocks of different clusters are ordered by one thing
// only: __threadfence() and then an atomic on some word by one block, and later an atomic on the
// same word by the other ("the last block done"), also through a third block. An atomic of 16 bytes
// is data: it returns no old value that would tell a thread which atomic was first.
//
// A cp.async writes from its issue to its wait: an access in between races with it, also one of the
// copying thread. TMA and wgmma: async_proxy_races.cpp. tcgen05: tensor_memory_races.cpp.
//
// The search continues after a finding (findings.h).
//
// What is not found: a load that races with a later store when other loads of the same word or byte
// (shared: by the same warp) are between them; in device memory, an atomic that races with a later
// plain access when other atomics on the same word are between them.
// plain access when other atomics on the same word came between.
#include "common/sim/observers/races.h"

#include <algorithm>
#include <bit>

#include "common/sim/memory/device_memory.h"
#include "common/sim/observers/watchers.h"
#include "common/sim/sim.h"

namespace sim {

LaunchState launch_state;

namespace {

uint32_t low(const void* pc) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc)); }

}  // namespace

const void* widen(uint32_t pc, const void* neighbour) {
  const auto near = reinterpret_cast<uintptr_t>(neighbour);
  return reinterpret_cast<const void*>(near +
                                       static_cast<int32_t>(pc - static_cast<uint32_t>(near)));
}

uint64_t blocks_of_cluster(const Block& b) { return b.cluster ? b.cluster->blocks.size() : 1; }

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
static std::string subject(const Access& a, const Actor& actor, uint64_t byte) {
  return (actor.words ? actor.words : noun(a.kind) + std::string(" of")) + " " +
         place(a, std::max(a.at, byte)) + " at " +
         (actor.where ? at(*actor.where) : source_and_caller(a.pc));
}

static Line line_of(const Access& a, const Actor& actor) { return {a.pc, actor.where}; }

Findings::Finding* note_race(const Access& a, uint64_t byte, const Actor& actor, const Line& other,
                             bool stores) {
  const bool shared = a.space == Space::shared;
  Findings::Finding& finding =
      findings.at(shared ? Fault::shared_race : Fault::device_race, line_of(a, actor), other);
  const bool fresh = finding.text.empty();
  finding.same_value = stores && a.hooked && (fresh || finding.same_value);
  if (finding.same_value) {
    const uint64_t begin = std::max(a.at, byte), end = std::min(a.at + a.size, byte + kWord);
    const auto* p =
        reinterpret_cast<const void*>((shared ? a.home->shared_base : kHbmBase) + begin);
    findings.compare_later(finding, p, static_cast<unsigned>(end - begin));
  }
  return fresh ? &finding : nullptr;
}

std::string race_sentence(const Access& a, uint64_t byte, const Actor& actor,
                          const std::string& other, const std::string& missing, const char* end) {
  return "race on " + std::string(a.space == Space::shared ? "shared" : "device") +
         " memory: " + here() + ": " + subject(a, actor, byte) + " and " + other + " have " +
         missing + " between them" + end;
}

[[gnu::noinline, gnu::cold]] Findings::Finding& report_unwritten(const Access& a, uint64_t byte,
                                                                 const Actor& actor,
                                                                 const char* why) {
  Findings::Finding& finding = findings.at(Fault::uninitialised, line_of(a, actor), {});
  ++finding.unexplained;
  if (!finding.text.empty()) return finding;
  finding.text = "uninitialised " + std::string(a.space == Space::shared ? "shared" : "device") +
                 " memory: " + here() + ": " + subject(a, actor, byte) + ", " + why;
  return finding;
}

std::string who(const Block& b, unsigned entry, unsigned padded) {
  const unsigned rank = entry / padded;
  return (rank == b.rank ? "" : "block " + block_index(b, b.linear - b.rank + rank) + ", ") +
         thread_name(b, entry % padded);
}

std::string earlier(const Block& b, const Access& a, Kind kind, unsigned entry, uint32_t pc,
                    unsigned padded) {
  return std::string(kind == Kind::atomic ? "an " : "a ") + noun(kind) + " by " +
         who(b, entry, padded) + " at " + source_and_caller(widen(pc, a.pc));
}

// --- begin, synchronise --------------------------------------------------------------------------

void RaceObserver::begin_block(Block& b) {
  padded_ = b.nwarps * 32;
  base_ = b.rank * padded_;
  total_ = static_cast<unsigned>(blocks_of_cluster(b)) * padded_;
  if (!words_) {
    words_ = std::make_unique<SharedShadow>(b.shared_size / kWord + 1, total_ / 32);
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
  launch_state.load_channels.clear();
  launch_state.reads = 0;
  acquired_ = {};
  guests_.clear();
  unwritten_.clear();
  under_atomics_.clear();
  atomics_.clear();
  inits_.clear();
  at_device_fence_.clear();
  waited_for_front_.clear();
  begin_async();
  if (tensor_used_) begin_tensor();
}

void RaceObserver::end_block(Block& b) {
  check_loads(b);
  check_guests(b);
}

void RaceObserver::access(Block& b, const Access& a) {
  findings.compare();
  ++seen_;
  if (a.space != Space::shared) {
    access_device(b, a);
  } else if (a.by != By::engine) {  // a copy engine's accesses are operations
    access_shared(b, a);
  }
}

void RaceObserver::barrier(Block& b, ThreadSet met, const void* object) {
  findings.compare();
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

void RaceObserver::warp_sync(Block& b, unsigned warp, uint32_t lanes) {
  uint32_t set[32] = {};
  set[warp] = lanes;
  join(b, warp, warp + 1, set);
}

Released& RaceObserver::open(const void* object, uint32_t phase) const {
  Released& released = launch_state.objects[object];
  if (released.phase != phase) {
    released.phase = phase;
    released.before = released.clock;
    released.version_before = released.version;
  }
  ++released.version;
  return released;
}

void RaceObserver::release(Block& b, const void* object, uint32_t phase) {
  ThreadState& me = threads_[b.current->id];
  Released& released = open(object, phase);
  add(released.clock, b.current->id, me, me.clock != released.added);
  if (me.clock) released.added = me.clock;
  if (me.fenced) raise(released.fenced, *me.fenced);
  if (me.tickets) note(released.tickets, *me.tickets);
  me.stamp = ++launch_state.now;  // later accesses are not released
}

void RaceObserver::acquire(Block& b, const void* object, uint32_t phase) {
  const auto found = launch_state.objects.find(object);
  if (found == launch_state.objects.end()) return;
  const Released& released = found->second;
  const bool over = phase != released.phase;
  const Clock& clock = over ? released.clock : released.before;
  const uint32_t version = over ? released.version : released.version_before;
  if (clock.empty()) return;
  note_waited(object, clock);
  ThreadState& me = threads_[b.current->id];
  Acquired& latest = acquired_;
  if (latest.object != object || latest.version != version || latest.phase != phase ||
      latest.from != me.clock || !latest.result) {
    Clock sum = clock;
    if (me.clock) raise(sum, *me.clock);
    latest = {me.clock, std::make_shared<const Clock>(std::move(sum)), object, version, phase};
  }
  me.clock = latest.result;
}

// A relaxed arrival or wait releases and acquires only that reads and asynchronous operations are
// complete: not what a thread wrote nor, in a relaxed wait, what loads wrote.
void RaceObserver::hand_over_reads(Clock& to, const Clock& from, bool loads) const {
  auto& channels = launch_state.channels;
  unsigned& reads = launch_state.reads;
  if (!reads) {  // pairs of entries, like a channel's, whose keys are no addresses
    reads = static_cast<unsigned>(2 * total_ + 2 * channels.size());
    for (uintptr_t i = 0; i < total_ / 2; ++i) {
      channels[reinterpret_cast<const void*>(i)] = reads + static_cast<unsigned>(2 * i);
    }
  }
  for (unsigned e = 0; e < std::min<size_t>(total_, from.size()); ++e) {
    if (from[e]) set(to, reads + e, from[e]);
  }
  Clock channels_of = from;
  std::fill_n(channels_of.begin(), std::min<size_t>(2 * total_, from.size()), 0);
  for (const unsigned load : launch_state.load_channels) {
    if (!loads && load < channels_of.size()) channels_of[load] = 0;
  }
  raise(to, channels_of);
}

void RaceObserver::release_relaxed(Block& b, const void* object, uint32_t phase) {
  ThreadState& me = threads_[b.current->id];
  Clock mine;
  add(mine, b.current->id, me);
  hand_over_reads(open(object, phase).clock, mine, true);
  me.stamp = ++launch_state.now;
}

void RaceObserver::acquire_relaxed(Block& b, const void* object, uint32_t phase) {
  const auto found = launch_state.objects.find(object);
  if (found == launch_state.objects.end()) return;
  const Released& released = found->second;
  ThreadState& me = threads_[b.current->id];
  const bool running = phase == released.phase;
  Clock sum = me.clock ? *me.clock : Clock();
  hand_over_reads(sum, running ? released.before : released.clock, false);
  me.clock = std::make_shared<const Clock>(std::move(sum));
}

void RaceObserver::fence(Block& b) {
  launch_state.fences = true;
  ThreadState& me = threads_[b.current->id];
  Fenced fenced;
  add(fenced.clock, b.current->id, me);
  if (me.tickets) fenced.tickets = *me.tickets;
  me.fenced = std::make_shared<const Fenced>(std::move(fenced));
  me.stamp = ++launch_state.now;  // later accesses are not fenced
}

// --- happens before ------------------------------------------------------------------------------

// Adds what the thread did and what is visible to it.
void RaceObserver::add(Clock& clock, unsigned id, const ThreadState& thread, bool acquired) const {
  if (clock.size() < total_) clock.resize(total_);
  for (unsigned t = base_; t < base_ + padded_; ++t) clock[t] = std::max(clock[t], thread.floor);
  if (thread.clock && acquired) raise(clock, *thread.clock);
  set(clock, entry(id), thread.stamp);
  if (thread.proxied) set(clock, total_ + entry(id), thread.proxied);
}

void RaceObserver::for_each(unsigned first_warp, unsigned last_warp, const uint32_t* set,
                            auto&& f) {
  for (unsigned w = first_warp; w < last_warp; ++w) {
    for (uint32_t m = set[w]; m; m &= m - 1) {
      const unsigned t = w * 32 + std::countr_zero(m);
      f(t, threads_[t]);
    }
  }
}

// A barrier of the whole block makes everything until now visible to all its threads.
void RaceObserver::join_all(Block& b) {
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

// The threads of `set` meet; `released`: what others have released to them.
void RaceObserver::join(Block& b, unsigned first_warp, unsigned last_warp, const uint32_t* set,
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
    if (thread.proxied) RaceObserver::set(clock, total_ + entry(t), thread.proxied);
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

// The same across blocks: fenced stores, tickets seen.
void RaceObserver::join_blocks(Block&, unsigned first_warp, unsigned last_warp, const uint32_t* set,
                               const Released* released) {
  Fenced fenced;
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
  const bool any_fenced = !fenced.clock.empty();
  if (!any_fenced && tickets.empty()) return;
  auto shared_fenced = any_fenced ? std::make_shared<const Fenced>(std::move(fenced)) : nullptr;
  auto shared_tickets =
      tickets.empty() ? nullptr : std::make_shared<const Tickets>(std::move(tickets));
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadState& thread) {
    if (shared_fenced) thread.fenced = shared_fenced;
    if (shared_tickets) thread.tickets = shared_tickets;
  });
}

void RaceObserver::note(Tickets& tickets, const Seen& seen) {
  for (Seen& old : tickets) {
    if (old.ticket == seen.ticket) {
      old.when = std::max(old.when, seen.when);
      return;
    }
  }
  tickets.push_back(seen);
}
void RaceObserver::note(Tickets& tickets, const Tickets& others) {
  for (const Seen& seen : others) note(tickets, seen);
}

// An atomic on a word of device memory publishes what was fenced, and sees what others published.
void RaceObserver::use_ticket(Block& b, uint64_t word) {
  ThreadState& me = threads_[b.current->id];
  Ticket& ticket = launch_state.tickets[word];
  const Stamp when = ++launch_state.now;
  const uint64_t cluster = b.linear / blocks_of_cluster(b);
  if (ticket.latest != cluster) {
    std::vector<Ticket::Entry>& ended = ticket.published[ticket.latest];
    if (ended.size() > 1) ended = {{ended[0].since, ended.back().fenced, nullptr}};
    ticket.latest = cluster;
  }
  std::vector<Ticket::Entry>& mine = ticket.published[cluster];
  if (me.fenced && (mine.empty() || mine.back().added != me.fenced)) {
    Fenced fenced = *me.fenced;
    if (!mine.empty()) raise(fenced, *mine.back().fenced);
    mine.push_back({when, std::make_shared<const Fenced>(std::move(fenced)), me.fenced});
  }
  Tickets tickets;
  if (me.tickets) tickets = *me.tickets;
  note(tickets, {&ticket, when});
  me.tickets = std::make_shared<const Tickets>(std::move(tickets));
}

// Whether the other block's access happens before what is visible to a thread of this block.
bool RaceObserver::ordered_across_blocks(const ThreadState& me, const Block& b, uint64_t block,
                                         unsigned entry, Stamp stamp, uint64_t word,
                                         bool atomic) const {
  if (!me.tickets) return false;
  const auto own = launch_state.tickets.find(word);
  const auto ordered = [&](const Seen& seen) {
    // Atomics on one word are ordered.
    if (atomic && own != launch_state.tickets.end() && seen.ticket == &own->second &&
        stamp <= seen.when) {
      return true;
    }
    const auto published = seen.ticket->published.find(block / blocks_of_cluster(b));
    if (published == seen.ticket->published.end()) return false;
    const Ticket::Entry* shown = Ticket::until(published->second, seen.when);
    return shown && has(shown->fenced->clock, entry, stamp);
  };
  if (std::any_of(me.tickets->begin(), me.tickets->end(), ordered)) return true;
  // What the publishers had seen: the blocks in between.
  Tickets all = *me.tickets;
  for (size_t i = 0; i < all.size(); ++i) {
    const Seen seen = all[i];
    for (const auto& [cluster, published] : seen.ticket->published) {
      const Ticket::Entry* shown = Ticket::until(published, seen.when);
      if (!shown) continue;
      for (const Seen& before : shown->fenced->tickets) {
        const Seen then = {before.ticket, std::min(before.when, seen.when)};
        const auto known = std::find_if(all.begin(), all.end(), [&](const Seen& other) {
          return other.ticket == then.ticket && other.when >= then.when;
        });
        if (known != all.end()) continue;
        if (ordered(then)) return true;
        all.push_back(then);
      }
    }
  }
  return false;
}

// --- shared memory -------------------------------------------------------------------------------

// Gives each byte of the word its own row.
void RaceObserver::split(const Block& b, uint64_t word) {
  if (!bytes_) {
    bytes_ = std::make_unique<SharedShadow>(b.shared_size + kWord, total_ / 32);
  }
  const SharedRow row = row_of(word);
  SharedCell& w = row.cell;
  SharedCell cell = w;
  cell.async = false;
  for (uint64_t byte = word * kWord; byte < (word + 1) * kWord; ++byte) {
    const SharedRow own = row_of_byte(byte);
    own.cell = cell;
    if (w.read <= block_floor_) continue;
    for (unsigned warp = 0; warp < total_ / 32; ++warp) own.read(warp) = row.read(warp);
  }
  w.split = true;
}

bool RaceObserver::is_written(uint64_t word) {
  bool written = true;
  for_each_cell(word,
                [&](const SharedRow& row, uint64_t) { written &= row.cell.wrote >= block_floor_; });
  return written;
}

void RaceObserver::mark(uint64_t word, bool in_flight) {
  for_each_cell(word, [&](const SharedRow& row, uint64_t) { row.cell.in_flight = in_flight; });
}

// For later accesses the same as a store, but nothing is written yet.
void RaceObserver::begin_copy(Block& b, const Access& a) {
  for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) {
    access_word<false>(b, *this, a, word, kAllBytes);
    mark(word, true);
  }
}
void RaceObserver::end_copy(Block&, const Access& a, uint32_t) {
  for (uint64_t word = a.at / kWord; word < (a.at + a.size) / kWord; ++word) mark(word, false);
}

void RaceObserver::access_shared(Block& b, const Access& a) {
  const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
  const bool whole = a.at % kWord == 0 && a.size % kWord == 0;
  if (b.cluster) {
    auto& home = observer_of<RaceObserver>(*a.home);
    if (a.home != &b) {
      check_neighbour(b, a, home, {});
      const unsigned me = b.current->id;
      home.guests_[entry(me)] = {threads_[me].stamp, a.kind, a.pc};
    }
    for (uint64_t word = first; word <= last; ++word) {
      home.access_word<true>(b, *this, a, word,
                             whole ? kAllBytes : bytes_of_word(a.at, a.size, word));
    }
    return;
  }
  for (uint64_t word = first; word <= last; ++word) {
    access_word<false>(b, *this, a, word, whole ? kAllBytes : bytes_of_word(a.at, a.size, word));
  }
}

// A block whose shared memory another one accesses must have begun and must not have ended.
void RaceObserver::check_neighbour(Block& b, const Access& a, const RaceObserver& home,
                                   const Actor& actor) const {
  const auto refuse = [&](const char* why) {
    fail(FaultKind::out_of_bounds,
         here() + ": " + subject(a, actor, a.at) + ", but that block " + why);
  };
  if (a.home->live == 0) refuse("has ended (a cluster_sync() at the end would hold it)");
  const SharedClock& known = threads_[b.current->id].clock;
  for (unsigned t = 0; t < a.home->nthreads; ++t) {
    if (has(known, home.entry(t), home.block_floor_ + 1)) return;
  }
  refuse("may not have begun (a cluster_sync() would tell)");
}

// Other blocks' accesses to its shared memory must happen before a block ends.
void RaceObserver::check_guests(Block& b) {
  if (guests_.empty()) return;
  Clock known;
  for (unsigned t = 0; t < b.nthreads; ++t) add(known, t, threads_[t]);
  for (const auto& [entry, guest] : guests_) {
    const unsigned reads = guest.kind == Kind::load ? launch_state.reads : 0;
    if (entry < known.size() && guest.stamp <= known[entry]) continue;
    if (reads && has(known, reads + entry, guest.stamp)) continue;
    Findings::Finding& finding = findings.at(Fault::left_behind, {guest.pc, nullptr}, {});
    if (!finding.text.empty()) continue;
    finding.text =
        "kernel " + spoken(kernel_name(*b.launch)) + ", block " + block_index(b, b.linear) +
        " may end before the " + noun(guest.kind) + " by " + who(b, entry, padded_) + " at " +
        source_and_caller(guest.pc) +
        " has used its shared memory: no barrier between them (a cluster_sync() at the end)";
  }
}

// The current thread, of block `b` and of the observer `by`, touches a word of this block.
template <bool kCluster>
[[gnu::always_inline]] inline void RaceObserver::access_word(Block& b, const RaceObserver& by,
                                                             const Access& a, uint64_t word,
                                                             uint8_t bytes) {
  const SharedRow row = row_of(word);
  const SharedCell& w = row.cell;
  if (w.async) [[unlikely]] {
    check_async(by, b, a, word, a.kind != Kind::load, {});
  }
  if (bytes == kAllBytes && !w.split) [[likely]] {
    access_cell<kCluster>(b, by, a, word * kWord, row);
  } else {
    access_bytes<kCluster>(b, by, a, word, bytes);
  }
}

template <bool kCluster>
[[gnu::noinline]] void RaceObserver::access_bytes(Block& b, const RaceObserver& by, const Access& a,
                                                  uint64_t word, uint8_t bytes) {
  if (!word_of(word).split) split(b, word);
  for (unsigned i = 0; i < kWord; ++i) {
    const uint64_t byte = word * kWord + i;
    if (bytes >> i & 1) access_cell<kCluster>(b, by, a, byte, row_of_byte(byte));
  }
  // An access ordered after a store is ordered after all that happened before the store. This does
  // not hold for an atomic, which need not be ordered after other atomics.
  if (bytes == kAllBytes && a.kind == Kind::store) {
    SharedCell& w = word_of(word);
    w = row_of_byte(word * kWord).cell;
    w.read = 0;
  }
}

// A word that is not split, or a byte of one that is.
template <bool kCluster>
[[gnu::always_inline]] inline void RaceObserver::access_cell(Block& b, const RaceObserver& by,
                                                             const Access& a, uint64_t byte,
                                                             const SharedRow& row) {
  const unsigned me = by.entry(b.current->id);
  const ThreadState& mine = by.threads_[b.current->id];
  SharedCell& w = row.cell;
  const bool ordered = w.thread == me || by.sees(mine, w.thread, w.wrote) ||
                       (kCluster && w.wrote < block_floor_);  // of an earlier block
  if (w.in_flight) {
    check_writer(by, b, a, byte, w, {});
  } else {
    if (a.kind != Kind::store && w.wrote < block_floor_) {
      by.note_unwritten(unwritten_, b, a, byte, "which this block has not written yet");
    }
    if (!ordered && w.stored && !(w.atomic && a.kind == Kind::atomic)) {
      check_writer(by, b, a, byte, w, {});
    }
    if (w.atomic && a.kind != Kind::atomic) check_atomics(b, by, a, byte);
  }
  if (a.kind == Kind::load) {
    SharedRead& r = row.read(me / 32);
    if (r.stamp != mine.stamp) r = {mine.stamp, 0, low(a.pc), 0};
    r.lanes |= 1u << me % 32;
    r.pc = low(a.pc);
    w.read = mine.stamp;
  } else {
    if (w.read > (kCluster ? block_floor_ : mine.floor)) check_readers(b, by, a, byte, row, {});
    if (!unwritten_.empty()) [[unlikely]] {
      explain_shared(b, by, a, byte);
    }
    if (a.kind == Kind::atomic) {
      check_under_atomics(b, by, a, byte, w);
      if (w.atomic && w.wrote > block_floor_) note_atomic(by, b, byte, w);
    }
    w.wrote = mine.stamp;
    w.pc = low(a.pc);
    w.thread = static_cast<uint16_t>(me);
    w.stored = true;
    w.atomic = a.kind == Kind::atomic;
    w.in_flight = w.async = w.split = false;
  }
}

// Atomics are ordered among themselves, but each must also be ordered after the last plain store.
void RaceObserver::check_under_atomics(Block& b, const RaceObserver& by, const Access& a,
                                       uint64_t byte, const SharedCell& w) {
  if (!w.atomic) {
    if (w.stored && w.wrote > block_floor_) under_atomics_[byte] = {w.wrote, 0, w.pc, w.thread};
    return;
  }
  const auto found = under_atomics_.find(byte);
  if (found == under_atomics_.end()) return;
  const PlainStore& s = found->second;
  const unsigned me = by.entry(b.current->id);
  if (s.thread == me || by.sees(by.threads_[b.current->id], s.thread, s.stamp)) return;
  race_with(b, a, byte, {}, Kind::store, s.thread, s.pc);
}

// Before an atomic replaces the earlier one `w`. One that is visible to the whole block is dropped:
// what is ordered after the new atomic is ordered after that, too.
void RaceObserver::note_atomic(const RaceObserver& by, const Block& b, uint64_t byte,
                               const SharedCell& w) {
  Atomics& atomics = atomics_[byte];
  if (!b.cluster && atomics.latest <= by.threads_[b.current->id].floor) atomics.by_thread.clear();
  atomics.latest = w.wrote;
  atomics.by_thread[w.thread] = {w.wrote, w.pc};
}

// A plain access after atomics must be ordered after each of them.
void RaceObserver::check_atomics(Block& b, const RaceObserver& by, const Access& a, uint64_t byte) {
  const auto found = atomics_.find(byte);
  if (found == atomics_.end()) return;
  const unsigned me = by.entry(b.current->id);
  for (const auto& [thread, one] : found->second.by_thread) {
    if (thread == me || by.sees(by.threads_[b.current->id], thread, one.stamp)) continue;
    race_with(b, a, byte, {}, Kind::atomic, thread, one.pc);
    break;  // the other threads' are mostly at the same line
  }
  if (a.kind == Kind::store) atomics_.erase(found);
}

void RaceObserver::note_unwritten(UnwrittenReads& reads, const Block& b, const Access& a,
                                  uint64_t byte, const char* why) const {
  constexpr size_t kWatched = 100'000;  // reads beyond these are not explained by a race
  const Findings::Finding& finding = report_unwritten(a, byte, {}, why);
  if (reads.size() >= kWatched) return;
  const unsigned me = b.current->id;
  reads.insert({byte / kWord,
                {findings.number(finding), threads_[me].stamp, static_cast<uint32_t>(b.linear),
                 a.kind, entry(me), a.pc, bytes_of_word(a.at, a.size, byte / kWord)}});
}

void RaceObserver::explain(UnwrittenReads& all, const Access& a, uint64_t byte, auto&& ordered,
                           auto&& race) {
  const uint8_t stored = bytes_of_word(a.at, a.size, byte / kWord);
  for (auto [it, end] = all.equal_range(byte / kWord); it != end;) {
    const bool both_atomic = a.kind == Kind::atomic && it->second.kind == Kind::atomic;
    if (!(it->second.bytes & stored) || both_atomic || ordered(it->second)) {
      ++it;
      continue;
    }
    race(it->second);
    --findings[it->second.finding].unexplained;
    it = all.erase(it);
  }
}

void RaceObserver::explain_shared(Block& b, const RaceObserver& by, const Access& a,
                                  uint64_t byte) {
  const unsigned me = by.entry(b.current->id);
  const auto ordered = [&](const UnwrittenRead& r) {
    return r.entry == me || by.sees_read(by.threads_[b.current->id], r.entry, r.stamp);
  };
  explain(unwritten_, a, byte, ordered,
          [&](const UnwrittenRead& r) { race_with(b, a, byte, {}, r.kind, r.entry, low(r.pc)); });
}

// A store after loads: all of them must be visible to the storing thread.
void RaceObserver::check_readers(Block& b, const RaceObserver& by, const Access& a, uint64_t byte,
                                 const SharedRow& row, const Actor& actor) {
  const unsigned me = by.entry(b.current->id);
  const ThreadState& mine = by.threads_[b.current->id];
  for (unsigned w = 0; w < total_ / 32; ++w) {
    const SharedRead& r = row.read(w);
    if (r.stamp <= block_floor_) continue;
    if (w * 32 - by.base_ < by.padded_ && r.stamp <= mine.floor) continue;
    for (uint32_t m = r.lanes; m; m &= m - 1) {
      const unsigned other = w * 32 + std::countr_zero(m);
      if (other == me || by.sees_read(mine, other, r.stamp)) continue;
      // `s[t] += x` also loads, shortly before the store: the racing load is another lane's.
      const bool mine_too = me / 32 == w && r.lanes >> me % 32 & 1;
      const bool first = mine_too && low(a.pc) - r.first_pc > low(a.pc) - r.pc;
      race_with(b, a, byte, actor, Kind::load, other, first ? r.first_pc : r.pc);
      break;  // the other lanes have the same line
    }
  }
}

void RaceObserver::race_with(const Block& b, const Access& a, uint64_t byte, const Actor& actor,
                             Kind kind, unsigned entry, uint32_t pc, const char* missing,
                             bool stores) const {
  if (auto* finding = note_race(a, byte, actor, {widen(pc, a.pc), nullptr}, stores)) {
    finding->text = race_sentence(a, byte, actor, earlier(b, a, kind, entry, pc, padded_), missing);
  }
}

// --- device memory -------------------------------------------------------------------------------

inline void RaceObserver::note_load(const Block& b, const Access& a, DeviceCell& w) const {
  const auto block = static_cast<uint32_t>(b.linear);
  // A reader in another block stays recorded: any later store races with it.
  if (w.read && w.read_block != block) return;
  const auto me = static_cast<uint16_t>(entry(b.current->id));
  if (w.read && w.read_by != me) {
    w.also_read = w.read, w.also_read_by = w.read_by, w.also_read_pc = w.read_pc;
  }
  w.read = threads_[b.current->id].stamp;
  w.read_block = block;
  w.read_by = me;
  w.read_pc = low(a.pc);
}

[[gnu::always_inline]] inline void RaceObserver::check_device_cell(Block& b, const Access& a,
                                                                   uint64_t byte, DeviceCell& w) {
  const ThreadState& mine = threads_[b.current->id];
  // The writer: the thread, or the bulk store that it issues.
  const bool bulk_store = a.by == By::engine && a.kind == Kind::store;
  const unsigned me = bulk_store ? store_entry_ : entry(b.current->id);
  const Stamp now = bulk_store ? store_stamp_ : mine.stamp;
  const auto block = static_cast<uint32_t>(b.linear);
  const auto ordered = [&](uint32_t other_block, unsigned other, Stamp stamp, bool atomic,
                           bool read = false) {
    if (other_block == block && other == entry(b.current->id)) return true;
    if (same_cluster(b, other_block) &&
        (read ? sees_read(mine, other, stamp) : sees(mine, other, stamp))) {
      return true;
    }
    return ordered_across_blocks(mine, b, other_block, other, stamp, byte / kWord, atomic);
  };
  const bool atomics = w.atomic && a.kind == Kind::atomic;
  if (w.wrote && !atomics) {
    if (!ordered(w.wrote_block, w.wrote_by, w.wrote, w.atomic)) {
      race_across(b, a, byte, w.atomic ? Kind::atomic : Kind::store, w.wrote_block, w.wrote_by,
                  w.wrote_pc);
    } else if (a.by == By::engine && a.kind != Kind::atomic) {
      check_device_fence(b, a, byte, w);
    }
  }
  if (a.kind == Kind::load) return note_load(b, a, w);
  if (w.read && !ordered(w.read_block, w.read_by, w.read, false, true)) {
    race_across(b, a, byte, Kind::load, w.read_block, w.read_by, w.read_pc);
  } else if (w.also_read && !ordered(w.read_block, w.also_read_by, w.also_read, false, true)) {
    race_across(b, a, byte, Kind::load, w.read_block, w.also_read_by, w.also_read_pc);
  }
  if (!launch_state.unwritten.empty()) [[unlikely]] {
    explain(
        launch_state.unwritten, a, byte,
        [&](const UnwrittenRead& r) { return ordered(r.block, r.entry, r.stamp, false); },
        [&](const UnwrittenRead& r) {
          race_across(b, a, byte, r.kind, r.block, r.entry, low(r.pc));
        });
  }
  if (a.kind == Kind::atomic) {  // see check_under_atomics()
    auto& under = launch_state.under_atomics;
    if (w.wrote && !w.atomic) {
      under[byte] = {w.wrote, w.wrote_block, w.wrote_pc, w.wrote_by};
    } else if (atomics && !under.empty()) {
      const auto found = under.find(byte);
      if (found != under.end()) {
        const PlainStore& s = found->second;
        if (!ordered(s.block, s.thread, s.stamp, false)) {
          race_across(b, a, byte, Kind::store, s.block, s.thread, s.pc);
        }
      }
    }
  }
  w.wrote = now;
  w.wrote_block = block;
  w.wrote_by = static_cast<uint16_t>(me);
  w.wrote_pc = low(a.pc);
  w.atomic = a.kind == Kind::atomic;
}

[[gnu::noinline]] void RaceObserver::check_device_word(Block& b, const Access& a, uint64_t word,
                                                       uint8_t bytes) {
  DeviceCell& w = launch_state.words[word];
  if (bytes == kAllBytes && !w.split) [[likely]] {
    check_device_cell(b, a, word * kWord, w);
    return;
  }
  auto* cells = &launch_state.bytes[word * kWord];
  if (!w.split) {
    std::fill_n(cells, kWord, w);
    w.split = true;
  }
  for (unsigned i = 0; i < kWord; ++i) {
    if (bytes >> i & 1) check_device_cell(b, a, word * kWord + i, cells[i]);
  }
  if (bytes == kAllBytes && a.kind == Kind::store) {  // as in access_bytes()
    w = cells[0];
    w.read = w.also_read = 0;
  }
}

// Most words that a kernel loads are not stored to in the same launch.
inline bool RaceObserver::note_plain_load(const Block& b, const Access& a, uint64_t word) {
  DeviceCell& w = launch_state.words[word];
  if (a.kind != Kind::load || w.wrote || w.split) return false;
  note_load(b, a, w);
  return true;
}

void RaceObserver::wait_for_kernel(Block& b) {
  waited_for_front_[entry(b.current->id)] = threads_[b.current->id].stamp;
}

// A kernel launched early: no wait for the preceding kernel happens before the access.
void RaceObserver::check_front(const Block& b, const Access& a) {
  auto& front = launch_state.front;
  const uint64_t end = a.at + a.size;
  for (uint64_t at = a.at; at < end; at = at / kWord * kWord + kWord) {
    const DeviceCell& w = front.words[at / kWord];
    for (uint64_t byte = at; byte < std::min(end, at / kWord * kWord + kWord); ++byte) {
      const DeviceCell& cell = w.split ? front.bytes[byte] : w;
      const bool both_atomic = cell.atomic && a.kind == Kind::atomic;
      const bool stored = cell.wrote && !both_atomic;
      if (!stored && (a.kind == Kind::load || !cell.read)) continue;
      for (unsigned rank = 0; rank < cluster_size(); ++rank) {
        for (const auto& [thread, when] :
             observer_of<RaceObserver>(block_of_rank(rank)).waited_for_front_) {
          if (sees(threads_[b.current->id], thread, when)) return;
        }
      }
      const uint32_t pc = stored ? cell.wrote_pc : cell.read_pc;
      auto* finding = note_race(a, byte, {}, {widen(pc, a.pc), nullptr}, false);
      if (!finding) return;
      const Kind kind = !stored ? Kind::load : cell.atomic ? Kind::atomic : Kind::store;
      finding->text = race_sentence(
          a, byte, {},
          std::string(kind == Kind::atomic ? "an " : "a ") + noun(kind) + " by kernel " +
              front.kernel + " at " + source_and_caller(widen(pc, a.pc)),
          "no griddepcontrol.wait",
          ": the launch is programmatic, so the preceding kernel may still run");
      return;
    }
  }
}

void RaceObserver::access_device(Block& b, const Access& a) {
  if (b.early && b.current->early && !launch_state.front.kernel.empty()) check_front(b, a);
  const uint64_t first = a.at / kWord, last = (a.at + a.size - 1) / kWord;
  const bool whole = a.at % kWord == 0 && a.size % kWord == 0;
  const auto bytes = [&](uint64_t word) {
    return whole ? kAllBytes : bytes_of_word(a.at, a.size, word);
  };
  if (a.kind != Kind::store) {
    for (uint64_t word = first; word <= last; ++word) {
      if (const unsigned missing = bytes(word) & ~hbm_written[word]) {
        note_unwritten(launch_state.unwritten, b, a, word * kWord + std::countr_zero(missing),
                       "which no thread has written");
      }
    }
  }
  if (a.kind == Kind::atomic && a.size <= 8 && launch_state.fences) use_ticket(b, first);
  for (uint64_t word = first; word <= last; ++word) {
    if (whole && note_plain_load(b, a, word)) continue;
    check_device_word(b, a, word, bytes(word));
  }
}

void RaceObserver::race_across(Block& b, const Access& a, uint64_t byte, Kind kind, uint64_t block,
                               unsigned entry, uint32_t pc) {
  const bool bulk_store = entry >= total_;
  const bool stores = kind == Kind::store && a.kind == Kind::store && !bulk_store;
  auto* finding = note_race(a, byte, {}, {widen(pc, a.pc), nullptr}, stores);
  if (!finding) return;
  const bool near = block / blocks_of_cluster(b) == b.linear / blocks_of_cluster(b);
  const std::string other = earlier_across(b, a, kind, block, entry, pc);
  if (bulk_store) {
    finding->text = race_sentence(a, byte, {}, other,
                                  near ? "no order (tma_store_wait, then a barrier)"
                                       : "no order (tma_store_wait, __threadfence and an atomic)");
    return;
  }
  finding->text = race_sentence(a, byte, {}, other,
                                near ? "no barrier" : "no order (__threadfence and an atomic)");
}

// "a store by block (1,0,0), thread (0,0,0) at kernel.cuh:12"
std::string RaceObserver::earlier_across(const Block& b, const Access& a, Kind kind, uint64_t block,
                                         unsigned entry, uint32_t pc) const {
  const std::string line = source_and_caller(widen(pc, a.pc));
  if (entry >= total_) return "a bulk store by block " + block_index(b, block) + " at " + line;
  const std::string thread = thread_name(b, entry % padded_);
  return (kind == Kind::atomic ? "an " : "a ") + std::string(noun(kind)) + " by " +
         (block == b.linear ? thread : "block " + block_index(b, block) + ", " + thread) + " at " +
         line;
}

void no_kernel_in_front() { launch_state.kernel_is_over = true; }

namespace {

class RaceWatcher final : public Watcher {
 public:
  bool wanted() const override { return options().analyse; }
  bool alone() const override { return true; }
  void begin_launch(const Launch& launch, uint64_t) override {
    auto& front = launch_state.front;
    const bool overlaps = launches_overlap() && !launch_state.kernel_is_over;
    front.kernel = overlaps ? launch_state.kernel : "";
    if (overlaps) {
      std::swap(front.words, launch_state.words);
      std::swap(front.bytes, launch_state.bytes);
    }
    launch_state.kernel = kernel_name(launch);
    launch_state.kernel_is_over = false;
    launch_state.now = 0;
    launch_state.fences = false;
    launch_state.words.clear();
    launch_state.bytes.clear();
    launch_state.under_atomics.clear();
    launch_state.unwritten.clear();
    launch_state.tickets.clear();
    launch_state.device_fences.clear();
    findings.clear();
  }
  void copy(const char*, uint16_t, uint64_t, uint64_t, bool) override { no_kernel_in_front(); }
  void observe(Block& b) override { b.observers.push_back(std::make_unique<RaceObserver>()); }
  void report(fa::Counts& counts, const std::optional<fa::Finding>& fault) override {
    findings.report(fault);
    for (const std::string& remark : findings.remarks()) add_remark(counts, remark);
  }
};

}  // namespace

Watcher& race_watcher() {
  static RaceWatcher watcher;
  return watcher;
}

}  // namespace sim
