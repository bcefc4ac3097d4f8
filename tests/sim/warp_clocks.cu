// The work of a block on its SM, and the waits of its warps, for kernels with known values.
#include "common/sim/observers/warp_clocks.h"

#include "common/counts/gpus.h"
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::BlockWork;
using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

const fa::ClockFigures figures = fa::clock_figures("H200");

/// The latency of a __syncthreads() or bar.sync of this many warps.
double barrier(unsigned warps) {
  return figures.barrier_latency + figures.barrier_per_warp * warps;
}

template <class... P, class... A>
fa::KernelCount kernel_of(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  const WithOptions with({.workers = 3, .requests = true});
  return sim::test::counted(kernel, config, static_cast<A&&>(args)...).kernels.back();
}
template <class... P, class... A>
BlockWork work_of(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  const fa::KernelCount k = kernel_of(kernel, config, static_cast<A&&>(args)...);
  REQUIRE(k.work.size() == 1);
  return k.work[0];
}

void check(const BlockWork& got, const BlockWork& want) {
  CHECK(got.lines == want.lines);
  CHECK(got.atomic_lines == want.atomic_lines);
  CHECK(got.wavefronts == want.wavefronts);
  CHECK(got.instructions == want.instructions);
  CHECK(got.mma == want.mma);
  CHECK(got.wgmma_columns == want.wgmma_columns);
  CHECK(got.l2_bytes == want.l2_bytes);
  CHECK(got.latency == want.latency);
  CHECK(got.fetches == want.fetches);
}

/// On one worker three blocks in sequence each have the work of one alone.
template <class... P, class... A>
void check_in_turn(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  const BlockWork alone = work_of(kernel, config, args...);
  const WithOptions with({.workers = 1, .requests = true});
  fa::LaunchConfig three = config;
  three.grid = 3;
  const auto work = sim::test::counted(kernel, three, args...).kernels.back().work;
  REQUIRE(work.size() == 3);
  for (const BlockWork& w : work) check(w, alone);
}

constexpr int kFloats = 1 << 20;
struct Buffers {
  Buffer<float> x{"x", kFloats}, y{"y", kFloats};
};

// --- meetings ------------------------------------------------------------------------------------

