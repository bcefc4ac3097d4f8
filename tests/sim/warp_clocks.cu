// What a block asks of its SM, and how long its warps wait: kernels of which both are known.
#include "common/sim/observers/warp_clocks.h"

#include "common/dialect/ptx/ptx.h"
#include "common/harness/gpus.h"
#include "tests/sim/diagnosis.h"

using fa::BlockWork;
using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

const fa::ClockFigures& figures = fa::clock_figures("H200");

using bf16 = __nv_bfloat16;

/// Of a __syncthreads() or bar.sync of so many warps.
double barrier(unsigned warps) {
  return figures.barrier_latency + figures.barrier_per_warp * warps;
}

sim::Options counting(int workers = 1) {
  sim::Options o;
  o.requests = true;
  o.workers = workers;
  return o;
}

template <class F>
fa::KernelCount kernel_of(F&& launch, const sim::Options& o = counting()) {
  WithOptions with(o);
  sim::Recording recording;
  launch();
  return recording.finish().kernels.back();
}
/// Of a grid of one block.
template <class F>
BlockWork work_of(F&& launch, const sim::Options& o = counting()) {
  const fa::KernelCount k = kernel_of(launch, o);
  REQUIRE(k.work.size() == 1);
  return k.work[0];
}

constexpr int kFloats = 1 << 20;
Buffer<float>& x() {
  static Buffer<float> x("x", kFloats);
  return x;
}
Buffer<float>& y() {
  static Buffer<float> y("y", kFloats);
  return y;
}

// --- meetings ------------------------------------------------------------------------------------

__global__ void barriers(int n) {
  for (int i = 0; i < n; ++i) __syncthreads();
}
__global__ void barrier_of_two_warps() {
  if (threadIdx.x < 64) fa::bar_sync(1, 64);
}
// Warp 0 loads before the barrier, warp 1 behind it.
__global__ void wait_for_a_load(const float* x, float* y) {
  float v = 0;
  if (threadIdx.x < 32) v = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x >= 32) v = x[threadIdx.x];
  if (v != 0) y[0] = v;  // never: x is zero
}
// Each warp loads twice, but only one of the two before the barrier.
__global__ void load_on_both_sides(const float* x, float* y) {
  const float v = x[threadIdx.x];
  __syncthreads();
  if (v + x[threadIdx.x + 1024] != 0) y[0] = v;
}
// Warp 0 loads and goes on; warp 1 waits for it.
__global__ void arrive_and_sync(const float* x, float* y) {
  if (threadIdx.x < 32) {
    const float v = x[threadIdx.x];
    fa::bar_arrive(1, 64);
    if (v != 0) y[0] = v;
  } else {
    fa::bar_sync(1, 64);
  }
}

// --- loads and stores ----------------------------------------------------------------------------

