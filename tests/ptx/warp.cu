// Shuffles, votes, __syncwarp, atomics and named barriers against plain code.
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

__global__ void wide_shuffle_kernel(double* out) {
  out[threadIdx.x] = __shfl_xor_sync(fa::kFullMask, 1.0 / (1 + threadIdx.x), 1);
}

__global__ void vote_kernel(const int* in, unsigned* out) {
  const int v = in[threadIdx.x];
  const unsigned ballot = __ballot_sync(fa::kFullMask, v > 0);
  const int any = __any_sync(fa::kFullMask, v > 4), all = __all_sync(fa::kFullMask, v <= 4);
  // Half a warp votes alone.
  unsigned low = 0;
  if (threadIdx.x < 16) low = __ballot_sync(0xffff, v <= 0);
  if (threadIdx.x == 0) {
    out[0] = ballot;
    out[1] = any != 0;
    out[2] = all != 0;
    out[3] = low;
  }
}

}  // namespace

TEST_CASE("8-byte values are shuffled whole", "[ptx][warp]") {
  CHECK(test::results<double>(32, wide_shuffle_kernel, {1, 32}) ==
        test::each<double>(32, [](int lane) { return 1.0 / (1 + (lane ^ 1)); }));
}

TEST_CASE("votes count the lanes of their mask", "[ptx][warp]") {
  const auto values = test::small_integers<int>(32, 2);
  unsigned positive = 0;
  for (int lane = 0; lane < 32; ++lane) positive |= unsigned{values[lane] > 0} << lane;
  CHECK(test::results<unsigned>(4, vote_kernel, {1, 32}, values) ==
        std::vector{positive, 0u, 1u, ~positive & 0xffff});
}

namespace {

// Lane l writes, its neighbour reads: __syncwarp orders the two.
__global__ void warp_exchange_kernel(int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = 100 + threadIdx.x;
  __syncwarp();
  out[threadIdx.x] = slot[threadIdx.x ^ 31];
}

__global__ void atomics_kernel(int* sums, float* total, unsigned* ring) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 2);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&sums[0], count);
  atomicMax(&sums[1], static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
  atomicMin(&sums[2], -static_cast<int>(threadIdx.x));
  atomicAdd(total, 0.5f);
  atomicInc(ring, 9);
  atomicOr(reinterpret_cast<unsigned*>(&sums[3]), 1u << (threadIdx.x % 32));
  for (int old = 0, seen;; old = seen) {  // an addition by compare and swap
    seen = atomicCAS(&sums[4], old, old + 3);
    if (seen == old) break;
  }
}

}  // namespace

TEST_CASE("__syncwarp shows a warp its shared memory", "[ptx][warp]") {
  CHECK(test::results<int>(64, warp_exchange_kernel, {1, 64}) ==
        test::each<int>(64, [](int t) { return 100 + (t ^ 31); }));
}

TEST_CASE("atomics lose no update between blocks", "[ptx][atomics]") {
  constexpr int kBlocks = 8, kThreads = 96;
  const test::Buffer<int> sums("sums", std::vector<int>(5, 0));
  const test::Buffer<float> total("total", std::vector<float>{0});
  const test::Buffer<unsigned> ring("ring", std::vector<unsigned>{0});
  fa::launch(atomics_kernel, {kBlocks, kThreads}, sums, total, ring);
  CHECK(sums.download() == std::vector{2 * kBlocks * kThreads, kBlocks * kThreads - 1,
                                       -(kThreads - 1), -1, 3 * kBlocks * kThreads});
  CHECK(total.download()[0] == 0.5f * kBlocks * kThreads);
  CHECK(ring.download()[0] == kBlocks * kThreads % 10);
}

namespace {

// Warp 0 fills, warps 1 and 2 drain, warp 3 takes no part; two slots, two named barriers each.
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
