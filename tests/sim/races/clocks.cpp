// Who is ordered before whom (clocks.h, tickets.h), without a kernel.
#include "common/sim/observers/races/clocks.h"

#include "tests/test.h"

using namespace sim::races;

namespace {

constexpr uint32_t kTwoWarps[32] = {~0u, ~0u};
const int object = 0, other_object = 0;

/// Blocks of 64 threads, one after the other.
struct Blocks {
  LaunchClocks launch;
  BlockClocks first{launch}, second{launch};
  /// Does what thread `a` does now happen before the next step of `b`?
  static bool before(const BlockClocks& of_a, unsigned a, const BlockClocks& of_b, unsigned b) {
    return of_b.sees(b, of_a.entry(a), of_a[a].stamp);
  }
};

}  // namespace

TEST_CASE("clocks: a barrier orders a block, __syncwarp its lanes", "[races][clocks]") {
  Blocks g;
  BlockClocks& block = g.first;
  block.begin(0, 0, 1, 64);
  const Stamp zero = block[0].stamp;
  CHECK(block.sees(0, 0, zero));  // a thread's own past
  CHECK_FALSE(block.sees(1, 0, zero));

  block.warp_sync(0, 0b011);
  CHECK(block.sees(1, 0, zero));
  CHECK_FALSE(block.sees(2, 0, zero));
  CHECK_FALSE(Blocks::before(block, 0, block, 1));  // what follows has a new stamp

  const Stamp then = block[0].stamp;
  block.barrier(kTwoWarps, kTwoWarps, nullptr);
  CHECK(block.sees(63, 0, then));
  CHECK_FALSE(Blocks::before(block, 0, block, 63));

  const uint32_t half[32] = {~0u};
  const Stamp now = block[0].stamp;
  block.barrier(half, kTwoWarps, nullptr);  // a named barrier of one warp
  CHECK(block.sees(31, 0, now));
  CHECK_FALSE(block.sees(32, 0, now));
}

TEST_CASE("clocks: an arrival hands over what came before it", "[races][clocks]") {
  Blocks g;
  BlockClocks& block = g.first;
  block.begin(0, 0, 1, 64);
  const Stamp zero = block[0].stamp, one = block[1].stamp;
  CHECK(block.acquire(40, &object, 1) == nullptr);
  block.release(0, &object, 0);
  CHECK(block.acquire(40, &object, 0) == nullptr);  // phase 0 is not complete
  block.release(1, &object, 1);
  REQUIRE(block.acquire(40, &object, 1));
  CHECK(block.sees(40, 0, zero));
  CHECK_FALSE(block.sees(40, 1, one));  // in the next phase
  CHECK_FALSE(Blocks::before(block, 0, block, 40));
  REQUIRE(block.acquire(40, &object, 2));
  CHECK(block.sees(40, 1, one));

  // bar.arrive: those that wait learn of those that do not, once.
  const Stamp late = block[33].stamp, early = block[2].stamp;
  const uint32_t warp[32] = {~0u};
  block.release(33, &other_object, 0);
  block.barrier(warp, kTwoWarps, &other_object);
  CHECK(block.sees(5, 33, late));
  CHECK_FALSE(block.sees(33, 2, early));
  CHECK(g.launch.objects.count(&other_object) == 0);
}

TEST_CASE("clocks: a wait must be ordered after the phase before its own", "[races][clocks]") {
  Blocks g;
  BlockClocks& block = g.first;
  block.begin(0, 0, 1, 64);
  for (uint32_t phase = 0; phase < 4; ++phase) block.release(0, &object, phase);
  for (const uint32_t begun : {0, 1}) CHECK_FALSE(block.may_end_early(40, &object, begun));
  CHECK(block.may_end_early(40, &object, 4));  // phase 3 has ended: so has phase 1
  CHECK(block.may_end_early(40, &object, 3));
  CHECK_FALSE(block.may_end_early(0, &object, 4));  // its own arrivals

  block.acquire(40, &object, 3);
  CHECK_FALSE(block.may_end_early(40, &object, 4));
  block.warp_sync(1, ~0u);  // by way of another thread
  CHECK_FALSE(block.may_end_early(41, &object, 4));
  block.acquire(4, &object, 3, true);  // a relaxed wait orders nothing, but it has ended
  CHECK_FALSE(block.may_end_early(4, &object, 4));

  const int third = 0;
  for (uint32_t phase = 0; phase < 2; ++phase) block.release(0, &third, phase);
  block.acquire(40, &third, 2);
  block.warp_sync(1, ~0u);
  block.release(0, &third, 2);
  CHECK_FALSE(block.may_end_early(41, &third, 3));  // it sees the end of phase 1
  block.release(0, &third, 3);
  CHECK_FALSE(block.may_end_early(41, &third, 3));
  CHECK(block.may_end_early(41, &third, 4));  // and not that of phase 2

  const unsigned load = block.channel(&other_object, true);
  for (uint32_t phase = 0; phase < 3; ++phase) {
    block.complete(block.past(0), load, block.tick(), &other_object, phase);
  }
  CHECK(block.may_end_early(0, &other_object, 3));  // who issued a load does not see its end
}

