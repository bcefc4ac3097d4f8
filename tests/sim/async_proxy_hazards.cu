// Races with TMA and wgmma, which touch shared memory on their own: each with a kernel that has
// exactly that fault, and a near twin without it.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

using bf16 = __nv_bfloat16;

constexpr int kTile = 32;  // floats
constexpr int kElements = 64 * 16;

sim::Options with_races() {
  sim::Options o;
  o.races = true;
  return o;
}

// --- threads write, TMA or wgmma reads: fence.proxy.async ----------------------------------------

enum class Fence { none, everybody, issuer, early, late };

// 64 threads fill a tile, thread 0 stores it.
constexpr int kStoreTile = __LINE__;  // the stores are 5 lines further down, the bulk store 10
template <Fence fence>
__global__ void store_tile(float* y) {
  __shared__ __align__(128) float tile[64];
  if (fence == Fence::early) fa::fence_proxy_async();
  tile[threadIdx.x] = threadIdx.x;
  if (fence == Fence::everybody) fa::fence_proxy_async();
  __syncthreads();
  if (fence == Fence::late) fa::fence_proxy_async();
  if (threadIdx.x == 0) {
    if (fence == Fence::issuer) fa::fence_proxy_async();
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}

// The operands of a wgmma come from plain stores, stmatrix, or cp.async.
enum class Writer { plain, stmatrix, cp_async };
template <Writer writer, bool kFence>
__global__ void operands(const bf16* x, float* y) {
  __shared__ __align__(1024) bf16 tile[kElements];
  const int t = threadIdx.x;
  bf16* mine = tile + t * 8;
  if (writer == Writer::plain) {
    for (int i = 0; i < 8; ++i) mine[i] = 1.f;
  } else if (writer == Writer::stmatrix) {
    fa::stmatrix_x4(mine, {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u});
  } else {
    fa::cp_async_16(mine, x + t * 8);
    fa::cp_async_wait_all();
  }
  if (kFence) fa::fence_proxy_async();
  __syncthreads();
  float d[32];
  const uint64_t a = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a, false);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  y[t] = d[0];
}

// One thread fills both operands for its warpgroup: its fence and a barrier of all.
template <bool kBarrier>
__global__ void one_writer(float* y) {
  __shared__ __align__(1024) bf16 tile[kElements];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kElements; ++i) tile[i] = 1.f;
    fa::fence_proxy_async();
  }
  if (kBarrier) {
    __syncthreads();
  } else {
    __syncwarp();  // three warps know nothing of the stores
  }
  float d[32];
  const uint64_t a = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a, false);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  y[threadIdx.x] = d[0];
}

// --- wgmma reads until its wait ------------------------------------------------------------------

enum class Overwrite { behind_the_wait, in_front, other_warpgroup, of_the_older_group };

// Warpgroup 0 multiplies; then it, or warpgroup 1 behind a barrier, overwrites the operand.
template <Overwrite when>
__global__ void overwritten_operand(float* y) {
  __shared__ __align__(1024) bf16 tile[2][kElements];
  const int t = threadIdx.x;
  const bool multiplies = t < 128;
  for (int s = 0; s < 2; ++s) {
    for (int i = t; i < kElements; i += 256) tile[s][i] = 1.f;
  }
  fa::fence_proxy_async();
  __syncthreads();
  float d[32] = {}, e[32] = {};
  if (multiplies) {
    const uint64_t a = fa::wgmma_descriptor(tile[0], Swizzle::none, 64 * 16, 128);
    const uint64_t b = fa::wgmma_descriptor(tile[1], Swizzle::none, 64 * 16, 128);
    fa::wgmma_fence();
    fa::wgmma(d, a, a);
    fa::wgmma_commit();
    fa::wgmma(e, b, b);
    fa::wgmma_commit();
    if (when == Overwrite::in_front) tile[0][t] = 2.f;
    if (when == Overwrite::of_the_older_group || when == Overwrite::other_warpgroup) {
      fa::wgmma_wait<1>();
    } else {
      fa::wgmma_wait<0>();
    }
    if (when == Overwrite::behind_the_wait) tile[1][t] = 2.f;
    if (when == Overwrite::of_the_older_group) tile[0][t] = 2.f;
  }
  __syncthreads();
  if (when == Overwrite::other_warpgroup && !multiplies) tile[1][t] = 2.f;
  if (multiplies) {
    fa::wgmma_wait<0>();
    y[t] = d[0] + e[0];
  }
}