__global__ void loop(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i * 32 + threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
__global__ void shared_loop(float* y, int n) {
  const float* s = fa::dynamic_shared<float>();
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += s[i * 32 + threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
// One thread, so often that the log of a warp's requests overflows.
__global__ void loop_for_long(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i % 1024];
  if (sum != 0) y[0] = sum;
}
// A few loads between barriers, which the compiler cannot issue ahead.
__global__ void loop_between_barriers(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < 3; ++k) sum += x[(3 * i + k) * 32 + threadIdx.x];
    __syncthreads();
  }
  if (sum != 0) y[0] = sum;
}
template <class T>
__global__ void load_strided(const T* x, float* y, int stride) {
  const T v = x[threadIdx.x * stride];
  if (*reinterpret_cast<const float*>(&v) != 0) y[threadIdx.x] = 1;
}
__global__ void store(float* y, int stride) { y[threadIdx.x * stride] = 0; }
__global__ void add(float* y, int stride) { atomicAdd(y + threadIdx.x * stride, 1.f); }
__global__ void store_shared(int stride) { fa::dynamic_shared<float>()[threadIdx.x * stride] = 0; }
__global__ void blocks_of_growing_length(const float* x, float* y) {
  float sum = 0;
  for (unsigned i = 0; i <= blockIdx.x; ++i) sum += x[i * 32 + threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
// A line, then `between` others, then the first one again: by warps that meet in between.
__global__ void come_back(const float* x, float* y, int between) {
  float sum = threadIdx.x < 32 ? x[threadIdx.x] : 0;
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * between; i += blockDim.x) sum += x[32 + i];
  __syncthreads();
  if (threadIdx.x < 32) sum += x[threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
__global__ void same_line(const float* x, float* y) {  // of all warps
  const float v = x[threadIdx.x % 32];
  if (v != 0) y[threadIdx.x] = v;
}

// --- shuffles and products -----------------------------------------------------------------------

template <int rows>
__global__ void reductions(float* y, int times) {
  float v[rows] = {};
  for (int i = 0; i < times; ++i) {
    for (int distance = 16; distance > 0; distance /= 2) {
      for (int r = 0; r < rows; ++r) v[r] += __shfl_xor_sync(fa::kFullMask, v[r], distance);
    }
    __syncthreads();
  }
  for (int r = 0; r < rows; ++r) {
    if (v[r] != 0) y[r] = v[r];
  }
}
__global__ void products(int n) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  for (int i = 0; i < n; ++i) fa::mma_m16n8k16(d, a, b);
}
// `n` products of 64 rows and columns; before the wait each warp loads once.
__global__ void warpgroup_products(const float* x, float* y, int n, bool load) {
  const char* tile = fa::dynamic_shared<char>();
  const uint64_t ab = fa::wgmma_descriptor(tile, fa::Swizzle::b128, 16, 1024);
  float d[32] = {};
  fa::wgmma_fence();
  for (int i = 0; i < n; ++i) fa::wgmma(d, ab, ab);
  fa::wgmma_commit();
  float v = 0;
  if (load) v = x[threadIdx.x];
  fa::wgmma_wait<0>();
  if (v != 0) y[0] = v;
}

// --- copies --------------------------------------------------------------------------------------

template <bool behind_a_barrier>
__global__ void copy_async(const float* x) {
  float* s = fa::dynamic_shared<float>();
  fa::cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  fa::cp_async_commit();
  if (behind_a_barrier) __syncthreads();
  fa::cp_async_wait<0>();
}
// A thread issues two copies, then the warp loads `loads` times, one after the other, and waits.
__global__ void copy_bulk(const float* x, float* y, int loads) {
  float* s = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, 2048);
    fa::bulk_load(s, x, 1024, &full);
    fa::bulk_load(s + 256, x + 256, 1024, &full);
  }
  float sum = 0;
  for (int i = 0; i < loads; ++i) sum += x[1024 + i * 32 + threadIdx.x];
  fa::mbarrier_wait(&full, 0);
  if (sum != 0) y[0] = sum;
}
// The producer has to load the place from which it copies.
__global__ void copy_from_a_loaded_place(const int* place, const float* x) {
  float* s = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, 1024);
    fa::bulk_load(s, x + *place, 1024, &full);
  }
  __syncthreads();
  fa::mbarrier_wait(&full, 0);
}
__global__ void store_bulk_of_each_lane(float* y) {
  float* s = fa::dynamic_shared<float>();
  fa::bulk_store(y + 4 * threadIdx.x, s + 4 * threadIdx.x, 16);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}
__global__ void store_bulk(float* y, bool wait) {
  float* s = fa::dynamic_shared<float>();
  if (threadIdx.x != 0) return;
  fa::bulk_store(y, s, 1024);
  fa::tma_store_commit();
  if (wait) fa::tma_store_wait<0>();
}

const fa::LaunchConfig kWarp{dim3(1), dim3(32), 64 * 1024};

}  // namespace

TEST_CASE("a barrier costs its latency, and more for more warps", "[sim][clock]") {
  for (const unsigned warps : {1u, 2u, 8u}) {
    const auto launch = [&](int n) {
      return work_of([&] { fa::launch(barriers, {dim3(1), dim3(32 * warps)}, n); });
    };
    CHECK(launch(1).latency == barrier(warps));
    CHECK(launch(3).latency == 3 * barrier(warps));
    CHECK(launch(3).instructions == 0);
  }
  const BlockWork two = work_of([] { fa::launch(barrier_of_two_warps, {dim3(1), dim3(128)}); });
  CHECK(two.latency == barrier(2));
}

