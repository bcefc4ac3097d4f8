// Fences between the two paths to memory, the threads' own and that of TMA: each missing one has a
// kernel that lacks it, and a twin in which only the fence is different.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::TensorMap;
using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

constexpr int kTile = 64;

sim::Options with_races(bool strict = false) {
  sim::Options o;
  o.races = true;
  o.strict = strict;
  return o;
}

// --- mbarrier.init, then TMA ---------------------------------------------------------------------

// early: in front of the init; late: behind the barrier; another: by a thread that did not
// initialise.
enum class Shown { no, init_fence, proxy_fence, both_proxies, device_fence, early, late, another };

// Thread 0 initialises, `issuer` loads.
constexpr int kLoadTile = __LINE__;  // the init is 6 lines further down, the load 18
template <Shown shown, int issuer>
__global__ void load_tile(const float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (shown == Shown::early && threadIdx.x == 0) fa::mbarrier_init_fence();
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  if (threadIdx.x == 0) {
    if (shown == Shown::init_fence) fa::mbarrier_init_fence();
    if (shown == Shown::proxy_fence) fa::fence_proxy_async();
    if (shown == Shown::both_proxies) fa::fence_proxy_async_all();
    if (shown == Shown::device_fence) fa::fence_proxy_async_global();
  }
  if (shown == Shown::another && threadIdx.x == 32) fa::mbarrier_init_fence();
  __syncthreads();
  if (shown == Shown::late && threadIdx.x == 0) fa::mbarrier_init_fence();
  if (threadIdx.x == issuer) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::bulk_load(tile, x, sizeof tile, &full);
  }
  fa::mbarrier_wait(&full, 0);
  y[threadIdx.x] = tile[threadIdx.x];
}

// Block 0 loads a tile for both blocks.
template <Shown shown>
__global__ void multicast(const __grid_constant__ TensorMap map, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    if (shown == Shown::init_fence) fa::mbarrier_init_fence();
    if (shown == Shown::proxy_fence) fa::fence_proxy_async();
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    if (fa::cluster_rank() == 0) fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{3});
  }
  fa::mbarrier_wait_cluster(&full, 0);
  y[blockIdx.x * kTile + threadIdx.x] = tile[threadIdx.x];
  fa::cluster_sync();
}

// Block 0 arrives at block 1's mbarrier.
template <Shown shown>
__global__ void arrive_at_neighbour() {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 32);
    if (shown == Shown::init_fence) fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (fa::cluster_rank() == 0) {
    fa::mbarrier_arrive_remote(&full, 1);
  } else {
    fa::mbarrier_wait_cluster(&full, 0);
  }
  fa::cluster_sync();
}

// Only threads use the mbarrier: order is enough.
__global__ void no_copy(float* y) {
  __shared__ float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, kTile);
  __syncthreads();
  tile[threadIdx.x] = threadIdx.x;
  fa::mbarrier_arrive(&full);
  fa::mbarrier_wait(&full, 0);
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
}

// The same 8 bytes are a barrier twice; only the first init is shown.
template <bool kFence>
__global__ void init_again(const float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (round == 1) fa::mbarrier_inval(&full);
      fa::mbarrier_init(&full, 1);
      if (round == 0 || kFence) fa::mbarrier_init_fence();
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::bulk_load(tile, x, sizeof tile, &full);
    }
    __syncthreads();
    fa::mbarrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
    __syncthreads();
  }
}

// --- device memory: threads store, TMA reads -----------------------------------------------------

enum class Fence { none, shared, device, all, early, issuer };

template <Fence fence>
__device__ void behind_the_store() {
  if (fence == Fence::shared) fa::fence_proxy_async();
  if (fence == Fence::device) fa::fence_proxy_async_global();
  if (fence == Fence::all) fa::fence_proxy_async_all();
}
__device__ void init(uint64_t* full) {
  fa::mbarrier_init(full, 1);
  fa::mbarrier_init_fence();
}
__device__ void load(float* tile, const float* x, uint64_t* full) {
  fa::mbarrier_arrive_expect_tx(full, kTile * sizeof(float));
  fa::bulk_load(tile, x, kTile * sizeof(float), full);
  fa::mbarrier_wait(full, 0);
}

