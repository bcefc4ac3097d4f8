// A kernel launched early reads what the kernel before it wrote.
#include "tests/device.h"
#include "tests/test.h"

namespace {

__global__ void first_kernel(int* x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
}

__global__ void early_kernel(const int* x, int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = 7;  // shared memory is usable from the start
  fa::griddep_wait();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i] + slot[threadIdx.x];
}

__global__ void empty_kernel() { fa::griddep_wait(); }

}  // namespace

TEST_CASE("a launch is refused one byte past what it may have", "[ptx][dependent]") {
  const size_t most = fa::shared_memory_per_block(), early = 48 * 1024;
  CHECK_NOTHROW(fa::launch(empty_kernel, {1, 32, most}));
  CHECK_THROWS_AS(fa::launch(empty_kernel, {1, 32, most + 1}), fa::ResourceError);
  CHECK_THROWS_WITH(fa::require_shared_memory(most + 1),
                    "needs " + std::to_string(most + 1) + " bytes of shared memory for a block; " +
                        "this GPU has " + std::to_string(most) +
                        ": try a smaller --d, or --smem where the program has it");
  CHECK_NOTHROW(fa::launch_early(empty_kernel, {1, 32, most}));
  CHECK_THROWS_AS(fa::launch_early(empty_kernel, {1, 32, most + 1}), fa::ResourceError);
  CHECK_NOTHROW(fa::launch_early(empty_kernel, {2, 32, 0, 2}));
}

TEST_CASE("a kernel launched early sees what the one in front wrote", "[ptx][dependent]") {
  constexpr int kBlocks = 3000, kThreads = 64;
  const test::Buffer<int> x("x", kBlocks * kThreads), out("out", kBlocks * kThreads);
  fa::launch(first_kernel, {kBlocks, kThreads}, x);
  fa::launch_early(early_kernel, {kBlocks, kThreads}, x, out);
  const auto want = test::each<int>(kBlocks * kThreads,
                                    [](int i) { return 1000 * (i / kThreads) + i % kThreads + 7; });
  CHECK(out.download() == want);
}