TEST_CASE("behind a barrier all warps have the time of the latest one", "[sim][clock]") {
  const fa::LaunchConfig two{dim3(1), dim3(64)};
  const BlockWork w = work_of([&] { fa::launch(wait_for_a_load, two, x(), y()); });
  CHECK(w.latency == figures.l2_latency + barrier(2) + figures.l2_latency);
  CHECK(w.fetches == 2);
  CHECK(w.lines == 2);
  const BlockWork both = work_of([&] { fa::launch(load_on_both_sides, two, x(), y()); });
  CHECK(both.latency == figures.l2_latency + barrier(2) + figures.l2_latency);
  CHECK(both.fetches == 2);
  CHECK(both.lines == 4);
}

TEST_CASE("an arrival is as late as its warp", "[sim][clock]") {
  const BlockWork w = work_of([] { fa::launch(arrive_and_sync, {dim3(1), dim3(64)}, x(), y()); });
  CHECK(w.latency == figures.l2_latency + barrier(1));  // gathers one warp that waits
  CHECK(w.fetches == 1);
}

TEST_CASE("loads of a loop are on their way together, four trips at a time", "[sim][clock]") {
  const auto trips = GENERATE(1, 3, 4, 5, 8, 9, 64);
  CAPTURE(trips);
  const int rounds = (trips + 3) / 4;
  const BlockWork global = work_of([&] { fa::launch(loop, kWarp, x(), y(), trips); });
  CHECK(global.latency == rounds * figures.l2_latency);
  CHECK(global.fetches == static_cast<uint64_t>(rounds));
  CHECK(global.instructions == static_cast<uint64_t>(trips));
  CHECK(global.lines == static_cast<uint64_t>(trips));
  const BlockWork shared = work_of([&] { fa::launch(shared_loop, kWarp, y(), trips); });
  CHECK(shared.latency == rounds * figures.shared_latency);
  CHECK(shared.fetches == 0);
  CHECK(shared.wavefronts == static_cast<uint64_t>(trips));
}

TEST_CASE("trips of a loop are counted anew behind a barrier", "[sim][clock]") {
  for (const unsigned warps : {1u, 2u}) {
    const BlockWork w = work_of([&] {
      fa::launch(loop_between_barriers, {dim3(1), dim3(32 * warps)}, x(), y(), 5);
    });
    CHECK(w.latency == 5 * (figures.l2_latency + barrier(warps)));
  }
}

TEST_CASE("no load is forgotten where the log of a warp's requests is full", "[sim][clock]") {
  constexpr int kTrips = (1 << 20) + 400;
  const BlockWork w = work_of([&] {
    fa::launch(loop_for_long, {dim3(1), dim3(1)}, x(), y(), kTrips);
  });
  CHECK(w.instructions == kTrips);
  CHECK(w.latency == Approx(kTrips / 4 * figures.l2_latency).epsilon(1e-5));
}

TEST_CASE("a block's lines and wavefronts", "[sim][clock]") {
  struct Case {
    int stride;  // words
    uint64_t lines, wavefronts;
  };
  const auto c =
      GENERATE(values<Case>({{1, 1, 1}, {2, 2, 2}, {8, 8, 8}, {32, 32, 32}, {33, 33, 1}}));
  CAPTURE(c.stride);
  const BlockWork load =
      work_of([&] { fa::launch(load_strided<float>, kWarp, x(), y(), c.stride); });
  const uint64_t lines = std::min<uint64_t>(c.lines, 32);
  CHECK(load.lines == lines);
  CHECK(load.instructions == 1);
  CHECK(load.wavefronts == 0);
  const BlockWork stored = work_of([&] { fa::launch(store, kWarp, y(), c.stride); });
  CHECK(stored.lines == lines);
  CHECK(stored.latency == 0);  // nobody waits for a store
  const BlockWork added = work_of([&] { fa::launch(add, kWarp, y(), c.stride); });
  CHECK(added.atomic_lines == lines);
  CHECK(added.lines == 0);
  CHECK(added.instructions == 1);
  const BlockWork shared = work_of([&] { fa::launch(store_shared, kWarp, c.stride); });
  CHECK(shared.wavefronts == c.wavefronts);
  CHECK(shared.lines == 0);
}

TEST_CASE("wide loads go through the L1 in parts", "[sim][clock]") {
  const auto launch = [](auto* from, int stride) {
    return work_of([&] {
      fa::launch(load_strided<std::remove_reference_t<decltype(*from)>>, kWarp, from, y(), stride);
    });
  };
  float* p = x();
  CHECK(launch(reinterpret_cast<float2*>(p), 1).lines == 2);
  CHECK(launch(reinterpret_cast<float4*>(p), 1).lines == 4);
  CHECK(launch(reinterpret_cast<float4*>(p), 0).lines == 4);  // one line, but 512 bytes to deliver
  CHECK(launch(p, 0).lines == 1);
}