__global__ void barriers(int n) {
  for (int i = 0; i < n; ++i) __syncthreads();
}
__global__ void barrier_of_two_warps() {
  if (threadIdx.x < 64) fa::bar_sync(1, 64);
}
__global__ void wait_for_a_load(const float* x, float* y) {
  float v = 0;
  if (threadIdx.x < 32) v = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x >= 32) v = x[threadIdx.x];
  if (v != 0) y[0] = v;  // never: x is zero
}
// Each warp loads twice, but only once before the barrier.
__global__ void load_on_both_sides(const float* x, float* y) {
  const float v = x[threadIdx.x];
  __syncthreads();
  if (v + x[threadIdx.x + 1024] != 0) y[0] = v;
}
// After the barrier each warp loads from the same place again, or from farther on.
__global__ void load_again(const float* x, float* y, int farther) {
  const float v = x[threadIdx.x];
  __syncthreads();
  if (v + x[threadIdx.x + farther] != 0) y[0] = v;
}
// The same by the last 16 lanes of each warp.
__global__ void load_again_by_some(const float* x, float* y) {
  const bool loads = threadIdx.x % 32 >= 16;
  float v = loads ? x[threadIdx.x] : 0;
  __syncthreads();
  if (loads) v += x[threadIdx.x];
  if (v != 0) y[0] = v;
}
// After the barrier data loaded before it, and other data; or a word of shared memory.
enum class Also { newer, newer_first, shared };
__global__ void load_old_and(const float* x, float* y, Also also) {
  float v = x[threadIdx.x];
  __syncthreads();
  if (also == Also::newer_first) v += x[threadIdx.x + 1024];
  v += x[threadIdx.x];
  if (also == Also::newer) v += x[threadIdx.x + 1024];
  if (also == Also::shared) v += fa::dynamic_shared<float>()[threadIdx.x];
  if (v != 0) y[0] = v;
}
__global__ void load_from_both(const float* x, float* y, bool shared_first) {
  float v = 0;
  if (shared_first) v += fa::dynamic_shared<float>()[threadIdx.x];
  v += x[threadIdx.x];
  if (!shared_first) v += fa::dynamic_shared<float>()[threadIdx.x];
  if (v != 0) y[0] = v;
}
// Warp 0 loads and continues, as do the next ones; the last warp waits for them.
__global__ void arrive_and_sync(const float* x, float* y) {
  const unsigned warp = threadIdx.x / 32;
  if (warp + 1 < blockDim.x / 32) {
    const float v = warp == 0 ? x[threadIdx.x] : 0.f;
    fa::bar_arrive(1, blockDim.x);
    if (v != 0) y[0] = v;
  } else {
    fa::bar_sync(1, blockDim.x);
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
// A few loads between barriers, which the compiler cannot issue earlier.
__global__ void loop_between_barriers(const float* x, float* y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < 3; ++k) sum += x[(3 * i + k) * 32 + threadIdx.x];
    __syncthreads();
  }
  if (sum != 0) y[0] = sum;
}
template <class T>
__global__ void load_strided(const float* x, float* y, int stride) {
  const T v = reinterpret_cast<const T*>(x)[threadIdx.x * stride];
  if (*reinterpret_cast<const float*>(&v) != 0) y[threadIdx.x] = 1;
}
__global__ void store(float* y, int stride) { y[threadIdx.x * stride] = 0; }
__global__ void store_twice(float* y) {
  y[threadIdx.x] = 0;
  __syncthreads();
  y[threadIdx.x] = 1;
}
__global__ void add(float* y, int stride) { atomicAdd(y + threadIdx.x * stride, 1.f); }
__global__ void store_shared(int stride) { fa::dynamic_shared<float>()[threadIdx.x * stride] = 0; }
__global__ void blocks_of_growing_length(const float* x, float* y) {
  float sum = 0;
  for (unsigned i = 0; i <= blockIdx.x; ++i) sum += x[i * 32 + threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
// A line, then `between` others, then the first one again, by warps that meet in between.
__global__ void come_back(const float* x, float* y, int between) {
  float sum = threadIdx.x < 32 ? x[threadIdx.x] : 0;
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * between; i += blockDim.x) sum += x[32 + i];
  __syncthreads();
  if (threadIdx.x < 32) sum += x[threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}
// A line, then another one `hits` times, then the first one again.
__global__ void come_back_after_hits(const float* x, float* y, int hits) {
  float sum = x[threadIdx.x];
  __syncthreads();
  for (int i = 0; i < hits; ++i) sum += x[32 + threadIdx.x];
  __syncthreads();
  sum += x[threadIdx.x];
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
__global__ void shuffles_at_two_lines(float* y, int second) {
  float v = __shfl_xor_sync(fa::kFullMask, 0.f, 4);
  v += __shfl_xor_sync(fa::kFullMask, v, second);
  if (v != 0) y[0] = v;
}
__global__ void products(int n, bool barrier) {
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  for (int i = 0; i < n; ++i) fa::mma_m16n8k16(d, a, b);
  if (barrier) __syncthreads();
}
// `n` products of 64 rows and columns; before the wait, warps from `loading` on load once.
__global__ void warpgroup_products(const float* x, float* y, int n, int loading) {
  const char* tile = fa::dynamic_shared<char>();
  const uint64_t ab = fa::wgmma_descriptor(tile, fa::Swizzle::b128, 16, 1024);
  float d[32] = {};
  fa::wgmma_fence();
  for (int i = 0; i < n; ++i) fa::wgmma(d, ab, ab);
  fa::wgmma_commit();
  float v = 0;
  if (static_cast<int>(threadIdx.x / 32) >= loading) v = x[threadIdx.x];
  fa::wgmma_wait<0>();
  if (v != 0) y[0] = v;
}

// --- copies --------------------------------------------------------------------------------------

__global__ void copy_async(const float* x, bool behind_a_barrier) {
  float* s = fa::dynamic_shared<float>();
  fa::cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  fa::cp_async_commit();
  if (behind_a_barrier) __syncthreads();
  fa::cp_async_wait<0>();
}
// Each lane sees that a barrier's phase is complete, copies and waits; and so on.
__global__ void copy_async_after_an_mbarrier(const float* x, int rounds) {
  float* s = fa::dynamic_shared<float>();
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&bar, 1);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  for (int i = 0; i < rounds; ++i) {
    fa::mbarrier_wait(&bar, 1);  // the phase before the first
    fa::cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
    fa::cp_async_wait_all();
  }
}
// A thread issues two copies, then the warp makes `loads` dependent loads, and waits.
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
// The producer must load the address from which it copies.
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

// The second of a warp's two bulk stores is independent when the warp has met others in between.
enum class Meeting { none, barrier, mbarrier };
__global__ void store_bulk_twice(float* y, Meeting meeting) {
  float* s = fa::dynamic_shared<float>();
  __shared__ uint64_t met;
  if (threadIdx.x == 0) fa::mbarrier_init(&met, 1);
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x == 0) {
      fa::bulk_store(y + 256 * i, s, 1024);
      fa::tma_store_commit();
      fa::tma_store_wait<0>();
    }
    if (i == 1) break;
    if (meeting == Meeting::barrier) __syncthreads();
    if (meeting == Meeting::mbarrier) {
      if (threadIdx.x == 0) fa::mbarrier_arrive(&met);
      fa::mbarrier_wait(&met, 0);
    }
  }
}
// Only block 0 has something to wait for.
__global__ void wait_for_stores_of_block_0(float* y) {
  float* s = fa::dynamic_shared<float>();
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) fa::bulk_store(y, s, 1024);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}
__global__ void copy_less_and_less(const float* x) {
  float* s = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  if (threadIdx.x != 0) return;
  const int bytes = 1024 * (3 - static_cast<int>(blockIdx.x));
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init_fence();
  fa::mbarrier_arrive_expect_tx(&full, bytes);
  fa::bulk_load(s, x, bytes, &full);
  fa::mbarrier_wait(&full, 0);
}

