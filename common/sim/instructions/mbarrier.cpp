// mbarrier: a phase completes when all its arrivals have come and all its bytes have landed.

#include "common/sim/instructions/async.h"

namespace sim {

namespace {

constexpr int kMaxCount = (1 << 20) - 1;

// The copy of the state in the kernel's 8 bytes.
uint64_t packed(const Mbarrier& m) {
  return (static_cast<uint64_t>(m.phase & 1) << 63) | (static_cast<uint64_t>(m.expected) << 42) |
         (static_cast<uint64_t>(m.pending) << 21) | (static_cast<uint64_t>(m.tx) & 0x1fffff);
}

void store(uint64_t* bar, const Mbarrier& m) { *bar = packed(m); }

// Completes the phase when nothing is missing.
void settle(uint64_t* bar, Mbarrier& m) {
  if (m.pending == 0 && m.tx == 0) {
    ++m.phase;
    m.pending = m.expected;
    std::fill(std::begin(m.refused), std::end(m.refused), 0);
    for (auto [block, thread] : m.waiters) {
      block->tries_in_vain = 0;
      wake(*block, thread);
    }
    m.waiters.clear();
    self->tries_in_vain = 0;
  }
  store(bar, m);
}

std::string name_of(const Block& home, const void* bar) {
  return shared_name(home, reinterpret_cast<uintptr_t>(bar) - home.shared_base);
}

// The initialised mbarrier at `bar`, wherever in the cluster it is.
Mbarrier& find(uint64_t* bar, const char* what, const Where& where) {
  Block* home = home_of(bar);
  if (!home)
    fail(FaultKind::out_of_bounds,
         here() + ": " + what + " at " + at(where) + " of an mbarrier outside shared memory");
  auto& all = async_of(*home).mbarriers;
  const auto found = all.find(bar);
  if (found == all.end()) {
    refuse(what, where, ", but the mbarrier is not initialised (" + name_of(*home, bar) + ")");
  }
  if (*bar != packed(found->second)) {
    refuse(what, where,
           ", but something has overwritten the mbarrier (" + name_of(*home, bar) + ")");
  }
  return found->second;
}

// \returns whether the phase is complete. With `tries` false is possible: at once for the first try
// in a phase, as on a GPU, later as late as possible.
bool wait(uint64_t* bar, int parity, bool tries, Order order, const Where& where, const void* pc) {
  const char* what = "mbarrier wait";
  need_own_shared("the mbarrier wait", bar, sizeof *bar, alignof(uint64_t), where);
  // The current phase has parity phase & 1: while that is the requested one, it is not complete.
  const auto complete = [&] {
    return (find(bar, what, where).phase & 1) != static_cast<uint32_t>(parity & 1);
  };
  if (tries && !complete()) {
    uint32_t& lanes = find(bar, what, where).refused[self->current->id / 32];
    const uint32_t me = 1u << self->current->id % 32;
    if (!(lanes & me)) {
      lanes |= me;
      return false;
    }
  }
  access(bar, sizeof *bar, Kind::atomic, pc, By::mbarrier);
  const std::pair<Block*, unsigned> me{self, self->current->id};
  while (!complete()) {
    find(bar, what, where).waiters.push_back(me);
    self->current->tries = tries;
    wait_here(what, where);
    self->current->tries = false;
    if (tries && !complete()) {
      std::erase(find(bar, what, where).waiters, me);
      return false;
    }
  }
  const uint32_t phase = find(bar, what, where).phase;
  for (auto& o : self->observers) {
    if (order.relaxed) {
      o->acquire_relaxed(*self, bar, phase);
    } else {
      o->acquire(*self, bar, phase);
      o->waited(*self, bar, parity & 1, where);
    }
  }
  return true;
}

}  // namespace

void mbarrier_init(uint64_t* bar, int count, Where where) {
  need_own_shared("mbarrier.init", bar, sizeof *bar, alignof(uint64_t), where);
  if (count < 1 || count > kMaxCount) {
    refuse("mbarrier.init", where,
           " with a count of " + std::to_string(count) + "; 1 to " + std::to_string(kMaxCount) +
               " are possible");
  }
  auto& all = async_of(*self).mbarriers;
  if (all.count(bar)) {
    refuse("mbarrier.init", where,
           " of an mbarrier in use (" + name_of(*self, bar) + "); mbarrier.inval must come first");
  }
  access(bar, sizeof *bar, Kind::store, __builtin_return_address(0), By::mbarrier);
  for (auto& o : self->observers) o->init_barrier(*self, bar, where);
  Mbarrier& m = all[bar];
  m.expected = m.pending = count;
  store(bar, m);
}

void mbarrier_init_fence() {
  for (auto& o : self->observers) o->init_fence(*self);
}

void mbarrier_inval(uint64_t* bar, Where where) {
  const Mbarrier& m = find(bar, "mbarrier.inval", where);
  if (!m.waiters.empty()) refuse("mbarrier.inval", where, " while threads wait for the mbarrier");
  access(bar, sizeof *bar, Kind::store, __builtin_return_address(0), By::mbarrier);
  async_of(*self).mbarriers.erase(bar);
}

void mbarrier_arrive(uint64_t* bar, int bytes, Where where, Order order, int count) {
  const char* what = bytes ? "mbarrier.arrive.expect_tx" : "mbarrier.arrive";
  Mbarrier& m = find(bar, what, where);
  if (bytes < 0 || bytes > kMaxCount) {
    refuse(what, where,
           " of " + std::to_string(bytes) + " bytes; 0 to " + std::to_string(kMaxCount) +
               " are possible");
  }
  if (count < 1) refuse(what, where, " with a count of " + std::to_string(count));
  if (m.pending < count) {
    fail(FaultKind::refused, here() + ": one arrival too many: " + what + " at " + at(where) +
                                 " in a phase that has all its " + std::to_string(m.expected) +
                                 " arrivals");
  }
  access(bar, sizeof *bar, Kind::atomic, __builtin_return_address(0), By::mbarrier);
  for (auto& o : self->observers) {
    order.relaxed ? o->release_relaxed(*self, bar, m.phase) : o->release(*self, bar, m.phase);
  }
  m.tx += bytes;
  m.pending -= count;
  settle(bar, m);
}

void mbarrier_expect(uint64_t* bar, int bytes, Where where) {
  Mbarrier& m = find(bar, "mbarrier.expect_tx", where);
  access(bar, sizeof *bar, Kind::atomic, __builtin_return_address(0), By::mbarrier);
  m.tx += bytes;
  store(bar, m);
}

void mbarrier_wait(uint64_t* bar, int parity, Where where) {
  wait(bar, parity, false, {}, where, __builtin_return_address(0));
}

bool mbarrier_try_wait(uint64_t* bar, int parity, Where where, Order order) {
  return wait(bar, parity, true, order, where, __builtin_return_address(0));
}

void need_mbarrier(uint64_t* bar, const char* what, const Where& where) {
  need_own_shared(what, bar, sizeof *bar, alignof(uint64_t), where);
  find(bar, what, where);
}

uint32_t mbarrier_phase(Block& home, const void* bar) {
  const auto& all = async_of(home).mbarriers;
  const auto found = all.find(bar);
  return found == all.end() ? 0 : found->second.phase;
}

void mbarrier_arrive_later(Block& home, uint64_t* bar, const Where& where) {
  auto& all = async_of(home).mbarriers;
  const auto found = all.find(bar);
  if (found == all.end()) return;  // as below
  Mbarrier& m = found->second;
  if (home.live == 0) {
    fail(FaultKind::refused, "kernel " + spoken(kernel_name(*home.launch)) +
                                 ": a block ends before the " + "tcgen05.commit at " + at(where) +
                                 " has arrived at its mbarrier (" + name_of(home, bar) +
                                 "): a wait on it must come first");
  }
  if (m.pending == 0) {
    fail(FaultKind::refused, "kernel " + spoken(kernel_name(*home.launch)) +
                                 ": one arrival too many: tcgen05.commit at " + at(where) +
                                 " in a phase that has all its " + std::to_string(m.expected) +
                                 " arrivals");
  }
  --m.pending;
  settle(bar, m);
}

void mbarrier_complete_tx(Block& home, uint64_t* bar, int64_t bytes) {
  auto& all = async_of(home).mbarriers;
  const auto found = all.find(bar);
  if (found == all.end()) return;  // invalidated while the copy was in flight: no thread can wait
  found->second.tx -= bytes;
  settle(bar, found->second);
}

}  // namespace sim
