// What races mean for copies that go on by themselves: cp.async and TMA.
#include "common/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

constexpr int kTile = 32, kTiles = 6, kStages = 2;

// Each thread copies four elements and reads those of another warp.
template <bool kBarrier>
__global__ void exchange(const float* x, float* y) {
  __shared__ __align__(16) float tile[64 * 4];
  fa::cp_async_16(&tile[threadIdx.x * 4], &x[threadIdx.x * 4]);
  fa::cp_async_wait_all();
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = tile[(threadIdx.x ^ 32) * 4];
}

// One elected thread of warp 0 loads tiles into a ring, warp 1 adds them up. Faults: the consumer
// does not wait for a full stage, or the producer not for an empty one.
template <bool kFull, bool kEmpty>
__global__ void ring(const float* x, float* y) {
  __shared__ __align__(128) float tile[kStages][kTile];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_init(&full[s], 1);
      fa::mbarrier_init(&empty[s], 32);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int j = 0; j < kTiles; ++j) {
      const int s = j % kStages;
      if (kEmpty && j >= kStages) fa::mbarrier_wait(&empty[s], (j / kStages - 1) & 1);
      fa::mbarrier_arrive_expect_tx(&full[s], sizeof tile[s]);
      fa::bulk_load(tile[s], x + j * kTile, sizeof tile[s], &full[s]);
      if (!kEmpty) fa::mbarrier_wait(&full[s], j / kStages & 1);  // its own load, not the readers
    }
  }
  if (warp == 1) {
    float sum = 0;
    for (int j = 0; j < kTiles; ++j) {
      const int s = j % kStages;
      if (kFull && kEmpty) fa::mbarrier_wait(&full[s], j / kStages & 1);
      sum += tile[s][31 - lane];
      if (kEmpty) fa::mbarrier_arrive(&empty[s]);
    }
    y[lane] = sum;
  }
}

// A tile leaves through TMA. Everybody's stores must come before the elected thread's instruction.
template <bool kBarrier>
__global__ void store_tile(float* y) {
  __shared__ __align__(128) float tile[64];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  if (kBarrier) __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}

sim::Options watchful() {
  sim::Options o;
  o.races = o.requests = true;
  return o;
}

}  // namespace

TEST_CASE("cp.async's wait is for the thread's own copies only", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> x("x", 256), y("y", 64);
  CHECK_THAT(finding([&] {
               fa::launch(exchange<false>, {dim3(1), dim3(64)}, x, y);
             }),
             ContainsSubstring("race on shared memory"));
  CHECK(finding([&] { fa::launch(exchange<true>, {dim3(1), dim3(64)}, x, y); }) == "");
}

TEST_CASE("a TMA ring needs both waits", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> x("x", kTile * kTiles), y("y", 32);
  x.fill(std::vector<float>(kTile * kTiles, 1.f));
  CHECK(finding([&] { fa::launch(ring<true, true>, {dim3(1), dim3(64)}, x, y); }) == "");
  CHECK(y.download()[5] == kTiles);
  CHECK_THAT(finding([&] {
               fa::launch(ring<false, true>, {dim3(1), dim3(64)}, x, y);
             }),
             ContainsSubstring("load of tile"));
  CHECK_THAT(finding([&] {
               fa::launch(ring<true, false>, {dim3(1), dim3(64)}, x, y);
             }),
             ContainsSubstring("race on shared memory"));
}

TEST_CASE("a TMA store waits for the barrier in front of it", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> y("y", 64);
  const auto text = finding([&] { fa::launch(store_tile<false>, {dim3(1), dim3(64)}, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on shared memory"));
  CHECK(finding([&] { fa::launch(store_tile<true>, {dim3(1), dim3(64)}, y); }) == "");
  CHECK(y.download()[63] == 63);
}

TEST_CASE("a copy engine makes no requests, cp.async does", "[sim][requests]") {
  sim::Options o;
  o.requests = true;
  WithOptions with(o);
  Buffer<float> x("x", 256), y("y", 64);
  const auto count = [&](auto kernel) {
    sim::Recording recording;
    fa::launch(kernel, {dim3(1), dim3(64)}, x, y);
    return recording.finish().buffers["x"];
  };
  const fa::BufferCount tma = count(ring<true, true>), lsu = count(exchange<true>);
  CHECK(tma.bytes.read == kTile * kTiles * sizeof(float));
  CHECK(tma.requests == fa::Ops{});
  CHECK(lsu.bytes.read == 64 * 16);
  CHECK(lsu.requests == fa::Ops{2, 0, 0});
  CHECK(lsu.sectors == fa::Ops{32, 0, 0});
}
