// What races mean for copies that go on by themselves: cp.async and TMA.
#include "common/dialect/ptx/ptx.h"
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

// One warp copies a tile and returns; the other one reads it behind a barrier. Without the wait the
// copies are still on their way when it reads (warp 1 copies) or landed when their thread returned.
template <bool kWait, int kCopier>
__global__ void leave_in_flight(const float* x, float* y) {
  __shared__ __align__(16) float tile[32 * 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == kCopier) fa::cp_async_16(&tile[lane * 4], &x[lane * 4]);
  if (kWait) fa::cp_async_wait_all();
  __syncthreads();
  if (warp != kCopier) y[lane] = tile[lane];
}
// The same, and the other warp's load comes to an end before the wait does.
__global__ void read_in_flight(const float* x, float* y) {
  __shared__ __align__(16) float tile[32 * 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) fa::cp_async_16(&tile[lane * 4], &x[lane * 4]);
  __syncthreads();
  if (warp == 1) y[lane] = tile[lane];
  __syncthreads();
  fa::cp_async_wait_all();
}
// Each thread reads what it copies itself: no barrier is needed, but a wait.
template <bool kWait>
__global__ void copy_for_myself(const float* x, float* y) {
  __shared__ __align__(16) float tile[64 * 4];
  fa::cp_async_16(&tile[threadIdx.x * 4], &x[threadIdx.x * 4]);
  if (kWait) fa::cp_async_wait_all();
  y[threadIdx.x] = tile[threadIdx.x * 4];
}
__global__ void copy_twice(const float* x) {
  __shared__ __align__(16) float tile[4];
  fa::cp_async_16(tile, x);
  fa::cp_async_16(tile, x + 4);
  fa::cp_async_wait_all();
}
// Two stages, one tile ahead. Its place is free behind the barrier, not in front of it.
template <bool kEarly>
__global__ void one_tile_ahead(const float* x, float* y) {
  __shared__ __align__(16) float tile[kStages][64 * 4];
  const auto copy = [&](int j) {
    fa::cp_async_16(&tile[j % kStages][threadIdx.x * 4], &x[threadIdx.x * 4]);
  };
  copy(0);
  float sum = 0;
  for (int j = 0; j < kTiles; ++j) {
    fa::cp_async_wait_all();
    if (kEarly && j + 1 < kTiles) copy(j + 1);
    __syncthreads();
    if (!kEarly && j + 1 < kTiles) copy(j + 1);
    sum += tile[j % kStages][(threadIdx.x ^ 32) * 4];
  }
  y[threadIdx.x] = sum;
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
    fa::mbarrier_init_fence();
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

TEST_CASE("a copy that nobody waits for is still a store", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> x("x", 256), y("y", 64);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, x, y); });
  };
  CHECK_THAT(of(leave_in_flight<false, 0>), ContainsSubstring("have no barrier between them"));
  CHECK_THAT(of(leave_in_flight<false, 1>), ContainsSubstring("have no cp.async wait between"));
  CHECK(of(leave_in_flight<true, 0>) == "");
  CHECK(of(leave_in_flight<true, 1>) == "");
}

TEST_CASE("from its issue to its wait nobody touches a copy's place", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> x("x", 256), y("y", 64);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, x, y); });
  };
  CHECK_THAT(of(read_in_flight), ContainsSubstring("have no cp.async wait between them"));
  CHECK_THAT(of(copy_for_myself<false>), ContainsSubstring("have no cp.async wait between them"));
  CHECK(of(copy_for_myself<true>) == "");
  CHECK_THAT(finding([&] {
               fa::launch(copy_twice, {dim3(1), dim3(1)}, x);
             }),
             ContainsSubstring("store of tile, byte 0"));
  const auto early = of(one_tile_ahead<true>);
  CHECK_THAT(early, ContainsSubstring("load of tile"));
  CHECK_THAT(early, ContainsSubstring("and a store by thread"));
  CHECK(of(one_tile_ahead<false>) == "");
}

TEST_CASE("a copy on its way has written nothing yet", "[sim][races]") {
  sim::Options o;
  o.uninitialised = true;
  WithOptions with(o);
  Buffer<float> x("x", 256), y("y", 64);
  const auto text = finding([&] { fa::launch(copy_for_myself<false>, {dim3(1), dim3(64)}, x, y); });
  CHECK_THAT(text, ContainsSubstring("uninitialised shared memory"));
  CHECK(finding([&] { fa::launch(copy_for_myself<true>, {dim3(1), dim3(64)}, x, y); }) == "");
}

TEST_CASE("who reads a copy on its way has a race, not an unwritten place", "[sim][races]") {
  sim::Options o = watchful();
  o.uninitialised = true;
  WithOptions with(o);
  Buffer<float> x("x", 256), y("y", 64);
  const auto text = finding([&] { fa::launch(copy_for_myself<false>, {dim3(1), dim3(64)}, x, y); });
  CHECK(text.starts_with("race on shared memory"));
  CHECK(text.find("uninitialised") == std::string::npos);
  CHECK(finding([&] { fa::launch(copy_for_myself<true>, {dim3(1), dim3(64)}, x, y); }) == "");
}

TEST_CASE("a TMA ring needs both waits", "[sim][races]") {
  WithOptions with(watchful());
  Buffer<float> x("x", kTile * kTiles), y("y", 32);
  x.upload(std::vector<float>(kTile * kTiles, 1.f));
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
