// Barriers, deadlocks, divergence, spinning, stacks, workers, and refusals of a launch.
#include <unistd.h>
#include <array>
#include <set>

#include "common/counts/backend.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/ptx.h"
#include "common/harness/problem.h"
#include "common/sim/block.h"
#include "common/sim/messages/messages.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

__global__ void barrier_in_branches(float* x, bool divergent) {
  if (divergent && threadIdx.x < 16) {
    x[threadIdx.x] = 1;
    __syncthreads();
  } else {
    x[threadIdx.x] = 2;
    __syncthreads();
  }
}
__global__ void shuffle_of_half(float* x, unsigned mask) {
  float v = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16) v += __shfl_xor_sync(mask, v, 1);
  __syncthreads();  // the other half is at another barrier
  x[threadIdx.x] = v;
}
__global__ void shuffle_at_two_lines(float* x, bool divergent) {
  float v = 1;
  if (divergent && threadIdx.x % 2) {
    v += __shfl_xor_sync(fa::kFullMask, v, 2);
  } else {
    v += __shfl_xor_sync(fa::kFullMask, v, 2);
  }
  x[threadIdx.x] = v;
}
// Lane 1 of each four meets its equals while the others wait for all; then eight groups meet.
__global__ void groups_side_by_side(float* x) {
  const int lane = threadIdx.x;
  int v = 0;
  if (lane % 4 == 1) v = __shfl_sync(0x22222222, lane, 29);
  v += __shfl_sync(fa::kFullMask, lane, 3);
  x[lane] = v + __shfl_sync(0x01010101u << lane % 8, lane, 8 + lane % 8);
}
// Lane 0 waits for lane 1, which waits for lane 0 and others.
__global__ void masks_that_differ(float* x) {
  x[threadIdx.x] = __shfl_sync(threadIdx.x ? fa::kFullMask : 0x3, 1.f, 0);
}
__global__ void mask_without_own_lane() {
  if (threadIdx.x == 0) __syncwarp(0xfffffffe);
}

// Each thread has its place in y, and stores there what it knows of it.
__global__ void places(uint4* y) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const auto packed = [](const uint3& i) { return i.x | i.y << 10 | i.z << 20; };
  y[block * threads + thread] = {
      packed({blockIdx.x, blockIdx.y, blockIdx.z}), packed({threadIdx.x, threadIdx.y, threadIdx.z}),
      packed({gridDim.x, gridDim.y, gridDim.z}), packed({blockDim.x, blockDim.y, blockDim.z})};
}