// --- wgmma's registers are its own until the wait ------------------------------------------------

enum class Registers {
  right,
  read,
  write,
  write_a,
  older_group,
  load_a,
  read_a,
  store_a,
  read_older,
  read_waited
};

// d = A B and e = A B, A from registers.
template <Registers fault>
__global__ void registers(float* y) {
  __shared__ __align__(1024) bf16 tile[kElements];
  __shared__ __align__(16) bf16 rows[128 * 8];
  const int t = threadIdx.x;
  for (int i = t; i < kElements; i += 128) tile[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  uint32_t a[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u}, zero[4] = {};
  float d[32] = {}, e[32] = {};
  const uint64_t b = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, b);
  fa::wgmma_commit();
  fa::wgmma(e, zero, b);
  fa::wgmma_commit();
  float sum = 0;
  if (fault == Registers::read) sum += e[3];
  if (fault == Registers::write) d[4] *= 2;
  if (fault == Registers::write_a) a[2] = 0;
  if (fault == Registers::load_a) fa::ldmatrix_x4(a, tile + t % 32 * 8);
  if (fault == Registers::read_a) sum += static_cast<float>(a[2] & 1);
  if (fault == Registers::store_a) fa::stmatrix_x4(rows + t * 8, a);
  fa::wgmma_wait<1>();
  if (fault == Registers::read_waited) sum += static_cast<float>(a[2] & 1);
  if (fault == Registers::read_older) sum += static_cast<float>(zero[1] & 1);
  if (fault != Registers::older_group) a[0] = 0;
  if (fault == Registers::older_group) zero[1] = 1;
  sum += d[3];
  fa::wgmma_wait<0>();
  y[t] = sum + e[3];
}

// --- TMA loads write until their phase is waited for ---------------------------------------------

enum class Load { right, no_wait, other_barrier, no_bytes, store, twice, left_behind };

// Thread 0 loads two tiles for two mbarriers; warp 1 reads both.
template <Load fault>
__global__ void load_tiles(const float* x, float* y) {
  __shared__ __align__(128) float tile[2][kTile];
  __shared__ uint64_t full[2];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (uint64_t& bar : full) fa::mbarrier_init(&bar, 1);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      if (fault == Load::no_bytes) {
        fa::mbarrier_arrive(&full[s]);
      } else {
        fa::mbarrier_arrive_expect_tx(&full[s], sizeof tile[s]);
      }
      fa::bulk_load(tile[s], x + s * kTile, sizeof tile[s], &full[s]);
    }
    if (fault == Load::twice) fa::bulk_load(tile[0], x + kTile, sizeof tile[0], &full[0]);
    if (fault == Load::store) tile[1][5] = 0;
  }
  if (warp == 1 && fault != Load::left_behind) {
    if (fault != Load::no_wait) fa::mbarrier_wait(&full[0], 0);
    if (fault != Load::no_wait && fault != Load::other_barrier) fa::mbarrier_wait(&full[1], 0);
    y[lane] = tile[0][lane] + tile[1][lane];
  }
}

// --- TMA stores read until tma_store_wait_read ---------------------------------------------------

enum class Store { right, overwritten, by_another, loaded_over, not_waited, not_committed };

