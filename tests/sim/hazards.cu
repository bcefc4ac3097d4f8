// Races and uninitialised reads: each diagnosis with a kernel that has exactly that fault, and a
// near twin without it.
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

sim::Options with_races() {
  sim::Options o;
  o.races = true;
  return o;
}
sim::Options with_uninitialised() {
  sim::Options o;
  o.uninitialised = true;
  return o;
}

// --- shared memory: barriers of the block --------------------------------------------------------

// Each thread reads what a thread of another warp wrote.
constexpr int kExchange = __LINE__;  // the store is 4 lines further down, the load 6
template <bool kBarrier>
__global__ void exchange(float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = threadIdx.x;
  if (kBarrier) __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = tile[(threadIdx.x + 32) % 64];
}
template <bool kBarrier>
__global__ void exchange_dynamic(float* y) {
  float* tile = fa::dynamic_shared<float>();
  tile[threadIdx.x] = threadIdx.x;
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = tile[(threadIdx.x + 32) % 64];
}
// The tile is overwritten in the next trip.
template <bool kSecond>
__global__ void tiles(float* y) {
  __shared__ float tile[64];
  float sum = 0;
  for (int t = 0; t < 3; ++t) {
    tile[threadIdx.x] = t;
    __syncthreads();
    for (int i = 0; i < 64; ++i) sum += tile[i];
    if (kSecond) __syncthreads();
  }
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
// Only warp 1 reads before only warp 0 overwrites: found from the loads, not from the stores.
template <bool kBarrier>
__global__ void overwrite(float* y) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 1) tile[lane] = 1;
  __syncthreads();
  if (warp == 0) y[lane] = tile[lane];
  if (kBarrier) __syncthreads();
  if (warp == 1) tile[lane] = 2;
}
template <bool kSame>
__global__ void two_stores(float* y) {
  __shared__ float tile[64];
  tile[kSame ? threadIdx.x % 32 : threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
// Neighbours share a word, not its bytes.
template <bool kSame>
__global__ void half_words(uint16_t* y) {
  __shared__ uint16_t tile[64];
  tile[threadIdx.x] = threadIdx.x;
  if (kSame) tile[threadIdx.x ^ 1] = 0;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
}
template <bool kAtomic>
__global__ void histogram(int* y) {
  __shared__ int bins[4];
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  __syncthreads();
  if (kAtomic) {
    atomicAdd(&bins[threadIdx.x % 4], 1);
  } else {
    bins[threadIdx.x % 4] += 1;
  }
  __syncthreads();
  y[threadIdx.x] = bins[threadIdx.x % 4];
}

// --- shared memory: parts of a block -------------------------------------------------------------

template <bool kSync>
__global__ void reverse_in_warp(float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = threadIdx.x;
  if (kSync) __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 31];
}
// __syncwarp of half a warp orders this half only.
template <bool kWithinHalf>
__global__ void half_a_warp(float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = threadIdx.x;
  __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  y[threadIdx.x] = tile[threadIdx.x ^ (kWithinHalf ? 15 : 16)];
}
// A shuffle brings the lanes together but does not order memory.
template <bool kSync>
__global__ void shuffle_between(float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = threadIdx.x;
  const float v = __shfl_xor_sync(0xffffffff, tile[threadIdx.x], 1);
  if (kSync) __syncwarp();
  y[threadIdx.x] = v + tile[threadIdx.x ^ 1];
}
// Warp 0 fills a tile for warp 1, and arrives or waits for it; warp 2 has no part in it, or meets
// the others before or after that.
enum class Third { absent, before, after };
template <int kReader, bool kBothWait, Third kThird = Third::absent>
__global__ void named_barrier(float* y) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (kThird == Third::before) __syncthreads();
  if (warp == 0) {
    tile[lane] = lane;
    if (kBothWait) {
      fa::bar_sync(1, 64);
    } else {
      fa::bar_arrive(1, 64);
    }
  }
  if (warp == 1) fa::bar_sync(1, 64);
  if (kThird == Third::after) fa::bar_sync(2, 96);
  if (warp == kReader) y[lane] = tile[31 - lane];
}
// Who arrives does not wait: what it stores or loads behind that is not handed over.
template <bool kLate, int kArriver>
__global__ void store_behind_arrival(float* y) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == kArriver) {
    if (!kLate) tile[lane] = lane;
    fa::bar_arrive(1, 64);
    if (kLate) tile[lane] = lane;
  } else {
    fa::bar_sync(1, 64);
    y[lane] = tile[31 - lane];
  }
}
template <bool kLate, int kArriver>
__global__ void load_behind_arrival(float* y) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) tile[lane] = lane;
  __syncthreads();
  if (warp == kArriver) {
    if (!kLate) y[lane] = tile[31 - lane];
    fa::bar_arrive(1, 64);
    if (kLate) y[lane] = tile[31 - lane];
  } else {
    fa::bar_sync(1, 64);
    tile[lane] = 0;
  }
}
// Three warps meet in phase 0; then warp 0 fills the tile and arrives for phase 1, for which warp 1
// has to wait.
template <bool kWait>
__global__ void next_phase(float* y) {
  __shared__ float tile[32];
  __shared__ uint64_t bar;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&bar, 96);
  __syncthreads();
  fa::mbarrier_arrive(&bar);
  fa::mbarrier_wait(&bar, 0);
  if (warp == 0) tile[lane] = lane;
  fa::mbarrier_arrive(&bar);
  if (kWait) fa::mbarrier_wait(&bar, 1);
  if (warp == 1) y[lane] = tile[31 - lane];
}
// As above through an mbarrier; the consumer also hands the tile back.
template <bool kFull, bool kEmpty>
__global__ void pipeline(float* y) {
  __shared__ float tile[32];
  __shared__ uint64_t full, empty;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 32);
    fa::mbarrier_init(&empty, 32);
  }
  __syncthreads();
  float sum = 0;
  for (int t = 0; t < 4; ++t) {
    if (warp == 0) {
      if (kEmpty && t > 0) fa::mbarrier_wait(&empty, (t - 1) & 1);
      tile[lane] = t;
      fa::mbarrier_arrive(&full);
      if (!kEmpty) fa::bar_sync(1, 64);  // in step with the consumer's wait, not with its loads
    } else {
      if (kFull) fa::mbarrier_wait(&full, t & 1);
      if (!kEmpty) fa::bar_sync(1, 64);
      sum += tile[31 - lane];
      fa::mbarrier_arrive(&empty);
    }
  }
  if (warp == 1) y[blockIdx.x * 32 + lane] = sum;
}
// One lane arrives for its warp: __syncwarp() must come first.
template <bool kSync>
__global__ void elected_arrival(float* y) {
  __shared__ float tile[32];
  __shared__ uint64_t full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (warp == 0) {
    tile[lane] = lane;
    if (kSync) __syncwarp();
    if (lane == 31) fa::mbarrier_arrive(&full);
  } else {
    fa::mbarrier_wait(&full, 0);
    y[lane] = tile[lane];
  }
}