__global__ void spins(volatile float* flag) {
  while (flag[0] == 0.f) {
  }
}
// Block 1 waits for block 0, which works on a GPU only by luck.
__global__ void waits_for_another_block(volatile float* flag) {
  if (blockIdx.x == 0) {
    while (flag[0] == 0.f) {
    }
  } else {
    flag[0] = 1.f;
  }
}
// Like a process stopped by a debugger: time passes, nothing is computed.
__global__ void sleeps(float* x) {
  if (threadIdx.x == 0) usleep(600'000);
  x[threadIdx.x] = 1;
}

template <int kBytes>
__global__ void large_frame(float* x, int n) {
  float local[kBytes / 4];
  for (int i = 0; i < n; ++i) local[i] = 1;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += local[i];
  x[threadIdx.x] = sum;
}
// Of many running threads one needs a large stack.
template <int kBytes>
__attribute__((noinline)) __device__ float fill(int n) {
  float local[kBytes / 4];
  for (int i = 0; i < n; ++i) local[i] = 1;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += local[i];
  return sum;
}
__global__ void large_frame_of_one(float* x, unsigned thread) {
  __syncthreads();
  if (threadIdx.x == thread) x[threadIdx.x] = fill<80 * 1024>(100);
}
// deferred: after all threads have returned, so on the worker's stack.
__global__ void throws(float* x, bool deferred) {
  x[threadIdx.x] = 1;
  if (blockIdx.x != 1 || threadIdx.x != 3) return;
  if (deferred) {
    sim::defer(nullptr);  // std::bad_function_call
  } else {
    throw std::bad_alloc();
  }
}
__global__ void log_threads(int* log, int* next) {
  for (int round = 0; round < 3; ++round) {
    log[atomicAdd(next, 1)] = threadIdx.x;
    __syncthreads();
  }
}
__global__ void log_block(int* log, int* next) {
  if (threadIdx.x == 0) log[atomicAdd(next, 1)] = blockIdx.x;
}
__global__ void odd_block(float* x) {  // the last warp has 8 lanes
  float v = 1;
  for (int lanes = 1; lanes < 8; lanes *= 2) v += __shfl_xor_sync(fa::kFullMask, v, lanes);
  __syncthreads();
  x[threadIdx.x] = v;
}

__global__ void nothing() {}
// Exchanges what each thread knows, several times.
__global__ void votes(int* y) {
  const int t = threadIdx.x;
  const int of[] = {__syncthreads_count(t % 3 == 0), __syncthreads_count(t == 7),
                    __syncthreads_or(t == 39),       __syncthreads_or(t == 40),
                    __syncthreads_and(t < 40),       __syncthreads_and(t < 39)};
  for (int i = 0; i < 6; ++i) y[t * 6 + i] = of[i];
}
// Something of every kind that is counted without observers, by each thread or warp.
__global__ void some_of_all(float* x) {
  __shared__ float s[64];
  const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  s[t] = 1;
  __syncthreads();
  float sum = s[t ^ 1] + s[t];
  __syncthreads();
  atomicAdd(&s[0], 1.f);
  sum += __shfl_xor_sync(fa::kFullMask, sum, 1);
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  fa::mma_m16n8k16(d, a, b);
  x[t] = sum + x[t] + d[0];
  atomicAdd(&x[64], 1.f);
}
__global__ void waits_at_lines(bool odd) {
  if (threadIdx.x % 2 == odd && threadIdx.x != 6) __syncthreads();
  if (threadIdx.x == 6) return;
  __syncwarp();
}

}  // namespace

TEST_CASE("blocks start in an order that a number chooses, each once", "[sim]") {
  const unsigned blocks = GENERATE(1, 2, 12, 97), cluster = GENERATE(1, 2);
  if (blocks % cluster != 0) return;
  std::set<std::vector<int>> orders;
  for (uint64_t order = 0; order < 6; ++order) {
    CAPTURE(blocks, cluster, order);
    const WithOptions with({.workers = static_cast<int>(cluster), .block_order = order});
    Buffer<int> log("log", blocks), next("next", 1);
    fa::launch(log_block, {blocks, 32, 0, cluster}, log, next);
    std::vector<int> got = log.download();
    orders.insert(got);
    std::sort(got.begin(), got.end());
    for (unsigned i = 0; i < blocks; ++i) REQUIRE(got[i] == static_cast<int>(i));
  }
  if (blocks / cluster > 2) CHECK(orders.size() >= 4);
}

TEST_CASE("threads and lanes that meet at different places are found", "[sim]") {
  Buffer<float> x("x", 32);
  FOUND("divergent barrier: kernel (anonymous namespace)::barrier_in_branches", barrier_in_branches,
        {1, 32}, x, true);
  SILENT(barrier_in_branches, {1, 32}, x, false);
  FOUND("deadlock ... 16 threads wait at __shfl", shuffle_of_half, {1, 32}, x, fa::kFullMask);
  SILENT(shuffle_of_half, {1, 32}, x, 0xffffu);
  FOUND("divergent warp operation", shuffle_at_two_lines, {1, 32}, x, true);
  SILENT(shuffle_at_two_lines, {1, 32}, x, false);
  FOUND("divergent warp operation", masks_that_differ, {1, 32}, x);
  FOUND("mask that does not contain its own lane", mask_without_own_lane, {1, 32});
}

