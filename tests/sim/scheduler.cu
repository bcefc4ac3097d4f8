// Barriers, deadlocks, divergence, spinning, stacks, workers, and what a launch refuses.
#include <unistd.h>

#include <set>

#include "common/dialect/ptx/barrier.h"
#include "common/harness/problem.h"
#include "common/sim/block.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;

namespace {

template <bool kEarlyReturn>
__global__ void barrier_behind_return(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (kEarlyReturn && i >= n) return;
  if (i < n) x[i] = 1;
  fa::bar_sync(1, 64);
}

template <bool kDivergent>
__global__ void barrier_in_branches(float* x) {
  if (kDivergent && threadIdx.x < 16) {
    x[threadIdx.x] = 1;
    __syncthreads();
  } else {
    x[threadIdx.x] = 2;
    __syncthreads();
  }
}

template <bool kHalf>
__global__ void shuffle(float* x) {
  float v = static_cast<float>(threadIdx.x);
  const unsigned mask = kHalf ? 0xffffffff : 0x0000ffff;
  if (threadIdx.x < 16) v += __shfl_xor_sync(mask, v, 1);
  __syncthreads();  // the other half is here and does not come
  x[threadIdx.x] = v;
}

__global__ void shuffle_from_absent_lane(float* x) {
  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0x0000ffff, 1.f, 20);
}

template <bool kDivergent>
__global__ void shuffle_at_two_lines(float* x) {
  float v = 1;
  if (kDivergent && threadIdx.x % 2) {
    v += __shfl_xor_sync(0xffffffff, v, 2);
  } else {
    v += __shfl_xor_sync(0xffffffff, v, 2);
  }
  x[threadIdx.x] = v;
}

// Lane 1 of each four meets its like while the others wait for all, then eight groups meet at once.
__global__ void groups_side_by_side(float* x) {
  const int lane = threadIdx.x;
  int v = 0;
  if (lane % 4 == 1) v = __shfl_sync(0x22222222, lane, 29);
  v += __shfl_sync(0xffffffff, lane, 3);
  x[lane] = v + __shfl_sync(0x01010101u << lane % 8, lane, 8 + lane % 8);
}

// Lane 0 waits for lane 1, which waits for lane 0 and others.
__global__ void masks_that_differ(float* x) {
  x[threadIdx.x] = __shfl_sync(threadIdx.x ? 0xffffffff : 0x3, 1.f, 0);
}

__global__ void mask_without_own_lane(float* x) {
  if (threadIdx.x == 0) __syncwarp(0xfffffffe);
  x[threadIdx.x] = 0;
}

__global__ void spins(volatile float* flag) {
  while (flag[0] == 0.f) {
  }
}

// Block 1 waits for block 0, in a way that a GPU may or may not survive.
__global__ void waits_for_another_block(volatile float* flag) {
  if (blockIdx.x == 0) {
    while (flag[0] == 0.f) {
    }
  } else {
    flag[0] = 1.f;
  }
}

// Like a process that a debugger has stopped: time passes, nothing is computed.
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

// kDeferred: when all threads have returned, so on the worker's own stack.
template <bool kDeferred>
__global__ void throws(float* x) {
  x[threadIdx.x] = 1;
  if (blockIdx.x != 1 || threadIdx.x != 3) return;
  if (kDeferred) {
    sim::defer(nullptr);  // std::bad_function_call
  } else {
    throw std::bad_alloc();
  }
}

__global__ void order(int* log, int* next) {
  for (int round = 0; round < 3; ++round) {
    log[atomicAdd(next, 1)] = threadIdx.x;
    __syncthreads();
  }
}

__global__ void odd_block(float* x) {  // the last warp has 8 lanes
  float v = 1;
  for (int lanes = 1; lanes < 8; lanes *= 2) v += __shfl_xor_sync(0xffffffff, v, lanes);
  __syncthreads();
  x[threadIdx.x] = v;
}