// --- device memory -------------------------------------------------------------------------------

template <bool kBarrier>
__global__ void through_device(float* x, float* y) {
  x[threadIdx.x] = threadIdx.x;
  if (kBarrier) __syncthreads();
  y[threadIdx.x] = x[threadIdx.x ^ 32];
}
template <bool kOwn>
__global__ void across_blocks(float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i;
  __syncthreads();
  y[i] = x[(kOwn ? blockIdx.x : 0) * blockDim.x + threadIdx.x];
}
template <bool kOwn>
__global__ void store_read_by_others(const float* x, float* z, float* y) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = x[threadIdx.x];
  if (blockIdx.x == 2) (kOwn ? z : const_cast<float*>(x))[threadIdx.x] = 0;
}
template <bool kAtomic>
__global__ void accumulate(float* sum) {
  if (kAtomic) {
    atomicAdd(sum + threadIdx.x, 1.f);
  } else {
    sum[threadIdx.x] += 1;
  }
}
template <bool kPlain>
__global__ void plain_and_atomic(float* sum) {
  if (kPlain && blockIdx.x == 1) {
    sum[threadIdx.x] = 0;
  } else {
    atomicAdd(sum + threadIdx.x, 1.f);
  }
}
// The last block to finish sums up what all wrote, and resets the ticket. The fence may stand in
// front of the barrier, in every thread, or behind it, in the thread that takes the ticket.
enum class Fence { none, everybody, one, late };
template <Fence kFence>
__global__ void last_block(float* partial, unsigned* ticket, float* y) {
  __shared__ bool last;
  partial[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
  if (kFence == Fence::everybody) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (kFence == Fence::one) __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (kFence == Fence::late) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b * blockDim.x + threadIdx.x];
  y[threadIdx.x] = sum;
  if (threadIdx.x == 0) *ticket = 0;
}
// Warp 0 fences its stores and arrives; warp 1, which waited, takes the ticket.
template <bool kFence>
__global__ void fenced_by_another(float* partial, unsigned* ticket, float* y) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    partial[blockIdx.x * 32 + lane] = lane;
    if (kFence) __threadfence();
    fa::bar_arrive(1, 64);
    return;
  }
  fa::bar_sync(1, 64);
  if (lane == 0 && atomicAdd(ticket, 1u) == gridDim.x - 1) {
    for (unsigned i = 0; i < gridDim.x * 32; ++i) *y += partial[i];
  }
}
// Two stores, one in front of the fence and one behind it.
template <bool kBehind>
__global__ void fenced_too_early(float* partial, unsigned* ticket, float* y) {
  if (!kBehind) partial[blockIdx.x] = 1;
  __threadfence();
  if (kBehind) partial[blockIdx.x] = 1;
  if (atomicAdd(ticket, 1u) + 1 == gridDim.x) {
    for (unsigned b = 0; b < gridDim.x; ++b) y[b] = partial[b];
  }
}

