// The simulator's workers at their start: threads that the system starts late, while the host goes
// on, and threads that it refuses. pthread_create and operator delete are replaced, because only
// they can make the moment come that otherwise comes once in thousands of starts.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/harness/problem.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;

namespace {

constexpr int kNever = 1 << 30;
int granted_threads = kNever;      // how many more before a refusal
volatile bool late_start = false;  // a new thread starts while the host frees memory

pthread_t host;

// The simulator's own code comes here from the middle of its work, so there must be no hooks.
#define UNWATCHED __attribute__((no_sanitize("thread")))

struct Start {
  void* (*routine)(void*);
  void* argument;
};

UNWATCHED void* start_late(void* p) {
  const Start start = *static_cast<Start*>(p);
  std::free(p);
  usleep(1250);
  return start.routine(start.argument);
}

// What the host frees is overwritten at once, as the next owner would.
UNWATCHED void release(void* p, size_t bytes) {
  if (late_start && pthread_equal(pthread_self(), host)) {
    std::memset(p, 0xff, bytes);
    usleep(2500);
  }
  std::free(p);
}

__global__ void store(float* x) { x[blockIdx.x] = 2; }

// On a pool of its own: one that has more workers than any before.
std::vector<float> filled_by(int workers) {
  const sim::test::WithOptions with({.workers = workers});
  Buffer<float> x("x", 32);
  fa::launch(store, {32, 1}, x);
  return x.download();
}

}  // namespace

extern "C" UNWATCHED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                        void* (*routine)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (granted_threads == 0) return EAGAIN;
  --granted_threads;
  if (!late_start) return create(thread, attributes, routine, argument);
  auto* start = static_cast<Start*>(std::malloc(sizeof(Start)));
  *start = {routine, argument};
  return create(thread, attributes, start_late, start);
}

UNWATCHED void operator delete(void* p) noexcept { std::free(p); }
UNWATCHED void operator delete(void* p, size_t bytes) noexcept { release(p, bytes); }

// Whatever is thread-local lies in the window of shared memory, where a kernel's stray index may
// meet it. This program has no shared array.
TEST_CASE("the simulator keeps no memory of its own beside the shared arrays", "[sim]") {
  size_t bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* p) {
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          if (info->dlpi_phdr[k].p_type == PT_TLS)
            *static_cast<size_t*>(p) = info->dlpi_phdr[k].p_memsz;
        }
        return 1;  // the program comes first
      },
      &bytes);
  CHECK(bytes >= sim::kMaxDynamicSmem);
  CHECK(bytes < sim::kMaxDynamicSmem + 4096);  // a few words, and gaps for alignment
}

TEST_CASE("workers that start late find their blocks", "[sim]") {
  host = pthread_self();
  late_start = true;
  const std::vector<float> x = filled_by(4);
  late_start = false;
  CHECK(x == std::vector<float>(32, 2.f));
}

TEST_CASE("without threads a launch is refused, the next one runs", "[sim]") {
  for (const int granted : {0, 3}) {
    granted_threads = granted;
    CHECK_THROWS_WITH(filled_by(8), ContainsSubstring("refuses threads for the simulator's 8"));
    granted_threads = kNever;
  }
  CHECK(filled_by(8) == std::vector<float>(32, 2.f));
}
