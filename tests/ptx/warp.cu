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

// Barriers and warp primitives do not wait for returned threads. Wrong uses: sim/scheduler.cu.

namespace {

// In each round some threads or warps leave; the remaining ones add up what they have all written.
__global__ void leave_kernel(const int* rounds_of, int* out) {
  __shared__ int slot[128];
  const int t = threadIdx.x;
  int sum = 0;
  slot[t] = 0;
  __syncthreads();
  for (int round = 0; round < 4; ++round) {
    if (rounds_of[t] == round) {
      out[t] = sum;
      return;
    }
    slot[t] = t + round;
    __syncthreads();  // all remaining threads have written
    for (int other = 0; other < 128; ++other) sum += slot[other];
    __syncthreads();  // and read
    slot[t] = 0;
    __syncthreads();  // a thread that leaves now has left a zero
  }
  out[t] = sum;
}

// The lanes of `leaving` return, the others meet; mask: all 32.
__global__ void warp_kernel(unsigned leaving, int* out) {
  __shared__ int slot[32];
  const int lane = threadIdx.x;
  if (leaving >> lane & 1) return;
  slot[lane] = lane;
  __syncwarp();
  out[lane] = slot[lane ^ 1];
  out[32 + lane] = __shfl_xor_sync(fa::kFullMask, 10 * lane, 1);
  out[64 + lane] = static_cast<int>(__ballot_sync(fa::kFullMask, lane % 3 == 0));
  out[96 + lane] = __all_sync(fa::kFullMask, lane >= 0) + 2 * __any_sync(fa::kFullMask, lane < 0);
}

// Half of warp 1 returns or does not exist: the warp still counts 32.
__global__ void count_kernel(int* out) {
  __shared__ int slot[2];
  const int t = threadIdx.x;
  if (t >= 48) return;
  if (t % 32 == 0) slot[t / 32] = 7 + t;
  fa::bar_sync(1, 64);
  out[t] = slot[1 - t / 32];
}

}  // namespace

TEST_CASE("__syncthreads waits for the threads that have not returned", "[ptx][barrier]") {
  const auto rounds = test::each<int>(128, [](int t) {
    return t / 32 == 1 ? 1 : t % 32 < 5 ? 2 : t == 127 ? 3 : t == 64 ? 0 : 4;
  });
  const auto want = test::each<int>(128, [&](int t) {
    int sum = 0;
    for (int round = 0; round < std::min(rounds[t], 4); ++round) {
      for (int other = 0; other < 128; ++other) sum += rounds[other] > round ? other + round : 0;
    }
    return sum;
  });
  CHECK(test::results<int>(128, leave_kernel, {1, 128}, rounds) == want);
}

TEST_CASE("lanes of the mask that have returned are not waited for", "[ptx][warp]") {
  const unsigned leaving = GENERATE(0x0000ffffu, 0xffff0000u, 0x0ff00c03u);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; lane += 3) votes |= 1u << lane;
  const auto want = test::each<int>(128, [&](int i) {
    const int lane = i % 32;
    if (leaving >> lane & 1) return -1;
    const int of[] = {lane ^ 1, 10 * (lane ^ 1), static_cast<int>(votes & ~leaving), 1};
    return of[i / 32];
  });
  CHECK(test::results<int>(128, warp_kernel, {1, 32}, leaving) == want);
}

TEST_CASE("a barrier with a count takes a warp as 32 threads", "[ptx][barrier]") {
  const unsigned threads = GENERATE(64u, 48u, 40u);
  const unsigned present = std::min(threads, 48u);
  const auto got = test::results<int>(present, count_kernel, {1, threads});
  CHECK(got == test::each<int>(present, [](int t) { return t < 32 ? 39 : 7; }));
}
