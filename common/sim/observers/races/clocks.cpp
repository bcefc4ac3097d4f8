#include "common/sim/observers/races/clocks.h"

#include <bit>

namespace sim::races {

static uint64_t thread_of(uint64_t block, unsigned entry) { return block << 16 | entry; }

void BlockClocks::begin(uint64_t block, unsigned rank, unsigned blocks, unsigned threads) {
  block_ = block;
  rank_ = rank;
  blocks_ = blocks;
  padded_ = (threads + 31) / 32 * 32;
  base_ = rank * padded_;
  total_ = blocks * padded_;
  begun_ = ++launch_.now;
  ++launch_.now;
  threads_.assign(padded_, {.stamp = launch_.now, .floor = begun_});
  extended_ = blocks > 1;
  at_device_fence_.clear();
  acquired_ = {};
  learnt_ = {};
  launch_.objects.clear();
  launch_.channels.clear();
  launch_.load_channels.clear();
  launch_.reads = 0;
  launch_.blocks.resize(blocks);
  launch_.blocks[rank] = this;
}

// --- questions -----------------------------------------------------------------------------------

bool BlockClocks::sees_across(const ThreadClock& me, uint64_t block, unsigned entry, Stamp s,
                              uint64_t word, bool atomic) const {
  return me.seen && launch_.tickets.ordered(*me.seen, block / blocks_, entry, s, word, atomic);
}

const ThreadClock& BlockClocks::of_entry(unsigned entry) const {
  return (*launch_.blocks[entry / padded_])[entry % padded_];
}

bool BlockClocks::proxied(unsigned me, unsigned writer, Stamp s) const {
  const ThreadClock& mine = threads_[me];
  return (writer == entry(me) && s <= mine.proxied) || has(mine.clock, total_ + writer, s);
}

bool BlockClocks::device_proxied(unsigned me, uint64_t block, unsigned writer, Stamp stamp,
                                 uint64_t word, bool atomic) const {
  const auto ordered = [&](const ThreadClock& thread, Stamp s, bool atomics) {
    if (writer == entry(me) && block == block_) return s <= thread.stamp;
    return (is_near(block) && is_visible(thread, writer, s)) ||
           sees_across(thread, block, writer, s, word, atomics);
  };
  const auto mine = at_device_fence_.find(me);
  if (mine != at_device_fence_.end() && ordered(mine->second, stamp, atomic)) return true;
  const auto theirs = launch_.device_fences.find(thread_of(block, writer));
  if (theirs == launch_.device_fences.end()) return false;
  const auto& fences = theirs->second;
  const auto first =
      std::lower_bound(fences.begin(), fences.end(), stamp,
                       [](const DeviceFence& fence, Stamp s) { return fence.covers < s; });
  return first != fences.end() && ordered(threads_[me], first->seen, false);
}

bool BlockClocks::any_has(unsigned entry, Stamp s) const {
  return std::any_of(threads_.begin(), threads_.end(),
                     [&](const ThreadClock& t) { return has(t.clock, entry, s); });
}

Clock BlockClocks::all() const {
  Clock clock;
  for (unsigned t = 0; t < threads_.size(); ++t) add(clock, t);
  return clock;
}

// Adds what the thread did and what is visible to it.
void BlockClocks::add(Clock& clock, unsigned id, bool acquired) const {
  const ThreadClock& thread = threads_[id];
  if (clock.size() < total_) clock.resize(total_);
  for (unsigned e = base_; e < base_ + padded_; ++e) clock[e] = std::max(clock[e], thread.floor);
  if (thread.clock && acquired) raise(clock, *thread.clock);
  raise(clock, entry(id), thread.stamp);
  if (thread.proxied) raise(clock, total_ + entry(id), thread.proxied);
}

Clock BlockClocks::of(unsigned thread) const {
  Clock clock;
  add(clock, thread);
  return clock;
}

// --- threads meet --------------------------------------------------------------------------------

void BlockClocks::barrier(ThreadSet met, ThreadSet members, const void* object) {
  const unsigned warps = padded_ / 32;
  const auto released = launch_.objects.find(object);
  if (released != launch_.objects.end()) {
    join(0, warps, met, &released->second);
    launch_.objects.erase(released);
  } else if (std::equal(met, met + warps, members)) {
    join_all(members);
  } else {
    join(0, warps, met);
  }
}

void BlockClocks::warp_sync(unsigned warp, uint32_t lanes) {
  uint32_t set[32] = {};
  set[warp] = lanes;
  join(warp, warp + 1, set);
}

void BlockClocks::for_each(unsigned first_warp, unsigned last_warp, ThreadSet set, auto&& f) {
  for (unsigned w = first_warp; w < last_warp; ++w) {
    for (uint32_t m = set[w]; m; m &= m - 1) {
      const unsigned t = w * 32 + std::countr_zero(m);
      f(t, threads_[t]);
    }
  }
}

void BlockClocks::join_all(ThreadSet members) {
  const unsigned warps = padded_ / 32;
  if (extended_) join(0, warps, members);
  const Stamp floor = launch_.now++;
  for (ThreadClock& thread : threads_) {
    thread.floor = floor;
    thread.stamp = launch_.now;
    if (!extended_ && thread.clock) thread.clock.reset();
  }
  if (!extended_ && launch_.fences) join_across(0, warps, members, nullptr);
}

// The threads of the set meet; `released`: what others have released to them.
void BlockClocks::join(unsigned first_warp, unsigned last_warp, ThreadSet set,
                       const Released* released) {
  Clock clock(total_);
  const Clock* added = nullptr;
  Stamp floor = 0;
  for_each(first_warp, last_warp, set, [&](unsigned t, ThreadClock& thread) {
    floor = std::max(floor, thread.floor);
    if (thread.clock && thread.clock.get() != added) {
      added = thread.clock.get();
      raise(clock, *added);
    }
    clock[entry(t)] = std::max(clock[entry(t)], thread.stamp);
    if (thread.proxied) raise(clock, total_ + entry(t), thread.proxied);
  });
  if (released) raise(clock, released->clock);
  auto shared = std::make_shared<const Clock>(std::move(clock));
  ++launch_.now;
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadClock& thread) {
    thread.floor = std::max(thread.floor, floor);
    thread.clock = shared;
    thread.stamp = launch_.now;
  });
  if (launch_.fences) join_across(first_warp, last_warp, set, released);
}