__global__ void log_block(int* log, int* next) {
  if (threadIdx.x == 0) log[atomicAdd(next, 1)] = blockIdx.x;
}

}  // namespace

TEST_CASE("blocks start in an order that a number chooses, each once", "[sim]") {
  const unsigned blocks = GENERATE(1, 2, 12, 97), cluster = GENERATE(1, 2);
  if (blocks % cluster != 0) return;
  std::set<std::vector<int>> orders;
  for (uint64_t order = 0; order < 6; ++order) {
    CAPTURE(blocks, cluster, order);
    sim::Options options = sim::options();
    options.block_order = order;
    options.workers = static_cast<int>(cluster);  // one block after the other
    const sim::test::WithOptions with(options);
    Buffer<int> log("log", blocks), next("next", 1);
    fa::launch(log_block, {dim3(blocks), dim3(32), 0, cluster}, log, next);
    std::vector<int> got = log.download();
    orders.insert(got);
    std::sort(got.begin(), got.end());
    for (unsigned i = 0; i < blocks; ++i) REQUIRE(got[i] == static_cast<int>(i));
  }
  if (blocks / cluster > 2) CHECK(orders.size() >= 4);
}

TEST_CASE("warps that return before a barrier with a count leave the others waiting", "[sim]") {
  Buffer<float> x("x", 96);
  const auto text = finding([&] {
    fa::launch(barrier_behind_return<true>, {dim3(2), dim3(64)}, x, 96);
  });
  CHECK_THAT(text, ContainsSubstring("deadlock in kernel"));
  CHECK_THAT(text, ContainsSubstring("block (1,0,0)"));
  CHECK_THAT(text, ContainsSubstring("32 threads returned (linear ids 32-63)"));
  CHECK_THAT(text, ContainsSubstring("32 threads wait at bar.sync scheduler.cu:"));
  CHECK(finding([&] {
          fa::launch(barrier_behind_return<false>, {dim3(2), dim3(64)}, x, 96);
        }) == "");
}

TEST_CASE("a barrier in divergent branches is found", "[sim]") {
  Buffer<float> x("x", 32);
  const auto text = finding([&] { fa::launch(barrier_in_branches<true>, {dim3(1), dim3(32)}, x); });
  CHECK_THAT(text, ContainsSubstring("divergent barrier"));
  CHECK_THAT(text, ContainsSubstring("barrier_in_branches<true>"));
  CHECK(finding([&] { fa::launch(barrier_in_branches<false>, {dim3(1), dim3(32)}, x); }) == "");
}

TEST_CASE("a shuffle that half a warp misses is found", "[sim]") {
  Buffer<float> x("x", 32);
  const auto text = finding([&] { fa::launch(shuffle<true>, {dim3(1), dim3(32)}, x); });
  CHECK_THAT(text, ContainsSubstring("deadlock"));
  CHECK_THAT(text, ContainsSubstring("16 threads wait at __shfl"));
  CHECK(finding([&] { fa::launch(shuffle<false>, {dim3(1), dim3(32)}, x); }) == "");
}

TEST_CASE("a shuffle from a lane that does not take part is found", "[sim]") {
  Buffer<float> x("x", 32);
  const auto text = finding([&] { fa::launch(shuffle_from_absent_lane, {dim3(1), dim3(32)}, x); });
  CHECK_THAT(text, ContainsSubstring("lane"));
  CHECK_THAT(text, ContainsSubstring("20"));
}

TEST_CASE("lanes that shuffle at different lines are found", "[sim]") {
  Buffer<float> x("x", 32);
  const auto text = finding([&] {
    fa::launch(shuffle_at_two_lines<true>, {dim3(1), dim3(32)}, x);
  });
  CHECK_THAT(text, ContainsSubstring("divergent warp operation"));
  CHECK(finding([&] { fa::launch(shuffle_at_two_lines<false>, {dim3(1), dim3(32)}, x); }) == "");
}