// --- uninitialised -------------------------------------------------------------------------------

template <int kWritten>
__global__ void partly_written(float* y) {
  __shared__ float tile[64];
  if (threadIdx.x < kWritten) tile[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
// Only the first block writes: the second finds what the first one left.
template <bool kAll>
__global__ void first_block_writes(float* y) {
  __shared__ float tile[64];
  if (kAll || blockIdx.x == 0) tile[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void copy(const float* x, float* y, int n) {
  if (static_cast<int>(threadIdx.x) < n) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void add_one(float* x) { atomicAdd(x + threadIdx.x, 1.f); }

#define SILENT(...) CHECK(finding([&] { __VA_ARGS__; }) == "")
#define FOUND(text, ...) CHECK_THAT(finding([&] { __VA_ARGS__; }), ContainsSubstring(text))

}  // namespace

TEST_CASE("a missing __syncthreads is a race", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 128);
  const auto text = finding([&] { fa::launch(exchange<false>, {dim3(2), dim3(64)}, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on shared memory: kernel "));
  CHECK_THAT(text, ContainsSubstring("exchange"));
  const auto line = [](int n) { return "hazards.cu:" + std::to_string(kExchange + n); };
  CHECK_THAT(text, ContainsSubstring("block (0,0,0), thread (32,0,0): store of tile, byte 128 at " +
                                     line(4) + " and a load by thread (0,0,0) at " + line(6) +
                                     " have no barrier between them"));
  SILENT(fa::launch(exchange<true>, {dim3(2), dim3(64)}, y));
}

TEST_CASE("dynamic shared memory is watched too", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  FOUND("race on shared memory", fa::launch(exchange_dynamic<false>, {dim3(1), dim3(64), 256}, y));
  SILENT(fa::launch(exchange_dynamic<true>, {dim3(1), dim3(64), 256}, y));
}

TEST_CASE("a missing second __syncthreads in a loop is a race", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 192);
  FOUND("race on shared memory", fa::launch(tiles<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(tiles<true>, {dim3(3), dim3(64)}, y));
}

TEST_CASE("a store that overtakes the loads of another warp is a race", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  FOUND("store of tile, byte 0 at", fa::launch(overwrite<false>, {dim3(1), dim3(64)}, y));
  FOUND("and a load by thread (0,0,0) at", fa::launch(overwrite<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(overwrite<true>, {dim3(1), dim3(64)}, y));
}

TEST_CASE("two stores to one word are a race, to the two halves of a word are none",
          "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  Buffer<uint16_t> h("h", 64);
  FOUND("and a store by thread (0,0,0)", fa::launch(two_stores<true>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(two_stores<false>, {dim3(1), dim3(64)}, y));
  FOUND("race on shared memory", fa::launch(half_words<true>, {dim3(1), dim3(64)}, h));
  SILENT(fa::launch(half_words<false>, {dim3(1), dim3(64)}, h));
}

TEST_CASE("atomics on shared memory are in order", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<int> y("y", 64);
  FOUND("race on shared memory", fa::launch(histogram<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(histogram<true>, {dim3(1), dim3(64)}, y));
}

TEST_CASE("a missing __syncwarp is a race", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  FOUND("race on shared memory", fa::launch(reverse_in_warp<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(reverse_in_warp<true>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(reverse_in_warp<true>, {dim3(1), dim3(40 + 24)}, y));
}

TEST_CASE("__syncwarp orders the lanes of its mask and no others", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  FOUND("race on shared memory", fa::launch(half_a_warp<false>, {dim3(1), dim3(32)}, y));
  SILENT(fa::launch(half_a_warp<true>, {dim3(1), dim3(32)}, y));
}

TEST_CASE("a shuffle does not order shared memory", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  FOUND("race on shared memory", fa::launch(shuffle_between<false>, {dim3(1), dim3(32)}, y));
  SILENT(fa::launch(shuffle_between<true>, {dim3(1), dim3(32)}, y));
}

TEST_CASE("a named barrier orders those who take part", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  const fa::LaunchConfig three_warps{dim3(1), dim3(96)};
  FOUND("race on shared memory", fa::launch(named_barrier<2, false>, three_warps, y));
  SILENT(fa::launch(named_barrier<1, false>, three_warps, y));
  FOUND("race on shared memory", fa::launch(named_barrier<2, true>, three_warps, y));
  FOUND("race on shared memory", fa::launch(named_barrier<2, true, Third::before>, three_warps, y));
  SILENT(fa::launch(named_barrier<1, true>, three_warps, y));
  SILENT(fa::launch(named_barrier<2, true, Third::after>, three_warps, y));
}

TEST_CASE("bar.arrive hands over what came before it, not what follows", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  const fa::LaunchConfig two_warps{dim3(1), dim3(64)};
  FOUND("race on shared memory", fa::launch(store_behind_arrival<true, 0>, two_warps, y));
  FOUND("race on shared memory", fa::launch(store_behind_arrival<true, 1>, two_warps, y));
  SILENT(fa::launch(store_behind_arrival<false, 0>, two_warps, y));
  SILENT(fa::launch(store_behind_arrival<false, 1>, two_warps, y));
  FOUND("race on shared memory", fa::launch(load_behind_arrival<true, 0>, two_warps, y));
  FOUND("race on shared memory", fa::launch(load_behind_arrival<true, 1>, two_warps, y));
  SILENT(fa::launch(load_behind_arrival<false, 0>, two_warps, y));
  SILENT(fa::launch(load_behind_arrival<false, 1>, two_warps, y));
}

TEST_CASE("an mbarrier's wait is for its own phase, not for arrivals of the next", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  FOUND("load of tile", fa::launch(next_phase<false>, {dim3(1), dim3(96)}, y));
  SILENT(fa::launch(next_phase<true>, {dim3(1), dim3(96)}, y));
}

TEST_CASE("mbarriers order producer and consumer, both ways", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  SILENT(fa::launch(pipeline<true, true>, {dim3(2), dim3(64)}, y));
  CHECK(y.download()[0] == 0 + 1 + 2 + 3);
  FOUND("load of tile", fa::launch(pipeline<false, true>, {dim3(1), dim3(64)}, y));
  FOUND("race on shared memory", fa::launch(pipeline<true, false>, {dim3(1), dim3(64)}, y));
}

TEST_CASE("one lane's arrival speaks for its warp only after __syncwarp", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 32);
  FOUND("race on shared memory", fa::launch(elected_arrival<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(elected_arrival<true>, {dim3(1), dim3(64)}, y));
}

TEST_CASE("within a block a barrier orders device memory", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> x("x", 64), y("y", 64);
  FOUND("race on device memory", fa::launch(through_device<false>, {dim3(1), dim3(64)}, x, y));
  SILENT(fa::launch(through_device<true>, {dim3(1), dim3(64)}, x, y));
  SILENT(fa::launch(through_device<true>, {dim3(1), dim3(64)}, x, y));  // launches are in order
}

TEST_CASE("nothing orders two blocks of a launch", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> x("x", 128), y("y", 256), z("z", 64);
  const auto text = finding([&] { fa::launch(across_blocks<false>, {dim3(2), dim3(64)}, x, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on device memory"));
  CHECK_THAT(text,
             ContainsSubstring("block (1,0,0), thread (0,0,0): load of x, byte 0 at hazards.cu:"));
  CHECK_THAT(text,
             ContainsSubstring("and a store by block (0,0,0), thread (0,0,0) at hazards.cu:"));
  SILENT(fa::launch(across_blocks<true>, {dim3(2), dim3(64)}, x, y));

  FOUND("and a load by block (0,0,0), thread (0,0,0)",
        fa::launch(store_read_by_others<false>, {dim3(3), dim3(64)}, x, z, y));
  SILENT(fa::launch(store_read_by_others<true>, {dim3(3), dim3(64)}, x, z, y));
}

TEST_CASE("atomics of many blocks are in order; with plain stores they race", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> sum("sum", 64);
  FOUND("race on device memory", fa::launch(accumulate<false>, {dim3(2), dim3(64)}, sum));
  SILENT(fa::launch(accumulate<true>, {dim3(2), dim3(64)}, sum));
  FOUND("and an atomic by block (0,0,0)",
        fa::launch(plain_and_atomic<true>, {dim3(3), dim3(64)}, sum));
  SILENT(fa::launch(plain_and_atomic<false>, {dim3(3), dim3(64)}, sum));
}

TEST_CASE("the last block may read what others fenced before their ticket", "[sim][races]") {
  WithOptions with(with_races());
  constexpr int kBlocks = 5;
  Buffer<float> partial("partial", kBlocks * 64), y("y", 64);
  Buffer<unsigned> ticket("ticket", 1);
  const auto run = [&](auto kernel) {
    cudaMemset(ticket.get(), 0, sizeof(unsigned));
    return finding([&] { fa::launch(kernel, {dim3(kBlocks), dim3(64)}, partial, ticket, y); });
  };
  CHECK(run(last_block<Fence::one>) == "");
  CHECK(y.download()[3] == kBlocks * 3);
  CHECK(ticket.download()[0] == 0);
  CHECK(run(last_block<Fence::everybody>) == "");
  const auto text = run(last_block<Fence::none>);
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("block (4,0,0), thread (0,0,0): load of partial, byte 0"));
  CHECK_THAT(text, ContainsSubstring("store by block (0,0,0), thread (0,0,0)"));
  CHECK_THAT(run(last_block<Fence::late>), ContainsSubstring("race on device memory"));
}

TEST_CASE("a fence publishes what came before it, not what follows", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> partial("partial", 4), y("y", 4);
  Buffer<unsigned> ticket("ticket", 1);
  FOUND("race on device memory",
        fa::launch(fenced_too_early<true>, {dim3(4), dim3(1)}, partial, ticket, y));
  cudaMemset(ticket.get(), 0, sizeof(unsigned));
  SILENT(fa::launch(fenced_too_early<false>, {dim3(4), dim3(1)}, partial, ticket, y));
}

TEST_CASE("bar.arrive hands over what was fenced", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> partial("partial", 3 * 32), y("y", 1);
  Buffer<unsigned> ticket("ticket", 1);
  FOUND("load of partial",
        fa::launch(fenced_by_another<false>, {dim3(3), dim3(64)}, partial, ticket, y));
  cudaMemset(ticket.get(), 0, sizeof(unsigned));
  SILENT(fa::launch(fenced_by_another<true>, {dim3(3), dim3(64)}, partial, ticket, y));
}

TEST_CASE("a finding names the same place in every run", "[sim][races]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 512);
  const auto run = [&] {
    return finding([&] { fa::launch(exchange<false>, {dim3(8), dim3(64)}, y); });
  };
  const auto first = run();
  REQUIRE(first != "");
  for (int i = 0; i < 3; ++i) CHECK(run() == first);
}

TEST_CASE("shared memory that this block has not written is uninitialised", "[sim][races]") {
  WithOptions with(with_uninitialised());
  Buffer<float> y("y", 64);
  const auto text = finding([&] { fa::launch(partly_written<63>, {dim3(1), dim3(64)}, y); });
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("uninitialised shared memory: kernel "));
  CHECK_THAT(text, ContainsSubstring("thread (63,0,0): load of tile, byte 252 at hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("which this block has not written"));
  SILENT(fa::launch(partly_written<64>, {dim3(1), dim3(64)}, y));
  FOUND("block (1,0,0), thread (0,0,0): load of tile, byte 0",
        fa::launch(first_block_writes<false>, {dim3(2), dim3(64)}, y));
  SILENT(fa::launch(first_block_writes<true>, {dim3(2), dim3(64)}, y));
}

TEST_CASE("device memory that nobody has written is uninitialised", "[sim][races]") {
  WithOptions with(with_uninitialised());
  Buffer<float> x("x", 64, false), y("y", 64, false), z("z", 64);
  FOUND("load of x, byte 0 at hazards.cu:", fa::launch(copy, {dim3(1), dim3(64)}, x, y, 64));
  FOUND("atomic of x, byte 0", fa::launch(add_one, {dim3(1), dim3(64)}, x));
  sim::poison(x, 64 * sizeof(float));     // these launches ran to their ends
  x.upload(std::vector<float>(60, 1.f));  // all but four
  FOUND("thread (60,0,0): load of x, byte 240", fa::launch(copy, {dim3(1), dim3(64)}, x, y, 64));
  sim::poison(y, 64 * sizeof(float));
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, x, y, 60));
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, y, z, 60));  // kernels write, too
  FOUND("load of y, byte 240", fa::launch(copy, {dim3(1), dim3(64)}, y, z, 61));
  cudaMemset(x.get(), 0, 64 * sizeof(float));
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, x, y, 64));
}

TEST_CASE("what a launch without the analysis writes is written for one with it", "[sim][races]") {
  WithOptions with{sim::Options{}};
  Buffer<float> x("x", 64), y("y", 64, false), z("z", 64);
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, x, y, 60));
  WithOptions uninitialised(with_uninitialised());
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, y, z, 60));
  FOUND("load of y, byte 240", fa::launch(copy, {dim3(1), dim3(64)}, y, z, 61));
}

TEST_CASE("races and uninitialised reads are looked for only when asked", "[sim][races]") {
  WithOptions with{sim::Options{}};
  Buffer<float> x("x", 64, false), y("y", 64);
  SILENT(fa::launch(exchange<false>, {dim3(1), dim3(64)}, y));
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, x, y, 64));
  WithOptions races(with_races());
  SILENT(fa::launch(copy, {dim3(1), dim3(64)}, x, y, 64));
  WithOptions uninitialised(with_uninitialised());
  SILENT(fa::launch(exchange<true>, {dim3(1), dim3(64)}, y));
}
