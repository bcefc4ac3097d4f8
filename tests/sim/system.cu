// The simulator's words when the system refuses address space or threads, and its workers when the
// system starts them late while the host continues. System functions are replaced, because no limit
// refuses exactly one call, and a late start otherwise occurs once in thousands.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/sim/diagnosis.h"

using sim::test::Buffer;

namespace {

constexpr int kNever = 1 << 30;

// The simulator calls these in the middle of its work, so they must not be instrumented.
#define UNWATCHED __attribute__((no_sanitize("thread")))

// The number of calls before a refusal.
int granted_mmaps = kNever, granted_mprotects = kNever, granted_threads = kNever;

UNWATCHED bool refused(int& granted) {
  if (granted == 0) errno = ENOMEM;
  return granted == 0 || granted-- == 0;
}

volatile bool late_start = false;  // a new thread starts while the host frees memory

pthread_t host;

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

// Overwrites what the host frees at once, as its next owner would.
UNWATCHED void release(void* p, size_t bytes) {
  if (late_start && pthread_equal(pthread_self(), host)) {
    std::memset(p, 0xff, bytes);
    usleep(2500);
  }
  std::free(p);
}

__global__ void store(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 2; }

// With a new pool: one with more workers than any before.
std::vector<float> filled_by(int workers) {
  const sim::test::WithOptions with({.workers = workers});
  Buffer<float> x("x", 32);
  fa::launch(store, {32, 1}, x);
  return x.download();
}

}  // namespace

extern "C" UNWATCHED void* mmap(void* p, size_t bytes, int protection, int flags, int file,
                                off_t offset) noexcept {
  if (refused(granted_mmaps)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, p, bytes, protection, flags, file, offset));
}

extern "C" UNWATCHED int mprotect(void* p, size_t bytes, int protection) noexcept {
  if (refused(granted_mprotects)) return -1;
  return static_cast<int>(syscall(SYS_mprotect, p, bytes, protection));
}

extern "C" UNWATCHED int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                        void* (*routine)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (refused(granted_threads)) return EAGAIN;
  if (!late_start) return create(thread, attributes, routine, argument);
  auto* start = static_cast<Start*>(std::malloc(sizeof(Start)));
  *start = {routine, argument};
  return create(thread, attributes, start_late, start);
}

UNWATCHED void operator delete(void* p) noexcept { std::free(p); }
UNWATCHED void operator delete(void* p, size_t bytes) noexcept { release(p, bytes); }

// The first case: device memory has not been requested before.
TEST_CASE("without address space there is no device memory", "[sim]") {
  void* p = nullptr;
  granted_mmaps = GENERATE(0, 1);  // the window, and its marks of written words
  CHECK_THROWS_WITH(cudaMalloc(&p, 4), ContainsSubstring("cannot reserve address space"));
  granted_mmaps = 0;
  CHECK_THROWS_AS(cudaMalloc(&p, 4), fa::ResourceError);
  granted_mmaps = kNever;
}

// All thread-local variables are in shared memory's window. This program has no shared array.
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

TEST_CASE("device memory that the system does not grant is refused", "[sim]") {
  Buffer<float> x("x", 32);
  void* p = nullptr;
  granted_mprotects = 0;
  CHECK(cudaMalloc(&p, 4) == cudaErrorMemoryAllocation);
  granted_mprotects = kNever;
  CHECK(p == nullptr);
  SILENT(store, {1, 32}, x);
}

TEST_CASE("without room for the threads' stacks a launch is refused, the next one runs", "[sim]") {
  Buffer<float> x("x", 32);
  sim::Options with_new_stacks;  // every worker takes them at its next launch
  with_new_stacks.stack_bytes += 4096;
  const sim::test::WithOptions with(with_new_stacks);
  for (const int granted : {0, 1000}) {
    granted_mprotects = granted;
    CHECK_THROWS_AS(fa::launch(store, {1, 32}, x), fa::ResourceError);
  }
  granted_mprotects = kNever;
  granted_mmaps = 0;
  CHECK_THROWS_WITH(fa::launch(store, {1, 32}, x),
                    ContainsSubstring("no address space for the stacks"));
  granted_mmaps = kNever;
  fa::launch(store, {1, 32}, x);
  CHECK(x.download() == std::vector<float>(32, 2.f));
}