const fa::LaunchConfig kWarp{1, 32, 64 * 1024}, kWarpgroup{1, 128, 64 * 1024};

}  // namespace

TEST_CASE("a barrier costs its latency, and more for more warps", "[sim][clock]") {
  for (const unsigned warps : {1u, 2u, 8u}) {
    CHECK(work_of(barriers, {1, 32 * warps}, 1).latency == barrier(warps));
    check(work_of(barriers, {1, 32 * warps}, 3), {.latency = 3 * barrier(warps)});
  }
  CHECK(work_of(barrier_of_two_warps, {1, 128}).latency == barrier(2));
}

TEST_CASE_METHOD(Buffers, "after a barrier all warps have the time of the latest one",
                 "[sim][clock]") {
  const BlockWork w = work_of(wait_for_a_load, {1, 64}, x, y);
  CHECK(w.latency == figures.l2_latency + barrier(2) + figures.l2_latency);
  CHECK(w.fetches == 2);
  CHECK(w.lines == 2);
  const BlockWork both = work_of(load_on_both_sides, {1, 64}, x, y);
  CHECK(both.latency == figures.l2_latency + barrier(2) + figures.l2_latency);
  CHECK(both.fetches == 2);
  CHECK(both.lines == 4);
  // An arrival is as late as its warp.
  for (const unsigned threads : {64u, 96u}) {
    const BlockWork arrival = work_of(arrive_and_sync, {1, threads}, x, y);
    CHECK(arrival.latency == figures.l2_latency + barrier(1));  // gathers one waiting warp
    CHECK(arrival.fetches == 1);
  }
}