// Thread 0 stores a tile; then it or warp 1 writes to the tile again, or TMA loads into it.
template <Store fault>
__global__ void use_tile_again(const float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  if (warp == 0) tile[lane] = lane;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    if (fault != Store::not_committed) fa::tma_store_commit();
    if (fault == Store::right) fa::tma_store_wait_read<0>();
    if (fault == Store::overwritten) tile[3] = 0;
    if (fault == Store::right || fault == Store::loaded_over) {
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::bulk_load(tile, x, sizeof tile, &full);
      fa::mbarrier_wait(&full, 0);
    }
  }
  __syncthreads();
  if (warp == 1 && (fault == Store::right || fault == Store::by_another)) tile[lane] = 0;
}

// What a bulk store has written is visible at tma_store_wait, not at tma_store_wait_read.
template <bool kWritten>
__global__ void through_device(float* y, float* z) {
  __shared__ __align__(128) float tile[kTile];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) tile[lane] = lane;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    if (kWritten) {
      fa::tma_store_wait<0>();
    } else {
      fa::tma_store_wait_read<0>();
    }
  }
  __syncthreads();
  if (warp == 1) z[lane] = y[lane];
}

#define SILENT(...) CHECK(finding([&] { __VA_ARGS__; }) == "")
#define FOUND(text, ...) CHECK_THAT(finding([&] { __VA_ARGS__; }), ContainsSubstring(text))

}  // namespace

TEST_CASE("stores need fence.proxy.async before TMA reads them", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 64);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, y); });
  };
  const auto text = of(store_tile<Fence::none>);
  CAPTURE(text);
  const auto line = [](int n) {
    return "async_proxy_hazards.cu:" + std::to_string(kStoreTile + n);
  };
  CHECK_THAT(text, ContainsSubstring("race on shared memory: kernel "));
  CHECK_THAT(text, ContainsSubstring(
                       "block (0,0,0), thread (0,0,0): TMA store that reads tile, byte 0 at " +
                       line(11) + " and a store by thread (0,0,0) at " + line(5) +
                       " have no fence.proxy.async (fence_proxy_async) between them"));
  // By the thread that stored, behind the store and in front of the barrier.
  const auto issuer = of(store_tile<Fence::issuer>);
  CHECK_THAT(issuer, ContainsSubstring("tile, byte 4 at"));
  CHECK_THAT(issuer, ContainsSubstring("a store by thread (1,0,0)"));
  CHECK_THAT(issuer, ContainsSubstring("fence_proxy_async by the storing thread"));
  CHECK_THAT(of(store_tile<Fence::early>), ContainsSubstring("no fence.proxy.async"));
  CHECK_THAT(of(store_tile<Fence::late>), ContainsSubstring("no fence.proxy.async"));
  CHECK(of(store_tile<Fence::everybody>) == "");
  CHECK(y.download()[63] == 63);
}

TEST_CASE("stores need fence.proxy.async before wgmma reads them", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<bf16> x("x", kElements);
  Buffer<float> y("y", 128);
  const fa::LaunchConfig config{dim3(1), dim3(128)};
  FOUND("wgmma that reads tile, byte", fa::launch(operands<Writer::plain, false>, config, x, y));
  FOUND("no fence.proxy.async", fa::launch(operands<Writer::plain, false>, config, x, y));
  FOUND("no fence.proxy.async", fa::launch(operands<Writer::stmatrix, false>, config, x, y));
  FOUND("no fence.proxy.async", fa::launch(operands<Writer::cp_async, false>, config, x, y));
  SILENT(fa::launch(operands<Writer::stmatrix, true>, config, x, y));
  CHECK(y.download()[0] == 16);
  SILENT(fa::launch(operands<Writer::plain, true>, config, x, y));
  SILENT(fa::launch(operands<Writer::cp_async, true>, config, x, y));
}

TEST_CASE("each thread of a warpgroup must know of its operands", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 128);
  const auto text = finding([&] { fa::launch(one_writer<false>, {dim3(1), dim3(128)}, y); });
  CHECK_THAT(text, ContainsSubstring("thread (32,0,0): wgmma that reads tile, byte"));
  CHECK_THAT(text, ContainsSubstring("and a store by thread (0,0,0)"));
  CHECK_THAT(text, ContainsSubstring("have no barrier between them"));
  SILENT(fa::launch(one_writer<true>, {dim3(1), dim3(128)}, y));
}

