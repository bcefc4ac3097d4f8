// Races between the blocks of a cluster: what orders them, and what a multicast load needs.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::TensorMap;
using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

constexpr int kTile = 32, kStages = 2, kTiles = 5;

// Each block reads its neighbour's tile.
enum class Sync { cluster, block, arrive_only, behind_arrival };
template <Sync sync>
__global__ void exchange(float* y) {
  __shared__ float tile[64];
  const unsigned t = threadIdx.x, other = fa::cluster_rank() ^ 1;
  fa::cluster_sync();
  if (sync != Sync::behind_arrival) tile[t] = t;
  if (sync == Sync::cluster) fa::cluster_sync();
  if (sync == Sync::block) __syncthreads();
  if (sync == Sync::arrive_only) fa::cluster_arrive();
  if (sync == Sync::behind_arrival) {
    fa::cluster_arrive();
    tile[t] = t;
    fa::cluster_wait();
  }
  y[blockIdx.x * 64 + t] = fa::map_shared(tile, other)[t ^ 32];
  if (sync == Sync::arrive_only) fa::cluster_wait();
  fa::cluster_sync();  // nobody leaves while others read
}

// The same in the other direction: block 0 stores into block 1's tile.
template <bool kSync>
__global__ void store_to_neighbour(float* y) {
  __shared__ float tile[64];
  fa::cluster_sync();
  if (fa::cluster_rank() == 0) fa::map_shared(tile, 1)[threadIdx.x] = 1;
  if (kSync) fa::cluster_sync();
  if (fa::cluster_rank() == 1) y[threadIdx.x] = tile[threadIdx.x];
  fa::cluster_sync();
}

// Block 0 fills block 1's tile and arrives at its mbarrier.
template <bool kWait>
__global__ void hand_over(float* y) {
  __shared__ float tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 32);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (fa::cluster_rank() == 0) {
    fa::map_shared(tile, 1)[threadIdx.x] = 1;
    fa::mbarrier_arrive_remote(&full, 1);
  } else {
    if (kWait) fa::mbarrier_wait_cluster(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x ^ 1];
  }
  fa::cluster_sync();
}

template <bool kSync>
__global__ void through_device(float* x, float* y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  x[i] = i;
  if (kSync) fa::cluster_sync();
  y[i] = x[i ^ 32];
}

// Block 0 loads tiles for both blocks; each block's warp 1 adds them up and hands the stage back to
// block 0. Faults: the consumers of block 1 are not waited for, they do not wait for the last tile,
// or all hand a stage back before they have read it.
enum class Fault { none, local, no_full_wait, empty_too_early };
template <Fault fault>
__global__ void multicast_ring(const __grid_constant__ TensorMap map, float* y) {
  __shared__ __align__(128) float tile[kStages][kTile];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned rank = fa::cluster_rank();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_init(&full[s], 1);
      fa::mbarrier_init(&empty[s], fault == Fault::local ? 32 : 64);
    }
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    for (int j = 0; j < kTiles; ++j) {
      const int s = j % kStages;
      // Block 1 waits for its own tile before it announces the next one.
      if (rank == 0) fa::mbarrier_wait_cluster(&empty[s], (j / kStages & 1) ^ 1);
      if (rank == 1 && j >= kStages) fa::mbarrier_wait(&full[s], (j / kStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(&full[s], sizeof tile[s]);
      if (rank == 0) {
        fa::tma_load_multicast(tile[s], &map, &full[s], {j * kTile}, uint16_t{3});
      }
    }
  }
  if (warp == 1) {
    float sum = 0;
    for (int j = 0; j < kTiles; ++j) {
      const int s = j % kStages;
      const bool wait = fault != Fault::no_full_wait || rank == 0 || j < kTiles - 1;
      if (wait) fa::mbarrier_wait(&full[s], j / kStages & 1);
      if (fault == Fault::empty_too_early) fa::mbarrier_arrive_remote(&empty[s], 0);
      sum += tile[s][31 - lane];
      if (fault == Fault::local ? rank == 0 : fault != Fault::empty_too_early) {
        fa::mbarrier_arrive_remote(&empty[s], 0);
      }
    }
    y[blockIdx.x * 32 + lane] = sum;
  }
  fa::cluster_sync();
}