TEST_CASE_METHOD(Buffers, "loads of a loop are on their way together, four trips at a time",
                 "[sim][clock]") {
  for (const unsigned trips : {1, 3, 4, 5, 8, 9, 64}) {
    CAPTURE(trips);
    const unsigned rounds = (trips + 3) / 4;
    const int n = static_cast<int>(trips);
    check(work_of(loop, kWarp, x, y, n), {.lines = trips,
                                          .instructions = trips,
                                          .l2_bytes = 128 * trips,
                                          .latency = rounds * figures.l2_latency,
                                          .fetches = rounds});
    const BlockWork shared = work_of(shared_loop, kWarp, y, n);
    CHECK(shared.latency == rounds * figures.shared_latency);
    CHECK(shared.fetches == 0);
    CHECK(shared.wavefronts == trips);
  }
  for (const unsigned warps : {1u, 2u}) {  // they are counted again after a barrier
    CHECK(work_of(loop_between_barriers, {1, 32 * warps}, x, y, 5).latency ==
          5 * (figures.l2_latency + barrier(warps)));
  }
  constexpr int kLog = 1 << 20, kTrips = kLog + 400;  // the log of a warp's requests is full
  const BlockWork w = work_of(loop_for_long, {1, 1}, x, y, kTrips);
  CHECK(w.instructions == kTrips);
  CHECK(w.latency ==
        Approx(kLog / 4 * figures.l2_latency + 100 * figures.shared_latency).epsilon(1e-5));
}

TEST_CASE_METHOD(Buffers, "a block's lines and wavefronts", "[sim][clock]") {
  struct Case {
    int stride;  // words
    uint64_t lines, wavefronts;
  };
  for (const Case& c : {Case{1, 1, 1}, {2, 2, 2}, {8, 8, 8}, {32, 32, 32}, {33, 32, 1}}) {
    CAPTURE(c.stride);
    const BlockWork load = work_of(load_strided<float>, kWarp, x, y, c.stride);
    CHECK(load.lines == c.lines);
    CHECK(load.instructions == 1);
    CHECK(load.wavefronts == 0);
    const BlockWork stored = work_of(store, kWarp, y, c.stride);
    CHECK(stored.lines == c.lines);
    CHECK(stored.latency == 0);  // no thread waits for a store
    const BlockWork added = work_of(add, kWarp, y, c.stride);
    CHECK(added.atomic_lines == c.lines);
    CHECK(added.lines == 0);
    CHECK(added.instructions == 1);
    const BlockWork shared = work_of(store_shared, kWarp, c.stride);
    CHECK(shared.wavefronts == c.wavefronts);
    CHECK(shared.lines == 0);
  }
  // Wide loads pass through the L1 in parts.
  CHECK(work_of(load_strided<float2>, kWarp, x, y, 1).lines == 2);
  CHECK(work_of(load_strided<float4>, kWarp, x, y, 1).lines == 4);
  CHECK(work_of(load_strided<float4>, kWarp, x, y, 0).lines == 4);  // one, but 512 bytes to deliver
  CHECK(work_of(load_strided<float>, kWarp, x, y, 0).lines == 1);
}

TEST_CASE_METHOD(Buffers, "each block's work stands at its place in the grid", "[sim][clock]") {
  const fa::KernelCount k = kernel_of(blocks_of_growing_length, {20, 32}, x, y);
  REQUIRE(k.work.size() == 20);
  for (size_t i = 0; i < 20; ++i) {
    check(k.work[i], {.lines = i + 1,
                      .instructions = i + 1,
                      .l2_bytes = 128 * (i + 1),
                      .latency = static_cast<double>(i / 4 + 1) * figures.l2_latency,
                      .fetches = i / 4 + 1});
  }
}

