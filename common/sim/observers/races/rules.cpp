// What is not found: a load that races with a later store when other loads of the same word or byte
// (shared: by the same warp) are between them; in device memory, an atomic that races with a later
// plain access when other atomics on the same word are between them.
#include "common/sim/observers/races/rules.h"

#include <bit>

namespace sim::races {

void Rules::race(const Use& use, uint64_t byte, const Past& past, Missing missing,
                 bool in_flight) const {
  const bool both = use.access.kind == Kind::store && past.kind == Kind::store && !use.words;
  const bool by_thread = !in_flight && past.entry < own_.clocks.entries();  // not by a bulk store
  faults_.race({use, byte, missing, past, both && by_thread && missing == Missing::order});
}

Past Rules::now(const Access& a, unsigned thread) const {
  const BlockClocks& own = own_.clocks;
  return {a.kind,    own.block(),         own.entry(thread), own[thread].stamp,
          low(a.pc), a.by == By::mbarrier};
}
Past Rules::past(const SharedCell& w) const {
  return {w.atomic ? Kind::atomic : Kind::store, own_.clocks.block_of(w.thread), w.thread, w.wrote,
          w.pc};
}

void Rules::note_unwritten(History& history, const Use& use, uint64_t byte) const {
  constexpr size_t kWatched = 100'000;  // reads beyond these are not explained by a race
  const size_t finding = faults_.unwritten(use, byte);
  if (history.unwritten.size() >= kWatched) return;
  const Access& a = use.access;
  const uint64_t word = byte / kWord;
  history.unwritten.insert(
      {word, {finding, now(a, use.thread), bytes_of_word(a.at, a.size, word)}});
}

// Before a store, which explains the reads that are not ordered before it.
void Rules::explain(History& history, const Use& use, uint64_t byte, auto&& ordered) const {
  auto& all = history.unwritten;
  const Access& a = use.access;
  const uint8_t stored = bytes_of_word(a.at, a.size, byte / kWord);
  for (auto [it, end] = all.equal_range(byte / kWord); it != end;) {
    const UnwrittenRead& read = it->second;
    const bool both_atomic = a.kind == Kind::atomic && read.past.kind == Kind::atomic;
    if (!(read.bytes & stored) || both_atomic || ordered(read.past)) {
      ++it;
      continue;
    }
    race(use, byte, read.past);
    faults_.explained(read.finding);
    it = all.erase(it);
  }
}

// Atomics are ordered among themselves, but each must also be ordered after the last plain store.
// `last`: the latest store, which may be an atomic; `stored`: in this launch (shared: block).
[[gnu::noinline]] void Rules::check_under_atomics(History& history, const Use& use, uint64_t byte,
                                                  const Past& last, bool stored,
                                                  auto&& ordered) const {
  auto& under = history.under_atomics;
  if (last.kind == Kind::store) {
    if (stored) under[byte] = last;
  } else if (const auto found = under.find(byte); found != under.end()) {
    if (!ordered(found->second)) race(use, byte, found->second);
  }
}

// --- shared memory -------------------------------------------------------------------------------

[[gnu::always_inline]] inline void Rules::access_cell(BlockParts& home, const Access& a,
                                                      unsigned thread, uint64_t byte,
                                                      const SharedRow& row) {
  const BlockClocks& clocks = own_.clocks;
  const ThreadClock& mine = clocks[thread];
  const Stamp begun = home.memory.begun();
  SharedCell& w = row.cell;
  const bool ordered = clocks.sees(thread, w.thread, w.wrote) || w.wrote < begun;
  if (w.in_flight) {
    check_writer(home, {a, thread}, byte, w);
  } else {
    if (a.kind != Kind::store && w.wrote < begun) {
      note_unwritten(home.memory, {a, thread}, byte);
    }
    if (!ordered && w.stored && !(w.atomic && a.kind == Kind::atomic)) {
      check_writer(home, {a, thread}, byte, w);
    }
    if (w.atomic && a.kind != Kind::atomic) check_atomics(home, {a, thread}, byte);
  }
  if (a.kind == Kind::load) {
    row.note_load(clocks.entry(thread), mine.stamp, a.pc);
    return;
  }
  const Stamp visible = clocks.cluster_size() > 1 ? begun : mine.floor;  // for all entries
  if (w.read > visible) check_readers(home, {a, thread}, byte, row);
  if (!home.memory.unwritten.empty()) [[unlikely]] {
    explain(home.memory, {a, thread}, byte,
            [&](const Past& p) { return clocks.sees_read(thread, p.entry, p.stamp); });
  }
  if (a.kind == Kind::atomic) {
    check_under_atomics(home.memory, {a, thread}, byte, past(w), w.stored && w.wrote > begun,
                        [&](const Past& p) { return clocks.sees(thread, p.entry, p.stamp); });
    if (w.atomic && w.wrote > begun) home.memory.keep_atomic(byte, w, visible);
  }
  w.note_store(clocks.entry(thread), mine.stamp, a.pc, a.kind == Kind::atomic);
}

[[gnu::noinline]] void Rules::access_bytes(BlockParts& home, const Access& a, unsigned thread,
                                           uint64_t word, uint8_t bytes) {
  if (!home.memory.word(word).cell.split) home.memory.split(word);
  for (unsigned i = 0; i < kWord; ++i) {
    const uint64_t byte = word * kWord + i;
    if (bytes >> i & 1) access_cell(home, a, thread, byte, home.memory.byte(byte));
  }
  if (bytes == kAllBytes && a.kind == Kind::store) home.memory.unite(word);
}

[[gnu::always_inline]] inline void Rules::access_word(BlockParts& home, const Access& a,
                                                      unsigned thread, uint64_t word,
                                                      uint8_t bytes) {
  const SharedRow row = home.memory.word(word);
  const SharedCell& w = row.cell;
  if (w.async) [[unlikely]] {
    check_operations(home, {a, thread}, word, a.kind != Kind::load);
  }
  if (bytes == kAllBytes && !w.split) [[likely]] {
    access_cell(home, a, thread, word * kWord, row);
  } else {
    access_bytes(home, a, thread, word, bytes);
  }
}

void Rules::access_shared(BlockParts& home, const Access& a, unsigned thread) {
  if (&home != &own_) home.memory.note_guest(now(a, thread));
  for_each_word(a,
                [&](uint64_t word, uint8_t bytes) { access_word(home, a, thread, word, bytes); });
}

void Rules::begin_copy(const Access& a, unsigned thread) {
  for_each_word(a, [&](uint64_t word, uint8_t) {
    access_word(own_, a, thread, word, kAllBytes);
    own_.memory.mark_in_flight(word, true);
  });
}
void Rules::end_copy(const Access& a) {
  for_each_word(a, [&](uint64_t word, uint8_t) { own_.memory.mark_in_flight(word, false); });
}

bool Rules::check_writer(const BlockParts& home, const Use& use, uint64_t byte,
                         const SharedCell& w) const {
  const bool ordered =
      w.wrote <= home.memory.begun() || own_.clocks.sees(use.thread, w.thread, w.wrote);
  if ((ordered || !w.stored) && !w.in_flight) return true;
  race(use, byte, past(w), w.in_flight && ordered ? Missing::copy_wait : Missing::order,
       w.in_flight);
  return false;
}

void Rules::check_readers(const BlockParts& home, const Use& use, uint64_t byte,
                          const SharedRow& row) const {
  const BlockClocks& clocks = own_.clocks;
  const unsigned me = clocks.entry(use.thread);
  const uint32_t pc = low(use.access.pc);
  for (unsigned w = 0; w < home.memory.warps(); ++w) {
    const SharedRead& r = row.read(w);
    if (r.stamp <= home.memory.begun()) continue;
    if (clocks.is_own(w * 32) && r.stamp <= clocks[use.thread].floor) continue;
    for (uint32_t m = r.lanes; m; m &= m - 1) {
      const unsigned other = w * 32 + std::countr_zero(m);
      if (clocks.sees_read(use.thread, other, r.stamp)) continue;
      // `s[t] += x` also loads, shortly before the store: the racing load is another lane's.
      const bool mine_too = me / 32 == w && r.lanes >> me % 32 & 1;
      const bool first = mine_too && pc - r.first_pc > pc - r.pc;
      race(use, byte,
           {Kind::load, clocks.block_of(other), other, r.stamp, first ? r.first_pc : r.pc});
      break;  // the other lanes have the same line
    }
  }
}

// A plain access must be ordered after each atomic.
void Rules::check_atomics(BlockParts& home, const Use& use, uint64_t byte) {
  auto& atomics = home.memory.atomics;
  const auto found = atomics.find(byte);
  if (found == atomics.end()) return;
  for (const auto& [entry, one] : found->second.by_thread) {
    if (own_.clocks.sees(use.thread, entry, one.stamp)) continue;
    race(use, byte, one);
    break;  // the other threads' are mostly at the same line
  }
  if (use.access.kind == Kind::store) atomics.erase(found);
}

void Rules::check_operations(const BlockParts& home, const Use& use, uint64_t word, bool writes,
                             bool adds) const {
  const LatestOperations& latest = home.operations.of_word(word);
  const auto check = [&](uint32_t number) {
    const Operation* o = home.operations.find(number);
    if (!o || o->is_visible(own_.clocks[use.thread])) return;
    if (adds && o->engine == Operation::load && o->sender->adds) return;
    faults_.race({.use = use,
                  .byte = word * kWord,
                  .missing = Missing::completion,
                  .where = &o->where,
                  .operation = o,
                  .wait = home.operations.for_other_phase(*o)});
  };
  check(latest.write);
  if (const Operation* o = home.operations.find(latest.write); o && o->sender->adds) {
    for (const uint32_t earlier : home.operations.reductions.at(word)) check(earlier);
  }
  if (!writes) return;
  for (const uint32_t read : latest.reads) check(read);
}

void Rules::check_neighbour(const BlockParts& home, const Use& use, bool ended) const {
  if (ended) return faults_.absent(use, true);
  const SharedClock& clock = own_.clocks[use.thread].clock;
  for (unsigned t = 0; t < home.clocks.threads(); ++t) {
    if (has(clock, home.clocks.entry(t), home.clocks.begun() + 1)) return;
  }
  faults_.absent(use, false);
}

void Rules::end_block() const {
  if (own_.memory.guests.empty()) return;
  const BlockClocks& clocks = own_.clocks;
  const Clock all = clocks.all();
  for (const auto& [user, guest] : own_.memory.guests) {
    const auto [entry, done_if_counted] = user;  // also by a relaxed arrival
    if (has(all, entry, guest.stamp)) continue;
    if (done_if_counted && clocks.has_read(all, entry, guest.stamp)) continue;
    faults_.left(guest);
  }
}

// --- device memory -------------------------------------------------------------------------------

// Most words that a kernel loads are not stored to in the same launch.
inline bool Rules::note_plain_load(const Access& a, unsigned thread, uint64_t word) {
  DeviceCell& w = device_.words[word];
  if (a.kind != Kind::load || w.wrote || w.split) return false;
  const BlockClocks& own = own_.clocks;
  w.note_load(static_cast<uint32_t>(own.block()), own.entry(thread), own[thread].stamp, a.pc);
  return true;
}

void Rules::access_device(const Access& a, unsigned thread) {
  const uint64_t word = a.at / kWord;
  if (a.size == kWord && a.at % kWord == 0 && written_[word] == kAllBytes &&
      note_plain_load(a, thread, word)) {
    return;
  }
  device_words(a, thread);
}

[[gnu::noinline]] void Rules::device_words(const Access& a, unsigned thread) {
  if (a.kind != Kind::store) {
    for_each_word(a, [&](uint64_t word, uint8_t bytes) {
      if (const unsigned missing = bytes & ~written_[word]) {
        note_unwritten(device_, {a, thread}, word * kWord + std::countr_zero(missing));
      }
    });
  }
  // An atomic of 16 bytes is data: it returns no old value that would tell which was first.
  if (a.kind == Kind::atomic && a.size <= 8) own_.clocks.use_ticket(thread, a.at / kWord);
  for_each_word(a, [&](uint64_t word, uint8_t bytes) {
    if (bytes == kAllBytes && note_plain_load(a, thread, word)) return;
    device_word(a, thread, word, bytes);
  });
}

[[gnu::noinline]] void Rules::device_word(const Access& a, unsigned thread, uint64_t word,
                                          uint8_t bytes) {
  DeviceCell& w = device_.words[word];
  if (bytes == kAllBytes && !w.split) [[likely]] {
    device_cell(a, thread, word * kWord, w);
    return;
  }
  DeviceCell* cells = device_.split(word);
  for (unsigned i = 0; i < kWord; ++i) {
    if (bytes >> i & 1) device_cell(a, thread, word * kWord + i, cells[i]);
  }
  if (bytes == kAllBytes && a.kind == Kind::store) device_.unite(word);
}

[[gnu::always_inline]] inline void Rules::device_cell(const Access& a, unsigned thread,
                                                      uint64_t byte, DeviceCell& w) {
  const BlockClocks& clocks = own_.clocks;
  const Stamp now = clocks[thread].stamp;
  const Use use{a, thread};
  const auto block = static_cast<uint32_t>(clocks.block());
  const auto ordered = [&](const Past& p) {
    return (clocks.is_near(p.block) &&
            (p.kind == Kind::load ? clocks.sees_read(thread, p.entry, p.stamp)
                                  : clocks.sees(thread, p.entry, p.stamp))) ||
           clocks.sees_across(clocks[thread], p.block, p.entry, p.stamp, byte / kWord,
                              p.kind == Kind::atomic);
  };
  if (w.wrote && !(w.atomic && a.kind == Kind::atomic)) {
    const Past p = w.last_write();
    if (!ordered(p)) {
      race(use, byte, p);
    } else if (a.by == By::engine && a.kind != Kind::atomic && w.wrote_by < clocks.entries() &&
               !clocks.device_proxied(thread, p.block, p.entry, p.stamp, byte / kWord, w.atomic)) {
      const bool reads = a.kind == Kind::load;
      race({a, thread, reads ? "TMA load that reads" : "bulk store that overwrites"}, byte, p,
           Missing::device_proxy_fence);
    }
  }
  if (a.kind == Kind::load) {
    return w.note_load(block, clocks.entry(thread), now, a.pc);
  }
  if (w.read && !ordered(w.last_read())) {
    race(use, byte, w.last_read());
  } else if (w.also_read && !ordered(w.other_read())) {
    race(use, byte, w.other_read());
  }
  if (!device_.unwritten.empty()) [[unlikely]] {
    explain(device_, use, byte, ordered);
  }
  if (a.kind == Kind::atomic) {
    check_under_atomics(device_, use, byte, w.last_write(), w.wrote, ordered);
  }
  if (a.by == By::engine && a.kind == Kind::store) [[unlikely]] {  // a bulk store, just issued
    const Operation& store = own_.operations.last();
    return w.note_store(block, store.channel + 1, store.stamp, a.pc, false);
  }
  w.note_store(block, clocks.entry(thread), now, a.pc, a.kind == Kind::atomic);
}

// The wait may also be one by another thread of the cluster.
void Rules::check_preceding(const Access& a, unsigned thread) {
  const uint64_t end = a.at + a.size;
  for (uint64_t byte = a.at; byte < end; ++byte) {
    const DeviceCell& cell = launch_.preceding->cell(byte);
    const bool stored = cell.wrote && !(cell.atomic && a.kind == Kind::atomic);
    if (!stored && (a.kind == Kind::load || !cell.read)) continue;
    for (const auto& [entry, when] : launch_.waited) {
      if (own_.clocks.sees(thread, entry, when)) return;
    }
    return race({a, thread}, byte, stored ? cell.last_write() : cell.last_read(),
                Missing::kernel_wait);
  }
}

}  // namespace sim::races