// 64 threads store to device memory, thread 0 loads it back.
constexpr int kThroughDevice = __LINE__;  // the store is 6 lines further down, the load 13
template <Fence fence>
__global__ void through_device(float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (fence == Fence::early) fa::fence_proxy_async_global();
  x[threadIdx.x] = threadIdx.x;
  behind_the_store<fence>();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence == Fence::issuer) fa::fence_proxy_async_global();
    init(&full);
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::bulk_load(tile, x, sizeof tile, &full);
    fa::mbarrier_wait(&full, 0);
  }
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

// By atomics, and through a tensor map.
template <Fence fence>
__global__ void through_atomics(const __grid_constant__ TensorMap map, float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) init(&full);
  atomicAdd(&x[threadIdx.x], 1.f);
  behind_the_store<fence>();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::tma_load(tile, &map, &full, {0});
  }
  fa::mbarrier_wait(&full, 0);
  y[threadIdx.x] = tile[threadIdx.x];
}

// The last block loads what all have stored.
template <Fence fence>
__global__ void last_block(float* x, float* y, unsigned* done) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  __shared__ bool last;
  x[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
  behind_the_store<fence>();
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) {
    if (fence == Fence::issuer) fa::fence_proxy_async_global();
    init(&full);
    load(tile, x, &full);
  }
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

// Thread 0 adds to what all have set to zero.
template <Fence fence>
__global__ void add_to_zeros(float* x) {
  __shared__ __align__(128) float tile[kTile];
  x[threadIdx.x] = 0;
  tile[threadIdx.x] = threadIdx.x;
  behind_the_store<fence>();
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_reduce_add(x, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}

// TMA stores and TMA loads: one path.
__global__ void store_and_load(float* x, float* y) {
  __shared__ __align__(128) float tile[2][kTile];
  __shared__ uint64_t full;
  tile[0][threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(x, tile[0], sizeof tile[0]);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    init(&full);
    load(tile[1], x, &full);
  }
  __syncthreads();
  y[threadIdx.x] = tile[1][threadIdx.x];
}

__global__ void store(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void only_load(const float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full);
    load(tile, x, &full);
  }
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

// --- strict: threads use shared memory, a TMA load overwrites it ---------------------------------

enum class Release { plain, fenced, late, issuer };

// Warp 1 reads a tile and hands it back to thread 0, which loads the next one into it.
constexpr int kReload = __LINE__;  // the load is 16 lines further down, the read 24
template <Release release>
__global__ void reload(const float* x, float* y) {
  __shared__ __align__(128) float tile[32];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init(&empty, 32);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int j = 0; j < 2; ++j) {
      if (j > 0) fa::mbarrier_wait(&empty, 0);
      if (release == Release::issuer) fa::fence_proxy_async();
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::bulk_load(tile, x + j * 32, sizeof tile, &full);
    }
  }
  if (threadIdx.x >= 32) {
    float sum = 0;
    const int lane = threadIdx.x % 32;
    for (int j = 0; j < 2; ++j) {
      fa::mbarrier_wait(&full, j);
      sum += tile[lane ^ 1];
      if (release == Release::fenced) fa::fence_proxy_async();
      fa::mbarrier_arrive(&empty);
      if (release == Release::late) fa::fence_proxy_async();
    }
    y[lane] = sum;
  }
}

// A tile that threads have filled.
template <bool kFence>
__global__ void fill_and_load(const float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) init(&full);
  tile[threadIdx.x] = 0;
  if (kFence) fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) load(tile, x, &full);
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

const fa::LaunchConfig kOneBlock{dim3(1), dim3(64)};

}  // namespace

