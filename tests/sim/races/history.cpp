// What was last done to a place (history.h, shared_history.h, operations.h), without a kernel.
#include "common/sim/observers/races/history.h"

#include "common/sim/observers/races/operations.h"
#include "tests/test.h"

using namespace sim::races;
using sim::Kind;

namespace {

const void* const kLine = reinterpret_cast<const void*>(0x5000'1234);
constexpr uint64_t kWordNumber = 3, kByte = kWordNumber * sim::kWord;

}  // namespace

TEST_CASE("history: an access has words, and bytes of them", "[races][history]") {
  std::vector<std::pair<uint64_t, int>> seen;
  const auto words = [&](uint64_t at, uint32_t size) {
    seen.clear();
    sim::Access a{};
    a.at = at;
    a.size = size;
    for_each_word(a, [&](uint64_t word, uint8_t bytes) { seen.emplace_back(word, bytes); });
    return seen;
  };
  using Words = std::vector<std::pair<uint64_t, int>>;
  CHECK(words(8, 8) == Words{{2, 15}, {3, 15}});
  CHECK(words(6, 4) == Words{{1, 0b1100}, {2, 0b0011}});
  CHECK(words(5, 1) == Words{{1, 0b0010}});
}

TEST_CASE("history: a word of shared memory, and its bytes", "[races][history]") {
  SharedHistory memory;
  memory.begin(/*begun=*/10, /*bytes=*/64, /*warps=*/2);
  CHECK_FALSE(memory.is_written(kWordNumber));
  SharedRow row = memory.word(kWordNumber);
  row.cell.note_store(/*entry=*/33, /*now=*/12, kLine, /*is_atomic=*/false);
  CHECK(memory.is_written(kWordNumber));
  row.note_load(34, 13, kLine);
  row.note_load(35, 13, kLine);
  CHECK(row.read(1).lanes == 0b1100);
  CHECK(row.read(0).lanes == 0);
  row.note_load(35, 14, kLine);  // a later stamp: the warp's earlier loads are forgotten
  CHECK(row.read(1).lanes == 0b1000);
  CHECK(row.cell.read == 14);

  memory.split(kWordNumber);  // each byte has the word's past
  int cells = 0;
  memory.for_each_cell(kWordNumber, [&](const SharedRow& byte, uint64_t at) {
    CHECK(at == kByte + cells++);
    CHECK(byte.cell.thread == 33);
    CHECK(byte.read(1).lanes == 0b1000);
  });
  CHECK(cells == 4);
  for (int i = 0; i < 4; ++i) memory.byte(kByte + i).cell.note_store(7, 20, kLine, false);
  memory.unite(kWordNumber);
  CHECK_FALSE(row.cell.split);
  CHECK(row.cell.thread == 7);
  CHECK(row.cell.read == 0);

  memory.mark_in_flight(kWordNumber, true);
  CHECK(row.cell.in_flight);
  memory.begin(30, 64, 2);  // another block
  CHECK_FALSE(memory.is_written(kWordNumber));
}

TEST_CASE("history: each thread's last atomic is kept until all know of it", "[races][history]") {
  SharedHistory memory;
  memory.begin(10, 64, 2);
  SharedCell& w = memory.word(kWordNumber).cell;
  w.note_store(1, 12, kLine, true);
  memory.keep_atomic(kByte, w, /*known=*/10);
  w.note_store(2, 13, kLine, true);
  memory.keep_atomic(kByte, w, 10);
  const auto& kept = memory.atomics.at(kByte).by_thread;
  CHECK(kept.size() == 2);
  CHECK(kept.at(2).stamp == 13);
  w.note_store(3, 15, kLine, true);
  memory.keep_atomic(kByte, w, 14);
  CHECK(kept.size() == 1);
  CHECK(kept.count(3) == 1);
}

TEST_CASE("history: device memory keeps a writer and two readers", "[races][history]") {
  DeviceHistory memory;
  DeviceCell& w = memory.words[kWordNumber];
  w.note_load(/*block=*/4, /*entry=*/1, /*now=*/7, kLine);
  w.note_load(4, 2, 8, kLine);
  w.note_load(5, 3, 9, kLine);  // a reader in another block stays
  CHECK(w.last_read().entry == 2);
  CHECK(w.other_read().entry == 1);
  CHECK(w.last_read().block == 4);
  CHECK(w.last_read().pc == low(kLine));
  w.note_store(5, 3, 10, kLine, true);
  CHECK(w.last_write().kind == Kind::atomic);
  CHECK(w.last_write().stamp == 10);

  DeviceCell* bytes = memory.split(kWordNumber);
  CHECK(bytes[3].wrote == 10);
  bytes[1].note_store(6, 9, 11, kLine, false);
  CHECK(memory.split(kWordNumber)[1].wrote == 11);  // once
  CHECK(memory.cell(kByte).last_write().entry == 3);
  CHECK(memory.cell(kByte + 1).last_write().entry == 9);
  for (int i = 0; i < 4; ++i) bytes[i].note_store(8, 2, 12, kLine, false);
  memory.unite(kWordNumber);
  CHECK(memory.cell(kByte + 1).last_write().block == 8);
  CHECK(w.read == 0);
  CHECK(w.also_read == 0);
}

TEST_CASE("history: operations are numbered, and over with their block", "[races][history]") {
  LaunchClocks launch;
  BlockClocks clocks(launch);
  clocks.begin(0, 0, 1, 32);
  Waits waits;
  Operations operations(waits);
  operations.begin(64);
  SharedHistory memory;
  memory.begin(clocks.begun(), 64, 1);
  const sim::Where where{"k.cuh", 7};
  const int bar = 0;
  const uint32_t first = operations.add(clocks, Operation::load, {3, &bar, where});
  const uint32_t second = operations.add(clocks, Operation::load, {4, &bar, where});
  CHECK(operations.find(first)->issuer == 3);
  CHECK(operations.find(first)->channel == operations.find(second)->channel);
  CHECK(operations.find(first)->stamp < operations.find(second)->stamp);

  SharedCell& w = memory.word(kWordNumber).cell;
  operations.open(w, kWordNumber).reads[LatestOperations::kStore] = second;
  CHECK(w.async);
  operations.open(w, kWordNumber).write = first;
  CHECK(operations.of_word(kWordNumber).reads[LatestOperations::kStore] == second);
  w.note_store(1, 99, kLine, false);  // a thread's store: earlier operations no longer matter
  CHECK(operations.open(w, kWordNumber).write == 0);

  const Operation& last = *operations.find(second);
  CHECK(operations.without_wait(clocks) == &last);
  waits[&bar] = {where, 1, last.stamp + 1, nullptr};
  REQUIRE(operations.for_other_phase(last));
  CHECK(operations.for_other_phase(last)->parity == 1);
  clocks.learn(9, last.channel, last.stamp);
  CHECK(last.is_visible(clocks[9]));
  CHECK(operations.without_wait(clocks) == nullptr);
  waits[&bar].clock = clocks[9].clock;
  CHECK(operations.for_other_phase(last) == nullptr);

  operations.begin(64);
  CHECK(operations.find(second) == nullptr);
  CHECK(operations.add(clocks, Operation::store, {0, &bar, where}) > second);
}