TEST_CASE_METHOD(Buffers, "a block finds in its L1 what it has loaded, unless much has come since",
                 "[sim][clock]") {
  constexpr int kHolds = 256 * 1024 / 128;  // lines
  for (const unsigned threads : {32, 256}) {
    const auto bytes = [&](int between) {
      return work_of(come_back, {1, threads}, x, y, between).l2_bytes;
    };
    CHECK(bytes(0) == 128);
    CHECK(bytes(kHolds / 2) == 128 * (1 + kHolds / 2));
    CHECK(bytes(2 * kHolds) == 128 * (2 + 2 * kHolds));
  }
  const auto bytes_between = [&](int between) {
    return work_of(come_back, kWarp, x, y, between).l2_bytes;
  };
  CHECK(bytes_between(kHolds - 2) == 128 * (kHolds - 1));  // the line itself, and as many as fit
  CHECK(bytes_between(kHolds - 1) == 128 * (kHolds + 1));
  // Lines found there take no room.
  CHECK(work_of(come_back_after_hits, kWarp, x, y, 2 * kHolds).l2_bytes == 2 * 128);
  // Two warps in parallel, the second one a line ahead.
  CHECK(work_of(loop, {1, 64}, x, y, 2 * kHolds).l2_bytes == 128 * (1 + 2 * kHolds));
  // A hit is as fast as shared memory.
  const BlockWork again = work_of(load_again, {1, 64}, x, y, 0);
  CHECK(again.latency == figures.l2_latency + barrier(2) + figures.shared_latency);
  CHECK(again.fetches == 1);
  const BlockWork farther = work_of(load_again, {1, 64}, x, y, 1024);
  CHECK(farther.latency == figures.l2_latency + barrier(2) + figures.l2_latency);
  CHECK(farther.fetches == 2);
  const BlockWork some = work_of(load_again_by_some, {1, 64}, x, y);
  CHECK(some.latency == again.latency);
  CHECK(some.fetches == 1);
  for (const Also also : {Also::newer, Also::newer_first}) {  // the L1's arrives meanwhile
    const BlockWork two = work_of(load_old_and, kWarp, x, y, also);
    CHECK(two.latency == 2 * figures.l2_latency + barrier(1));
    CHECK(two.fetches == 2);
  }
  const BlockWork near = work_of(load_old_and, kWarp, x, y, Also::shared);
  CHECK(near.latency == figures.l2_latency + barrier(1) + figures.shared_latency);
  CHECK(near.fetches == 1);
  for (const bool shared_first : {false, true}) {
    const BlockWork both = work_of(load_from_both, kWarp, x, y, shared_first);
    CHECK(both.latency == figures.l2_latency + figures.shared_latency);
    CHECK(both.fetches == 1);
  }
  const fa::KernelCount same = kernel_of(same_line, {2, 256}, x, y);
  for (const BlockWork& w : same.work) {  // consecutive blocks: an L1 is not inherited
    CHECK(w.l2_bytes == 128);
    CHECK(w.lines == 8);
  }
  CHECK(work_of(store, kWarp, y, 1).l2_bytes == 128);
  CHECK(work_of(store_twice, kWarp, y).l2_bytes == 2 * 128);
  CHECK(work_of(add, kWarp, y, 8).l2_bytes == 32 * 32);  // whole sectors
}

TEST_CASE_METHOD(Buffers, "a reduction costs a latency for each step; rows go through it together",
                 "[sim][clock]") {
  const double latency = 5 * figures.shuffle_latency + barrier(1);
  check(work_of(reductions<1>, kWarp, y, 1),
        {.wavefronts = 5, .instructions = 5, .latency = latency});
  check(work_of(reductions<4>, kWarp, y, 1),
        {.wavefronts = 20, .instructions = 20, .latency = latency});
  CHECK(work_of(reductions<4>, kWarp, y, 3).latency == 3 * latency);
  for (const int second : {4, 2}) {  // the line also tells steps apart
    CHECK(work_of(shuffles_at_two_lines, kWarp, y, second).latency == 2 * figures.shuffle_latency);
  }
}

