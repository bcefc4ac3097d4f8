// Races with TMA and wgmma, which access shared memory through the async proxy.
//
// An operation lasts from its issue to its completion. Until its completion is visible to a thread,
// the thread must not touch what the operation writes, nor write what it reads. Completions are
// entries of the vector clocks, so barriers and mbarriers pass them on like anything else:
//
//   TMA load    writes until the phase of its mbarrier is complete: visible by a wait on it
//   wgmma       reads its operands until wgmma_wait, by each thread of the warpgroup
//   tcgen05.mma reads its operands until the mbarrier of a tcgen05.commit: visible by a wait on it
//   TMA store   reads until tma_store_wait_read, and has written the tensor at tma_store_wait, by
//               the thread that issued it
//
// Before an operation reads what a thread stored, that thread must have executed fence.proxy.async
// after the store. The fences are entries of the clocks, too. Where a load overwrites what threads
// read or wrote in shared memory, order is enough, as in CUTLASS.
//
// Device memory that threads of the launch have stored to needs a fence before a load reads it or a
// bulk store overwrites it, on either side. Between blocks the memory model requires it on the side
// of the load; published kernels have it on both.
//
// An mbarrier that a load will signal must have been made visible to TMA by the thread that
// initialised it: by fence.mbarrier_init, or within its block by fence.proxy.async. For arrivals of
// threads order is enough, also of other blocks: the cluster's barrier releases and acquires.
//
// What is not found: a missing fence.proxy.async before an operation of another block (except a
// product of two blocks) or before a bulk reduction; wgmma reading words that no thread wrote; a
// TMA load that still reads device memory; of two bulk stores, or products of tcgen05, by different
// threads that read the same bytes, the earlier one.
#include <algorithm>

#include "common/sim/observers/races.h"