// One block arrives at the other's mbarrier, or reads its tile. Does that one know when it ends?
enum class Use { waited_for, arrival, read };
template <Use use, unsigned user>
__global__ void leave(float* y) {
  __shared__ float tile[32];
  __shared__ uint64_t done;
  tile[threadIdx.x] = 1;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&done, 32);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (fa::cluster_rank() == user) {
    if (use == Use::read) y[threadIdx.x] = fa::map_shared(tile, user ^ 1)[threadIdx.x];
    if (use != Use::read) fa::mbarrier_arrive_remote(&done, user ^ 1);
  } else if (use == Use::waited_for) {
    fa::mbarrier_wait_cluster(&done, 0);
  }
}

// A multicast load into a block that does not wait for it, and so may end first.
template <unsigned issuer>
__global__ void multicast_into_the_dead(const __grid_constant__ TensorMap map, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
  if (fa::cluster_rank() == issuer) {
    if (threadIdx.x == 0) fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{3});
    fa::mbarrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
  }
}

// One block uses the other's memory, but only its own threads have met since the start.
enum class First { arrival, store, multicast };
template <First first, unsigned user, bool kSync>
__global__ void begin(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, first == First::arrival ? 32 : 1);
    fa::mbarrier_init_fence();
  }
  kSync ? fa::cluster_sync() : __syncthreads();
  if (fa::cluster_rank() == user) {
    if (first == First::arrival) fa::mbarrier_arrive_remote(&full, user ^ 1);
    if (first == First::store) fa::map_shared(tile, user ^ 1)[threadIdx.x] = 1;
    if (first == First::multicast && threadIdx.x == 0) {
      fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t(1 << (user ^ 1)));
    }
  } else {
    if (first == First::multicast && threadIdx.x == 0) {
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    }
    if (first != First::store) fa::mbarrier_wait_cluster(&full, 0);
  }
  fa::cluster_sync();
}

sim::Options with_races() {
  sim::Options o;
  o.races = true;
  return o;
}

#define SILENT(...) CHECK(finding([&] { __VA_ARGS__; }) == "")
#define FOUND(text, ...) CHECK_THAT(finding([&] { __VA_ARGS__; }), ContainsSubstring(text))

}  // namespace

TEST_CASE("the cluster's barrier orders its blocks", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 256);
  const fa::LaunchConfig config{dim3(4), dim3(64), 0, 2};
  SILENT(fa::launch(exchange<Sync::cluster>, config, y));
  CHECK(y.download()[64 + 5] == 37);
  const auto text = finding([&] { fa::launch(exchange<Sync::block>, config, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on shared memory: kernel "));
  CHECK_THAT(text, ContainsSubstring("of tile, byte "));
  CHECK_THAT(text, ContainsSubstring("block (1,0,0), thread ("));
  CHECK_THAT(text, ContainsSubstring("have no barrier between them"));
  FOUND("race on shared memory", fa::launch(exchange<Sync::arrive_only>, config, y));
  FOUND("race on shared memory", fa::launch(exchange<Sync::behind_arrival>, config, y));
}

TEST_CASE("a store to another block's shared memory is a store", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  const fa::LaunchConfig config{dim3(2), dim3(64), 0, 2};
  SILENT(fa::launch(store_to_neighbour<true>, config, y));
  const auto text = finding([&] { fa::launch(store_to_neighbour<false>, config, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on shared memory"));
  CHECK_THAT(text, ContainsSubstring("block (0,0,0)"));
  CHECK_THAT(text, ContainsSubstring("block (1,0,0)"));
}

TEST_CASE("a remote arrival orders two blocks", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  const fa::LaunchConfig config{dim3(2), dim3(32), 0, 2};
  SILENT(fa::launch(hand_over<true>, config, y));
  CHECK(y.download()[7] == 1);
  FOUND("race on shared memory", fa::launch(hand_over<false>, config, y));
}

TEST_CASE("within a cluster device memory is in order behind its barrier",
          "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> x("x", 128), y("y", 128);
  SILENT(fa::launch(through_device<true>, {dim3(4), dim3(32), 0, 2}, x, y));
  FOUND("race on device memory",
        fa::launch(through_device<false>, {dim3(4), dim3(32), 0, 2}, x, y));
}

TEST_CASE("a multicast load waits for the readers of all blocks", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTiles * kTile), y("y", 128);
  x.upload(std::vector<float>(kTiles * kTile, 1.f));
  const TensorMap map = fa::tensor_map(x.get(), {{kTiles * kTile, 1, kTile}}, fa::Swizzle::none);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(4), dim3(64), 0, 2}, map, y.get()); });
  };
  CHECK(of(multicast_ring<Fault::none>) == "");
  CHECK(y.download() == std::vector<float>(128, kTiles));
  const auto local = of(multicast_ring<Fault::local>);
  CAPTURE(local);
  CHECK_THAT(local, ContainsSubstring("block (0,0,0), thread (0,0,0): TMA load into tile, byte 0"));
  CHECK_THAT(local, ContainsSubstring("in block (1,0,0)"));
  CHECK_THAT(of(multicast_ring<Fault::no_full_wait>), ContainsSubstring("race on shared memory"));
  const auto early = of(multicast_ring<Fault::empty_too_early>);
  CAPTURE(early);
  CHECK_THAT(early, ContainsSubstring("race on shared memory"));
}

