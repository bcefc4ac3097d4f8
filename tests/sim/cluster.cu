// Blocks of a cluster: what orders them, the conditions of a multicast load, and wrong uses of its
// barrier and of other blocks' memory. The right uses run on both backends in tests/ptx.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::TensorMap;
using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

constexpr int kTile = 32, kStages = 2, kTiles = 5;
const fa::LaunchConfig kTwoBlocks{2, 32, 0, 2}, kTwoClusters{4, 64, 0, 2};

__device__ void init(uint64_t* bar, int arrivals) {
  if (threadIdx.x == 0) {
    fa::mbarrier_init(bar, arrivals);
    fa::mbarrier_init_fence();
  }
}

enum class Sync { cluster, block, arrive_only, behind_arrival };
__global__ void exchange(float* y, Sync sync) {
  __shared__ float tile[64];
  const unsigned t = threadIdx.x, other = fa::cluster_rank() ^ 1;
  tile[t] = 0;
  __syncwarp();
  tile[t] += 1;  // read by a neighbour in an earlier cluster
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
  fa::cluster_sync();  // no block leaves while others read
}

// The blocks of the first cluster read each other's tile; those of the second return at once.
__global__ void only_first_cluster(float* y) {
  __shared__ float tile[32];
  if (blockIdx.x >= 2) return;
  tile[threadIdx.x] = 1;
  fa::cluster_sync();
  y[blockIdx.x * 32 + threadIdx.x] = fa::map_shared(tile, fa::cluster_rank() ^ 1)[threadIdx.x];
  fa::cluster_sync();
}

// Block `reader` reads its tile, which its neighbour overwrites.
__global__ void overwrite(float* y, unsigned reader, bool sync) {
  __shared__ float tile[32];
  const unsigned t = threadIdx.x;
  tile[t] = t;
  fa::cluster_sync();
  const bool reads = fa::cluster_rank() == reader;
  if (reads) y[t] = tile[t];
  if (sync) fa::cluster_sync();
  __syncthreads();  // not with the neighbour
  if (!reads) fa::map_shared(tile, reader)[t] = 1;
  fa::cluster_sync();
}

// One block of the cluster fills the other's tile and arrives at its mbarrier; the last one errs.
enum class Missing { nothing, wait, arrival, release };
__global__ void hand_over(float* y, Missing fault, unsigned from = 0) {
  __shared__ float tile[64];
  __shared__ uint64_t full;
  const Missing missing = blockIdx.x + 2 < gridDim.x ? Missing::nothing : fault;
  init(&full, blockDim.x);
  fa::cluster_sync();
  if (fa::cluster_rank() == from) {
    fa::map_shared(tile, from ^ 1)[threadIdx.x] = 1;
    if (missing == Missing::release) {
      fa::mbarrier_release_remote(&full, from ^ 1);
    } else if (missing != Missing::arrival) {
      fa::mbarrier_arrive_remote(&full, from ^ 1);
    }
  } else {
    if (missing != Missing::wait) fa::mbarrier_wait_cluster(&full, 0);
    y[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x ^ 1];
  }
  fa::cluster_sync();
}

// Each block sends its tile to its neighbour, twice.
enum class Send { right, no_fence, no_wait, too_early, no_full_wait, gap };
__global__ void send(float* y, Send how) {
  __shared__ __align__(16) float tile[32], inbox[32];
  __shared__ uint64_t full, empty;
  const unsigned t = threadIdx.x, other = fa::cluster_rank() ^ 1;
  init(&full, 1), init(&empty, 32);
  fa::cluster_sync();
  for (int round = 0; round < 2; ++round) {
    if (how != Send::no_wait && round > 0) fa::mbarrier_wait(&empty, round - 1);
    if (how != Send::gap || t < 31) tile[t] = t;
    if (how != Send::no_fence) fa::fence_proxy_async();
    __syncwarp();
    if (t == 0) {
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::bulk_send(inbox, tile, sizeof tile, &full, other);
    }
    __syncwarp();
    if (how == Send::too_early) fa::mbarrier_release_remote(&empty, other);
    if (how != Send::no_full_wait) fa::mbarrier_wait(&full, round);
    y[blockIdx.x * 32 + t] = inbox[t];
    if (how != Send::too_early) fa::mbarrier_release_remote(&empty, other);
  }
  fa::mbarrier_wait(&full, 1);
  fa::cluster_sync();
}