TEST_CASE("groups of lanes meet side by side", "[sim]") {
  Buffer<float> x("x", 32);
  CHECK(finding([&] { fa::launch(groups_side_by_side, {dim3(1), dim3(32)}, x); }) == "");
  const auto got = x.download();
  for (int lane = 0; lane < 32; ++lane) {
    CHECK(got[lane] == (lane % 4 == 1 ? 29 : 0) + 3 + 8 + lane % 8);
  }
  const auto text = finding([&] { fa::launch(masks_that_differ, {dim3(1), dim3(32)}, x); });
  CHECK_THAT(text, ContainsSubstring("divergent warp operation"));
}

TEST_CASE("a mask without the caller's lane is found", "[sim]") {
  Buffer<float> x("x", 32);
  const auto text = finding([&] { fa::launch(mask_without_own_lane, {dim3(1), dim3(32)}, x); });
  CHECK_THAT(text, ContainsSubstring("mask that does not contain its own lane"));
}

TEST_CASE("the watchdog stops an endless spin, and names its line", "[sim]") {
  sim::Options o;
  o.watchdog_s = 0.3;
  o.workers = 1;
  sim::test::WithOptions with(o);
  Buffer<float> flag("flag", 1);
  const auto text = finding([&] { fa::launch(spins, {dim3(1), dim3(32)}, flag.get()); });
  CHECK_THAT(text, ContainsSubstring("kernel (anonymous namespace)::spins"));
  CHECK_THAT(text, ContainsSubstring("spins at scheduler.cu:"));
  CHECK_THAT(finding([&] {
               fa::launch(waits_for_another_block, {dim3(2), dim3(32)}, flag.get());
             }),
             ContainsSubstring("outside the dialect"));
  flag.upload({1.f});  // the twin: the flag is up already
  CHECK(finding([&] { fa::launch(spins, {dim3(1), dim3(32)}, flag.get()); }) == "");
}

TEST_CASE("the watchdog counts no time in which the process does not run", "[sim]") {
  sim::Options o;
  o.watchdog_s = 0.1;
  sim::test::WithOptions with(o);
  Buffer<float> x("x", 32);
  CHECK(finding([&] { fa::launch(sleeps, {dim3(1), dim3(32)}, x); }) == "");
}

TEST_CASE("nor does the patience with a kernel that somebody interrupts", "[sim]") {
  static const std::sig_atomic_t interrupted = 1;
  sim::Options o;
  o.watchdog_s = 0.2;  // the kernel sleeps longer than three looks at it
  o.interrupted = &interrupted;
  o.on_fatal = [](const std::string& sentence) { throw std::runtime_error(sentence); };
  sim::test::WithOptions with(o);
  Buffer<float> x("x", 32);
  CHECK(finding([&] { fa::launch(sleeps, {dim3(1), dim3(32)}, x); }) != "");  // at its store
}

TEST_CASE("stack_bytes holds from the next launch on", "[sim]") {
  Buffer<float> x("x", 64);
  sim::Options o;
  o.workers = 1;
  o.stack_bytes = 100'001;  // rounded up to pages
  {
    sim::test::WithOptions with(o);
    fa::launch(large_frame<80 * 1024>, {dim3(2), dim3(64)}, x, 100);
    CHECK(x.download() == std::vector<float>(64, 100.f));
  }
  o.stack_bytes = 300 * 1024;
  {
    sim::test::WithOptions with(o);
    fa::launch(large_frame<200 * 1024>, {dim3(2), dim3(64)}, x, 200);
    CHECK(x.download() == std::vector<float>(64, 200.f));
  }
  o.stack_bytes = size_t{1} << 40;
  {
    sim::test::WithOptions with(o);
    CHECK_THROWS_AS(fa::launch(order, {dim3(1), dim3(1)}, nullptr, nullptr), fa::ResourceError);
  }
  fa::launch(large_frame<1024>, {dim3(1), dim3(64)}, x, 7);
  CHECK(x.download() == std::vector<float>(64, 7.f));
}