TEST_CASE("a block does not end while others use its shared memory", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(32), 0, 2}, y.get()); });
  };
  CHECK(of(leave<Use::waited_for, 0>) == "");
  CHECK(of(leave<Use::waited_for, 1>) == "");
  // Which of the two blocks runs first decides which of the two sentences is said.
  const std::string behind = of(leave<Use::arrival, 0>), before = of(leave<Use::arrival, 1>);
  CAPTURE(before, behind);
  CHECK_THAT(before, ContainsSubstring("block (0,0,0) may end before the atomic by block (1,0,0), "
                                       "thread ("));
  CHECK_THAT(behind, ContainsSubstring("block (0,0,0), thread ("));
  CHECK_THAT(behind, ContainsSubstring("in block (1,0,0)"));
  CHECK_THAT(behind, ContainsSubstring("that block has ended"));
  CHECK_THAT(of(leave<Use::read, 0>), ContainsSubstring("that block has ended"));
  CHECK_THAT(of(leave<Use::read, 1>), ContainsSubstring("may end before the load"));
}

TEST_CASE("a multicast load needs a block that is still there", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", kTile);
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, fa::Swizzle::none);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(32), 0, 2}, map, y.get()); });
  };
  const std::string behind = of(multicast_into_the_dead<0>);
  CAPTURE(behind);
  CHECK_THAT(behind, ContainsSubstring("TMA load into tile, byte 0, in block (1,0,0)"));
  CHECK_THAT(behind, ContainsSubstring("that block has ended"));
  CHECK_THAT(of(multicast_into_the_dead<1>), ContainsSubstring("ends without a wait for"));
}

TEST_CASE("a block is used only when it is known to have begun", "[sim][races][cluster]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile);
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, fa::Swizzle::none);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(2), dim3(32), 0, 2}, map); });
  };
  CHECK(of(begin<First::arrival, 0, true>) == "");
  CHECK(of(begin<First::store, 1, true>) == "");
  CHECK(of(begin<First::multicast, 0, true>) == "");
  const char* text = "may not have begun";
  CHECK_THAT(of(begin<First::arrival, 0, false>), ContainsSubstring("is not initialised"));
  CHECK_THAT(of(begin<First::arrival, 1, false>), ContainsSubstring(text));
  CHECK_THAT(of(begin<First::store, 0, false>), ContainsSubstring(text));
  CHECK_THAT(of(begin<First::store, 1, false>), ContainsSubstring(text));
  CHECK_THAT(of(begin<First::multicast, 0, false>), ContainsSubstring(text));
  CHECK_THAT(of(begin<First::multicast, 1, false>), ContainsSubstring(text));
}