TEST_CASE("wgmma reads its operands until wgmma_wait", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 128);
  const fa::LaunchConfig config{dim3(1), dim3(256)};
  const auto of = [&](auto kernel) { return finding([&] { fa::launch(kernel, config, y); }); };
  const auto text = of(overwritten_operand<Overwrite::in_front>);
  CAPTURE(text);
  CHECK_THAT(text,
             ContainsSubstring("thread (0,0,0): store of tile, byte 0 at async_proxy_hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("and a wgmma by the warpgroup of thread (0,0,0) at "));
  CHECK_THAT(text, ContainsSubstring("have no wgmma_wait between them"));
  const auto other = of(overwritten_operand<Overwrite::other_warpgroup>);
  CHECK_THAT(other, ContainsSubstring("thread (128,0,0): store of tile, byte 2304"));
  CHECK_THAT(other, ContainsSubstring("have no order (wgmma_wait, then a barrier or an mbarrier)"));
  CHECK(of(overwritten_operand<Overwrite::of_the_older_group>) == "");
  CHECK(of(overwritten_operand<Overwrite::behind_the_wait>) == "");
}

TEST_CASE("wgmma has its registers until wgmma_wait", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 128);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(128)}, y); });
  };
  const auto text = of(registers<Registers::read>);
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("race on registers: kernel "));
  CHECK_THAT(text, ContainsSubstring("thread (0,0,0): load of the accumulators, element 3, at "
                                     "async_proxy_hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("and the wgmma at async_proxy_hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("have no wgmma_wait between them"));
  CHECK_THAT(of(registers<Registers::write>), ContainsSubstring("of the accumulators, element 4"));
  CHECK_THAT(of(registers<Registers::write_a>), ContainsSubstring("store of A's registers"));
  CHECK_THAT(of(registers<Registers::older_group>), ContainsSubstring("store of A's registers"));
  CHECK_THAT(of(registers<Registers::load_a>), ContainsSubstring("store of A's registers"));
  CHECK(of(registers<Registers::right>) == "");
  CHECK(y.download()[7] == 16);
}

TEST_CASE("a read of A's registers before wgmma_wait is a remark", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", 128);
  const auto of = [&](auto kernel) {
    sim::Recording recording;
    fa::launch(kernel, {dim3(1), dim3(128)}, y);
    fa::launch(kernel, {dim3(1), dim3(128)}, y);  // says nothing new
    return recording.finish().remarks;
  };
  const auto read = of(registers<Registers::read_a>);
  REQUIRE(read.size() == 1);
  CAPTURE(read[0]);
  CHECK_THAT(read[0], ContainsSubstring("thread (0,0,0): load of A's registers, element 2, at "
                                        "async_proxy_hazards.cu:"));
  CHECK_THAT(read[0],
             ContainsSubstring("before a wgmma_wait for the wgmma at async_proxy_hazards.cu:"));
  CHECK_THAT(read[0], ContainsSubstring("the compiler moves it behind that wait"));
  const auto stored = of(registers<Registers::store_a>);
  REQUIRE(stored.size() == 1);
  CHECK_THAT(stored[0], ContainsSubstring("load of A's registers, element 0, at "));
  CHECK(of(registers<Registers::read_older>).size() == 1);
  CHECK(of(registers<Registers::read_waited>).empty());
  CHECK(of(registers<Registers::right>).empty());
  CHECK(finding([&] { fa::launch(registers<Registers::read_a>, {dim3(1), dim3(128)}, y); }) == "");
}