TEST_CASE_METHOD(Buffers, "products of a warp are a latency, of a warpgroup the wait's",
                 "[sim][clock]") {
  check(work_of(products, kWarp, 7, false),
        {.instructions = 7, .mma = 7, .latency = figures.mma_latency});
  CHECK(work_of(products, kWarp, 7, true).latency == figures.mma_latency + barrier(1));
  // Its operands are counted elsewhere.
  check(work_of(warpgroup_products, kWarpgroup, x, y, 3, 4),
        {.instructions = 3, .wgmma_columns = 3 * 64, .latency = figures.wgmma_latency});
  for (const int loading : {0, 3}) {  // meanwhile, each warp or the last one
    CHECK(work_of(warpgroup_products, kWarpgroup, x, y, 3, loading).latency ==
          figures.l2_latency + figures.wgmma_latency);
  }
  // Each of two warpgroups waits for its own products; the second one loads, or none.
  for (const int loading : {4, 7, 8}) {
    const BlockWork two = work_of(warpgroup_products, {1, 256, 64 * 1024}, x, y, 3, loading);
    CHECK(two.latency == (loading < 8 ? figures.l2_latency : 0) + figures.wgmma_latency);
    CHECK(two.wgmma_columns == 2 * 3 * 64);
  }
}

TEST_CASE_METHOD(Buffers, "cp.async costs a latency when its wait follows at once",
                 "[sim][clock]") {
  check(work_of(copy_async, kWarp, x, false),
        {.instructions = 1, .l2_bytes = 512, .latency = figures.copy_latency, .fetches = 1});
  check(work_of(copy_async, kWarp, x, true),
        {.instructions = 1, .l2_bytes = 512, .latency = barrier(1)});
  for (const int rounds : {1, 3}) {  // once in each, not for each lane
    CHECK(work_of(copy_async_after_an_mbarrier, kWarp, x, rounds).latency ==
          barrier(1) + rounds * figures.copy_latency);
  }
}

TEST_CASE_METHOD(Buffers,
                 "a bulk copy's mbarrier is ready when its bytes have come, one latency later",
                 "[sim][clock]") {
  const BlockWork w = work_of(copy_bulk, kWarp, x, y, 0);
  CHECK(w.latency == barrier(1) + 2048 / figures.tma_bytes + figures.tma_latency);
  CHECK(w.fetches == 1);
  CHECK(w.l2_bytes == 2048);
  CHECK(w.lines == 0);
  CHECK(w.instructions == 3);  // init, arrive, wait
  // Faster loads are hidden under it, slower ones hide it.
  CHECK(work_of(copy_bulk, kWarp, x, y, 1).latency == w.latency);
  const BlockWork many = work_of(copy_bulk, kWarp, x, y, 16);
  CHECK(many.latency == barrier(1) + 4 * figures.l2_latency);
  CHECK(many.fetches == 4);
  // A copy from an address that must be loaded begins after the load.
  const Buffer<int> place("place", 1);
  const BlockWork loaded = work_of(copy_from_a_loaded_place, kWarp, place, x);
  CHECK(loaded.latency == figures.l2_latency + 1024 / figures.tma_bytes + figures.tma_latency);
  CHECK(loaded.fetches == 2);
}

TEST_CASE_METHOD(Buffers, "a bulk store costs a latency where somebody waits for it",
                 "[sim][clock]") {
  check(work_of(store_bulk, kWarp, y, true), {.l2_bytes = 1024, .latency = figures.tma_latency});
  CHECK(work_of(store_bulk, kWarp, y, false).latency == 0);
  CHECK(work_of(store_bulk_twice, kWarp, y, Meeting::none).latency == figures.tma_latency);
  CHECK(work_of(store_bulk_twice, kWarp, y, Meeting::barrier).latency ==
        2 * figures.tma_latency + barrier(1));
  CHECK(work_of(store_bulk_twice, kWarp, y, Meeting::mbarrier).latency == 2 * figures.tma_latency);
  CHECK(work_of(store_bulk_of_each_lane, kWarp, y).latency == figures.tma_latency);
}