// The same across clusters: fenced stores, tickets seen.
void BlockClocks::join_across(unsigned first_warp, unsigned last_warp, ThreadSet set,
                              const Released* released) {
  Fenced fenced;
  SeenTickets seen;
  const SeenTickets* added = nullptr;
  if (released) {
    fenced = released->fenced;
    seen = released->seen;
  }
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadClock& thread) {
    if (thread.fenced) raise(fenced, *thread.fenced);
    if (thread.seen && thread.seen.get() != added) {
      added = thread.seen.get();
      raise(seen, *added);
    }
  });
  const bool any_fenced = !fenced.clock.empty();
  if (!any_fenced && seen.empty()) return;
  auto shared_fenced = any_fenced ? std::make_shared<const Fenced>(std::move(fenced)) : nullptr;
  auto shared_seen = seen.empty() ? nullptr : std::make_shared<const SeenTickets>(std::move(seen));
  for_each(first_warp, last_warp, set, [&](unsigned, ThreadClock& thread) {
    if (shared_fenced) thread.fenced = shared_fenced;
    if (shared_seen) thread.seen = shared_seen;
  });
}

// --- releases and acquires -----------------------------------------------------------------------

Released& BlockClocks::open(const void* object, uint32_t phase) {
  Released& released = launch_.objects[object];
  if (released.phase != phase) {
    const bool next = phase == released.phase + 1;
    released.ended[1] = next ? released.ended[0] : Released::Event{};
    released.ended[0] = next ? released.last : Released::Event{};
    released.phase = phase;
    released.before = released.clock;
    released.version_before = released.version;
  }
  ++released.version;
  return released;
}

Stamp BlockClocks::tick() { return ++launch_.now; }
Stamp BlockClocks::tick(unsigned me) { return threads_[me].stamp = ++launch_.now; }

void BlockClocks::release(unsigned id, const void* object, uint32_t phase) {
  const ThreadClock& me = threads_[id];
  Released& released = open(object, phase);
  add(released.clock, id, me.clock != released.added);
  if (me.clock) released.added = me.clock;
  if (me.fenced) raise(released.fenced, *me.fenced);
  if (me.seen) raise(released.seen, *me.seen);
  released.last = {entry(id), me.stamp};
  pass(id, released, phase);
  tick(id);  // later accesses are not released
}

// A relaxed arrival or wait releases and acquires only that reads and asynchronous operations are
// complete: not what a thread wrote nor, in a relaxed wait, what loads wrote.
void BlockClocks::hand_over_reads(Clock& to, const Clock& from, bool loads) {
  auto& channels = launch_.channels;
  unsigned& reads = launch_.reads;
  if (!reads) {  // by pairs of entries, as for channels, with keys that are no addresses
    reads = static_cast<unsigned>(2 * total_ + 2 * channels.size());
    for (uintptr_t i = 0; i < total_ / 2; ++i) {
      channels[reinterpret_cast<const void*>(i)] = reads + static_cast<unsigned>(2 * i);
    }
  }
  to.resize(std::max({to.size(), from.size(), size_t{reads} + total_}));
  for (size_t e = 0; e < std::min<size_t>(total_, from.size()); ++e) {
    to[reads + e] = std::max(to[reads + e], from[e]);
  }
  size_t channel = 2 * total_;
  const auto raise_until = [&](size_t end) {
    for (; channel < std::min(end, from.size()); ++channel) {
      to[channel] = std::max(to[channel], from[channel]);
    }
  };
  if (!loads) {  // their channels are in ascending order
    for (const unsigned load : launch_.load_channels) raise_until(load), channel = load + 1;
  }
  raise_until(from.size());
}