TEST_CASE("an initialised mbarrier must be shown to TMA", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", kTile);
  x.upload(std::vector<float>(kTile, 3.f));
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, kOneBlock, x, y); });
  };
  const auto line = [](int n) { return "proxy_fences.cu:" + std::to_string(kLoadTile + n); };
  const auto text = of(load_tile<Shown::no, 0>);
  CAPTURE(text);
  CHECK(text.starts_with("race on shared memory: kernel "));
  CHECK_THAT(text,
             ContainsSubstring("block (0,0,0), thread (0,0,0): TMA load that signals full, "
                               "byte 0 at " +
                               line(18) + " and its mbarrier.init by thread (0,0,0) at " + line(6) +
                               " have no fence.mbarrier_init (mbarrier_init_fence by the "
                               "thread that initialised, in front of the barrier) between"));
  CHECK(of(load_tile<Shown::init_fence, 0>) == "");
  CHECK(of(load_tile<Shown::proxy_fence, 0>) == "");
  CHECK(of(load_tile<Shown::both_proxies, 0>) == "");
  CHECK(y.download()[5] == 3);
  CHECK_THAT(of(load_tile<Shown::device_fence, 0>), ContainsSubstring("no fence.mbarrier_init"));
  CHECK_THAT(of(load_tile<Shown::early, 0>), ContainsSubstring("no fence.mbarrier_init"));
  CHECK_THAT(of(load_tile<Shown::another, 0>), ContainsSubstring("no fence.mbarrier_init"));

  CHECK_THAT(of(load_tile<Shown::no, 32>),
             ContainsSubstring("thread (32,0,0): TMA load that signals full"));
  CHECK_THAT(of(load_tile<Shown::late, 32>), ContainsSubstring("no fence.mbarrier_init"));
  CHECK(of(load_tile<Shown::late, 0>) == "");
  CHECK(of(load_tile<Shown::init_fence, 32>) == "");
  CHECK(of(load_tile<Shown::proxy_fence, 32>) == "");

  CHECK_THAT(of(init_again<false>), ContainsSubstring("no fence.mbarrier_init"));
  CHECK(of(init_again<true>) == "");
  CHECK(finding([&] { fa::launch(no_copy, kOneBlock, y); }) == "");
}

TEST_CASE("a multicast load needs the mbarriers of all blocks to be shown",
          "[sim][races][async][cluster]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", 2 * kTile);
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, fa::Swizzle::none);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(64), 0, 2}, map, y.get()); });
  };
  CHECK_THAT(of(multicast<Shown::no>), ContainsSubstring("no fence.mbarrier_init"));
  // fence.proxy.async is for the block itself.
  const auto text = of(multicast<Shown::proxy_fence>);
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("block (0,0,0), thread (0,0,0): TMA load that signals full, "
                                     "byte 0, in block (1,0,0) at proxy_fences.cu:"));
  CHECK_THAT(text, ContainsSubstring("its mbarrier.init by block (1,0,0), thread (0,0,0) at"));
  CHECK(of(multicast<Shown::init_fence>) == "");
}

TEST_CASE("strict: an mbarrier must be shown to the arrivals of other blocks",
          "[sim][races][async][cluster]") {
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(32), 0, 2}); });
  };
  {
    WithOptions with(with_races());
    CHECK(of(arrive_at_neighbour<Shown::no>) == "");
  }
  WithOptions with(with_races(true));
  const auto text = of(arrive_at_neighbour<Shown::no>);
  CAPTURE(text);
  CHECK(text.starts_with("strict: race on shared memory: kernel "));
  CHECK_THAT(text, ContainsSubstring("arrival at full, byte 0, in block (1,0,0) at proxy_fences."));
  CHECK(of(arrive_at_neighbour<Shown::init_fence>) == "");
}