TEST_CASE("groups of lanes meet side by side", "[sim]") {
  Buffer<float> x("x", 32);
  SILENT(groups_side_by_side, {1, 32}, x);
  const auto got = x.download();
  for (int lane = 0; lane < 32; ++lane) {
    CHECK(got[lane] == (lane % 4 == 1 ? 29 : 0) + 3 + 8 + lane % 8);
  }
}

TEST_CASE("the watchdog stops an endless spin, and names its line", "[sim]") {
  const WithOptions with({.workers = 1, .watchdog_s = 0.3});
  Buffer<float> flag("flag", 1);
  FOUND("kernel (anonymous namespace)::spins ... spins at scheduler.cu:", spins, {1, 32}, flag);
  FOUND("outside the dialect", waits_for_another_block, {2, 32}, flag);
  flag.upload({1.f});  // the twin: the flag is already set
  SILENT(spins, {1, 32}, flag);
}

TEST_CASE("the watchdog counts no time in which the process does not run", "[sim]") {
  static const std::sig_atomic_t interrupted = 1;
  Buffer<float> x("x", 32);
  const WithOptions with({.watchdog_s = 0.1});
  SILENT(sleeps, {1, 32}, x);
  // Nor does the patience with an interrupted kernel: it ends at its store.
  const WithOptions other({.watchdog_s = 0.2,  // the kernel sleeps longer than three looks at it
                           .interrupted = &interrupted,
                           .on_fatal = [](fa::FaultKind, const std::string& sentence) {
                             throw std::runtime_error(sentence);
                           }});
  CHECK(sim::test::finding(sleeps, {1, 32}, x) != "");
}

