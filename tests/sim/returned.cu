// Threads that return early: wrong uses, and right ones (on both backends: ptx/returned.cu).
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

// Every thread adds one element of the tile; those past n have no output.
__global__ void tile_sum(const float* x, float* y, int n, bool early) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  if (early && t >= n) return;
  tile[t] = x[t];
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += tile[i];
  if (t < n) y[t] = sum;
}
// Warp 1 writes and returns; warp 0 reads, after a barrier of all threads or with a count.
__global__ void last_words(float* y, bool barrier, int count) {
  __shared__ float tile[32];
  const int t = threadIdx.x;
  if (t >= 32) {
    tile[t - 32] = 3;
    return;
  }
  if (barrier && !count) __syncthreads();
  if (barrier && count) fa::bar_sync(1, count);
  y[t] = tile[t];
}
// The last lanes of a warp store and return; the others meet at a barrier with a count, and read.
__global__ void last_words_to_a_count(float* y, bool barrier) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  tile[t] = 3;
  if (t >= 60) return;
  if (barrier) fa::bar_sync(1, 64);
  y[t] = tile[t + 4];
}
// The last threads return, or warp 1 waits at another barrier.
__global__ void counted(float* y, int leavers, bool elsewhere) {
  if (static_cast<int>(threadIdx.x) >= 64 - leavers) return;
  if (elsewhere && threadIdx.x >= 32) fa::bar_sync(2, 96);
  fa::bar_sync(1, 64);
  y[threadIdx.x] = 1;
}
// A shuffle names the last lanes after they have returned.
__global__ void shuffle(float* y, bool absent) {
  const int lane = threadIdx.x;
  if (lane >= 24) return;
  y[lane] = __shfl_sync(fa::kFullMask, 1.f * lane, absent ? lane + 1 : lane / 2);
}
// The lanes from `first` to `last` return.
__global__ void whole_warp(uint32_t* y, int first, int last) {
  __shared__ __align__(16) uint16_t rows[32][8];
  const int lane = threadIdx.x;
  for (int c = 0; c < 8; ++c) rows[lane][c] = 5;
  __syncwarp();
  if (first <= lane && lane < last) return;
  uint32_t r[4];
  fa::ldmatrix_x4(r, rows[lane]);
  y[lane] = r[3];
}

}  // namespace

ANALYSED("an early return leaves a hole in the tile, no deadlock", "[sim]") {
  Buffer<float> x("x", std::vector<float>(64, 1.f)), y("y", 64);
  FOUND("uninitialised ... tile, byte 200", tile_sum, {1, 64}, x, y, 50, true);
  SILENT(tile_sum, {1, 64}, x, y, 50, false);
  CHECK(y.download()[0] == 64.f);
}

ANALYSED("what a thread did before it returned is known after a barrier", "[sim]") {
  FOUND("tile, byte 0", last_words, {1, 64}, y, false, 0);
  FOUND("tile, byte 0", last_words, {1, 64}, y, true, 32);
  SILENT(last_words, {1, 64}, y, true, 0);
  CHECK(y.download()[31] == 3.f);
  {
    WithOptions plain{sim::Options{}};  // also two workers
    SILENT(last_words, {2, 64, 0, 2}, y, true, 0);
  }
  FOUND("race on shared memory", last_words_to_a_count, {1, 64}, y, false);
  SILENT(last_words_to_a_count, {1, 64}, y, true);
}

TEST_CASE("a barrier with a count waits for a warp that has returned", "[sim]") {
  Buffer<float> y("y", 64);
  for (const unsigned cluster : {1, 2}) {  // after a finding the simulator continues
    FOUND(
        "deadlock in kernel ... 32 threads returned (linear ids 32-63) ... 32 threads wait at "
        "bar.sync returned.cu: ... barrier 1 waits for 64 threads, 32 have arrived; a barrier with "
        "a count waits for those that returned, too",
        counted, {cluster, 64, 0, cluster}, y, 32, false);
  }
  SILENT(counted, {1, 64}, y, 31, false);
  const std::string others = sim::test::finding(counted, {1, 64}, y, 0, true);
  CAPTURE(others);
  CHECK(
      others.ends_with("\n  barrier 1 waits for 64 threads, 32 have arrived\n  barrier 2 waits "
                       "for 96 threads, 32 have arrived; a barrier with a count waits for those "
                       "that returned, too"));
}

TEST_CASE("instructions of a warp need the lanes that they are for", "[sim]") {
  Buffer<float> y("y", 32);
  Buffer<uint32_t> z("z", 32);
  FOUND("reads from lane 24, which has returned", shuffle, {1, 32}, y, true);
  SILENT(shuffle, {1, 32}, y, false);
  FOUND("in a warp of which some lanes have returned", whole_warp, {1, 32}, z, 0, 4);
  FOUND("thread (31,0,0) has returned, but the ldmatrix at returned.cu:", whole_warp, {1, 32}, z,
        28, 32);
  SILENT(whole_warp, {1, 32}, z, 0, 0);
  CHECK(z.download() == std::vector<uint32_t>(32, 0x50005));
}
