// Where threads meet: __syncthreads and named barriers, and the lanes of a warp. Returned threads
// are not waited for: __syncthreads waits for the block's threads, and __syncwarp and similar for
// the mask's lanes, that have not returned (PTX, exit and bar). Only a barrier with a count is not
// reduced: an arriving warp counts 32, returned lanes included.
#include <bit>
#include <cstring>
#include <utility>

#include "common/sim/messages/messages.h"
#include "common/sim/scheduler/scheduler.h"

namespace sim {

namespace {

bool same(Where a, Where b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// A warp arrives as a whole and counts 32, even when some of its lanes have returned.
[[gnu::noinline]] bool complete_by_count(const Block& b, const Barrier& barrier) {
  int n = barrier.arrived;
  for (unsigned w = 0; b.live < 32 * b.nwarps && w < b.nwarps; ++w) {
    const uint32_t here = barrier.here[w];
    if (here && !(b.alive[w] & ~here)) n += 32 - std::popcount(here);
  }
  return n >= barrier.expected;
}

bool complete(const Block& b, const Barrier& barrier) {
  if (barrier.expected != Barrier::kAll) return complete_by_count(b, barrier);
  return barrier.arrived == static_cast<int>(b.live);
}

[[gnu::noinline]] void let_go(Block& b, Barrier& barrier) {
  barrier.arrived = 0;
  barrier.counted = barrier.votes;
  for (unsigned w = 0; w < b.nwarps; ++w) {
    b.ready[w] |= barrier.waiting[w];
    barrier.waiting[w] = barrier.here[w] = 0;
  }
}

// One more thread arrives at `barrier`; the last one runs `last` and wakes all. The calls of
// wait_here() are tail calls, so that a waiting thread's stack is few cache lines.
void arrive(Barrier& barrier, const char* what, bool wait, Where where, auto&& last) {
  Block& b = *self;
  Thread& me = *b.current;
  const unsigned warp = me.id / 32;
  const uint32_t bit = 1u << (me.id % 32);
  barrier.here[warp] |= bit;
  if (wait) {
    barrier.waiting[warp] |= bit;
  } else {
    for (auto& o : b.observers) o->release(b, &barrier, 0);
  }
  ++barrier.arrived;
  if (!complete(b, barrier)) {
    if (wait) wait_here(what, where);
    return;
  }
  last();
  let_go(b, barrier);
  if (wait) {
    b.ready[warp] &= ~bit;
    yield_from(0);
  }
}

// Threads at the end of the kernel's text while others are at its barrier: wrong in any program.
void tell_skipped(const Block& b, const std::string& what, const Where& where, unsigned warp,
                  uint32_t lanes) {
  std::vector<unsigned> ids;
  const bool all = warp == b.nwarps;
  for (unsigned w = all ? 0 : warp; w < (all ? b.nwarps : warp + 1); ++w) {
    for (uint32_t left = lanes & b.at_end[w] & ~b.alive[w]; left; left &= left - 1) {
      ids.push_back(w * 32 + std::countr_zero(left));
    }
  }
  if (ids.empty()) return;
  remark(where, block_name(b) + ": " + (ids.size() == 1 ? "thread " : "threads ") + runs_of(ids) +
                    " never reached the " + what + " of " + at(where) +
                    " and ended: they count as arrived here; CUDA leaves it undefined");
}

// A thread that has returned counts as arrived, at a barrier with a count if its warp has: its
// earlier work is visible after the barrier. Work after its own arrival is not.
[[gnu::noinline]] void tell_observers(Block& b, const Barrier& barrier) {
  uint32_t met[32] = {};
  for (unsigned w = 0; w < b.nwarps; ++w) {
    const bool with_returned = barrier.expected == Barrier::kAll || barrier.here[w];
    met[w] =
        barrier.waiting[w] | (with_returned ? b.member[w] & ~b.alive[w] & ~barrier.here[w] : 0);
  }
  for (auto& o : b.observers) o->barrier(b, met, &barrier);
  ++b.phase;
  if (b.any_at_end && barrier.expected == Barrier::kAll) {
    tell_skipped(b, barrier.name, barrier.first, b.nwarps, ~0u);
  }
}

// No other lane of the warp can run: those that wait at this line have reached it together.
void let_converged_go(Block& b, unsigned warp, const Where& where) {
  uint32_t lanes = 0;
  for (uint32_t left = b.converging[warp]; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (same(b.threads[warp * 32 + lane].where, where)) lanes |= 1u << lane;
  }
  for (uint32_t left = lanes; left; left &= left - 1) {
    Thread& t = b.threads[warp * 32 + std::countr_zero(left)];
    t.converged = lanes;
  }
  b.converging[warp] &= ~lanes;
  b.ready[warp] |= lanes;
}

// All lanes have arrived, or returned.
void finish(Block& b, WarpMeeting& m) {
  m.work(m);
  if (b.any_at_end) tell_skipped(b, m.what, m.where, m.warp, m.given);
  b.ready[m.warp] |= std::exchange(m.arrived, 0);
}

[[noreturn, gnu::noinline]] void refuse_divergent(const Barrier& barrier, const char* name,
                                                  Where where) {
  fail(FaultKind::deadlock, "divergent barrier: " + here() + " is at the " + name + " of " +
                                at(where) + " while other threads of the block wait at the " +
                                barrier.name + " of " + at(barrier.first) +
                                "; all threads of a block must reach the same one");
}
[[noreturn, gnu::noinline]] void refuse_divergent(const WarpMeeting& other, const char* what,
                                                  Where where) {
  fail(FaultKind::deadlock, "divergent warp operation: " + here() + " calls " + what + " at " +
                                at(where) + " while other lanes of the warp wait at the " +
                                other.what + " of " + at(other.where));
}
[[noreturn, gnu::noinline]] void refuse_mask(const char* what, Where where) {
  fail(FaultKind::refused, here() + " calls " + what + " at " + at(where) +
                               " with a mask that does not contain its own lane");
}

}  // namespace

void sync_block(Where where, const char* name) {
  Block& b = *self;
  Barrier& barrier = b.barriers[0];
  if (barrier.arrived == 0) {
    barrier.expected = Barrier::kAll;
    barrier.first = where;
    barrier.name = name;
  } else if (!same(barrier.first, where)) {
    refuse_divergent(barrier, name, where);
  }
  arrive(barrier, name, true, where, [&] { tell_observers(b, barrier); });
}

int count_in_block(bool predicate, Where where) {
  Barrier& barrier = self->barriers[0];
  if (barrier.arrived == 0) barrier.votes = 0;
  barrier.votes += predicate;
  sync_block(where, "__syncthreads_count");
  return barrier.counted;
}

void sync_named(int id, int threads, bool wait, Where where) {
  Block& b = *self;
  const char* what = wait ? "bar.sync" : "bar.arrive";
  if (id < 0 || id > 15)
    refuse(what, where, " of barrier " + std::to_string(id) + "; a block has barriers 0 to 15");
  if (threads <= 0 || threads % 32)
    refuse(what, where,
           " with " + std::to_string(threads) + " threads, which is not a multiple of a warp");
  b.named_barriers = true;
  Barrier& barrier = b.barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.first = where;
  } else if (barrier.expected != threads) {
    fail(FaultKind::refused, here() + ": barrier " + std::to_string(id) + " is used with " +
                                 std::to_string(threads) + " threads at " + at(where) +
                                 " but with " + std::to_string(barrier.expected) + " at " +
                                 at(barrier.first));
  }
  arrive(barrier, what, wait, where, [&] { tell_observers(b, barrier); });
}

void meet(Barrier& barrier, const char* what, int count, const std::function<void()>& last,
          Where where) {
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.first = where;
  }
  arrive(barrier, what, true, where, last);
}

