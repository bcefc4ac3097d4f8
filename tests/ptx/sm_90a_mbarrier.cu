// mbarriers between warps of one block: phases, parities, a producer/consumer ring.
#include "tests/device.h"
#include "tests/test.h"

namespace {

constexpr int kStages = 2;

// Warp 0 produces, the others consume; `full` has one arrival per phase, `empty` one per consumer.
__global__ void ring_kernel(const int* in, int tiles, int* out) {
  __shared__ int tile[kStages][32];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int consumers = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_init(&full[s], 1);
      fa::mbarrier_init(&empty[s], consumers);
    }
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  for (int j = 0; j < tiles; ++j) {
    const int s = j % kStages, round = j / kStages & 1;
    if (warp == 0) {
      fa::mbarrier_wait(&empty[s], round ^ 1);  // passes at once in the first round
      tile[s][lane] = in[j * 32 + lane];
      __syncwarp();
      if (lane == 0) fa::mbarrier_arrive(&full[s]);
    } else {
      fa::mbarrier_wait(&full[s], round);
      const int v = tile[s][31 - lane];
      __syncwarp();
      if (lane == 0) fa::mbarrier_arrive(&empty[s]);
      out[(j * consumers + warp - 1) * 32 + lane] = v;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_inval(&full[s]);
      fa::mbarrier_init(&full[s], 1);  // the memory can become a barrier again
    }
  }
}

__global__ void elect_kernel(int* out) {
  if (fa::elect_one()) atomicAdd(&out[threadIdx.x / 32], 1);
  if (fa::elect_one()) atomicAdd(&out[4 + threadIdx.x / 32], static_cast<int>(threadIdx.x % 32));
  if (fa::elect_one()) atomicAdd(&out[4 + threadIdx.x / 32], -static_cast<int>(threadIdx.x % 32));
}

}  // namespace

TEST_CASE("elect_one is true in one lane of each warp, always the same", "[ptx][barrier]") {
  const test::Buffer<int> out("out", std::vector<int>(8));
  fa::launch(elect_kernel, {1, 128}, out);
  CHECK(out.download() == std::vector<int>{1, 1, 1, 1, 0, 0, 0, 0});
}

TEST_CASE("a ring of mbarriers passes every tile to every consumer", "[ptx][mbarrier]") {
  const int tiles = GENERATE(1, 2, 5, 8);
  const int consumers = GENERATE(1, 3);
  CAPTURE(tiles, consumers);
  const auto want = test::each<int>(tiles * consumers * 32,
                                    [&](int i) { return i / 32 / consumers * 32 + 31 - i % 32; });
  const auto got = test::results<int>(want.size(), ring_kernel, {1, unsigned(32 * (consumers + 1))},
                                      test::iota<int>(size_t(tiles) * 32), tiles);
  CHECK(got == want);
}