TEST_CASE("each block's work stands at its place in the grid", "[sim][clock]") {
  const fa::KernelCount k = kernel_of(
      [] {
        fa::launch(blocks_of_growing_length, {dim3(20), dim3(32)}, x(), y());
      },
      counting(3));
  REQUIRE(k.work.size() == 20);
  for (size_t i = 0; i < 20; ++i) {
    CHECK(k.work[i].lines == i + 1);
    CHECK(k.work[i].instructions == i + 1);
    CHECK(k.work[i].l2_bytes == 128 * (i + 1));
    CHECK(k.work[i].fetches == i / 4 + 1);
    CHECK(k.work[i].latency == static_cast<double>(i / 4 + 1) * figures.l2_latency);
  }
}

TEST_CASE("a block finds in its L1 what it has loaded, unless much has come since",
          "[sim][clock]") {
  constexpr int kHolds = 256 * 1024 / 128;     // lines
  const unsigned threads = GENERATE(32, 256);  // a block of one warp, too
  const auto bytes = [threads](int between) {
    return work_of([&] {
             fa::launch(come_back, {dim3(1), dim3(threads)}, x(), y(), between);
           })
        .l2_bytes;
  };
  CHECK(bytes(0) == 128);
  CHECK(bytes(kHolds / 2) == 128 * (1 + kHolds / 2));
  CHECK(bytes(2 * kHolds) == 128 * (2 + 2 * kHolds));

  const fa::LaunchConfig wide{dim3(1), dim3(256)};
  const BlockWork same = work_of([&] { fa::launch(same_line, wide, x(), y()); });
  CHECK(same.l2_bytes == 128);
  CHECK(same.lines == 8);
  const fa::KernelCount other =  // block after block: an L1 is not inherited
      kernel_of([&] {
        fa::launch(same_line, {dim3(2), dim3(256)}, x(), y());
      });
  CHECK(other.work.at(1).l2_bytes == 128);
  CHECK(work_of([] { fa::launch(store, kWarp, y(), 1); }).l2_bytes == 128);
  CHECK(work_of([] { fa::launch(add, kWarp, y(), 8); }).l2_bytes == 32 * 32);  // whole sectors
}

TEST_CASE("a reduction costs a latency for each step; rows go through it together",
          "[sim][clock]") {
  const auto work = [](auto kernel, int times) {
    return work_of([&] { fa::launch(kernel, kWarp, y(), times); });
  };
  const BlockWork one = work(reductions<1>, 1), four = work(reductions<4>, 1);
  CHECK(one.latency == 5 * figures.shuffle_latency + barrier(1));
  CHECK(one.instructions == 5);
  CHECK(one.wavefronts == 5);
  CHECK(four.latency == one.latency);
  CHECK(four.instructions == 20);
  CHECK(four.wavefronts == 20);
  CHECK(work(reductions<4>, 3).latency == 3 * one.latency);
}

TEST_CASE("products of a warp are a latency, of a warpgroup the wait's", "[sim][clock]") {
  const BlockWork w = work_of([] { fa::launch(products, kWarp, 7); });
  CHECK(w.mma == 7);
  CHECK(w.instructions == 7);
  CHECK(w.latency == figures.mma_latency);

  const fa::LaunchConfig group{dim3(1), dim3(128), 64 * 1024};
  const auto wgmma = [&](int n, bool load) {
    return work_of([&] { fa::launch(warpgroup_products, group, x(), y(), n, load); });
  };
  const BlockWork three = wgmma(3, false);
  CHECK(three.wgmma_columns == 3 * 64);
  CHECK(three.instructions == 3);
  CHECK(three.mma == 0);
  CHECK(three.wavefronts == 0);  // its operands are counted elsewhere
  CHECK(three.latency == figures.wgmma_latency);
  CHECK(wgmma(3, true).latency ==
        figures.l2_latency + figures.wgmma_latency);  // loaded meanwhile, by each warp
}

