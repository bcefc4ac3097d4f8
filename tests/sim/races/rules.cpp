// Which pairs of accesses are faults (rules.h, async_rules.h, tensor_rules.h), without a kernel.
#include "common/sim/observers/races/rules.h"

#include "common/sim/observers/races/tensor_rules.h"
#include "tests/test.h"

using namespace sim::races;
using sim::Access;
using sim::Kind;
using sim::Space;
using sim::TensorUse;

namespace {

constexpr uint32_t kTwoWarps[32] = {~0u, ~0u};
const sim::Where kWhere{"k.cuh", 7};

/// Says in a word each what it hears.
struct Heard final : Faults {
  std::string said;
  void say(Missing what, const char* more) {
    static const char* const kMissing[] = {
        "order",  "copy",   "completion", "proxy",        "own proxy", "device", "init",   "kernel",
        "fences", "commit", "wait",       "other's wait", "before",    "after",  "barrier"};
    said += std::string(kMissing[static_cast<int>(what)]) + more;
  }
  void race(const Race& r) override { say(r.missing, r.stores ? " of stores; " : "; "); }
  size_t unwritten(const Use&, uint64_t) override { return said += "unwritten; ", 0; }
  void explained(size_t) override { said += "explained; "; }
  void absent(const Use&, bool ended) override { said += ended ? "ended; " : "not begun; "; }
  void left(const Past&) override { said += "left; "; }
  void left(const Operation&, const Wait*) override { said += "load left; "; }
  void other_swizzle(const sim::SharedOperand&, const sim::races::Issue&,
                     const Operation&) override {
    said += "swizzle; ";
  }
  void tensor_race(const TensorPlace&, const Operation&, Missing what) override { say(what, "; "); }
  void tensor_unwritten(const TensorPlace&) override { said += "unwritten column; "; }
  std::string take() { return std::exchange(said, ""); }
};

uint8_t written[64];  // by word of device memory

/// A block of 64 threads, one of so many in its cluster.
struct OneBlock {
  OneBlock(LaunchParts& launch, uint64_t block, unsigned rank = 0, unsigned blocks = 1)
      : launch(launch), parts{BlockClocks(launch.clocks), {}, Operations(launch.waits)} {
    parts.clocks.begin(block, rank, blocks, 64);
    parts.memory.begin(parts.clocks.begun(), 256, blocks * 2);
    parts.operations.begin(256);
  }
  LaunchParts& launch;
  BlockParts parts;
  Heard heard;
  uint8_t* bits = written;
  Rules rules{parts, launch, heard, bits};
  AsyncRules async{parts, rules, heard};
  TensorRules tensor{parts, async, heard};

  static Access at(uint64_t byte, uint32_t size, Kind kind, Space space = Space::shared) {
    Access a{};
    a.at = byte, a.size = size, a.kind = kind, a.space = space;
    return a;
  }
  std::string shared(unsigned thread, Kind kind, uint64_t byte = 8, uint32_t size = 4) {
    rules.access_shared(parts, at(byte, size, kind), thread);
    return heard.take();
  }
  std::string device(unsigned thread, Kind kind, uint64_t byte = 8, uint32_t size = 4) {
    rules.access_device(at(byte, size, kind, Space::hbm), thread);
    return heard.take();
  }
  void barrier() { parts.clocks.barrier(kTwoWarps, kTwoWarps, nullptr); }
};

}  // namespace

TEST_CASE("rules: two accesses, one of them a store, without order", "[races][rules]") {
  for (const bool on_device : {false, true}) {
    CAPTURE(on_device);
    std::fill(std::begin(written), std::end(written), sim::kAllBytes);
    for (const Kind earlier : {Kind::load, Kind::store, Kind::atomic}) {
      for (const Kind later : {Kind::load, Kind::store, Kind::atomic}) {
        LaunchParts launch;
        OneBlock block(launch, 0);
        const auto access = [&](unsigned thread, Kind kind, uint64_t byte) {
          return on_device ? block.device(thread, kind, byte) : block.shared(thread, kind, byte);
        };
        for (const uint64_t byte : {8, 16, 24}) access(0, Kind::store, byte);
        block.barrier();
        const bool race = earlier != later ? true : earlier == Kind::store;
        const std::string what = !race ? ""
                                 : earlier == Kind::store && later == Kind::store
                                     ? "order of stores; "
                                     : "order; ";
        CHECK(access(0, earlier, 8) == "");
        CHECK(access(33, later, 8) == what);
        CHECK(access(0, earlier, 16) == "");
        CHECK(access(0, later, 16) == "");  // one thread
        CHECK(access(0, earlier, 24) == "");
        block.barrier();
        CHECK(access(33, later, 24) == "");
      }
    }
  }
}

