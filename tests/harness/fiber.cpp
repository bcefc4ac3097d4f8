// Fibers, without the simulator around them.
#include "common/sim/scheduler/fiber.h"

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/test.h"

namespace {

// Provides stacks, and records which are taken.
struct Shelf {
  std::map<char*, std::vector<char>> taken;
  int handed_out = 0;
};
struct FromShelf {
  Shelf* shelf;
  sim::stack_context allocate() {
    std::vector<char> memory(256 * 1024 + 7);  // an end that is not aligned
    char* end = memory.data() + memory.size();
    sim::stack_context stack;
    stack.size = memory.size();
    stack.sp = end;
    shelf->taken.emplace(end, std::move(memory));
    ++shelf->handed_out;
    return stack;
  }
  void deallocate(sim::stack_context& stack) noexcept {
    gone = std::move(shelf->taken.extract(static_cast<char*>(stack.sp)).mapped());
  }
  // The caller still runs on it: it may only be freed later.
  static inline std::vector<char> gone;
};

std::string trace;
std::vector<sim::fiber> others;
sim::fiber home;

sim::fiber say_and_wait(sim::fiber&& from) {
  home = std::move(from);
  alignas(16) volatile float vector[4] = {1, 2, 3, 4};  // the stack is aligned as the ABI requires
  CHECK(reinterpret_cast<uintptr_t>(&vector) % 16 == 0);
  trace += "a";
  home = std::move(home).resume();
  trace += "b";
  home = std::move(home).resume();
  trace += "c";
  return std::move(home);
}

sim::fiber throw_and_catch(sim::fiber&& from) {
  home = std::move(from);
  try {
    home = std::move(home).resume();
    throw std::runtime_error("x");
  } catch (const std::exception& e) {
    trace += e.what();
  }
  return std::move(home);
}

sim::fiber wait_once(sim::fiber&& from) {
  home = std::move(from);
  std::move(home).resume();  // the one that ends into this one has set `home` again
  trace += "2";
  return std::move(home);
}

sim::fiber end_into_the_next(sim::fiber&& from) {
  home = std::move(from);
  trace += "1";
  return std::move(others.back());
}

}  // namespace

TEST_CASE("fibers go on where they left", "[fiber]") {
  Shelf shelf;
  trace.clear();
  sim::fiber one(std::allocator_arg, FromShelf{&shelf}, say_and_wait);
  sim::fiber two(std::allocator_arg, FromShelf{&shelf}, say_and_wait);
  for (int turn = 0; turn < 3; ++turn) {
    one = std::move(one).resume();
    trace += "|";
    two = std::move(two).resume();
    trace += "|";
  }
  CHECK(trace == "a|a|b|b|c|c|");
  CHECK(shelf.handed_out == 2);
  CHECK(shelf.taken.empty());  // both gave their stacks back
}

TEST_CASE("fibers throw and catch on their own stack", "[fiber]") {
  Shelf shelf;
  trace.clear();
  sim::fiber one(std::allocator_arg, FromShelf{&shelf}, throw_and_catch);
  one = std::move(one).resume();
  CHECK(trace.empty());
  one = std::move(one).resume();
  CHECK(trace == "x");
  CHECK(shelf.taken.empty());
}

TEST_CASE("a fiber ends into another one", "[fiber]") {
  Shelf shelf;
  trace.clear();
  others.clear();
  sim::fiber waiting(std::allocator_arg, FromShelf{&shelf}, wait_once);
  others.push_back(std::move(waiting).resume());
  sim::fiber(std::allocator_arg, FromShelf{&shelf}, end_into_the_next).resume();
  CHECK(trace == "12");
  CHECK(shelf.handed_out == 2);
  CHECK(shelf.taken.empty());
}