void meet_in_warp(const char* what, uint32_t mask, WarpFn work, void* frame, Where where) {
  Block& b = *self;
  Thread& me = *b.current;
  const unsigned warp = me.id / 32, lane = me.id % 32;
  const uint32_t given = mask;
  mask &= b.alive[warp];  // a partial last warp has fewer lanes
  if (!(mask >> lane & 1)) {
    refuse_mask(what, where);
  }
  WarpMeeting *meeting = nullptr, *unused = nullptr;
  for (WarpMeeting& m : b.meetings[warp]) {
    if (!m.arrived) {
      unused = &m;
    } else if (m.mask == mask && m.work == work && same(m.where, where)) {
      meeting = &m;
    } else if ((m.mask >> lane & 1) && (m.arrived & mask)) {  // each waits for the other
      refuse_divergent(m, what, where);
    }
  }
  if (!meeting) {
    meeting = unused ? unused : &b.meetings[warp].emplace_back();
    meeting->mask = mask;
    meeting->given = given;
    meeting->work = work;
    meeting->what = what;
    meeting->where = where;
    meeting->warp = warp;
  }
  meeting->frame[lane] = frame;
  meeting->arrived |= 1u << lane;
  if (meeting->arrived != mask) {
    wait_here(what, where);
    return;
  }
  finish(b, *meeting);
  b.ready[warp] &= ~(1u << lane);
  if (mask != 1u << lane) yield_from(warp * 32);
}

void reached_end() {
  self->at_end[self->current->id / 32] |= 1u << self->current->id % 32;
  self->any_at_end = true;
}

uint32_t converged_lanes(Where where) {
  Block& b = *self;
  Thread& me = *b.current;
  const unsigned warp = me.id / 32;
  b.converging[warp] |= 1u << (me.id % 32);
  if (b.ready[warp]) {
    wait_here("__activemask", where);
  } else {
    me.where = where;
    let_converged_go(b, warp, where);
    b.ready[warp] &= ~(1u << (me.id % 32));
    yield_from(warp * 32);
  }
  return me.converged;
}

bool let_converged_go(Block& b) {
  for (unsigned w = 0; w < b.nwarps; ++w) {
    if (!b.converging[w]) continue;
    let_converged_go(b, w, b.threads[w * 32 + std::countr_zero(b.converging[w])].where);
    return true;
  }
  return false;
}

void stop_waiting_for_current(Block& b) {
  const unsigned warp = b.current->id / 32, lane = b.current->id % 32;
  for (WarpMeeting& m : b.meetings[warp]) {
    if (!m.arrived || !(m.mask >> lane & 1)) continue;
    m.mask &= ~(1u << lane);
    if (m.arrived == m.mask) finish(b, m);
  }
  for (int id = 0; id < (b.named_barriers ? 16 : 1); ++id) {
    Barrier& barrier = b.barriers[id];
    if (!barrier.arrived || !complete(b, barrier)) continue;
    tell_observers(b, barrier);
    let_go(b, barrier);
  }
}

}  // namespace sim
