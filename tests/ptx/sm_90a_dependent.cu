// A kernel launched early reads what the one in front of it wrote.
#include "tests/device.h"
#include "tests/test.h"

namespace {

__global__ void first_kernel(int* x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
}

__global__ void early_kernel(const int* x, int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = 7;  // shared memory is its own from the start
  fa::griddep_wait();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i] + slot[threadIdx.x];
}

}  // namespace

TEST_CASE("a kernel launched early sees what the one in front wrote", "[ptx][dependent]") {
  constexpr int kBlocks = 3000, kThreads = 64;
  const test::Buffer<int> x("x", kBlocks * kThreads), out("out", kBlocks * kThreads);
  fa::launch(first_kernel, {kBlocks, kThreads}, x);
  fa::launch_early(early_kernel, {kBlocks, kThreads}, x, out);
  const auto want = test::each<int>(kBlocks * kThreads,
                                    [](int i) { return 1000 * (i / kThreads) + i % kThreads + 7; });
  CHECK(out.download() == want);
}