TEST_CASE("clocks: a relaxed arrival hands over reads alone", "[races][clocks]") {
  Blocks g;
  BlockClocks& block = g.first;
  block.begin(0, 0, 1, 64);
  const unsigned load = block.channel(&object, true), store = block.channel(&g, false);
  CHECK(load >= 2 * block.entries());
  CHECK(store >= load + 2);
  block.learn(0, load, 7);
  block.learn(0, store, 7);
  const Stamp zero = block[0].stamp;
  block.release_relaxed(0, &object, 0);
  block.acquire(40, &object, 1, true);
  CHECK(block.sees_read(40, 0, zero));
  CHECK_FALSE(block.sees(40, 0, zero));
  CHECK_FALSE(block.any_has(load, 8));
  CHECK_FALSE(has(block[40].clock, load, 7));  // what a load brought is not visible
  CHECK(has(block[40].clock, store, 7));
}

TEST_CASE("clocks: the blocks of a cluster know each other's threads", "[races][clocks]") {
  Blocks g;
  g.first.begin(6, 0, 2, 40);  // padded to 64
  g.second.begin(7, 1, 2, 40);
  CHECK(g.second.entry(1) == 65);
  CHECK(g.first.entries() == 128);
  CHECK(g.first.block_of(65) == 7);
  CHECK(g.second.is_near(6));
  CHECK_FALSE(g.second.is_near(5));
  CHECK(&g.first.of_entry(65) == &g.second[1]);
  const Stamp zero = g.first[0].stamp;
  g.first.release(0, &object, 0);
  CHECK_FALSE(g.second.sees(3, 0, zero));
  g.second.acquire(3, &object, 1);
  CHECK(g.second.sees(3, 0, zero));
  CHECK(has(g.second.all(), 0, zero));
  CHECK_FALSE(has(g.second.all(), 0, zero + 100));
}

TEST_CASE("tickets: __threadfence and an atomic on one word order blocks", "[races][clocks]") {
  constexpr uint64_t kData = 5, kWord = 8, kOther = 9;
  Blocks g;
  g.first.begin(0, 0, 1, 64);
  const Stamp zero = g.first[0].stamp;
  g.first.use_ticket(0, kWord);  // nothing was fenced
  g.first.fence(0);
  const Stamp late = g.first[0].stamp;
  g.first.use_ticket(0, kWord);

  g.second.begin(1, 0, 1, 64);
  CHECK_FALSE(g.second.sees_across(g.second[2], 0, 0, zero, kData, false));
  g.second.use_ticket(2, kOther);
  CHECK_FALSE(g.second.sees_across(g.second[2], 0, 0, zero, kData, false));
  g.second.use_ticket(2, kWord);
  CHECK(g.second.sees_across(g.second[2], 0, 0, zero, kData, false));
  CHECK_FALSE(g.second.sees_across(g.second[2], 0, 0, late, kData, false));  // after the fence
  CHECK(g.second.sees_across(g.second[2], 0, 0, late, kWord, true));  // atomics on the word itself
  CHECK_FALSE(g.second.sees_across(g.second[3], 0, 0, zero, kData, false));
  g.second.barrier(kTwoWarps, kTwoWarps, nullptr);
  CHECK(g.second.sees_across(g.second[3], 0, 0, zero, kData, false));

  // A third block learns of the first one from the second.
  g.second.fence(3);
  g.second.use_ticket(3, kOther);
  BlockClocks third(g.launch);
  third.begin(2, 0, 1, 64);
  third.use_ticket(1, kOther);
  CHECK(third.sees_across(third[1], 0, 0, zero, kData, false));
}

TEST_CASE("clocks: fence.proxy.async covers what its thread stored before it", "[races][clocks]") {
  Blocks g;
  BlockClocks& block = g.first;
  block.begin(0, 0, 1, 64);
  const Stamp zero = block[0].stamp;
  CHECK_FALSE(block.proxied(0, 0, zero));
  block.proxy_fence(0, false);
  const Stamp after = block[0].stamp;
  CHECK(block.proxied(0, 0, zero));
  CHECK_FALSE(block.proxied(0, 0, after));
  CHECK_FALSE(block.proxied(1, 0, zero));
  block.barrier(kTwoWarps, kTwoWarps, nullptr);
  CHECK(block.proxied(1, 0, zero));
  CHECK_FALSE(block.proxied(1, 0, after));

  // For device memory: by the thread that stored, before the barrier, ...
  const Stamp stored = block[0].stamp, unfenced = block[5].stamp;
  block.proxy_fence(0, true);
  CHECK_FALSE(block.device_proxied(1, 0, 0, stored, 0, false));
  block.barrier(kTwoWarps, kTwoWarps, nullptr);
  CHECK(block.device_proxied(1, 0, 0, stored, 0, false));
  // ... or by the one that issues, after it.
  CHECK_FALSE(block.device_proxied(1, 0, 5, unfenced, 0, false));
  block.proxy_fence(1, true);
  CHECK(block.device_proxied(1, 0, 5, unfenced, 0, false));
}
