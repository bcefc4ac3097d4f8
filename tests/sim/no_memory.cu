// What the simulator says when the system refuses it address space. The system calls are replaced
// by ones that refuse on demand, because no limit of the system refuses exactly one of them.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "common/harness/problem.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;

namespace {

constexpr int kNever = 1 << 30;
int granted_mmaps = kNever, granted_mprotects = kNever;  // how many more before a refusal

bool refused(int& granted) {
  if (granted == 0) errno = ENOMEM;
  return granted == 0 || granted-- == 0;
}

__global__ void store(float* x) { x[threadIdx.x] = 2; }

}  // namespace

extern "C" void* mmap(void* p, size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  if (refused(granted_mmaps)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, p, bytes, protection, flags, file, offset));
}

extern "C" int mprotect(void* p, size_t bytes, int protection) noexcept {
  if (refused(granted_mprotects)) return -1;
  return static_cast<int>(syscall(SYS_mprotect, p, bytes, protection));
}

TEST_CASE("without address space there is no device memory", "[sim]") {
  void* p = nullptr;
  granted_mmaps = GENERATE(0, 1);  // the window, and its marks of written words
  CHECK_THROWS_WITH(cudaMalloc(&p, 4), ContainsSubstring("cannot reserve address space"));
  granted_mmaps = 0;
  CHECK_THROWS_AS(cudaMalloc(&p, 4), fa::ResourceError);
  granted_mmaps = kNever;
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
