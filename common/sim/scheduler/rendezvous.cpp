// Where threads meet: __syncthreads and named barriers, and the lanes of a warp.
#include <cstring>

#include "common/sim/scheduler/scheduler.h"

namespace sim {

namespace {

bool same(const Where& a, const Where& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// One more thread at `barrier`; the last one runs `last` and lets all go on.
template <class F>
void arrive(Barrier& barrier, const char* what, bool wait, const Where& where, F&& last) {
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
  if (++barrier.arrived < barrier.expected) {
    if (wait) wait_here(what, where);
    return;
  }
  barrier.arrived = 0;
  last();
  for (unsigned w = 0; w < b.nwarps; ++w) {
    for (uint32_t m = barrier.waiting[w]; m; m &= m - 1) {
      b.threads[w * 32 + std::countr_zero(m)].state = State::ready;
    }
    b.ready[w] |= barrier.waiting[w];
    barrier.waiting[w] = barrier.here[w] = 0;
  }
  if (wait) {
    b.ready[warp] &= ~bit;
    yield_from(0);
  }
}

void tell_observers(Block& b, const Barrier& barrier) {
  for (auto& o : b.observers) o->barrier(b, barrier.waiting, &barrier);
}

}  // namespace

void sync_block(Where where) {
  Block& b = *self;
  Barrier& barrier = b.barriers[0];
  if (barrier.arrived == 0) {
    barrier.expected = static_cast<int>(b.nthreads);
    barrier.first = where;
  } else if (!same(barrier.first, where)) {
    fail("divergent barrier: " + here() + " is at the __syncthreads of " + at(where) +
         " while other threads of the block wait at the __syncthreads of " + at(barrier.first) +
         "; all threads of a block must reach the same one");
  }
  arrive(barrier, "__syncthreads", true, where, [&] { tell_observers(b, barrier); });
}

void sync_named(int id, int threads, bool wait, Where where) {
  Block& b = *self;
  const char* what = wait ? "bar.sync" : "bar.arrive";
  if (id < 0 || id > 15)
    fail(here() + ": " + what + " at " + at(where) + " of barrier " + std::to_string(id) +
         "; a block has barriers 0 to 15");
  if (threads <= 0 || threads % 32)
    fail(here() + ": " + what + " at " + at(where) + " with " + std::to_string(threads) +
         " threads, which is not a multiple of a warp");
  Barrier& barrier = b.barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.first = where;
  } else if (barrier.expected != threads) {
    fail(here() + ": barrier " + std::to_string(id) + " is used with " + std::to_string(threads) +
         " threads at " + at(where) + " but with " + std::to_string(barrier.expected) + " at " +
         at(barrier.first));
  }
  arrive(barrier, what, wait, where, [&] { tell_observers(b, barrier); });
}

void meet(Barrier& barrier, const char* what, int count, const std::function<void()>& last,
          const Where& where) {
  if (barrier.arrived == 0) {
    barrier.expected = count;
    barrier.first = where;
  }
  arrive(barrier, what, true, where, last);
}

void meet_in_warp(const char* what, uint32_t mask, WarpFn work, void* frame, const Where& where) {
  Block& b = *self;
  Thread& me = *b.current;
  const unsigned warp = me.id / 32, lane = me.id % 32;
  mask &= b.member[warp];  // the last warp of an odd-sized block has fewer lanes
  if (!(mask >> lane & 1)) {
    fail(here() + " calls " + what + " at " + at(where) +
         " with a mask that does not contain its own lane");
  }
  WarpMeeting* meeting = nullptr;
  for (WarpMeeting& m : b.meetings[warp]) {
    if (m.arrived && (m.mask & mask)) meeting = &m;
  }
  if (!meeting) {
    for (WarpMeeting& m : b.meetings[warp]) {
      if (!m.arrived) meeting = &m;
    }
    if (!meeting) fail(here() + ": more than four groups of lanes meet in one warp at a time");
    meeting->mask = mask;
    meeting->work = work;
    meeting->what = what;
    meeting->where = where;
    meeting->warp = warp;
  } else if (meeting->work != work || meeting->mask != mask || !same(meeting->where, where)) {
    fail("divergent warp operation: " + here() + " calls " + what + " at " + at(where) +
         " while other lanes of the warp wait at the " + meeting->what + " of " +
         at(meeting->where));
  }
  meeting->frame[lane] = frame;
  meeting->arrived |= 1u << lane;
  if (meeting->arrived != mask) {
    wait_here(what, where);
    return;
  }
  work(*meeting);
  meeting->arrived = 0;
  const uint32_t others = mask & ~(1u << lane);
  for (uint32_t m = others; m; m &= m - 1) {
    b.threads[warp * 32 + std::countr_zero(m)].state = State::ready;
  }
  b.ready[warp] |= others;
  if (others) yield_from(warp * 32);
}

}  // namespace sim