TEST_CASE("rules: bytes of a word are places of their own", "[races][rules]") {
  std::fill(std::begin(written), std::end(written), sim::kAllBytes);
  LaunchParts launch;
  OneBlock block(launch, 0);
  CHECK(block.shared(0, Kind::store, 8, 1) == "");
  CHECK(block.shared(33, Kind::store, 9, 1) == "");
  CHECK(block.shared(34, Kind::load, 8, 2) == "order; order; ");
  CHECK(block.device(0, Kind::store, 8, 1) == "");
  CHECK(block.device(33, Kind::store, 9, 1) == "");
  CHECK(block.device(34, Kind::load, 9, 1) == "order; ");
}

TEST_CASE("rules: a read of what was not written, which a later store explains", "[races][rules]") {
  std::fill(std::begin(written), std::end(written), uint8_t{0b0011});
  LaunchParts launch;
  OneBlock block(launch, 0);
  CHECK(block.shared(0, Kind::load) == "unwritten; ");
  CHECK(block.shared(0, Kind::store) == "");  // its own
  CHECK(block.shared(1, Kind::load, 12) == "unwritten; ");
  CHECK(block.shared(0, Kind::store, 12) == "order; order; explained; ");
  CHECK(block.device(0, Kind::load, 16, 2) == "");
  CHECK(block.device(0, Kind::load, 8) == "unwritten; ");
  CHECK(block.device(1, Kind::store, 8) == "order; order; explained; ");
}

TEST_CASE("rules: cp.async writes until its wait", "[races][rules]") {
  LaunchParts launch;
  OneBlock block(launch, 0);
  const Access copy = OneBlock::at(16, 16, Kind::store);
  block.rules.begin_copy(copy, 0);
  CHECK(block.shared(0, Kind::load, 20) == "copy; ");
  CHECK(block.shared(1, Kind::load, 24) == "order; ");
  block.rules.end_copy(copy);
  CHECK(block.shared(0, Kind::load, 16) == "");
  CHECK(block.shared(1, Kind::load, 28) == "order; ");
}

TEST_CASE("rules: blocks are ordered by __threadfence and an atomic", "[races][rules]") {
  std::fill(std::begin(written), std::end(written), sim::kAllBytes);
  for (const bool fence : {false, true}) {
    LaunchParts launch;
    OneBlock first(launch, 0);
    CHECK(first.device(0, Kind::store) == "");
    if (fence) first.parts.clocks.fence(0);
    CHECK(first.device(0, Kind::atomic, 40) == "");
    OneBlock second(launch, 1);
    CHECK(second.device(5, Kind::atomic, 40) == "");
    CHECK(second.device(5, Kind::load) == (fence ? "" : "order; "));
  }
}

TEST_CASE("rules: another block's shared memory, between its begin and its end", "[races][rules]") {
  LaunchParts launch;
  OneBlock home(launch, 0, 0, 2), guest(launch, 1, 1, 2);
  const Access a = OneBlock::at(8, 4, Kind::store);
  guest.rules.check_neighbour(home.parts, {a, 0}, false);
  CHECK(guest.heard.take() == "not begun; ");
  const int cluster_barrier = 0;
  home.parts.clocks.release(0, &cluster_barrier, 0);
  guest.parts.clocks.acquire(0, &cluster_barrier, 1);
  guest.rules.check_neighbour(home.parts, {a, 0}, false);
  CHECK(guest.heard.take() == "");
  guest.rules.check_neighbour(home.parts, {a, 0}, true);
  CHECK(guest.heard.take() == "ended; ");
  guest.rules.access_shared(home.parts, a, 0);
  home.rules.end_block();
  CHECK(home.heard.take() == "left; ");
  guest.parts.clocks.release(0, &cluster_barrier, 1);
  home.parts.clocks.acquire(0, &cluster_barrier, 2);
  home.rules.end_block();
  CHECK(home.heard.take() == "");
}

TEST_CASE("rules: a kernel beside the preceding one", "[races][rules]") {
  LaunchParts launch;
  launch.preceding = std::make_unique<DeviceHistory>();
  launch.preceding->words[2].note_store(0, 0, 1, nullptr, false);
  launch.preceding->words[3].note_load(0, 0, 1, nullptr);
  OneBlock block(launch, 0);
  const auto check = [&](Kind kind, uint64_t byte) {
    block.rules.check_preceding(OneBlock::at(byte, 4, kind, Space::hbm), 1);
    return block.heard.take();
  };
  CHECK(check(Kind::load, 8) == "kernel; ");
  CHECK(check(Kind::load, 12) == "");
  CHECK(check(Kind::store, 12) == "kernel; ");
  launch.waited[0] = block.parts.clocks[0].stamp;
  CHECK(check(Kind::load, 8) == "kernel; ");
  block.barrier();  // thread 0 has waited for all of them
  CHECK(check(Kind::load, 8) == "");
}

