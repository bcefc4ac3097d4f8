#include "common/harness/parallel.h"

#include <pthread.h>

#include <algorithm>
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

TEST_CASE("where no thread can be started the caller does all the work", "[parallel]") {
  pthread_attr_t saved, huge;
  REQUIRE(pthread_getattr_default_np(&saved) == 0);
  REQUIRE(pthread_attr_init(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, size_t{1} << 60) == 0);  // no address space holds it
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  CHECK_THROWS_AS(std::thread([] {}), std::system_error);
  std::vector<int> visits(1000);
  fa::parallel_for(visits.size(), [&] { return [&](size_t i) { ++visits[i]; }; });
  CHECK(visits == std::vector<int>(1000, 1));
  REQUIRE(pthread_setattr_default_np(&saved) == 0);
  pthread_attr_destroy(&saved);
  pthread_attr_destroy(&huge);
}

TEST_CASE("chunks make up the whole, each but the last of 65,536", "[parallel]") {
  constexpr size_t kChunk = 1 << 16;
  const size_t n = GENERATE(0, 1, 65535, 65536, 65537, 200000);
  std::vector<std::atomic<int>> visits(n);
  std::atomic<size_t> calls = 0, whole = 0;
  fa::parallel_chunks(n, [&](size_t begin, size_t end) {
    ++calls, whole += end - begin == kChunk;
    for (size_t i = begin; i < end; ++i) ++visits[i];
  });
  CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; }));
  CHECK(calls == (n + kChunk - 1) / kChunk);
  CHECK(whole == n / kChunk);
}

TEST_CASE("after an exception no index is begun, also where a worker cannot be made",
          "[parallel]") {
  std::atomic<size_t> begun = 0;
  CHECK_THROWS_WITH(fa::parallel_for(1'000'000,
                                     [&] {
                                       return [&](size_t) {
                                         ++begun;
                                         throw std::runtime_error("at once");
                                       };
                                     }),
                    "at once");
  CHECK(begun <= std::max(1u, std::thread::hardware_concurrency()));
  CHECK_THROWS_WITH(
      fa::parallel_for(100, []() -> void (*)(size_t) { throw std::runtime_error("no worker"); }),
      "no worker");
}
