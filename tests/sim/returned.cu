// Threads that return early: what is wrong with it, and what is not. The right uses run on both
// backends in tests/ptx/returned.cu.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

sim::Options watching() {
  sim::Options o;
  o.races = o.uninitialised = true;
  return o;
}

// Every thread brings one element of the tile; those past n have no output of their own.
template <bool kEarly>
__global__ void tile_sum(const float* x, float* y, int n) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  if (kEarly && t >= n) return;
  tile[t] = x[t];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += tile[i];
  if (t < n) y[t] = sum;
}

// Warp 1 writes and returns; warp 0 reads.
template <bool kBarrier>
__global__ void last_words(float* y) {
  __shared__ float tile[32];
  const int t = threadIdx.x;
  if (t >= 32) {
    tile[t - 32] = 3;
    return;
  }
  if (kBarrier) __syncthreads();
  y[t] = tile[t];
}

template <int kLeavers>
__global__ void counted(float* y) {
  if (static_cast<int>(threadIdx.x) >= 64 - kLeavers) return;
  fa::bar_sync(1, 64);
  y[threadIdx.x] = 1;
}

// The last lanes of a warp store and return; the others meet at a barrier with a count, and read.
template <bool kBarrier>
__global__ void last_words_to_a_count(float* y) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  tile[t] = 3;
  if (t >= 60) return;
  if (kBarrier) fa::bar_sync(1, 64);
  y[t] = tile[t + 4];
}

// The last lanes are asked for after they have returned.
template <bool kAbsent>
__global__ void shuffle(float* y) {
  const int lane = threadIdx.x;
  if (lane >= 24) return;
  y[lane] = __shfl_sync(0xffffffff, 1.f * lane, kAbsent ? lane + 1 : lane / 2);
}

// kFirst, kLast: which lanes return.
template <int kFirst, int kLast>
__global__ void whole_warp(uint32_t* y) {
  __shared__ __align__(16) uint16_t rows[32][8];
  const int lane = threadIdx.x;
  for (int c = 0; c < 8; ++c) rows[lane][c] = 5;
  __syncwarp();
  if (kFirst <= lane && lane < kLast) return;
  uint32_t r[4];
  fa::ldmatrix_x4(r, rows[lane]);
  y[lane] = r[3];
}

}  // namespace

TEST_CASE("an early return leaves a hole in the tile, no deadlock", "[sim]") {
  Buffer<float> x("x", 64), y("y", 64);
  x.upload(std::vector<float>(64, 1.f));
  WithOptions with(watching());
  const auto text = finding([&] { fa::launch(tile_sum<true>, {dim3(1), dim3(64)}, x, y, 50); });
  CHECK_THAT(text, ContainsSubstring("uninitialised") && ContainsSubstring("tile, byte 200"));
  CHECK(finding([&] { fa::launch(tile_sum<false>, {dim3(1), dim3(64)}, x, y, 50); }) == "");
  CHECK(y.download()[0] == 64.f);
}

TEST_CASE("what a thread did before it returned is known behind __syncthreads", "[sim]") {
  Buffer<float> y("y", 32);
  WithOptions with(watching());
  CHECK_THAT(finding([&] {
               fa::launch(last_words<false>, {dim3(1), dim3(64)}, y);
             }),
             ContainsSubstring("tile, byte 0"));
  CHECK(finding([&] { fa::launch(last_words<true>, {dim3(1), dim3(64)}, y); }) == "");
  CHECK(y.download() == std::vector<float>(32, 3.f));
}

TEST_CASE("what a lane did before it returned is known behind its warp's count", "[sim]") {
  Buffer<float> y("y", 64);
  WithOptions with(watching());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  CHECK_THAT(finding([&] { fa::launch(last_words_to_a_count<false>, config, y); }),
             ContainsSubstring("race on shared memory"));
  CHECK(finding([&] { fa::launch(last_words_to_a_count<true>, config, y); }) == "");
}

TEST_CASE("a barrier with a count waits for a warp that has returned", "[sim]") {
  Buffer<float> y("y", 64);
  const auto text = finding([&] { fa::launch(counted<32>, {dim3(1), dim3(64)}, y); });
  CHECK_THAT(text, ContainsSubstring("deadlock in kernel"));
  CHECK_THAT(text, ContainsSubstring("32 threads returned (linear ids 32-63)"));
  CHECK_THAT(text, ContainsSubstring("barrier 1 waits for 64 threads, 32 have arrived; a barrier "
                                     "with a count waits for those that returned, too"));
  CHECK(finding([&] { fa::launch(counted<31>, {dim3(1), dim3(64)}, y); }) == "");
}

TEST_CASE("a shuffle from a lane that has returned is found", "[sim]") {
  Buffer<float> y("y", 32);
  CHECK_THAT(finding([&] {
               fa::launch(shuffle<true>, {dim3(1), dim3(32)}, y);
             }),
             ContainsSubstring("reads from lane 24, which has returned"));
  CHECK(finding([&] { fa::launch(shuffle<false>, {dim3(1), dim3(32)}, y); }) == "");
}

TEST_CASE("an instruction of the whole warp needs all lanes", "[sim]") {
  Buffer<uint32_t> y("y", 32);
  CHECK_THAT(finding([&] {
               fa::launch(whole_warp<0, 4>, {dim3(1), dim3(32)}, y);
             }),
             ContainsSubstring("in a warp of which some lanes have returned"));
  CHECK_THAT(finding([&] {
               fa::launch(whole_warp<28, 32>, {dim3(1), dim3(32)}, y);
             }),
             ContainsSubstring("thread (31,0,0) has returned, but the ldmatrix at returned.cu:"));
  CHECK(finding([&] { fa::launch(whole_warp<0, 0>, {dim3(1), dim3(32)}, y); }) == "");
  CHECK(y.download() == std::vector<uint32_t>(32, 0x50005));
}

TEST_CASE("with two workers and a cluster, too", "[sim]") {
  Buffer<float> x("x", 64), y("y", 64);
  x.upload(std::vector<float>(64, 1.f));
  fa::launch(tile_sum<false>, {dim3(2), dim3(64), 0, 2}, x, y, 50);
  CHECK(finding([&] { fa::launch(last_words<true>, {dim3(2), dim3(64), 0, 2}, y); }) == "");
  CHECK_THAT(finding([&] {
               fa::launch(counted<32>, {dim3(2), dim3(64), 0, 2}, y);
             }),
             ContainsSubstring("barrier 1 waits for 64 threads"));
}