TEST_CASE("a TMA load writes until its mbarrier's phase is waited for", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", 2 * kTile), y("y", kTile);
  x.upload(std::vector<float>(2 * kTile, 1.f));
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, x, y); });
  };
  CHECK(of(load_tiles<Load::right>) == "");
  CHECK(y.download()[5] == 2);
  const auto text = of(load_tiles<Load::no_wait>);
  CAPTURE(text);
  CHECK_THAT(text,
             ContainsSubstring("thread (32,0,0): load of tile, byte 0 at async_proxy_hazards.cu:"));
  CHECK_THAT(text,
             ContainsSubstring("and a TMA load by thread (0,0,0) at async_proxy_hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("have no wait on its mbarrier between them"));
  CHECK_THAT(of(load_tiles<Load::other_barrier>), ContainsSubstring("load of tile, byte 128 at"));
  CHECK_THAT(of(load_tiles<Load::no_bytes>), ContainsSubstring("no wait on its mbarrier"));
  CHECK_THAT(of(load_tiles<Load::store>), ContainsSubstring("store of tile, byte 148 at"));
  const auto twice = of(load_tiles<Load::twice>);
  CHECK_THAT(twice, ContainsSubstring("TMA load into tile, byte 0 at"));
  CHECK_THAT(twice, ContainsSubstring("and a TMA load by thread (0,0,0)"));
  CHECK_THAT(of(load_tiles<Load::left_behind>), ContainsSubstring("ends without a wait for a TMA"));
}

TEST_CASE("a TMA store reads until tma_store_wait_read", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> x("x", kTile), y("y", kTile);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, x, y); });
  };
  CHECK(of(use_tile_again<Store::right>) == "");
  const auto text = of(use_tile_again<Store::overwritten>);
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("store of tile, byte 12 at async_proxy_hazards.cu:"));
  CHECK_THAT(text,
             ContainsSubstring("and a TMA store by thread (0,0,0) at async_proxy_hazards.cu:"));
  CHECK_THAT(text, ContainsSubstring("have no tma_store_wait_read between them"));
  CHECK_THAT(of(use_tile_again<Store::loaded_over>),
             ContainsSubstring("TMA load into tile, byte 0"));
  CHECK_THAT(
      of(use_tile_again<Store::not_waited>),
      ContainsSubstring("thread (0,0,0) returns while its TMA store at async_proxy_hazards.cu:"));
  CHECK_THAT(of(use_tile_again<Store::not_committed>), ContainsSubstring("returns while its TMA"));
}

TEST_CASE("a bulk store is in device memory at tma_store_wait", "[sim][races][async]") {
  WithOptions with(with_races());
  Buffer<float> y("y", kTile), z("z", kTile);
  FOUND("and a bulk store by block (0,0,0) at",
        fa::launch(through_device<false>, {dim3(1), dim3(64)}, y, z));
  SILENT(fa::launch(through_device<true>, {dim3(1), dim3(64)}, y, z));
  SILENT(fa::launch(through_device<true>, {dim3(1), dim3(64)}, y, z));  // launches are in order
  CHECK(z.download()[9] == 9);
}

TEST_CASE("TMA and wgmma are looked at only when asked", "[sim][races][async]") {
  Buffer<bf16> w("w", kElements);
  Buffer<float> x("x", 2 * kTile), y("y", 128);
  WithOptions with{sim::Options{}};
  SILENT(fa::launch(operands<Writer::plain, false>, {dim3(1), dim3(128)}, w, y));
  SILENT(fa::launch(load_tiles<Load::no_wait>, {dim3(1), dim3(64)}, x, y));
  SILENT(fa::launch(use_tile_again<Store::not_waited>, {dim3(1), dim3(64)}, x, y));
  sim::Options o;
  o.uninitialised = true;
  WithOptions uninitialised(o);
  SILENT(fa::launch(load_tiles<Load::right>, {dim3(1), dim3(64)}, x, y));
  SILENT(fa::launch(operands<Writer::plain, true>, {dim3(1), dim3(128)}, w, y));
  SILENT(fa::launch(use_tile_again<Store::right>, {dim3(1), dim3(64)}, x, y));
}