TEST_CASE("stack_bytes holds from the next launch on", "[sim]") {
  Buffer<float> x("x", 64);
  const auto fills = [&](auto kernel, size_t stack_bytes, int n) {
    const WithOptions with({.workers = 1, .stack_bytes = stack_bytes});
    fa::launch(kernel, {2, 64}, x, n);
    return x.download() == std::vector<float>(64, static_cast<float>(n));
  };
  CHECK(fills(large_frame<80 * 1024>, 100'001, 100));  // rounded up to pages
  CHECK(fills(large_frame<200 * 1024>, 300 * 1024, 200));
  CHECK_THROWS_AS(fills(large_frame<1024>, size_t{1} << 40, 1), fa::ResourceError);
  CHECK(fills(large_frame<1024>, sim::Options{}.stack_bytes, 7));
  FOUND("needs more than 64 KiB for its local arrays and calls at scheduler.cu:",
        large_frame<80 * 1024>, {1, 64}, x, 100);
  for (const unsigned thread : {0u, 40u, 63u}) {
    FOUND("thread (" + std::to_string(thread) + ",0,0) needs more than 64 KiB for its local arrays",
          large_frame_of_one, {1, 64}, x, thread);
  }
}

TEST_CASE("what is thrown on a worker reaches the caller of the launch", "[sim]") {
  Buffer<float> x("x", 32);
  const WithOptions with({.workers = 2});
  for (const unsigned cluster : {1u, 2u}) {
    const fa::LaunchConfig config{4, 32, 0, cluster};
    CHECK_THROWS_AS(fa::launch(throws, config, x, true), std::bad_function_call);
    CHECK_THROWS_AS(fa::launch(throws, config, x, false), std::bad_alloc);
    fa::launch(large_frame<1024>, config, x, 3);
    CHECK(x.download() == std::vector<float>(32, 3.f));
  }
}

TEST_CASE("there are never more workers than the process can have mappings", "[sim]") {
  const WithOptions with({.workers = 1000});
  Buffer<float> x("x", 64);
  fa::launch(large_frame<1024>, {100, 64}, x, 5);
  CHECK(x.download() == std::vector<float>(64, 5.f));
}

TEST_CASE("threads run in order between barriers, in blocks of any size", "[sim]") {
  Buffer<int> log("log", 3 * 64), next("next", 1);
  fa::launch(log_threads, {1, 64}, log, next);
  const auto got = log.download();
  for (int i = 0; i < 3 * 64; ++i) REQUIRE(got[i] == i % 64);
  Buffer<float> x("x", 40);
  fa::launch(odd_block, {1, 40}, x);
  CHECK(x.download() == std::vector<float>(40, 8.f));
}

TEST_CASE("each thread of a grid and a block of three dimensions knows its place", "[sim]") {
  const dim3 grid(3, 4, 5), block(7, 2, 3);
  for (const uint64_t order : {0, 1}) {
    const WithOptions with({.workers = 2, .block_order = order});
    const Buffer<uint4> y("y", 60 * 42);
    fa::launch(places, {grid, block}, y);
    size_t i = 0, wrong = 0;
    const std::vector<uint4> got = y.download();
    const auto packed = [](unsigned x, unsigned y, unsigned z) { return x | y << 10 | z << 20; };
    for (unsigned b = 0; b < 60; ++b) {
      for (unsigned t = 0; t < 42; ++t, ++i) {
        wrong += got[i].x != packed(b % 3, b / 3 % 4, b / 12) ||
                 got[i].y != packed(t % 7, t / 7 % 2, t / 14) || got[i].z != packed(3, 4, 5) ||
                 got[i].w != packed(7, 2, 3);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a vote of a block is its own", "[sim]") {
  Buffer<int> y("y", 40 * 6);
  SILENT(votes, {2, 40}, y);
  const auto got = y.download();
  for (int i = 0; i < 40 * 6; ++i) CHECK(got[i] == std::array{14, 1, 1, 0, 1, 0}[i % 6]);
}

TEST_CASE("a launch may go to CUDA's limits, and no further", "[sim]") {
  const WithOptions with({.workers = 2});
  const auto refused = [](const std::string& words, const fa::LaunchConfig& config) {
    FOUND("kernel (anonymous namespace)::nothing: " + words, nothing, config);
  };
  refused("a block of 0 threads; CUDA allows 1 to 1024 (and 64 along z)", {1, 0});
  refused("a block of 65 threads", {1, dim3(1, 1, 65)});
  refused("a block of 1056 threads", {1, dim3(33, 16, 2)});
  SILENT(nothing, {1, dim3(1, 1, 64)});
  SILENT(nothing, {1, dim3(32, 16, 2)});
  refused("a grid of (1,0,1); CUDA allows 1 to 2147483647 along x and 1 to 65535", {dim3(1, 0), 1});
  refused("a grid of (0,1,1)", {dim3(0), 1});
  refused("a grid of (1,1,0)", {dim3(1, 1, 0), 1});
  refused("a grid of (2,65536,1)", {dim3(2, 65536), 1});
  refused("a grid of (2,1,65536)", {dim3(2, 1, 65536), 1});
  refused("a grid of (2147483648,1,1)", {dim3(2147483648u), 1});
  SILENT(nothing, {dim3(1, 65535), 1});
  SILENT(nothing, {dim3(1, 1, 65535), 1});
  SILENT(nothing, {dim3(65536), 1});
  refused("clusters of (0,1,1) blocks", {4, 32, 0, 0});
  refused(
      "clusters of (17,1,1) blocks in a grid of (34,1,1); the grid must be a multiple, a "
      "cluster at most 16",
      {34, 32, 0, 17});
  refused("clusters of (4,1,1) blocks in a grid of (6,2,1)", {dim3(6, 2), 32, 0, 4});
  SILENT(nothing, {16, 32, 0, 16});
  SILENT(nothing, {1, 32, sim::kMaxDynamicSmem});
  const auto too_much = [] { sim::launch(nothing, {1, 32, sim::kMaxDynamicSmem + 1}); };
  CHECK_THROWS_WITH(too_much(),
                    ContainsSubstring("232449 B of dynamic shared memory; a block has at "
                                      "most 232448"));
  // For a GPU without clusters, and for a cooperative launch.
  const auto found = [](int arch, unsigned blocks, bool together, unsigned cluster) {
    const WithOptions other({.workers = 2, .arch = arch, .resident_sms = 2, .sm = {.blocks = 3}});
    sim::LaunchConfig config{blocks, 32};
    config.together = together;
    config.cluster = cluster;
    return sim::test::finding([&] { sim::launch(nothing, config); });
  };
  CHECK(found(90, 4, false, 2) == "");
  CHECK(found(89, 4, false, 1) == "");
  CHECK_THAT(found(89, 4, false, 2), ContainsSubstring("a cluster of 2 blocks; sm_89 has none"));
  CHECK(found(90, 6, true, 1) == "");
  CHECK(found(90, 7, false, 1) == "");
  CHECK_THAT(
      found(90, 7, true, 1),
      ContainsSubstring("a cooperative launch of 7 blocks; the modelled GPU holds 6 of them"));
}

TEST_CASE("what is counted of a launch is that of all its blocks", "[sim]") {
  Buffer<float> x("x", 65);
  for (const int workers : {1, 3}) {
    const WithOptions with({.workers = workers});
    const auto counts = sim::test::counted([&] {
      fa::launch(some_of_all, {dim3(3, 2, 2), dim3(8, 4, 2)}, x);
      fa::launch(some_of_all, {5, 64, 50 * 1024}, x);
    });
    REQUIRE(counts.kernels.size() == 2);
    for (const size_t i : {0, 1}) {
      CAPTURE(workers, i);
      const fa::KernelCount& k = counts.kernels[i];
      const uint64_t blocks = i ? 5 : 12;
      CHECK(k.name == "(anonymous namespace)::some_of_all");
      CHECK(k.blocks == blocks);
      CHECK(k.threads == 64 * blocks);
      CHECK(k.bytes == fa::Bytes{256 * blocks, 256 * blocks, 256 * blocks});
      CHECK(k.shared_write == 256 * blocks);
      CHECK(k.shared_read == 512 * blocks);
      CHECK(k.shared_atomic == 256 * blocks);
      CHECK(k.shuffles == 2 * blocks);
      CHECK(k.resident == (i ? 4 : 32));  // by shared memory: 228 KB for 51 each; by the warps
      CHECK_FALSE(k.persistent);
    }
    CHECK(counts.tensor_flops == 17 * 2 * 2 * 16 * 8 * 16);
    CHECK(counts.buffers.at("x").bytes == fa::Bytes{17 * 256, 17 * 256, 17 * 256});
  }
  const WithOptions with({.workers = 1, .sms = 7});
  for (const bool shares : {false, true}) {
    for (const unsigned blocks : {6u, 7u, 8u}) {
      fa::LaunchConfig config{blocks, 32};
      config.shares_work = shares;
      const auto counts = sim::test::counted(nothing, config);
      CHECK(counts.kernels.at(0).persistent == (shares && blocks == 7));
    }
  }
}

TEST_CASE("the harness's options are the simulator's, for one count", "[sim]") {
  const WithOptions with{sim::options()};
  const sim::Options& o = sim::options();
  struct Restore {
    ~Restore() { fa::configure({}); }
  } restore;
  const auto configure = [](const char* gpu, double times) {
    fa::configure({.gpu = fa::find_gpu(gpu), .workers = 3, .watchdog_s = 17, .times = times});
  };
  configure("A100", 4);
  CHECK(o.resident_sms == 108);
  CHECK(o.sms == 27);
  CHECK(o.arch == 80);
  CHECK(o.block_shared_bytes == 163 * 1024);
  CHECK(fa::shared_memory_per_block() == 163 * 1024);
  CHECK(fa::multiprocessors() == 27);
  CHECK(o.workers == 3);
  CHECK(o.watchdog_s == 17);
  configure("A100", 1.6);
  CHECK(o.sms == 68);  // 67.5, to the nearest
  configure("A100", 1000);
  CHECK(o.sms == 1);
  configure("A10", 1);
  Buffer<float> x("x", 65);
  const auto count = [&](const fa::CountOptions& options, auto&& check) {
    return fa::count(
        [&] {
          check();
          fa::launch(some_of_all, {1, 64}, x);
        },
        options);
  };
  const fa::GpuSpec a10 = fa::find_gpu("A10");
  const auto all = count({.analyse = true, .counters = true, .times = 3, .trace = true}, [&] {
    CHECK(o.requests);
    CHECK(o.sites);
    CHECK(o.analyse);
    CHECK(o.trace);
    CHECK(o.l2_bytes == a10.l2_bytes);
    CHECK(o.l2_times == 3);
    CHECK(o.gpu == "A10");
    CHECK(o.sm.threads == a10.sm.threads);
    CHECK(o.sm.l1_bytes == a10.sm.l1_bytes);
  });
  CHECK(all.hbm);
  CHECK(all.trace);
  CHECK(all.analysed > 0);
  CHECK_FALSE(all.sites.empty());
  CHECK_FALSE(o.requests);  // as before
  CHECK_FALSE(o.analyse);
  CHECK(o.l2_bytes == 0);
  CHECK(o.gpu == "H200");
  const auto bytes = count({.analyse = false, .counters = false}, [&] {
    CHECK_FALSE(o.requests);
    CHECK_FALSE(o.sites);
    CHECK_FALSE(o.analyse);
    CHECK_FALSE(o.trace);
    CHECK(o.l2_bytes == 0);
    CHECK(o.l2_times == 1);
  });
  CHECK_FALSE(bytes.hbm);
  CHECK_FALSE(bytes.requests);
  CHECK(bytes.source == "counted");
  CHECK(bytes.requested == fa::Bytes{256, 256, 256});
}

TEST_CASE("sentences name runs of threads, and the ends of a long name", "[sim]") {
  CHECK(sim::runs_of({}) == "");
  CHECK(sim::runs_of({5}) == "5");
  CHECK(sim::runs_of({0, 1}) == "0-1");
  CHECK(sim::runs_of({0, 2, 3, 4, 31, 64, 65}) == "0, 2-4, 31, 64-65");
  CHECK(sim::runs_of({1, 3, 5, 7, 9, 11, 12}) == "1, 3, 5, 7, 9, 11-12");
  CHECK(sim::runs_of({1, 3, 5, 7, 9, 11, 13}) == "1, 3, 5, 7, 9, 11, ...");
  const std::string whole(120, 'x'), begin(80, 'a'), end(40, 'z');
  CHECK(sim::spoken(whole) == whole);
  CHECK(sim::spoken(begin + "m" + end) == begin + " ... " + end);
  CHECK(sim::bytes_of_word(0, 4, 0) == 0b1111);
  CHECK(sim::bytes_of_word(2, 4, 0) == 0b1100);
  CHECK(sim::bytes_of_word(2, 4, 1) == 0b0011);
  CHECK(sim::bytes_of_word(5, 1, 1) == 0b0010);
  CHECK(sim::bytes_of_word(1, 2, 0) == 0b0110);
  FOUND(
      "deadlock in kernel (anonymous namespace)::waits_at_lines, block (0,0,0): ... \n  1 thread "
      "returned (linear ids 6) ... 7 threads wait at __syncthreads scheduler.cu: ... (linear ids "
      "1, "
      "3, 5, 7, 9, 11, ...)",
      waits_at_lines, {1, 14}, true);
}

// Threads that return early: wrong uses, and right ones (on both backends: ptx/warp.cu).

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
        "bar.sync scheduler.cu: ... barrier 1 waits for 64 threads, 32 have arrived; a barrier "
        "with "
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
  FOUND("thread (31,0,0) has returned, but the ldmatrix at scheduler.cu:", whole_warp, {1, 32}, z,
        28, 32);
  SILENT(whole_warp, {1, 32}, z, 0, 0);
  CHECK(z.download() == std::vector<uint32_t>(32, 0x50005));
}