namespace sim {

namespace {
constexpr unsigned kStoreReads = 8;  // AsyncWord::reads, after the warpgroups

uint64_t first_word(const Access& a) { return a.at / kWord; }
uint64_t end_word(const Access& a) { return (a.at + a.size + kWord - 1) / kWord; }
}  // namespace

// --- operations ----------------------------------------------------------------------------------

void RaceObserver::begin_async() {
  first_ += static_cast<uint32_t>(operations_.size());
  operations_.clear();
  loads_.clear();
  waits_.clear();
  learnt_ = {};
}

uint32_t RaceObserver::new_operation(Block& b, RaceObserver& by, Operation::Engine engine,
                                     const void* channel_of, const Where& where) {
  if (!async_) async_ = std::make_unique<LazyArray<AsyncWord>>(b.shared_size / kWord + 1);
  extended_ = by.extended_ = true;
  auto& channels = launch_state.channels;
  const auto next = static_cast<unsigned>(2 * total_ + 2 * channels.size());
  const auto [known, fresh] = channels.try_emplace(channel_of, next);
  const unsigned channel = known->second;
  if (fresh && engine == Operation::load) launch_state.load_channels.push_back(channel);
  operations_.push_back(
      {engine, where, by.entry(b.current->id), channel, ++launch_state.now, nullptr, {}, {}});
  return first_ + static_cast<uint32_t>(operations_.size()) - 1;
}

// The completion will release what is visible to the thread now, not what it does from now on.
void RaceObserver::keep_past(unsigned thread, Operation& o) {
  ThreadState& me = threads_[thread];
  Clock past;
  add(past, thread, me);
  o.past = std::make_shared<const Clock>(std::move(past));
  me.stamp = ++launch_state.now;
}

const Operation* RaceObserver::find(uint32_t number) const {
  return number < first_ ? nullptr : &operations_[number - first_];
}

uint32_t RaceObserver::issue_load(Block& b, const Access& a, fa::Swizzle swizzle, const void* bar,
                                  const Where& where) {
  auto& home = observer_of<RaceObserver>(*a.home);
  const Actor actor{"TMA load into", &where};
  if (a.home != &b) check_neighbour(b, a, home, actor);
  check_init(b, bar, {"TMA load that signals", &where});
  for (uint64_t word = first_word(a); word < end_word(a); ++word) {
    home.for_each_cell(word, [&](const SharedRow& row, uint64_t byte) {
      const SharedCell& w = row.cell;
      home.check_writer(*this, b, a, byte, w, actor);
      if (w.read > home.block_floor_) home.check_readers(b, *this, a, byte, row, actor);
    });
    if (home.word_of(word).async) home.check_async(*this, b, a, word, true, actor);
  }
  const uint32_t number = home.new_operation(b, *this, Operation::load, bar, where);
  for (uint64_t word = first_word(a); word < end_word(a); ++word) {
    home.word_of(word) = {.wrote = home.block_floor_,
                          .read = 0,
                          .pc = 0,
                          .thread = static_cast<uint16_t>(home.base_),
                          .stored = false,
                          .atomic = false,
                          .in_flight = false,
                          .async = true,
                          .split = false};
    (*home.async_)[word] = {number, {}};
  }
  home.loads_[bar].last = number;
  home.operations_.back().swizzle = swizzle;
  keep_past(b.current->id, home.operations_.back());
  return number;
}

void RaceObserver::landed(Block&, uint32_t number, const void* bar, uint32_t phase) {
  findings.compare();
  Operation& o = operations_[number - first_];
  Released& released = open(bar, phase);
  if (o.past) raise(released.clock, *o.past);
  set(released.clock, o.channel, o.stamp);
  o.past.reset();
}

void RaceObserver::note_waited(const void* object, const Clock& clock) {
  if (loads_.empty()) return;
  const auto found = loads_.find(object);
  if (found == loads_.end()) return;
  const unsigned channel = find(found->second.last)->channel;
  if (channel < clock.size()) found->second.waited = clock[channel];
}

// All loads must have been waited for: a block that ends leaves its shared memory to the next one.
void RaceObserver::check_loads(const Block& b) {
  uint32_t first = 0;
  const void* signalled = nullptr;
  for (const auto& [bar, loads] : loads_) {
    const Operation& last = *find(loads.last);
    const auto knows = [&](const ThreadState& t) { return has(t.clock, last.channel, last.stamp); };
    if (last.stamp <= loads.waited || std::any_of(threads_.begin(), threads_.end(), knows))
      continue;
    if (first && loads.last > first) continue;
    first = loads.last;
    signalled = bar;
  }
  if (!first) return;
  Findings::Finding& finding = findings.at(Fault::left_behind, {nullptr, &find(first)->where}, {});
  if (!finding.text.empty()) return;
  finding.text = "kernel " + spoken(kernel_name(*b.launch)) + ", block " +
                 block_index(b, b.linear) + " ends without a wait for " +
                 describe(b, *find(first)) + other_phase(signalled, *find(first)) +
                 ": the load may write after the block has left its shared memory to another one";
}

uint32_t RaceObserver::issue_wgmma(Block& b, uint32_t number, const std::vector<uint32_t>& chunks,
                                   const void* pc, const Where& where) {
  constexpr unsigned kChunk = 16, kThreads = 128;
  const unsigned thread = b.current->id, group = thread / kThreads, me = entry(thread);
  const Actor actor{"wgmma that reads", &where};
  Access a = engine_access(b, 0, kChunk, Kind::load, pc);
  const ThreadState& mine = threads_[thread];
  if (number) {  // the operands are known: check only what must be visible to this thread
    for (const Operation::Need& need : operations_[number - first_].needs) {
      const bool knows = need.entry - total_ < total_
                             ? fenced_for_async(mine, me, need.entry - total_, need.stamp)
                             : need.entry == me || sees(mine, need.entry, need.stamp);
      if (knows) continue;
      a.at = need.word * kWord;
      check_before_read(*this, b, a, need.word, actor);
    }
    return number;
  }
  number = new_operation(b, *this, Operation::wgmma, &b.threads[group * kThreads].state, where);
  auto& needs = operations_.back().needs;
  const auto need = [&](unsigned entry, Stamp stamp, uint64_t word) {
    if (entry >= need_at_.size()) need_at_.resize(entry + 1);
    uint32_t& at = need_at_[entry];
    if (at == 0) {
      needs.push_back({entry, stamp, word});
      at = static_cast<uint32_t>(needs.size());
    } else if (stamp > needs[at - 1].stamp) {
      needs[at - 1] = {entry, stamp, word};
    }
  };
  for (const uint32_t chunk : chunks) {
    a.at = chunk;
    for (uint64_t word = chunk / kWord; word < (chunk + kChunk) / kWord; ++word) {
      check_before_read(*this, b, a, word, actor);
      for_each_cell(word, [&](const SharedRow& row, uint64_t) {
        const SharedCell& w = row.cell;
        if (!w.stored || w.wrote <= block_floor_) return;
        need(w.thread, w.wrote, word);
        if (w.thread - base_ < padded_) need(total_ + w.thread, w.wrote, word);
      });
      SharedCell& w = word_of(word);
      AsyncWord& async = (*async_)[word];
      if (!w.async) async = {};
      if (const Operation* load = find(async.write)) need(load->channel, load->stamp, word);
      async.reads[group] = number;
      w.async = true;
    }
  }
  for (const auto& n : needs) need_at_[n.entry] = 0;
  return number;
}

uint32_t RaceObserver::issue_store(Block& b, const Access& a, const Where& where) {
  const Actor actor{"TMA store that reads", &where};
  for (uint64_t word = first_word(a); word < end_word(a); ++word) {
    if (!is_written(word)) {
      report_unwritten(a, word * kWord, actor, "which this block has not written yet");
    }
    check_before_read(*this, b, a, word, actor);
  }
  const uint32_t number =
      new_operation(b, *this, Operation::store, &b.threads[b.current->id].id, where);
  for (uint64_t word = first_word(a); word < end_word(a); ++word) {
    SharedCell& w = word_of(word);
    AsyncWord& async = (*async_)[word];
    if (!w.async) async = {};
    async.reads[kStoreReads] = number;
    w.async = true;
  }
  store_entry_ = operations_.back().channel + 1;
  store_stamp_ = operations_.back().stamp;
  return number;
}

void RaceObserver::finished(Block& b, uint32_t number, bool written) {
  if (!find(number)) return;
  Operation& o = operations_[number - first_];
  o.needs = {};
  ThreadState& me = threads_[b.current->id];
  learn(me, o.channel, o.stamp);
  if (written) learn(me, o.channel + 1, o.stamp);
}

void RaceObserver::learn(ThreadState& me, unsigned entry, Stamp stamp) {
  if (has(me.clock, entry, stamp)) return;
  if (learnt_.entry != entry || learnt_.stamp != stamp || learnt_.from != me.clock) {
    Clock clock;
    if (me.clock) clock = *me.clock;
    set(clock, entry, stamp);
    learnt_ = {me.clock, std::make_shared<const Clock>(std::move(clock)), entry, stamp};
  }
  me.clock = learnt_.result;
}

// --- the proxies' fence --------------------------------------------------------------------------

void RaceObserver::proxy_fence(Block& b, ProxyFence of) {
  ThreadState& me = threads_[b.current->id];
  if (of == ProxyFence::device) at_device_fence_[b.current->id] = me;
  const Stamp covers = me.stamp;
  me.stamp = ++launch_state.now;  // later accesses are not fenced
  if (of == ProxyFence::device) {
    launch_state.device_fences[thread_of(b.linear, entry(b.current->id))].push_back(
        {covers, me.stamp});
    return;
  }
  me.proxied = covers;
  extended_ = true;
  if (hidden_inits_) show_inits(b, me.stamp, false);
}

void RaceObserver::init_fence(Block& b) {
  ThreadState& me = threads_[b.current->id];
  me.stamp = ++launch_state.now;
  show_inits(b, me.stamp, true);
}

bool RaceObserver::fenced_for_async(const ThreadState& mine, unsigned me, unsigned writer,
                                    Stamp stamp) const {
  return (writer == me && stamp <= mine.proxied) || has(mine.clock, total_ + writer, stamp);
}

void RaceObserver::init_barrier(Block& b, const void* bar, const Where& where) {
  inits_[bar] = {where, entry(b.current->id), 0, 0};
  hidden_inits_ = true;
}

// A fence of the current thread, with this stamp, makes its initialised mbarriers visible.
void RaceObserver::show_inits(const Block& b, Stamp fence, bool to_cluster) {
  hidden_inits_ = false;
  for (auto& [bar, init] : inits_) {
    if (init.thread == entry(b.current->id)) {
      if (!init.shown) init.shown = fence;
      if (to_cluster && !init.shown_to_cluster) init.shown_to_cluster = fence;
    }
    hidden_inits_ |= !init.shown;
  }
}

// --- checks --------------------------------------------------------------------------------------

// The current thread, of this observer, uses an mbarrier of the cluster, which must be visible.
void RaceObserver::check_init(const Block& b, const void* bar, const Actor& actor) const {
  Block& home = *home_of(bar);
  const auto& inits = observer_of<RaceObserver>(home).inits_;
  const auto found = inits.find(bar);
  if (found == inits.end()) return;
  const Init& init = found->second;
  const Stamp shown = &home == &b ? init.shown : init.shown_to_cluster;
  const bool mine = init.thread == entry(b.current->id);
  if (shown && (mine || sees(threads_[b.current->id], init.thread, shown))) return;
  Findings::Finding& finding =
      findings.at(Fault::shared_race, {nullptr, actor.where}, {nullptr, &init.where});
  if (!finding.text.empty()) return;
  const Access a = engine_access(home, reinterpret_cast<uintptr_t>(bar) - home.shared_base,
                                 sizeof(uint64_t), Kind::atomic, nullptr);
  finding.text = race_sentence(
      a, a.at, actor,
      "its mbarrier.init by " + who(b, init.thread, padded_) + " at " + at(init.where),
      "no fence.mbarrier_init (mbarrier_init_fence by the thread that initialised, "
      "before the barrier)");
}

// A TMA load reads, or a bulk store overwrites, what a thread of the launch stored before.
void RaceObserver::check_device_fence(const Block& b, const Access& a, uint64_t byte,
                                      const DeviceCell& w) const {
  if (w.wrote_by >= total_) return;  // a bulk store: the same proxy
  const unsigned me = entry(b.current->id);
  const uint64_t cluster = blocks_of_cluster(b);
  const bool near = w.wrote_block / cluster == b.linear / cluster;
  const auto knows = [&](const ThreadState& thread, Stamp stamp, bool atomic) {
    if (near && w.wrote_by == me && w.wrote_block == b.linear) return stamp <= thread.stamp;
    return (near && sees(thread, w.wrote_by, stamp)) ||
           ordered_across_blocks(thread, b, w.wrote_block, w.wrote_by, stamp, byte / kWord, atomic);
  };
  const auto mine = at_device_fence_.find(b.current->id);
  if (mine != at_device_fence_.end() && knows(mine->second, w.wrote, w.atomic)) return;
  const auto theirs = launch_state.device_fences.find(thread_of(w.wrote_block, w.wrote_by));
  if (theirs != launch_state.device_fences.end()) {
    const auto first = std::lower_bound(
        theirs->second.begin(), theirs->second.end(), w.wrote,
        [](const DeviceFence& fence, Stamp stamp) { return fence.covers < stamp; });
    if (first != theirs->second.end() && knows(threads_[b.current->id], first->seen, false)) return;
  }
  const bool reads = a.kind == Kind::load;
  const Actor actor{reads ? "TMA load that reads" : "bulk store that overwrites"};
  if (auto* finding = note_race(a, byte, actor, {widen(w.wrote_pc, a.pc), nullptr}, false)) {
    finding->text = race_sentence(
        a, byte, actor,
        earlier_across(b, a, w.atomic ? Kind::atomic : Kind::store, w.wrote_block, w.wrote_by,
                       w.wrote_pc),
        "no fence.proxy.async for device memory (fence_proxy_async_global by the storing thread, "
        "before the barrier, or after it by the thread that issues)");
  }
}

// The last thread's store to the word or byte must happen before.
bool RaceObserver::check_writer(const RaceObserver& by, const Block& b, const Access& a,
                                uint64_t byte, const SharedCell& w, const Actor& actor) const {
  const unsigned me = by.entry(b.current->id);
  const bool ordered = w.thread == me || w.wrote <= block_floor_ ||
                       by.sees(by.threads_[b.current->id], w.thread, w.wrote);
  if ((ordered || !w.stored) && !w.in_flight) return true;
  const bool stores = !actor.words && a.kind == Kind::store && !w.atomic && !w.in_flight;
  race_with(b, a, byte, actor, w.atomic ? Kind::atomic : Kind::store, w.thread, w.pc,
            w.in_flight && ordered ? "no cp.async wait" : "no barrier", stores);
  return false;
}

// The current thread, of the observer `by`, issues an operation that reads the word.
void RaceObserver::check_before_read(const RaceObserver& by, const Block& b, const Access& a,
                                     uint64_t word, const Actor& actor) {
  const unsigned me = by.entry(b.current->id);
  const ThreadState& mine = by.threads_[b.current->id];
  for_each_cell(word, [&](const SharedRow& row, uint64_t byte) {
    const SharedCell& w = row.cell;
    if (!check_writer(by, b, a, byte, w, actor)) return;
    if (!w.stored || w.wrote <= block_floor_ || w.thread - base_ >= padded_ ||
        fenced_for_async(mine, me, w.thread, w.wrote)) {
      return;
    }
    race_with(b, a, byte, actor, w.atomic ? Kind::atomic : Kind::store, w.thread, w.pc,
              w.thread == me ? "no fence.proxy.async (fence_proxy_async)"
                             : "no fence.proxy.async (fence_proxy_async by the storing thread, "
                               "before the barrier)");
  });
  if (word_of(word).async) check_async(by, b, a, word, false, actor);
}

void RaceObserver::check_async(const RaceObserver& by, const Block& b, const Access& a,
                               uint64_t word, bool writes, const Actor& actor) const {
  const ThreadState& mine = by.threads_[b.current->id];
  const AsyncWord& async = (*async_)[word];
  const auto check = [&](uint32_t number) {
    const Operation* o = find(number);
    if (!o || has(mine.clock, o->channel, o->stamp)) return;
    const bool too_early = actor.words && writes && o->engine != Operation::load;
    if (auto* finding = note_race(a, word * kWord, actor, {nullptr, &o->where}, false)) {
      finding->text = race_sentence(a, word * kWord, actor, describe(b, *o), missing(by, b, *o),
                                    too_early ? ": it is overwritten too early" : "");
    }
  };
  check(async.write);
  if (!writes) return;
  for (const uint32_t read : async.reads) check(read);
}

// --- sentences -----------------------------------------------------------------------------------

std::string RaceObserver::describe(const Block& b, const Operation& o) const {
  static const char* const kWhat[] = {"TMA load by ",   "wgmma by the warpgroup of ",
                                      "TMA store by ",  "tcgen05.mma by ",
                                      "tcgen05.ld by ", "tcgen05.st by "};
  std::string who_issued = who(b, o.issuer, padded_);
  if (o.engine == Operation::tensor_load || o.engine == Operation::tensor_store) {
    const unsigned rank = o.issuer / padded_;
    who_issued = "warp " + std::to_string(o.issuer % padded_ / 32);
    if (rank != b.rank) who_issued += " of block " + block_index(b, b.linear - b.rank + rank);
  }
  return std::string("a ") + kWhat[o.engine] + who_issued + " at " + at(o.where);
}

void RaceObserver::waited(Block& b, const void* bar, int parity, const Where& where) {
  waits_[bar] = {where, parity, launch_state.now, threads_[b.current->id].clock};
}

std::string RaceObserver::other_phase(const void* bar, const Operation& o) const {
  const auto found = waits_.find(bar);
  if (found == waits_.end()) return "";
  const Wait& wait = found->second;
  if (wait.when < o.stamp || has(wait.knows, o.channel, o.stamp)) return "";
  return " (the wait at " + at(wait.where) + ", for parity " + std::to_string(wait.parity) +
         ", is for another phase)";
}

std::string RaceObserver::missing(const RaceObserver& by, const Block& b, const Operation& o) {
  const unsigned me = by.entry(b.current->id);
  const std::string handed_on = ", then a barrier or an mbarrier)";
  switch (o.engine) {
    case Operation::load: {
      for (const auto& [bar, channel] : launch_state.channels) {
        const Block* home = channel == o.channel ? home_of(bar) : nullptr;
        if (!home) continue;
        return "no wait on its mbarrier" + observer_of<RaceObserver>(*home).other_phase(bar, o);
      }
      return "no wait on its mbarrier";
    }
    case Operation::wgmma:
      return me / 128 == o.issuer / 128 ? "no wgmma_wait" : "no order (wgmma_wait" + handed_on;
    case Operation::store:
      return me == o.issuer ? "no tma_store_wait_read"
                            : "no order (tma_store_wait_read" + handed_on;
    case Operation::product:
      return "no wait on the mbarrier of a tcgen05_commit";
    case Operation::tensor_load:
    case Operation::tensor_store:
      break;  // not on shared memory
  }
  __builtin_unreachable();
}

void RaceObserver::leave_store(Block&, const Where& where) {
  Findings::Finding& finding = findings.at(Fault::left_behind, {nullptr, &where}, {});
  if (!finding.text.empty()) return;
  finding.text = here() + " returns while its TMA store at " + at(where) +
                 " may still read shared memory; tma_store_wait_read<0>() must come first";
}

void RaceObserver::remark(Block&, const Where& where, const std::string& sentence) {
  Findings::Finding& finding = findings.at(Fault::remark, {nullptr, &where}, {});
  if (finding.text.empty()) finding.text = sentence;
}

// --- registers -----------------------------------------------------------------------------------

void RaceObserver::touch_busy(Block&, RegisterUse use, size_t element, Kind kind, const void* pc,
                              const Where& user) {
  // Right, but the compiler waits first.
  const bool slow = kind == Kind::load && use == RegisterUse::a;
  Findings::Finding& finding = findings.at(slow ? Fault::register_read : Fault::register_race,
                                           {pc, nullptr}, {nullptr, &user});
  if (!finding.text.empty()) return;
  const std::string access = here() + ": " + (kind == Kind::load ? "load" : "store") + " of " +
                             (use == RegisterUse::a ? "A's registers" : "the accumulators") +
                             ", element " + std::to_string(element) + ", at " +
                             source_and_caller(pc);
  if (slow) {
    finding.text = access + " before a wgmma_wait for the wgmma at " + at(user) +
                   ": the compiler moves it after that wait, so it does not overlap with the "
                   "product";
    return;
  }
  finding.text = "race on registers: " + access + " and the wgmma at " + at(user) +
                 " have no wgmma_wait between them";
}

}  // namespace sim