TEST_CASE_METHOD(Buffers, "a block's clocks know nothing of the block before", "[sim][clock]") {
  check_in_turn(barriers, {1, 96}, 2);
  check_in_turn(arrive_and_sync, {1, 96}, x, y);
  check_in_turn(load_on_both_sides, {1, 64}, x, y);
  check_in_turn(come_back, kWarp, x, y, 10);
  check_in_turn(reductions<2>, kWarp, y, 1);
  check_in_turn(products, kWarp, 3, false);
  check_in_turn(warpgroup_products, kWarpgroup, x, y, 2, 3);
  check_in_turn(copy_async, kWarp, x, false);
  check_in_turn(copy_bulk, kWarp, x, y, 3);
  check_in_turn(store_bulk, kWarp, y, true);
  const WithOptions with({.workers = 1, .requests = true});
  const auto latencies = [](const fa::Counts& counts) {
    std::vector<double> all;
    for (const BlockWork& w : counts.kernels.at(0).work) all.push_back(w.latency);
    return all;
  };
  const fa::LaunchConfig three{3, 32, 64 * 1024};
  const auto copies = sim::test::counted(copy_less_and_less, three, x);
  std::vector<double> want;
  for (const int kib : {3, 2, 1}) {
    want.push_back(1024 * kib / figures.tma_bytes + figures.tma_latency);
  }
  CHECK(latencies(copies) == want);
  CHECK(latencies(sim::test::counted(wait_for_stores_of_block_0, three, y)) ==
        std::vector<double>{figures.tma_latency, 0, 0});
}

// 64 blocks of 32 KiB, loaded twice each; all are resident.
__global__ static void load_twice(const float* x, float* y) {
  const float* mine = x + blockIdx.x * 8192;
  float sum = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = threadIdx.x; i < 8192; i += 32) sum += mine[i];
  }
  if (sum != 0) y[0] = sum;
}

TEST_CASE_METHOD(Buffers, "beside other problems a launch finds an empty L2, and its share of it",
                 "[sim][clock][l2]") {
  /// DRAM reads of the first and the second launch, in units of what they load.
  const auto check = [&](double times, int sms, double first, double second) {
    CAPTURE(times, sms);
    const WithOptions with(
        {.workers = 1, .requests = true, .l2_bytes = 4 << 20, .l2_times = times, .sms = sms});
    const auto counts = sim::test::counted([&] {
      for (int i = 0; i < 2; ++i) fa::launch(load_twice, {64, 32}, x, y);
    });
    REQUIRE(counts.kernels.size() == 2);
    constexpr double kBytes = 64 * 32768;
    CHECK(counts.kernels[0].hbm.read / kBytes == Approx(first).margin(0.1));
    CHECK(counts.kernels[1].hbm.read / kBytes == Approx(second).margin(0.1));
  };
  const int few = 8;  // fewer SMs than blocks: not a persistent grid
  check(1, few, 1, 0);
  check(1.01, few, 1, 1);  // the others have evicted it, but none is beside it
  check(8, few, 2, 2);     // an eighth of the L2 for four times as much
  check(8, 64, 1, 1);      // persistent: one problem after another, all of the L2
  const WithOptions with({.workers = 1, .requests = true, .l2_bytes = 4 << 20, .l2_times = 8});
  const auto counts = sim::test::counted(store, kWarp, y, 1);
  CHECK(counts.kernels[0].hbm.write == 128);  // its stores leave the L2 with it, once
  CHECK(counts.hbm->write == 128);
}
