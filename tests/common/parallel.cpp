#include "common/parallel.h"

#include <stdexcept>

#include "tests/test.h"

TEST_CASE("each index is visited once", "[parallel]") {
  const size_t n = GENERATE(0, 1, 2, 1000);
  std::vector<std::atomic<int>> visits(n);
  fa::parallel_for(n, [&] { return [&](size_t i) { ++visits[i]; }; });
  for (const auto& v : visits) CHECK(v == 1);
}

TEST_CASE("a worker keeps its state from one index to the next", "[parallel]") {
  std::atomic<size_t> workers = 0, sum = 0;
  fa::parallel_for(100, [&] {
    ++workers;
    return [&, mine = size_t{0}](size_t) mutable { sum += ++mine; };
  });
  CHECK(workers <= std::max(1u, std::thread::hardware_concurrency()));
  CHECK(sum >= 100);
  CHECK((workers > 1 || sum == 5050));
}

TEST_CASE("a worker's exception arrives at the caller", "[parallel]") {
  auto make = [] {
    return [](size_t i) {
      if (i == 37) throw std::runtime_error("37");
    };
  };
  CHECK_THROWS_WITH(fa::parallel_for(100, make), "37");
}