TEST_CASE("a frame larger than the stack is told with its line", "[sim]") {
  Buffer<float> x("x", 64);
  CHECK_THAT(finding([&] {
               fa::launch(large_frame<80 * 1024>, {dim3(1), dim3(64)}, x, 100);
             }),
             ContainsSubstring("needs more than 64 KiB for its local arrays and calls at "
                               "scheduler.cu:"));
}

TEST_CASE("what is thrown on a worker reaches the caller of the launch", "[sim]") {
  Buffer<float> x("x", 32);
  sim::Options o;
  o.workers = 2;
  sim::test::WithOptions with(o);
  for (const unsigned cluster : {1u, 2u}) {
    const fa::LaunchConfig config{dim3(4), dim3(32), 0, cluster};
    CHECK_THROWS_AS(fa::launch(throws<true>, config, x), std::bad_function_call);
    CHECK_THROWS_AS(fa::launch(throws<false>, config, x), std::bad_alloc);
    fa::launch(large_frame<1024>, config, x, 3);
    CHECK(x.download() == std::vector<float>(32, 3.f));
  }
}

TEST_CASE("there are never more workers than the process can have mappings", "[sim]") {
  sim::Options o;
  o.workers = 1000;
  sim::test::WithOptions with(o);
  Buffer<float> x("x", 64);
  fa::launch(large_frame<1024>, {dim3(100), dim3(64)}, x, 5);
  CHECK(x.download() == std::vector<float>(64, 5.f));
}

TEST_CASE("threads run in order between barriers", "[sim]") {
  Buffer<int> log("log", 3 * 64), next("next", 1);
  fa::launch(order, {dim3(1), dim3(64)}, log, next);
  const auto got = log.download();
  for (int i = 0; i < 3 * 64; ++i) REQUIRE(got[i] == i % 64);
}

TEST_CASE("a block need not be a multiple of a warp", "[sim]") {
  Buffer<float> x("x", 40);
  fa::launch(odd_block, {dim3(1), dim3(40)}, x);
  CHECK(x.download() == std::vector<float>(40, 8.f));
}

TEST_CASE("a launch outside CUDA's limits is refused", "[sim]") {
  Buffer<float> x("x", 32);
  CHECK_THAT(finding([&] {
               fa::launch(barrier_in_branches<false>, {dim3(1), dim3(1025)}, x);
             }),
             ContainsSubstring("1 to 1024"));
  CHECK_THAT(finding([&] {
               fa::launch(barrier_in_branches<false>, {dim3(1, 70000), dim3(32)}, x);
             }),
             ContainsSubstring("65535"));
  CHECK_THROWS_AS(fa::launch(barrier_in_branches<false>, {dim3(1), dim3(32), 300000}, x),
                  fa::ResourceError);
  CHECK_THROWS_WITH(fa::launch(barrier_in_branches<false>, {dim3(1), dim3(32), 300000}, x),
                    ContainsSubstring("this GPU has 232448"));
  CHECK_THAT(finding([&] {
               fa::launch(barrier_in_branches<false>, {dim3(3), dim3(32), 0, 2}, x);
             }),
             ContainsSubstring("clusters of 2 blocks in a grid of 3"));
}

TEST_CASE("after a finding the simulator goes on", "[sim]") {
  Buffer<float> x("x", 96);
  for (int i = 0; i < 5; ++i) {
    CHECK(finding([&] {
            fa::launch(barrier_behind_return<true>, {dim3(2), dim3(64)}, x, 96);
          }) != "");
    CHECK(finding([&] {
            fa::launch(barrier_behind_return<false>, {dim3(2), dim3(64)}, x, 96);
          }) == "");
  }
  CHECK(x.download() == std::vector<float>(96, 1.f));
}