// Both blocks of a pair add 1 to block 0's counters, each thread by red.async or one for all, by
// way of one mbarrier or of one per block.
enum class Adding { right, no_start, no_wait, two_waits, only_first, only_second };
__global__ void add(float* y, bool bulk, Adding how) {
  constexpr sim::Reduction kAdd{sim::AtomicOp::add, sim::Element::u32};
  __shared__ __align__(16) uint32_t counters[32], ones[32];
  __shared__ uint64_t full[2];
  const unsigned t = threadIdx.x, rank = fa::cluster_rank();
  const bool two = how >= Adding::two_waits;
  uint64_t* mine = &full[two ? rank : 0];
  counters[t] = 0, ones[t] = 1;
  init(&full[0], 1), init(&full[1], 1);
  fa::fence_proxy_async();
  __syncwarp();
  if (t == 0 && rank == 0) fa::mbarrier_arrive_expect_tx(&full[0], (2 - two) * sizeof ones);
  if (t == 0 && rank == 0 && two) fa::mbarrier_arrive_expect_tx(&full[1], sizeof ones);
  fa::cluster_sync();
  if (how == Adding::no_start) counters[t] = 0;
  if (!bulk) {
    sim::send_registers(fa::map_shared(counters, 0) + t, &ones[t], 4, fa::map_shared(mine, 0),
                        sim::Where::here(), kAdd);
  } else if (t == 0) {
    sim::bulk_send(counters, ones, sizeof ones, mine, 0, sim::Where::here(), kAdd);
  }
  if (rank == 0) {
    if (how != Adding::no_wait && how != Adding::only_second)
      fa::mbarrier_wait_cluster(&full[0], 0);
    if (two && how != Adding::only_first) fa::mbarrier_wait_cluster(&full[1], 0);
    y[t] = counters[t];
  }
  fa::cluster_sync();
}

// The last cluster may omit its barrier.
__global__ void through_device(float* x, float* y, bool sync) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  x[i] = i;
  if (sync || blockIdx.x + 2 < gridDim.x) fa::cluster_sync();
  y[i] = x[i ^ 32];
}