TEST_CASE("stores to device memory need fence.proxy.async before TMA reads them",
          "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", kTile);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, kOneBlock, x, y); });
  };
  const auto line = [](int n) { return "proxy_fences.cu:" + std::to_string(kThroughDevice + n); };
  const auto text = of(through_device<Fence::none>);
  CAPTURE(text);
  CHECK(text.starts_with("race on device memory: kernel "));
  CHECK_THAT(text, ContainsSubstring("block (0,0,0), thread (0,0,0): TMA load that reads x, byte 0 "
                                     "at " +
                                     line(13) + " and a store by thread (0,0,0) at " + line(6) +
                                     " have no fence.proxy.async for device memory "
                                     "(fence_proxy_async_global by the storing thread, in front of "
                                     "the barrier, or behind it by the thread that issues)"));
  CHECK_THAT(of(through_device<Fence::shared>), ContainsSubstring("for device memory"));
  CHECK_THAT(of(through_device<Fence::early>), ContainsSubstring("for device memory"));
  CHECK(of(through_device<Fence::device>) == "");
  CHECK(of(through_device<Fence::all>) == "");
  CHECK(of(through_device<Fence::issuer>) == "");
  CHECK(y.download()[63] == 63);

  CHECK(of(store_and_load) == "");
  CHECK(finding([&] {
          fa::launch(store, kOneBlock, x);
          fa::launch(only_load, kOneBlock, x, y);
        }) == "");
}

TEST_CASE("so do atomics, and what TMA adds to", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", kTile);
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, fa::Swizzle::none);
  const auto atomics = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, kOneBlock, map, x.get(), y.get()); });
  };
  CHECK_THAT(atomics(through_atomics<Fence::none>),
             ContainsSubstring("TMA load that reads x, byte 0 at proxy_fences.cu:") &&
                 ContainsSubstring("and an atomic by thread (0,0,0) at proxy_fences.cu:"));
  CHECK(atomics(through_atomics<Fence::device>) == "");
  const auto adds = [&](auto kernel) { return finding([&] { fa::launch(kernel, kOneBlock, x); }); };
  CHECK_THAT(adds(add_to_zeros<Fence::none>),
             ContainsSubstring("TMA reduction that adds to x, byte 0 at proxy_fences.cu:"));
  CHECK(adds(add_to_zeros<Fence::device>) == "");
  CHECK(x.download()[63] == 63);
}

TEST_CASE("between blocks either side's fence is enough", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", 32);
  Buffer<unsigned> done("done", 1);
  const auto of = [&](auto kernel) {
    done.fill(0);
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(32)}, x, y, done); });
  };
  const auto text = of(last_block<Fence::none>);
  CAPTURE(text);
  CHECK_THAT(text,
             ContainsSubstring("block (1,0,0), thread (0,0,0): TMA load that reads x, byte "));
  CHECK_THAT(text, ContainsSubstring("and a store by "));
  CHECK_THAT(text, ContainsSubstring("for device memory"));
  CHECK_THAT(of(last_block<Fence::shared>), ContainsSubstring("for device memory"));
  CHECK(of(last_block<Fence::device>) == "");
  CHECK(of(last_block<Fence::issuer>) == "");
}

TEST_CASE("strict: TMA overwrites what threads have read behind their fence only",
          "[sim][races][async]") {
  Buffer<float> x("x", kTile), y("y", kTile);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, kOneBlock, x, y); });
  };
  {
    WithOptions with(with_races());
    CHECK(of(reload<Release::plain>) == "");
    CHECK(of(fill_and_load<false>) == "");
  }
  WithOptions with(with_races(true));
  const auto line = [](int n) { return "proxy_fences.cu:" + std::to_string(kReload + n); };
  const auto text = of(reload<Release::plain>);
  CAPTURE(text);
  CHECK(text.starts_with("strict: race on shared memory: kernel "));
  CHECK_THAT(text,
             ContainsSubstring("block (0,0,0), thread (0,0,0): TMA load into tile, byte 0 at " +
                               line(16) + " and a load by thread (33,0,0) at " + line(24) +
                               " have no fence.proxy.async (fence_proxy_async by that thread, "
                               "in front of the barrier, or behind it by the thread that "
                               "issues) between them"));
  CHECK_THAT(of(reload<Release::late>), ContainsSubstring("strict: race on shared memory"));
  CHECK(of(reload<Release::fenced>) == "");
  CHECK(of(reload<Release::issuer>) == "");

  CHECK_THAT(of(fill_and_load<false>), ContainsSubstring("and a store by thread (0,0,0) at"));
  CHECK(of(fill_and_load<true>) == "");
}