void BlockClocks::release_relaxed(unsigned id, const void* object, uint32_t phase) {
  const ThreadClock& me = threads_[id];
  Released& released = open(object, phase);
  if (!me.clock || me.clock != released.added_reads) {
    hand_over_reads(released.clock, of(id), true);
    released.added_reads = me.clock;
  }
  raise(released.clock, launch_.reads + entry(id), me.stamp);
  released.last = {};  // not visible as a whole: no question
  pass(id, released, phase);
  tick(id);
}

void BlockClocks::pass(unsigned thread, Released& object, uint32_t phases) const {
  object.passed.resize(std::max<size_t>(object.passed.size(), total_));
  object.passed[entry(thread)] = phases;
}

bool BlockClocks::may_end_early(unsigned id, const void* object, uint32_t phase) const {
  const auto found = launch_.objects.find(object);
  if (phase < 2 || found == launch_.objects.end()) return false;
  const Released& released = found->second;
  if (released.phase != phase && released.phase != phase - 1) return false;
  const Released::Event& end = released.ended[released.phase == phase];
  const bool passed = entry(id) < released.passed.size() && released.passed[entry(id)] >= phase - 1;
  return end.stamp && !passed && !sees(id, end.entry, end.stamp);
}

const Clock* BlockClocks::acquire(unsigned id, const void* object, uint32_t phase, bool relaxed) {
  const auto found = launch_.objects.find(object);
  if (found == launch_.objects.end()) return nullptr;
  Released& released = found->second;
  pass(id, released, phase);
  const bool over = phase != released.phase;
  const Clock& clock = over ? released.clock : released.before;
  const uint32_t version = over ? released.version : released.version_before;
  if (clock.empty()) return nullptr;
  ThreadClock& me = threads_[id];
  Answer& latest = acquired_;
  if (latest.object != object || latest.one != version || latest.other != phase ||
      latest.relaxed != relaxed || latest.from != me.clock || !latest.result) {
    Clock sum;
    if (me.clock) sum = *me.clock;
    relaxed ? hand_over_reads(sum, clock, false) : raise(sum, clock);
    auto result = std::make_shared<const Clock>(std::move(sum));
    latest = {me.clock, std::move(result), object, version, phase, relaxed};
  }
  me.clock = latest.result;
  return &clock;
}

void BlockClocks::complete(const SharedClock& past, unsigned channel, Stamp stamp,
                           const void* object, uint32_t phase) {
  Released& released = open(object, phase);
  if (past) raise(released.clock, *past);
  raise(released.clock, channel, stamp);
  released.last = {channel, stamp};
}

SharedClock BlockClocks::past(unsigned me) {
  auto past = std::make_shared<const Clock>(of(me));
  tick(me);  // later accesses are not released with it
  return past;
}

unsigned BlockClocks::channel(const void* of, bool loads) {
  auto& channels = launch_.channels;
  const auto next = static_cast<unsigned>(2 * total_ + 2 * channels.size());
  extended_ = true;
  const auto [known, fresh] = channels.try_emplace(of, next);
  if (fresh && loads) launch_.load_channels.push_back(known->second);
  return known->second;
}

void BlockClocks::learn(unsigned id, unsigned entry, Stamp stamp) {
  ThreadClock& me = threads_[id];
  if (has(me.clock, entry, stamp)) return;
  if (learnt_.one != entry || learnt_.other != stamp || learnt_.from != me.clock) {
    Clock clock;
    if (me.clock) clock = *me.clock;
    raise(clock, entry, stamp);
    learnt_ = {me.clock, std::make_shared<const Clock>(std::move(clock)), nullptr, entry, stamp};
  }
  me.clock = learnt_.result;
}

// --- fences --------------------------------------------------------------------------------------

void BlockClocks::fence(unsigned id) {
  launch_.fences = true;
  ThreadClock& me = threads_[id];
  me.fenced = std::make_shared<const Fenced>(Fenced{of(id), me.seen ? *me.seen : SeenTickets()});
  tick(id);  // later accesses are not fenced
}

void BlockClocks::use_ticket(unsigned id, uint64_t word) {
  if (!launch_.fences) return;
  ThreadClock& me = threads_[id];
  me.seen = launch_.tickets.use(word, block_ / blocks_, ++launch_.now, me.fenced, me.seen);
}

Stamp BlockClocks::proxy_fence(unsigned id, bool device) {
  ThreadClock& me = threads_[id];
  if (device) at_device_fence_[id] = me;
  const Stamp covers = me.stamp;
  tick(id);  // the fence does not cover later accesses
  if (device) {
    launch_.device_fences[thread_of(block_, entry(id))].push_back({covers, me.stamp});
  } else {
    me.proxied = covers;
    extended_ = true;
  }
  return me.stamp;
}

}  // namespace sim::races