// Block 0 loads tiles for both blocks; each block's warp 1 adds them up and returns the stage to
// block 0. Faults: the consumers of block 1 are not waited for, they do not wait for the last tile,
// or all return a stage before they have read it.
enum class Fault { none, local, no_full_wait, empty_too_early };
__global__ void multicast_ring(const __grid_constant__ TensorMap map, float* y, Fault fault) {
  __shared__ __align__(128) float tile[kStages][kTile];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned rank = fa::cluster_rank();
  for (int s = 0; s < kStages; ++s) {
    init(&full[s], 1);
    init(&empty[s], fault == Fault::local ? 32 : 64);
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    for (int j = 0; j < kTiles; ++j) {
      const int s = j % kStages;
      // Block 1 waits for its own tile before it announces the next one.
      if (rank == 0) fa::mbarrier_wait_cluster(&empty[s], (j / kStages & 1) ^ 1);
      if (rank == 1 && j >= kStages) fa::mbarrier_wait(&full[s], (j / kStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(&full[s], sizeof tile[s]);
      if (rank == 0) fa::tma_load_multicast(tile[s], &map, &full[s], {j * kTile}, uint16_t{3});
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

// One block arrives at the other's mbarrier, or reads its tile. Does the other know when it ends?
enum class Use { waited_for, relaxed, store_then_relaxed, arrival, read, read_late };
__global__ void leave(float* y, Use use, unsigned user) {
  __shared__ float tile[32];
  __shared__ uint64_t done;
  tile[threadIdx.x] = 1;
  init(&done, blockDim.x);
  fa::cluster_sync();
  if (fa::cluster_rank() == user) {
    if (use == Use::store_then_relaxed) fa::map_shared(tile, user ^ 1)[threadIdx.x] = 2;
    if (use == Use::relaxed || use == Use::store_then_relaxed) {
      fa::mbarrier_release_remote(&done, user ^ 1);
    } else if (use != Use::read) {
      fa::mbarrier_arrive_remote(&done, user ^ 1);
    }
    if (use == Use::read || use == Use::read_late) {
      y[threadIdx.x] = fa::map_shared(tile, user ^ 1)[threadIdx.x];
    }
  } else if (use != Use::arrival && use != Use::read) {
    fa::mbarrier_wait_cluster(&done, 0);
  }
}

// A multicast load into a block that does not wait for it, and so may end before.
__global__ void multicast_into_the_dead(const __grid_constant__ TensorMap map, float* y,
                                        unsigned issuer) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  init(&full, 1);
  fa::cluster_sync();
  if (threadIdx.x == 0) fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
  if (fa::cluster_rank() == issuer) {
    if (threadIdx.x == 0) fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{3});
    fa::mbarrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
  }
}

// One block uses the other's memory, but only threads of a block have met since the start.
enum class First { arrival, store, multicast };
__global__ void begin(const __grid_constant__ TensorMap map, First first, unsigned user,
                      bool sync) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  init(&full, first == First::arrival ? 32 : 1);
  sync ? fa::cluster_sync() : __syncthreads();
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

// Thread 0 of each block waits for the cluster; the others return at once, arrive and return, or
// return after thread 0 has begun to wait.
__global__ void others_return(float* y) {
  if (threadIdx.x == 1) return;
  if (threadIdx.x == 2) {
    fa::cluster_arrive();
    return;
  }
  if (threadIdx.x == 0) fa::cluster_arrive();
  __syncwarp(1u << 0 | 1u << 3);
  if (threadIdx.x == 3) return;  // when thread 0 waits already
  fa::cluster_wait();
  y[blockIdx.x] = 1;
}
// The second warp stores and returns; the other block's first warp reads after the barrier.
__global__ void store_and_return(float* x, float* y) {
  if (threadIdx.x >= 32) {
    if (threadIdx.x == 32) x[blockIdx.x] = 1;
    return;
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x ^ 1];
}
__global__ void wait_without_arrive() { fa::cluster_wait(); }
__global__ void arrive_twice() {
  fa::cluster_arrive();
  fa::cluster_arrive();
}
__global__ void beyond_the_cluster(float* y) {
  __shared__ float word;
  y[0] = *fa::map_shared(&word, 2);
}
__global__ void multicast_beyond(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  init(&full, 1);
  fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{5});
}

TensorMap tiles_of(const Buffer<float>& x) {
  return fa::tensor_map(x.get(), {{kTiles * kTile, 1, kTile}}, fa::Swizzle::none);
}

}  // namespace

ANALYSED("the cluster's barrier orders its blocks", "[sim][races][cluster]") {
  SILENT(exchange, kTwoClusters, y, Sync::cluster);
  CHECK(y.download()[64 + 5] == 37);
  FOUND(
      "race on shared memory: kernel  ... of tile, byte  ... block (1,0,0), thread ( ... have no "
      "barrier between them",
      exchange, kTwoClusters, y, Sync::block);
  FOUND("race on shared memory", exchange, kTwoClusters, y, Sync::arrive_only);
  FOUND("race on shared memory", exchange, kTwoClusters, y, Sync::behind_arrival);
  for (const unsigned reader : {0u, 1u}) {
    FOUND("race on shared memory", overwrite, kTwoBlocks, y, reader, false);
    SILENT(overwrite, kTwoBlocks, y, reader, true);
  }
  FOUND(
      "race on device memory: ... block (3,0,0), thread (0,0,0): store of x, byte 384 at ... and a "
      "load by block (2,0,0), thread (0,0,0) at ... have no barrier between them",
      through_device, {4, 32, 0, 2}, x, y, false);
  SILENT(through_device, {4, 32, 0, 2}, x, y, true);
}

ANALYSED("a remote arrival orders two blocks; without it they wait for ever",
         "[sim][races][cluster]") {
  SILENT(hand_over, kTwoBlocks, y, Missing::nothing, 0u);
  CHECK(y.download()[64 + 7] == 1);
  FOUND("race on shared memory ... block (0,0,0)", hand_over, kTwoBlocks, y, Missing::wait, 0u);
  // Of the second cluster, whose blocks have a warp and a quarter each.
  const fa::LaunchConfig odd{4, 40, 0, 2};
  for (const unsigned from : {0u, 1u}) {
    const std::string it = "block (" + std::to_string(2 + from) + ",0,0)";
    const std::string other = "block (" + std::to_string(3 - from) + ",0,0)";
    SILENT(hand_over, odd, y, Missing::nothing, from);
    // The last waiter continues first, or the first waiter where that is another block.
    const std::string words = from == 0 ? ", thread (39,0,0): load of tile, byte 152 at ... by "
                                        : ", thread (0,0,0): load of tile, byte 4 at ... by ";
    FOUND(other + words + it + (from == 0 ? ", thread (38,0,0) at" : ", thread (1,0,0) at"),
          hand_over, odd, y, Missing::release, from);
    FOUND("deadlock in ... " + other + " ... 40 threads wait at mbarrier", hand_over, odd, y,
          Missing::arrival, from);
  }
  FOUND(
      "load of tile, byte 120 at ... and a store by block (0,0,0), thread (30,0,0) at ... have no "
      "barrier",
      hand_over, kTwoBlocks, y, Missing::release, 0u);  // relaxed
  FOUND(
      "deadlock in kernel (anonymous namespace)::hand_over ... of its cluster ... 32 threads wait "
      "at mbarrier",
      hand_over, kTwoBlocks, y, Missing::arrival, 0u);
}

ANALYSED("a multicast load waits for the readers of all blocks", "[sim][races][cluster]") {
  Buffer<float> x("x", std::vector<float>(kTiles * kTile, 1.f)), y("y", 128);
  const TensorMap map = tiles_of(x);
  SILENT(multicast_ring, kTwoClusters, map, y, Fault::none);
  CHECK(y.download() == std::vector<float>(128, kTiles));
  FOUND("block (0,0,0), thread (0,0,0): TMA load into tile, byte 0 ... in block (1,0,0)",
        multicast_ring, kTwoClusters, map, y, Fault::local);
  FOUND("race on shared memory", multicast_ring, kTwoClusters, map, y, Fault::no_full_wait);
  FOUND("race on shared memory", multicast_ring, kTwoClusters, map, y, Fault::empty_too_early);
}

ANALYSED("a bulk send reads its own block and writes to another", "[sim][races][cluster]") {
  SILENT(send, kTwoBlocks, y, Send::right);
  CHECK(y.download()[40] == 8);
  FOUND("no fence.proxy.async", send, kTwoBlocks, y, Send::no_fence);
  FOUND("TMA store that reads tile, byte 124 ... this block has not written yet", send, kTwoBlocks,
        y, Send::gap);
  FOUND("race on shared memory", send, kTwoBlocks, y, Send::no_wait);
  FOUND("race on shared memory", send, kTwoBlocks, y, Send::too_early);
  FOUND("race on shared memory", send, kTwoBlocks, y, Send::no_full_wait);
}

ANALYSED("several blocks add to a place in any order, which is read after the wait",
         "[sim][races][cluster]") {
  for (const bool bulk : {false, true}) {
    const std::string name = bulk ? "cp.reduce.async.bulk" : "red.async";
    SILENT(add, kTwoBlocks, y, bulk, Adding::right);
    CHECK(y.download()[31] == 2);
    FOUND("race on shared memory: ... load of counters, byte 0 at ... and a " + name +
              " by thread (0,0,0) ... at ... have no wait on its mbarrier",
          add, kTwoBlocks, y, bulk, Adding::no_wait);
    FOUND("race on shared memory: ... store of counters, byte 0 at ... and a " + name +
              " by block (1,0,0), thread (0,0,0) at ... have no wait on its mbarrier",
          add, kTwoBlocks, y, bulk, Adding::no_start);
    SILENT(add, kTwoBlocks, y, bulk, Adding::two_waits);
    CHECK(y.download()[31] == 2);
    for (const Adding how : {Adding::only_first, Adding::only_second}) {
      FOUND(
          "load of counters, byte 0 at ... and a " + name + " by ... have no wait on its mbarrier",
          add, kTwoBlocks, y, bulk, how);
    }
  }
}

ANALYSED("a block does not end while others use its shared memory", "[sim][races][cluster]") {
  SILENT(leave, kTwoBlocks, y, Use::waited_for, 0u);
  SILENT(leave, kTwoBlocks, y, Use::waited_for, 1u);
  SILENT(leave, kTwoBlocks, y, Use::relaxed, 1u);
  FOUND("may end before the store", leave, kTwoBlocks, y, Use::store_then_relaxed, 1u);
  SILENT(only_first_cluster, {4, 32, 0, 2}, y);
  // The block that runs first decides which of the two sentences is printed.
  FOUND("block (0,0,0) may end before the atomic by block (1,0,0), thread (", leave, kTwoBlocks, y,
        Use::arrival, 1u);
  FOUND("block (0,0,0), thread ( ... in block (1,0,0) ... that block has ended", leave, kTwoBlocks,
        y, Use::arrival, 0u);
  FOUND("that block has ended", leave, kTwoBlocks, y, Use::read, 0u);
  FOUND("may end before the load", leave, kTwoBlocks, y, Use::read, 1u);
  FOUND("may end before the load", leave, {2, 1, 0, 2}, y, Use::read_late, 1u);
  FOUND("TMA load into tile, byte 0, in block (1,0,0) ... that block has ended",
        multicast_into_the_dead, kTwoBlocks, tiles_of(x), y, 0u);
  FOUND("ends without a wait for", multicast_into_the_dead, kTwoBlocks, tiles_of(x), y, 1u);
}

ANALYSED("a block is used only when it is known to have begun", "[sim][races][cluster]") {
  const TensorMap map = tiles_of(x);
  for (const First first : {First::arrival, First::store, First::multicast}) {
    for (const unsigned user : {0u, 1u}) {
      CAPTURE(static_cast<int>(first), user);
      SILENT(begin, kTwoBlocks, map, first, user, true);
      const bool fresh = first == First::arrival && user == 0;  // block 1 has not run at all
      FOUND(fresh ? "is not initialised" : "may not have begun", begin, kTwoBlocks, map, first,
            user, false);
    }
  }
}

ANALYSED("threads that have returned do not hold up the cluster", "[sim][cluster]") {
  Buffer<float> x("x", 4), y("y", 4);
  SILENT(others_return, {4, 4, 0, 2}, y);
  CHECK(y.download() == std::vector<float>(4, 1));
  SILENT(store_and_return, {4, 64, 0, 2}, x, y);
}

TEST_CASE("wrong uses of the cluster's barrier and blocks are refused", "[sim][cluster]") {
  Buffer<float> x("x", kTiles * kTile);
  FOUND("without a barrier.cluster.arrive", wait_without_arrive, {2, 1, 0, 2});
  FOUND("for the second time", arrive_twice, {2, 1, 0, 2});
  FOUND("block 2 of a cluster of 2", beyond_the_cluster, {2, 1, 0, 2}, x);
  FOUND("to a block outside the cluster of 2", multicast_beyond, {2, 1, 0, 2}, tiles_of(x));
}