TEST_CASE("rules: a TMA load and a TMA store", "[races][rules]") {
  LaunchParts launch;
  OneBlock block(launch, 0);
  BlockClocks& clocks = block.parts.clocks;
  const uint64_t bar = 0;
  const Access tile = OneBlock::at(32, 16, Kind::store), signal = OneBlock::at(0, 8, Kind::atomic);
  const auto load = [&](unsigned thread) {
    return block.async.issue_load(block.parts, block.parts, tile, signal, {},
                                  {thread, &bar, kWhere});
  };
  block.parts.operations.inits[&bar] = {kWhere, clocks.entry(0)};
  load(0);
  CHECK(block.heard.take() == "init; ");
  block.parts.operations.show_inits(clocks.entry(0), clocks.tick(0), true);
  const uint32_t number = load(0);
  CHECK(block.heard.take() == "completion; completion; completion; completion; ");  // each word
  CHECK(block.shared(0, Kind::load, 32) == "completion; ");
  const Operation& o = *block.parts.operations.find(number);
  clocks.complete(o.past, o.channel, o.stamp, &bar, 0);
  clocks.acquire(0, &bar, 1);
  CHECK(block.shared(0, Kind::load, 32) == "");
  CHECK(block.shared(1, Kind::load, 44) == "completion; ");

  CHECK(block.shared(0, Kind::store, 32, 12) == "");
  const Access from = OneBlock::at(32, 16, Kind::load);
  int channel = 0;
  block.async.issue_store(from, {0, &channel, kWhere});
  CHECK(block.heard.take() == "own proxy; own proxy; own proxy; ");
  clocks.proxy_fence(0, false);
  const uint32_t store = block.async.issue_store(from, {0, &channel, kWhere});
  CHECK(block.heard.take() == "");
  CHECK(block.shared(0, Kind::load, 32) == "");
  CHECK(block.shared(0, Kind::store, 32) == "completion; ");
  block.async.finished(store, false, 0);
  CHECK(block.shared(0, Kind::store, 36) == "");
}

TEST_CASE("rules: an mbarrier's init is shown by the first fence after it", "[races][rules]") {
  LaunchParts launch;
  OneBlock first(launch, 0, 0, 2), second(launch, 1, 1, 2);
  BlockClocks& clocks = first.parts.clocks;
  Operations& all = first.parts.operations;
  const uint64_t bar = 0, handed_over = 0;
  const Access tile = OneBlock::at(32, 16, Kind::store), signal = OneBlock::at(0, 8, Kind::atomic);
  const auto load = [&](OneBlock& by, unsigned thread) {
    by.async.issue_load(by.parts, first.parts, tile, signal, {}, {thread, &bar, kWhere});
    return by.heard.take();
  };
  all.inits[&bar] = {kWhere, clocks.entry(0)};
  all.show_inits(clocks.entry(1), clocks.tick(1), true);  // by another thread
  all.show_inits(clocks.entry(0), clocks.tick(0), false);
  first.barrier();
  clocks.release(0, &handed_over, 0);
  second.parts.clocks.acquire(5, &handed_over, 1);
  CHECK(load(second, 5) == "init; ");  // not to the cluster
  all.show_inits(clocks.entry(0), clocks.tick(0), true);
  CHECK(load(first, 33) == "");
  clocks.release(0, &handed_over, 1);
  second.parts.clocks.acquire(6, &handed_over, 2);
  all.show_inits(clocks.entry(0), clocks.tick(0), true);
  CHECK(load(second, 40).find("init; ") == 0);  // then the loads that are in flight
  CHECK(load(second, 6).find("init; ") == std::string::npos);
}

TEST_CASE("rules: columns of tensor memory", "[races][rules]") {
  LaunchParts launch;
  OneBlock block(launch, 0);
  int store = 0, load = 0, product = 0;
  const auto move = [&](TensorUse use, unsigned thread, unsigned column) {
    const bool writes = use == TensorUse::store;
    block.tensor.move(use, {writes, 3, column, 2}, {thread, writes ? &store : &load, kWhere});
    return block.heard.take();
  };
  CHECK(move(TensorUse::load, 0, 8) == "unwritten column; unwritten column; ");
  CHECK(move(TensorUse::store, 0, 9) == "wait; ");
  block.tensor.finish_moves(0, true);
  block.tensor.finish_moves(0, false);
  CHECK(move(TensorUse::load, 0, 9) == "");
  CHECK(move(TensorUse::load, 32, 9) == "barrier; barrier; ");
  block.barrier();
  CHECK(move(TensorUse::load, 32, 9) == "before; before; ");
  block.tensor.fence(0, true);
  block.barrier();
  CHECK(move(TensorUse::load, 32, 9) == "after; after; ");
  block.tensor.fence(32, false);
  CHECK(move(TensorUse::load, 32, 9) == "");

  const sim::TensorAccess sum[] = {{true, 3, 100, 1}};
  block.tensor.issue_product(block.parts, {}, sum, {}, {0, &product, kWhere});
  CHECK(move(TensorUse::load, 0, 100) == "commit; unwritten column; ");
}