TEST_CASE("cp.async costs a latency when its wait follows at once", "[sim][clock]") {
  const BlockWork at_once = work_of([] { fa::launch(copy_async<false>, kWarp, x()); });
  CHECK(at_once.latency == figures.copy_latency);
  CHECK(at_once.fetches == 1);
  CHECK(at_once.l2_bytes == 512);
  CHECK(at_once.instructions == 1);
  CHECK(at_once.lines == 0);
  CHECK(at_once.wavefronts == 0);
  const BlockWork later = work_of([] { fa::launch(copy_async<true>, kWarp, x()); });
  CHECK(later.latency == barrier(1));
  CHECK(later.fetches == 0);
}

TEST_CASE("a bulk copy's mbarrier is ready when its bytes have come, one latency later",
          "[sim][clock]") {
  const auto launch = [](int loads) {
    return work_of([&] { fa::launch(copy_bulk, kWarp, x(), y(), loads); });
  };
  const BlockWork w = launch(0);
  CHECK(w.latency == barrier(1) + 2048 / figures.tma_bytes + figures.tma_latency);
  CHECK(w.fetches == 1);
  CHECK(w.l2_bytes == 2048);
  CHECK(w.lines == 0);
  CHECK(w.instructions == 3);  // init, arrive, wait
  // Loads that take less time are hidden under it, others hide it.
  CHECK(launch(1).latency == w.latency);
  CHECK(launch(16).latency == barrier(1) + 4 * figures.l2_latency);
  CHECK(launch(16).fetches == 4);
}

TEST_CASE("a copy from a place that must be loaded begins behind the load", "[sim][clock]") {
  Buffer<int> place("place", 1);
  const BlockWork w = work_of([&] { fa::launch(copy_from_a_loaded_place, kWarp, place, x()); });
  CHECK(w.latency == figures.l2_latency + 1024 / figures.tma_bytes + figures.tma_latency);
  CHECK(w.fetches == 2);
}

TEST_CASE("a bulk store costs a latency where somebody waits for it", "[sim][clock]") {
  const BlockWork w = work_of([] { fa::launch(store_bulk, kWarp, y(), true); });
  CHECK(w.latency == figures.tma_latency);
  CHECK(w.fetches == 0);
  CHECK(w.l2_bytes == 1024);
  CHECK(work_of([] { fa::launch(store_bulk, kWarp, y(), false); }).latency == 0);
  // Lanes that wait for their stores wait together.
  CHECK(work_of([] { fa::launch(store_bulk_of_each_lane, kWarp, y()); }).latency ==
        figures.tma_latency);
}

// 64 blocks of 32 KiB, twice each; all of them are resident.
namespace {
constexpr size_t kL2 = 4 << 20;
__global__ void load_twice(const float* x, float* y) {
  const float* mine = x + blockIdx.x * 8192;
  float sum = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = threadIdx.x; i < 8192; i += 32) sum += mine[i];
  }
  if (sum != 0) y[0] = sum;
}
}  // namespace

TEST_CASE("beside other problems a launch finds an empty L2, and its share of it",
          "[sim][clock][l2]") {
  constexpr double kBytes = 64 * 32768;
  const auto reads = [&](double times, int sms = 8) {  // fewer than blocks: the grid does not walk
    sim::Options o = counting();
    o.l2_bytes = kL2;
    o.l2_times = times;
    o.sms = sms;
    WithOptions with(o);
    sim::Recording recording;
    for (int i = 0; i < 2; ++i) fa::launch(load_twice, {dim3(64), dim3(32)}, x(), y());
    const fa::Counts counts = recording.finish();
    REQUIRE(counts.kernels.size() == 2);
    return std::pair(static_cast<double>(counts.kernels[0].hbm.read),
                     static_cast<double>(counts.kernels[1].hbm.read));
  };
  const auto [first, second] = reads(1);
  CHECK(first == Approx(kBytes).epsilon(0.1));
  CHECK(second < 0.1 * kBytes);
  const auto [alone, again] = reads(1.01);  // the others have passed, but nobody is beside it
  CHECK(alone == Approx(kBytes).epsilon(0.1));
  CHECK(again == Approx(kBytes).epsilon(0.1));
  const auto [shared, too] = reads(8);  // an eighth of the L2 for four times as much
  CHECK(shared == Approx(2 * kBytes).epsilon(0.1));
  CHECK(too == Approx(2 * kBytes).epsilon(0.1));
  const auto [walked, next] = reads(8, 64);  // one problem after the other: all of the L2
  CHECK(walked == Approx(kBytes).epsilon(0.1));
  CHECK(next == Approx(kBytes).epsilon(0.1));
}
