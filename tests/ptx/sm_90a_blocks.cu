// Clusters, launches that overlap, mbarriers, and stores from registers.
#include "common/dialect/ptx/reduce.h"
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

// A kernel launched early reads what the kernel before it wrote.

namespace {

__global__ void first_kernel(int* x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
}

__global__ void early_kernel(const int* x, int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = 7;  // shared memory is usable from the start
  fa::griddep_wait();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i] + slot[threadIdx.x];
}

__global__ void empty_kernel() { fa::griddep_wait(); }

}  // namespace

TEST_CASE("a launch is refused one byte past what it may have", "[ptx][dependent]") {
  const size_t most = fa::shared_memory_per_block();
  CHECK_NOTHROW(fa::launch(empty_kernel, {1, 32, most}));
  CHECK_THROWS_AS(fa::launch(empty_kernel, {1, 32, most + 1}), fa::ResourceError);
  CHECK_THROWS_WITH(fa::require_shared_memory(most + 1),
                    "needs " + std::to_string(most + 1) + " bytes of shared memory for a block; " +
                        "this GPU has " + std::to_string(most) +
                        ": try a smaller --d, or --smem where the program has it");
  CHECK_NOTHROW(fa::launch_early(empty_kernel, {1, 32, most}));
  CHECK_THROWS_AS(fa::launch_early(empty_kernel, {1, 32, most + 1}), fa::ResourceError);
  CHECK_NOTHROW(fa::launch_early(empty_kernel, {2, 32, 0, 2}));
}

TEST_CASE("a kernel launched early sees what the one in front wrote", "[ptx][dependent]") {
  constexpr int kBlocks = 3000, kThreads = 64;
  const test::Buffer<int> x("x", kBlocks * kThreads), out("out", kBlocks * kThreads);
  fa::launch(first_kernel, {kBlocks, kThreads}, x);
  fa::launch_early(early_kernel, {kBlocks, kThreads}, x, out);
  const auto want = test::each<int>(kBlocks * kThreads,
                                    [](int i) { return 1000 * (i / kThreads) + i % kThreads + 7; });
  CHECK(out.download() == want);
}

// mbarriers between warps of one block: phases, parities, a producer/consumer ring.

namespace {

constexpr int kStages = 2;

// Warp 0 produces, the others consume; `full` has one arrival per phase, `empty` one per consumer.
__global__ void ring_kernel(const int* in, int tiles, int* out) {
  __shared__ int tile[kStages][32];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int consumers = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_init(&full[s], 1);
      fa::mbarrier_init(&empty[s], consumers);
    }
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  for (int j = 0; j < tiles; ++j) {
    const int s = j % kStages, round = j / kStages & 1;
    if (warp == 0) {
      fa::mbarrier_wait(&empty[s], round ^ 1);  // passes at once in the first round
      tile[s][lane] = in[j * 32 + lane];
      __syncwarp();
      if (lane == 0) fa::mbarrier_arrive(&full[s]);
    } else {
      fa::mbarrier_wait(&full[s], round);
      const int v = tile[s][31 - lane];
      __syncwarp();
      if (lane == 0) fa::mbarrier_arrive(&empty[s]);
      out[(j * consumers + warp - 1) * 32 + lane] = v;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      fa::mbarrier_inval(&full[s]);
      fa::mbarrier_init(&full[s], 1);  // the memory can become a barrier again
    }
  }
}

__global__ void elect_kernel(int* out) {
  if (fa::elect_one()) atomicAdd(&out[threadIdx.x / 32], 1);
  if (fa::elect_one()) atomicAdd(&out[4 + threadIdx.x / 32], static_cast<int>(threadIdx.x % 32));
  if (fa::elect_one()) atomicAdd(&out[4 + threadIdx.x / 32], -static_cast<int>(threadIdx.x % 32));
}

}  // namespace

TEST_CASE("elect_one is true in one lane of each warp, always the same", "[ptx][barrier]") {
  const test::Buffer<int> out("out", std::vector<int>(8));
  fa::launch(elect_kernel, {1, 128}, out);
  CHECK(out.download() == std::vector<int>{1, 1, 1, 1, 0, 0, 0, 0});
}

TEST_CASE("a ring of mbarriers passes every tile to every consumer", "[ptx][mbarrier]") {
  const int tiles = GENERATE(1, 2, 5, 8);
  const int consumers = GENERATE(1, 3);
  CAPTURE(tiles, consumers);
  const auto want = test::each<int>(tiles * consumers * 32,
                                    [&](int i) { return i / 32 / consumers * 32 + 31 - i % 32; });
  const auto got = test::results<int>(want.size(), ring_kernel, {1, unsigned(32 * (consumers + 1))},
                                      test::iota<int>(size_t(tiles) * 32), tiles);
  CHECK(got == want);
}

// From registers to memory: stmatrix and red_add_v4.

namespace {

// Lane l holds 4 l + m in the low half of register m and 1000 + 4 l + m in the high half.
__global__ void stmatrix_kernel(uint16_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const unsigned lane = threadIdx.x;
  uint32_t r[4];
  for (unsigned m = 0; m < 4; ++m) r[m] = (4 * lane + m) | (1000 + 4 * lane + m) << 16;
  fa::stmatrix_x4(tile + lane * 8, r);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = tile[lane * 8 + i];
}

__global__ void add_kernel(float* sums) {  // each block adds the same four numbers per lane
  const float x = static_cast<float>(threadIdx.x);
  fa::red_add_v4(sums + 4 * threadIdx.x, x, -x, 0.5f, 1.f);
}

}  // namespace

TEST_CASE("stmatrix writes 8x8 matrices from fragments", "[ptx][stmatrix]") {
  std::vector<uint16_t> want(32 * 8);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        want[(m * 8 + e.row) * 8 + e.col] = static_cast<uint16_t>(4 * lane + m + 1000 * i);
      }
    }
  }
  CHECK(test::results<uint16_t>(32 * 8, stmatrix_kernel, {1, 32}) == want);
}

TEST_CASE("red_add_v4 adds four floats side by side, of all blocks", "[ptx][reduce]") {
  constexpr int kBlocks = 5, kLanes = 64;
  const test::Buffer<float> sums("sums", std::vector<float>(4 * kLanes, 2.f));
  fa::launch(add_kernel, {kBlocks, kLanes}, sums);
  CHECK(sums.download() == test::each<float>(4 * kLanes, [](int i) {
          const float added[] = {1.f * (i / 4), -1.f * (i / 4), 0.5f, 1.f};
          return 2 + kBlocks * added[i % 4];
        }));
}
