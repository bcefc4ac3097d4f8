// Clusters: blocks that read and write each other's shared memory.
#include "tests/device.h"
#include "tests/test.h"

namespace {

// Each block fills its shared memory and reads its neighbour's.
__global__ void neighbours_kernel(int* out) {
  __shared__ int own_static[64];
  int* own_dynamic = fa::dynamic_shared<int>();
  const unsigned rank = fa::cluster_rank(), size = fa::cluster_size(), t = threadIdx.x;
  own_static[t] = static_cast<int>(1000 * blockIdx.x + t);
  own_dynamic[t] = static_cast<int>(5000 + 1000 * blockIdx.x + t);
  fa::cluster_sync();
  const unsigned next = (rank + 1) % size;
  int* o = out + blockIdx.x * 128;
  o[t] = fa::map_shared(own_static, next)[63 - t];
  o[64 + t] = fa::map_shared(own_dynamic, next)[63 - t];
  fa::cluster_sync();  // no block returns while its memory is read
}

// Writing: every block writes a word into every other block, then arrives and waits separately.
__global__ void scatter_kernel(int* out) {
  __shared__ int inbox[8];
  const unsigned rank = fa::cluster_rank(), size = fa::cluster_size();
  fa::cluster_sync();  // all blocks run
  if (threadIdx.x < size) {
    *fa::map_shared(&inbox[rank], threadIdx.x) = static_cast<int>(100 * rank + threadIdx.x);
  }
  fa::cluster_arrive();
  fa::cluster_wait();
  if (threadIdx.x < size) out[blockIdx.x * size + threadIdx.x] = inbox[threadIdx.x];
}

// Block 1 waits on its mbarrier for an arrival of block 0, and reads block 0's data.
__global__ void remote_arrive_kernel(int* out) {
  __shared__ int word;
  __shared__ uint64_t ready;
  if (threadIdx.x == 0) {
    word = 0;
    fa::mbarrier_init(&ready, 1);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (fa::cluster_rank() == 0 && threadIdx.x == 0) {
    *fa::map_shared(&word, 1) = 42;
    fa::mbarrier_arrive_remote(&ready, 1);
  }
  if (fa::cluster_rank() == 1) {
    fa::mbarrier_wait_cluster(&ready, 0);
    out[threadIdx.x] = word;
  }
  fa::cluster_sync();
}

// Each block sends its tile to its neighbour, twice; the second time after the first was read.
__global__ void send_kernel(int* out) {
  __shared__ __align__(16) int tile[32], inbox[32];
  __shared__ uint64_t full, empty;
  const unsigned other = fa::cluster_rank() ^ 1, t = threadIdx.x;
  if (t == 0) {
    fa::mbarrier_init(&full, 1), fa::mbarrier_init(&empty, 32);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  for (int round = 0; round < 2; ++round) {
    tile[t] = static_cast<int>(1000 * blockIdx.x + 100 * round + t);
    fa::fence_proxy_async();
    __syncwarp();
    if (t == 0) {
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::bulk_send(inbox, tile, sizeof tile, &full, other);
    }
    __syncwarp();
    fa::mbarrier_wait(&full, round);
    out[(blockIdx.x * 2 + round) * 32 + t] = inbox[t];
    fa::mbarrier_release_remote(&empty, other);
    fa::mbarrier_wait(&empty, round);
  }
  fa::cluster_sync();
}

}  // namespace

TEST_CASE("blocks of a cluster read each other's shared memory", "[ptx][cluster]") {
  const unsigned size = GENERATE(2u, 4u);
  CAPTURE(size);
  constexpr int kClusters = 3;
  const unsigned blocks = kClusters * size;
  const auto want = test::each<int>(blocks * 128, [&](int i) {
    const int block = i / 128, cluster = block / int(size) * int(size);
    const int neighbour = cluster + (block + 1) % int(size);
    return (i % 128 < 64 ? 0 : 5000) + 1000 * neighbour + 63 - i % 64;
  });
  const auto got =
      test::results<int>(blocks * 128, neighbours_kernel, {blocks, 64, 64 * sizeof(int), size});
  CHECK(got == want);
}

TEST_CASE("blocks of a cluster write to each other's shared memory", "[ptx][cluster]") {
  constexpr unsigned kSize = 4;
  const auto want = test::each<int>(2 * kSize * kSize, [](int i) {
    const int from = i % kSize, to = i / kSize % kSize;
    return 100 * from + to;
  });
  CHECK(test::results<int>(want.size(), scatter_kernel, {2 * kSize, 32, 0, kSize}) == want);
}

TEST_CASE("an arrival at another block's mbarrier releases what was written there",
          "[ptx][cluster]") {
  CHECK(test::results<int>(32, remote_arrive_kernel, {2, 32, 0, 2}) == std::vector<int>(32, 42));
}

TEST_CASE("a bulk send copies to another block and tells its mbarrier", "[ptx][cluster]") {
  const auto want = test::each<int>(
      4 * 64, [](int i) { return 1000 * (i / 64 ^ 1) + 100 * (i / 32 % 2) + i % 32; });
  CHECK(test::results<int>(want.size(), send_kernel, {4, 32, 0, 2}) == want);
}
