// Shuffles and named barriers against plain code. The rest: any_program/warp.cu and atomics.cu.
#include "tests/device.h"
#include "tests/test.h"

namespace {

__global__ void shuffle_kernel(const int* in, int arg, int width, int* out) {
  const int lane = threadIdx.x;
  const int v = in[lane];
  out[lane] = __shfl_sync(fa::kFullMask, v, arg, width);
  out[32 + lane] = __shfl_xor_sync(fa::kFullMask, v, arg, width);
  out[64 + lane] = __shfl_down_sync(fa::kFullMask, v, arg, width);
  out[96 + lane] = __shfl_up_sync(fa::kFullMask, v, arg, width);
}

}  // namespace

TEST_CASE("shuffles move what CUDA's manual says", "[ptx][warp]") {
  const auto values = test::small_integers<int>(32, 1);
  const int width = GENERATE(2, 8, 32);
  const int arg = GENERATE(0, 1, 3, 7, 16);
  CAPTURE(width, arg);
  const auto want = test::each<int>(128, [&](int i) {
    const int lane = i % 32, segment = lane / width * width, end = segment + width;
    const int from[] = {segment + arg % width, (lane ^ arg) < end ? lane ^ arg : lane,
                        lane + arg < end ? lane + arg : lane,
                        lane - arg >= segment ? lane - arg : lane};
    return values[from[i / 32]];
  });
  CHECK(test::results<int>(128, shuffle_kernel, {1, 32}, values, arg, width) == want);
}

namespace {

// Warp 0 fills, warps 1 and 2 drain, warp 3 is idle; two slots, two named barriers each.
__global__ void named_barrier_kernel(int* out) {
  __shared__ int slot[2];
  const int warp = threadIdx.x / 32;
  constexpr int kRounds = 6, kParties = 96;
  for (int round = 0; round < kRounds; ++round) {
    const int s = round % 2, full = 1 + s, empty = 3 + s;
    if (warp == 0) {
      if (round >= 2) fa::bar_sync(empty, kParties);
      if (threadIdx.x == 0) slot[s] = round * round;
      fa::bar_arrive(full, kParties);
    } else if (warp < 3) {
      fa::bar_sync(full, kParties);
      out[round * 64 + threadIdx.x - 32] = slot[s];
      if (round + 2 < kRounds) fa::bar_arrive(empty, kParties);
    }
  }
}

}  // namespace

TEST_CASE("named barriers order a producer and its consumers", "[ptx][barrier]") {
  CHECK(test::results<int>(6 * 64, named_barrier_kernel, {1, 128}) ==
        test::each<int>(6 * 64, [](int i) { return (i / 64) * (i / 64); }));
}
