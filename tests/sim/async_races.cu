// Races with what goes on by itself: cp.async, TMA and wgmma, and the fences between their path to
// memory and that of threads. Each with a kernel that has exactly one fault, and a near twin
// without it.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using fa::TensorMap;
using sim::test::Buffer;
using sim::test::counted;
using sim::test::finding;
using sim::test::says;
using sim::test::WithOptions;

namespace {

using bf16 = __nv_bfloat16;

constexpr int kTile = 64;  // floats
constexpr int kElements = 64 * 16;
const fa::LaunchConfig kTwoWarps{1, 64}, kWarpgroup{1, 128}, kCluster{2, 64, 0, 2};

std::string line_behind(int line, int n) { return "async_races.cu:" + std::to_string(line + n); }

// --- cp.async: a thread's wait is for its own copies ---------------------------------------------

// Each thread copies four elements and reads those of a thread of the same or of another warp.
__global__ void exchange(const float* x, float* y, int distance, bool wait, bool barrier) {
  __shared__ __align__(16) float tile[64 * 4];
  fa::cp_async_16(&tile[threadIdx.x * 4], &x[threadIdx.x * 4]);
  if (wait) fa::cp_async_wait_all();
  if (barrier) __syncthreads();
  y[threadIdx.x] = tile[(threadIdx.x ^ distance) * 4];
}
// One warp copies a tile and returns; the other one reads it after a barrier. Without the wait the
// copies are still on their way when it reads (warp 1 copies) or landed when their thread returned;
// a late one comes after the other warp's load.
enum class Wait { no, yes, late };
__global__ void leave_in_flight(const float* x, float* y, Wait wait, int copier) {
  __shared__ __align__(16) float tile[32 * 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == copier) fa::cp_async_16(&tile[lane * 4], &x[lane * 4]);
  if (wait == Wait::yes) fa::cp_async_wait_all();
  __syncthreads();
  if (warp != copier) y[lane] = tile[lane];
  if (wait != Wait::late) return;
  __syncthreads();
  fa::cp_async_wait_all();
}
__global__ void copy_twice(const float* x) {
  __shared__ __align__(16) float tile[4];
  fa::cp_async_16(tile, x);
  fa::cp_async_16(tile, x + 4);
  fa::cp_async_wait_all();
}
// Two stages, one tile ahead. Its place is free after the barrier, not before it.
__global__ void one_tile_ahead(const float* x, float* y, bool early) {
  constexpr int kStages = 2, kTiles = 6;
  __shared__ __align__(16) float tile[kStages][64 * 4];
  const auto copy = [&](int j) {
    fa::cp_async_16(&tile[j % kStages][threadIdx.x * 4], &x[threadIdx.x * 4]);
  };
  copy(0);
  float sum = 0;
  for (int j = 0; j < kTiles; ++j) {
    fa::cp_async_wait_all();
    if (early && j + 1 < kTiles) copy(j + 1);
    __syncthreads();
    if (!early && j + 1 < kTiles) copy(j + 1);
    sum += tile[j % kStages][(threadIdx.x ^ 32) * 4];
  }
  y[threadIdx.x] = sum;
}

// --- threads write shared memory, TMA or wgmma reads it: fence.proxy.async -----------------------

enum class Fence { none, everybody, issuer, early, late, shared, device, gap };

// 64 threads fill a tile, but for a gap at its end, thread 0 stores it.
constexpr int kStoreTile = __LINE__;  // the stores are 4 lines further down, the bulk store 10
__global__ void store_tile(float* y, Fence fence) {
  __shared__ __align__(128) float tile[64];
  if (fence == Fence::early) fa::fence_proxy_async();
  if (fence != Fence::gap || threadIdx.x < 63) tile[threadIdx.x] = threadIdx.x;
  if (fence == Fence::everybody || fence == Fence::gap) fa::fence_proxy_async();
  __syncthreads();
  if (fence == Fence::late) fa::fence_proxy_async();
  if (threadIdx.x == 0) {
    if (fence == Fence::issuer) fa::fence_proxy_async();
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}

__device__ inline void multiply(const bf16* tile, float* y) {
  float d[32];
  const uint64_t a = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a, false);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  y[threadIdx.x] = d[0];
}
// The operands of a wgmma come from plain stores, stmatrix, or cp.async.
enum class Writer { plain, stmatrix, cp_async };
__global__ void operands(const bf16* x, float* y, Writer writer, bool fence) {
  __shared__ __align__(1024) bf16 tile[kElements];
  bf16* mine = tile + threadIdx.x * 8;
  if (writer == Writer::plain) {
    for (int i = 0; i < 8; ++i) mine[i] = 1.f;
  } else if (writer == Writer::stmatrix) {
    fa::stmatrix_x4(mine, {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u});
  } else {
    fa::cp_async_16(mine, x + threadIdx.x * 8);
    fa::cp_async_wait_all();
  }
  if (fence) fa::fence_proxy_async();
  __syncthreads();
  multiply(tile, y);
}

// --- wgmma reads its operands, and has its registers, until its wait -----------------------------

enum class Overwrite {
  behind_the_wait,
  in_front,
  in_front_in_second,
  other_warpgroup,
  both_read,
  of_the_older_group
};

// Warpgroup 0, warpgroup 1 or both multiply; then one, or warpgroup 1 after a barrier, overwrites
// an operand.
__global__ void overwritten_operand(float* y, Overwrite when) {
  __shared__ __align__(1024) bf16 tile[2][kElements];
  const int t = threadIdx.x;
  const bool second = when == Overwrite::in_front_in_second;
  const bool multiplies = (t < 128) != second || when == Overwrite::both_read;
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
    if (second || when == Overwrite::in_front) tile[0][t] = 2.f;
    if (when == Overwrite::of_the_older_group || when == Overwrite::other_warpgroup ||
        (when == Overwrite::both_read && t < 128)) {
      fa::wgmma_wait<1>();
    } else {
      fa::wgmma_wait<0>();
    }
    if (when == Overwrite::behind_the_wait) tile[1][t] = 2.f;
    if (when == Overwrite::of_the_older_group) tile[0][t] = 2.f;
  }
  __syncthreads();
  if ((when == Overwrite::other_warpgroup || when == Overwrite::both_read) && t >= 128) {
    tile[1][t] = 2.f;
  }
  if (multiplies) {
    fa::wgmma_wait<0>();
    y[t] = d[0] + e[0];
  }
}

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

// d = A B and e = 0 B, A from registers.
__global__ void registers(float* y, Registers fault) {
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

// --- TMA loads write until their phase is waited for, TMA stores read until their wait -----------

__device__ void init(uint64_t* full) {
  fa::mbarrier_init(full, 1);
  fa::mbarrier_init_fence();
}
__device__ void start_load(float* tile, const float* x, uint64_t* full) {
  fa::mbarrier_arrive_expect_tx(full, kTile * sizeof(float));
  fa::bulk_load(tile, x, kTile * sizeof(float), full);
}

// One thread fills both operands for its warpgroup, half after half, and may load into them. Of all
// stores, the second half, the fence or the load only its warp knows, which multiplies first: the
// other warps wait for another load.
enum class Unknown { nothing, all, stores, fence, load };
__global__ void one_writer(const float* x, float* y, Unknown what) {
  __shared__ __align__(1024) bf16 tile[kElements];
  __shared__ __align__(128) float other[kTile];
  __shared__ uint64_t full[2];
  const int t = threadIdx.x;
  if (t == 0 && what == Unknown::load) init(&full[0]), init(&full[1]);
  for (int i = 0; i < kElements; ++i) {
    if (i == kElements / 2 && what != Unknown::all) __syncthreads();
    if (t == 0) tile[i] = 1.f;
  }
  if (t == 0 && what != Unknown::fence) fa::fence_proxy_async();
  if (what != Unknown::stores && what != Unknown::all) __syncthreads();
  if (t == 0 && what == Unknown::fence) fa::fence_proxy_async();
  if (what == Unknown::load) {
    if (t == 0) start_load(reinterpret_cast<float*>(tile), x, &full[0]);
    if (t == 0) start_load(other, x, &full[1]);
    fa::mbarrier_wait(&full[t >= 32], 0);
  }
  __syncwarp();
  multiply(tile, y);
}

enum class Load { right, no_wait, other_barrier, no_bytes, store, twice, late, left_behind };

// Thread 0 stores a word and loads two tiles for two mbarriers; warp 1 reads all.
__global__ void load_tiles(const float* x, float* y, Load fault) {
  __shared__ __align__(128) float tile[2][kTile];
  __shared__ uint64_t full[2];
  __shared__ float word;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init(&full[0]), init(&full[1]);
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fault != Load::late) word = 1;
    for (int s = 0; s < 2; ++s) {
      if (fault != Load::no_bytes) start_load(tile[s], x + s * kTile, &full[s]);
      if (fault == Load::no_bytes) fa::mbarrier_arrive(&full[s]);
      if (fault == Load::no_bytes) fa::bulk_load(tile[s], x, sizeof tile[s], &full[s]);
    }
    if (fault == Load::twice) fa::bulk_load(tile[0], x + kTile, sizeof tile[0], &full[0]);
    if (fault == Load::store) tile[1][5] = 0;
    if (fault == Load::late) word = 1;
  }
  if (warp == 1 && fault != Load::left_behind) {
    if (fault != Load::no_wait) fa::mbarrier_wait(&full[0], 0);
    if (fault != Load::no_wait && fault != Load::other_barrier) fa::mbarrier_wait(&full[1], 0);
    y[lane] = tile[0][lane] + tile[1][lane] + word;
  }
}

// Warp 0 loads tiles into a ring; warps 1 and 2 read every second one each. With an odd number of
// stages a warp has a stage in every second of its phases only, which have one parity.
template <int kStages>
__global__ void take_turns(const float* x, float* y, bool all_wait, bool relaxed) {
  constexpr int kTiles = 4 * kStages;
  __shared__ __align__(128) float tile[kStages][kTile];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int s = 0; s < kStages && threadIdx.x == 0; ++s) init(&full[s]), init(&empty[s]);
  __syncthreads();
  for (int j = 0; j < kTiles; ++j) {
    const int s = j % kStages, parity = j / kStages % 2;
    if (threadIdx.x == 0) {
      fa::mbarrier_wait(&empty[s], parity ^ 1);
      start_load(tile[s], x, &full[s]);
    }
    const bool mine = warp == 1 + j % 2;
    if (warp > 0 && all_wait && !mine) {
      const sim::Order order{relaxed};
      while (!sim::mbarrier_try_wait(&full[s], parity, sim::Where::here(), order)) continue;
    }
    if (!mine) continue;
    fa::mbarrier_wait(&full[s], parity);
    y[threadIdx.x] = tile[s][lane];
    __syncwarp();
    if (lane == 0) fa::mbarrier_arrive(&empty[s]);
  }
}

enum class Store { right, overwritten, loaded_over, not_waited, not_committed };

// Thread 0 stores a tile; then it writes to the tile again, or TMA loads into it.
__global__ void use_tile_again(const float* x, float* y, Store fault) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) init(&full);
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    if (fault != Store::not_committed) fa::tma_store_commit();
    if (fault == Store::right) fa::tma_store_wait_read<0>();
    if (fault == Store::overwritten) tile[3] = 0;
    if (fault == Store::right || fault == Store::loaded_over) {
      start_load(tile, x, &full);
      fa::mbarrier_wait(&full, 0);
    }
  }
  __syncthreads();
  if (threadIdx.x >= 32 && fault == Store::right) tile[threadIdx.x] = 0;
}
// What a bulk store has written is visible at tma_store_wait, not at tma_store_wait_read.
__global__ void store_and_read(float* y, float* z, bool written) {
  __shared__ __align__(128) float tile[kTile];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    if (written) fa::tma_store_wait<0>();
    if (!written) fa::tma_store_wait_read<0>();
  }
  __syncthreads();
  if (threadIdx.x >= 32) z[threadIdx.x] = y[threadIdx.x];
}

// The next block reads what a block's bulk store has written.
__global__ void store_for_next(float* y, float* z) {
  __shared__ __align__(128) float tile[kTile];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    fa::bulk_store(y, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
  if (blockIdx.x == 1) z[threadIdx.x] = y[threadIdx.x];
}
// Blocks that use the same shared memory one after the other. Block `careless` does not show its
// mbarriers, or does not wait for its two loads.
enum class Careless { none, shows_nothing, waits_for_nothing };
constexpr int kInTurn = __LINE__;  // the first load is 11 lines further down
__global__ void in_turn(const float* x, float* y, Careless how, unsigned careless) {
  __shared__ __align__(128) float tile[2][kTile];
  __shared__ uint64_t full[2];
  const bool careful = blockIdx.x != careless;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full[0], 1);
    fa::mbarrier_init(&full[1], 1);
    if (careful || how != Careless::shows_nothing) fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full[0], sizeof tile[0]);
    fa::mbarrier_arrive_expect_tx(&full[1], sizeof tile[1]);
    fa::bulk_load(tile[0], x, sizeof tile[0], &full[0]);
    fa::bulk_load(tile[1], x, sizeof tile[1], &full[1]);
  }
  __syncthreads();
  if (!careful && how == Careless::waits_for_nothing) return;
  fa::mbarrier_wait(&full[0], 0);
  fa::mbarrier_wait(&full[1], 0);
  y[blockIdx.x * kTile + threadIdx.x] = tile[0][threadIdx.x] + tile[1][threadIdx.x];
}

// --- mbarrier.init, then TMA ---------------------------------------------------------------------

// early: before the init; late: after the barrier; another: by a thread that did not
// initialise.
enum class Shown { no, init_fence, proxy_fence, device_fence, early, late, another };

// Thread 0 initialises, `issuer` loads.
constexpr int kLoadTile = __LINE__;  // the init is 6 lines further down, the load 17
__global__ void load_tile(const float* x, float* y, Shown shown, int issuer) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  const int t = threadIdx.x;
  if (shown == Shown::early && t == 0) fa::mbarrier_init_fence();
  if (t == 0) fa::mbarrier_init(&full, 1);
  if (t == 0) {
    if (shown == Shown::init_fence) fa::mbarrier_init_fence();
    if (shown == Shown::proxy_fence) fa::fence_proxy_async();
    if (shown == Shown::device_fence) fa::fence_proxy_async_global();
  }
  if (shown == Shown::another && t == 32) fa::mbarrier_init_fence();
  __syncthreads();
  if (shown == Shown::late && t == 0) fa::mbarrier_init_fence(), tile[0] = 1;
  if (t == issuer) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::bulk_load(tile, x, sizeof tile, &full);
  }
  fa::mbarrier_wait(&full, 0);
  y[t] = tile[t];
}
// Block 0 loads a tile for both blocks.
__global__ void multicast(const __grid_constant__ TensorMap map, float* y, Shown shown) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    if (shown == Shown::init_fence) fa::mbarrier_init_fence();
    if (shown == Shown::proxy_fence) fa::fence_proxy_async();
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    if (fa::cluster_rank() == 0) fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{3});
  }
  fa::mbarrier_wait_cluster(&full, 0);
  y[blockIdx.x * kTile + threadIdx.x] = tile[threadIdx.x];
  fa::cluster_sync();
}
// Warp 0 reads and stores; its lane 0 issues two loads, of which it waits for one, and maybe a bulk
// store; all arrive. After its wait, a lane of warp 1 uses what warp 0 has used.
enum class Used { read, store, load, waited_load, source };
__global__ void hand_on(const float* x, float* y, Used used, bool relaxed) {
  __shared__ __align__(128) float tile[2][kTile];
  __shared__ __align__(128) float source[4];
  __shared__ float stored[32], read[32];
  __shared__ uint64_t full[2], done;
  const int t = threadIdx.x;
  if (t == 0) init(&full[0]), init(&full[1]), fa::mbarrier_init(&done, 32);
  if (t < 32) read[t] = 1;
  if (t < 4) source[t] = 1;
  fa::fence_proxy_async();
  __syncthreads();
  const sim::Where here = sim::Where::here();
  if (t == 0) {
    start_load(tile[0], x, &full[0]);
    if (used == Used::source) fa::bulk_store(y + 64, source, sizeof source);
    fa::tma_store_commit();
    start_load(tile[1], x, &full[1]);
    fa::mbarrier_wait(&full[0], 0);
    __threadfence();  // what follows is later than the loads and the bulk store
  }
  if (t < 32) {
    y[t] = read[t];
    stored[t] = 1;
    sim::mbarrier_arrive(&done, 0, here, {relaxed});
  } else if (t == 32) {
    while (!sim::mbarrier_try_wait(&done, 0, here, {relaxed})) {
    }
    if (used == Used::read) read[31] = 2;
    if (used == Used::store) y[32] = stored[31];
    if (used == Used::load) y[32] = tile[1][0];
    if (used == Used::waited_load) y[32] = tile[0][0];
    if (used == Used::source) source[0] = 2;
  }
  if (t == 0) fa::tma_store_wait_read<0>();
  fa::mbarrier_wait(&full[0], 0);
  fa::mbarrier_wait(&full[1], 0);
}
// Block 0 arrives at block 1's mbarrier.
__global__ void arrive_at_neighbour() {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 64);
  fa::cluster_sync();
  if (fa::cluster_rank() == 0) fa::mbarrier_arrive_remote(&full, 1);
  if (fa::cluster_rank() == 1) fa::mbarrier_wait_cluster(&full, 0);
  fa::cluster_sync();
}
// The same 8 bytes are a barrier twice; only the first init is shown.
__global__ void init_again(const float* x, float* y, bool fence) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (round == 1) fa::mbarrier_inval(&full);
      fa::mbarrier_init(&full, 1);
      if (round == 0 || fence) fa::mbarrier_init_fence();
      start_load(tile, x, &full);
    }
    __syncthreads();
    fa::mbarrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
    __syncthreads();
  }
}

// --- device memory: threads store, TMA reads -----------------------------------------------------

__device__ void behind_the_store(Fence fence) {
  if (fence == Fence::shared) fa::fence_proxy_async();
  if (fence == Fence::device) fa::fence_proxy_async_global();
}
// Thread 0 loads x, maybe through a map of it, when all are here.
__device__ void load_and_read(const float* x, float* y, Fence fence = Fence::none,
                              const TensorMap* map = nullptr) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence == Fence::issuer) fa::fence_proxy_async_global();
    init(&full);
    if (map == nullptr) {
      start_load(tile, x, &full);
    } else {
      fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
      fa::tma_load(tile, map, &full, {0});
    }
    fa::mbarrier_wait(&full, 0);
  }
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
// 64 threads store to device memory, thread 0 loads it back.
enum class Way { plain, atomics, map };
__global__ void through_device(const __grid_constant__ TensorMap map, float* x, float* y,
                               Fence fence, Way way) {
  x += blockIdx.x * kTile, y += blockIdx.x * kTile;
  if (fence == Fence::early) fa::fence_proxy_async_global();
  if (way != Way::atomics) x[threadIdx.x] = threadIdx.x;
  if (way == Way::atomics) atomicAdd(&x[threadIdx.x], 1.f);
  behind_the_store(fence);
  load_and_read(x, y, fence, way == Way::map ? &map : nullptr);
}
// The last block loads what all have stored.
__global__ void last_block(float* x, float* y, unsigned* done, Fence fence) {
  __shared__ bool last;
  x[blockIdx.x * 32 + threadIdx.x] = threadIdx.x;
  behind_the_store(fence);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  load_and_read(x, y, fence);
}
// 64 threads store to device memory, which thread 0 overwrites by a bulk store.
__global__ void overwrite(float* x, Fence fence) {
  __shared__ __align__(128) float tile[kTile];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  x[threadIdx.x] = 0;
  behind_the_store(fence);
  __syncthreads();
  if (threadIdx.x > 0) return;
  if (fence == Fence::issuer) fa::fence_proxy_async_global();
  fa::bulk_store(x, tile, sizeof tile);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}
// A thread alone stores, and loads back by TMA.
__global__ void alone(float* x, bool fence) {
  __shared__ __align__(128) float tile[kTile];
  __shared__ uint64_t full;
  for (int i = 0; i < kTile; ++i) x[i] = i;
  if (fence) fa::fence_proxy_async_global();
  init(&full);
  start_load(tile, x, &full);
  fa::mbarrier_wait(&full, 0);
}
// Two threads return without a wait.
__global__ void leave_two_stores(float* y) {
  __shared__ __align__(128) float tile[kTile];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x % 32 == 3) fa::bulk_store(y + threadIdx.x / 32 * 4, tile, 16);
}
// TMA stores and TMA loads: one path.
__global__ void store_and_load(float* x, float* y) {
  __shared__ __align__(128) float tile[kTile];
  tile[threadIdx.x] = threadIdx.x;
  fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(x, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
  load_and_read(x, y);
}
__global__ void only_store(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void only_load(const float* x, float* y) { load_and_read(x, y); }

}  // namespace

TEST_CASE("cp.async's wait is for the thread's own copies only", "[sim][races]") {
  WithOptions with({.requests = true, .analyse = true});
  Buffer<float> x("x", 256), y("y", 64);
  FOUND("race on shared memory", exchange, kTwoWarps, x, y, 32, true, false);
  SILENT(exchange, kTwoWarps, x, y, 32, true, true);
}

TEST_CASE("a copy without a wait is still a store", "[sim][races]") {
  WithOptions with({.requests = true, .analyse = true});
  Buffer<float> x("x", 256), y("y", 64);
  FOUND("have no barrier between them", leave_in_flight, kTwoWarps, x, y, Wait::no, 0);
  FOUND("have no cp.async wait between them", leave_in_flight, kTwoWarps, x, y, Wait::no, 1);
  SILENT(leave_in_flight, kTwoWarps, x, y, Wait::yes, 0);
  SILENT(leave_in_flight, kTwoWarps, x, y, Wait::yes, 1);
}

TEST_CASE("no thread may touch the place of a copy before its wait", "[sim][races]") {
  Buffer<float> x("x", 256), y("y", 64);
  {
    WithOptions with({.requests = true, .analyse = true});
    FOUND("have no cp.async wait between them", leave_in_flight, kTwoWarps, x, y, Wait::late, 0);
    FOUND("have no cp.async wait between them", exchange, kTwoWarps, x, y, 0, false, false);
    SILENT(exchange, kTwoWarps, x, y, 0, true, false);
    FOUND("store of tile, byte 0", copy_twice, {1, 1}, x);
    FOUND("load of tile ... and a store by thread", one_tile_ahead, kTwoWarps, x, y, true);
    SILENT(one_tile_ahead, kTwoWarps, x, y, false);
  }
  // It has written nothing yet, but a race is the better name for that.
  WithOptions with({.analyse = true});
  const auto text = finding(exchange, kTwoWarps, x, y, 0, false, false);
  CHECK(text.starts_with("race on shared memory"));
  CHECK_FALSE(says(text, "uninitialised"));
}

TEST_CASE("a copy engine makes no requests, cp.async does", "[sim][requests]") {
  WithOptions with({.requests = true});
  Buffer<float> x("x", 256), y("y", 64);
  const auto tma = counted(load_tiles, kTwoWarps, x, y, Load::right).buffers["x"];
  const auto lsu = counted(exchange, kTwoWarps, x, y, 32, true, true).buffers["x"];
  CHECK(tma.bytes.read == 2 * kTile * sizeof(float));
  CHECK(tma.requests == fa::Ops{});
  CHECK(lsu.bytes.read == 64 * 16);
  CHECK(lsu.requests == fa::Ops{2, 0, 0});
  CHECK(lsu.sectors == fa::Ops{32, 0, 0});
}

ANALYSED("stores need fence.proxy.async before TMA reads them", "[sim][races][async]") {
  FOUND(
      "race on shared memory: kernel  ... block (0,0,0), thread (0,0,0): TMA store that reads "
      "tile, byte 0 at " +
          line_behind(kStoreTile, 10) + " and a store by thread (0,0,0) at " +
          line_behind(kStoreTile, 4) +
          " have no fence.proxy.async (fence_proxy_async) between them",
      store_tile, kTwoWarps, y, Fence::none);
  // By the thread that stored, after the store and before the barrier.
  FOUND("tile, byte 4 at ... a store by thread (1,0,0) ... fence_proxy_async by the storing thread",
        store_tile, kTwoWarps, y, Fence::issuer);
  FOUND("tile, byte 0 at ... no fence.proxy.async", store_tile, kTwoWarps, y, Fence::early);
  FOUND("no fence.proxy.async", store_tile, kTwoWarps, y, Fence::late);
  SILENT(store_tile, kTwoWarps, y, Fence::everybody);
  CHECK(y.download()[63] == 63);
  FOUND(
      "uninitialised shared memory: kernel  ... thread (0,0,0): TMA store that reads tile, byte "
      "252 at " +
          line_behind(kStoreTile, 10) + ", which this block has not written yet",
      store_tile, kTwoWarps, y, Fence::gap);
}

ANALYSED("stores need fence.proxy.async before wgmma reads them", "[sim][races][async]") {
  Buffer<bf16> x("x", kElements);
  Buffer<float> y("y", 128);
  for (const Writer writer : {Writer::plain, Writer::stmatrix, Writer::cp_async}) {
    FOUND("wgmma that reads tile, byte ... no fence.proxy.async", operands, kWarpgroup, x, y,
          writer, false);
    SILENT(operands, kWarpgroup, x, y, writer, true);
    if (writer == Writer::stmatrix) CHECK(y.download()[0] == 16);
  }
  SILENT(one_writer, kWarpgroup, this->x, y, Unknown::nothing);
  const std::string others = "thread (32,0,0): wgmma that reads tile, byte ... and a ";
  for (const Unknown what : {Unknown::all, Unknown::stores}) {
    FOUND(others + "store by thread (0,0,0) ... have no barrier between them", one_writer,
          kWarpgroup, this->x, y, what);
  }
  FOUND(others + "store by thread (0,0,0) ... no fence.proxy.async", one_writer, kWarpgroup,
        this->x, y, Unknown::fence);
  FOUND(others + "TMA load ... no wait on its mbarrier", one_writer, kWarpgroup, this->x, y,
        Unknown::load);
}

ANALYSED("wgmma reads its operands until wgmma_wait", "[sim][races][async]") {
  FOUND(
      "thread (0,0,0): store of tile, byte 0 at async_races.cu: ... and a wgmma by the warpgroup "
      "of thread (0,0,0) at  ... have no wgmma_wait between them",
      overwritten_operand, {1, 256}, y, Overwrite::in_front);
  FOUND("a wgmma by the warpgroup of thread (128,0,0) at  ... have no wgmma_wait between them",
        overwritten_operand, {1, 256}, y, Overwrite::in_front_in_second);
  for (const Overwrite when : {Overwrite::other_warpgroup, Overwrite::both_read}) {
    FOUND(
        "thread (128,0,0): store of tile, byte 2304 ... and a wgmma by the warpgroup of thread "
        "(0,0,0) ... have no order (wgmma_wait, then a barrier or an mbarrier)",
        overwritten_operand, {1, 256}, y, when);
  }
  SILENT(overwritten_operand, {1, 256}, y, Overwrite::of_the_older_group);
  SILENT(overwritten_operand, {1, 256}, y, Overwrite::behind_the_wait);
}

ANALYSED("wgmma has its registers until wgmma_wait", "[sim][races][async]") {
  FOUND(
      "race on registers: kernel  ... thread (0,0,0): load of the accumulators, element 3, at "
      "async_races.cu: ... and the wgmma at async_races.cu: ... have no wgmma_wait between them",
      registers, kWarpgroup, y, Registers::read);
  FOUND("of the accumulators, element 4", registers, kWarpgroup, y, Registers::write);
  FOUND("store of A's registers", registers, kWarpgroup, y, Registers::write_a);
  FOUND("store of A's registers", registers, kWarpgroup, y, Registers::older_group);
  FOUND("store of A's registers", registers, kWarpgroup, y, Registers::load_a);
  SILENT(registers, kWarpgroup, y, Registers::right);
  CHECK(y.download()[7] == 16);
}

ANALYSED("a read of A's registers before wgmma_wait is a remark", "[sim][races][async]") {
  const auto of = [&](Registers fault) {
    const auto remarks = counted([&] {
                           fa::launch(registers, kWarpgroup, y, fault);
                           fa::launch(registers, kWarpgroup, y, fault);  // says nothing new
                         }).remarks;
    REQUIRE(remarks.size() <= 1);
    return remarks.empty() ? "" : remarks[0];
  };
  const auto read = of(Registers::read_a);
  CAPTURE(read);
  CHECK(says(read,
             "thread (0,0,0): load of A's registers, element 2, at async_races.cu: ... before a "
             "wgmma_wait for the wgmma at async_races.cu: ... the compiler moves it after that "
             "wait"));
  CHECK(says(of(Registers::store_a), "load of A's registers, element 0, at "));
  CHECK(of(Registers::read_older) != "");
  CHECK(of(Registers::read_waited) == "");
  CHECK(of(Registers::right) == "");
  SILENT(registers, kWarpgroup, y, Registers::read_a);
}

ANALYSED("a TMA load writes until its mbarrier's phase is waited for", "[sim][races][async]") {
  Buffer<float> x("x", std::vector<float>(2 * kTile, 1.f)), y("y", kTile);
  SILENT(load_tiles, kTwoWarps, x, y, Load::right);
  CHECK(y.download()[5] == 3);
  FOUND(
      "thread (32,0,0): load of tile, byte 0 at async_races.cu: ... and a TMA load by thread "
      "(0,0,0) at async_races.cu: ... have no wait on its mbarrier between them",
      load_tiles, kTwoWarps, x, y, Load::no_wait);
  FOUND("load of tile, byte 256 at", load_tiles, kTwoWarps, x, y, Load::other_barrier);
  FOUND("no wait on its mbarrier", load_tiles, kTwoWarps, x, y, Load::no_bytes);
  FOUND("store of tile, byte 276 at", load_tiles, kTwoWarps, x, y, Load::store);
  FOUND("TMA load into tile, byte 0 at ... and a TMA load by thread (0,0,0)", load_tiles, kTwoWarps,
        x, y, Load::twice);
  FOUND("load of word, byte 0 at", load_tiles, kTwoWarps, x, y, Load::late);
  FOUND("ends without a wait for a TMA", load_tiles, kTwoWarps, x, y, Load::left_behind);
}

ANALYSED("a wait may not end two phases early", "[sim][races][mbarrier]") {
  const fa::LaunchConfig three_warps{1, 96};
  FOUND(
      "race on an mbarrier: kernel ... thread (64,0,0): nothing orders the wait at "
      "async_races.cu: ... for parity 1 after the phase before: it may end two phases early",
      take_turns<3>, three_warps, x, y, false, false);
  SILENT(take_turns<2>, three_warps, x, y, false, false);
  for (const bool relaxed : {false, true}) {
    SILENT(take_turns<3>, three_warps, x, y, true, relaxed);
  }
}

ANALYSED("a relaxed arrival hands over reads, and no stores and loads", "[sim][races][async]") {
  SILENT(hand_on, kTwoWarps, x, y, Used::read, true);
  FOUND("load of stored, byte 124 at", hand_on, kTwoWarps, x, y, Used::store, true);
  FOUND("load of tile, byte 0 at", hand_on, kTwoWarps, x, y, Used::waited_load, true);
  for (const Used used : {Used::read, Used::store, Used::waited_load}) {
    SILENT(hand_on, kTwoWarps, x, y, used, false);
  }
  for (const bool relaxed : {false, true}) {
    FOUND("load of tile, byte 256 at ... no wait on its mbarrier", hand_on, kTwoWarps, x, y,
          Used::load, relaxed);
    FOUND("store of source, byte 0 at ... tma_store_wait_read", hand_on, kTwoWarps, x, y,
          Used::source, relaxed);
  }
}

ANALYSED("what a block has shown, and waited for, holds for it alone", "[sim][races][async]") {
  SILENT(in_turn, {3, 64}, x, y, Careless::none, 9u);
  for (const unsigned careless : {0u, 2u}) {
    const std::string block = "block (" + std::to_string(careless) + ",0,0)";
    const auto hidden = finding(in_turn, {3, 64}, x, y, Careless::shows_nothing, careless);
    CAPTURE(hidden);
    CHECK(says(hidden, block + ", thread (0,0,0): TMA load that signals full, byte 0 at ... "
                               "fence.mbarrier_init"));
    // Of two loads, the first one.
    const auto left = finding(in_turn, {3, 64}, x, y, Careless::waits_for_nothing, careless);
    CAPTURE(left);
    CHECK(says(left, block + " ends without a wait for a TMA load by thread (0,0,0) at " +
                         line_behind(kInTurn, 11) + ":"));
    CHECK(left.find('\n') == left.npos);
  }
}

ANALYSED("a TMA store reads until tma_store_wait_read", "[sim][races][async]") {
  Buffer<float> z("z", kTile);
  SILENT(use_tile_again, kTwoWarps, x, y, Store::right);
  FOUND(
      "store of tile, byte 12 at async_races.cu: ... and a TMA store by thread (0,0,0) at "
      "async_races.cu: ... have no tma_store_wait_read between them",
      use_tile_again, kTwoWarps, x, y, Store::overwritten);
  FOUND("TMA load into tile, byte 0", use_tile_again, kTwoWarps, x, y, Store::loaded_over);
  FOUND("thread (0,0,0) returns while its TMA store at async_races.cu:", use_tile_again, kTwoWarps,
        x, y, Store::not_waited);
  FOUND("returns while its TMA", use_tile_again, kTwoWarps, x, y, Store::not_committed);
  FOUND("thread (3,0,0) returns while its TMA store at", leave_two_stores, kTwoWarps, y);
  // It is in device memory at tma_store_wait.
  FOUND(
      "and a bulk store by block (0,0,0) at ... have no order (tma_store_wait, then a barrier) "
      "between them",
      store_and_read, kTwoWarps, y, z, false);
  FOUND(
      "block (1,0,0), thread (0,0,0): load of y, byte 0 at ... and a bulk store by block (0,0,0) "
      "at "
      "... have no order (tma_store_wait, __threadfence and an atomic) between them",
      store_for_next, {2, 64}, y, z);
  SILENT(store_and_read, kTwoWarps, y, z, true);
  SILENT(store_and_read, kTwoWarps, y, z, true);  // launches are in order
  CHECK(z.download()[41] == 41);
}

TEST_CASE("TMA and wgmma are looked at only when asked", "[sim][races][async]") {
  Buffer<bf16> w("w", kElements);
  Buffer<float> x("x", 2 * kTile), y("y", 128);
  WithOptions with{sim::Options{}};
  SILENT(operands, kWarpgroup, w, y, Writer::plain, false);
  SILENT(load_tiles, kTwoWarps, x, y, Load::no_wait);
  SILENT(use_tile_again, kTwoWarps, x, y, Store::not_waited);
}

ANALYSED("an initialised mbarrier must be shown to TMA", "[sim][races][async]") {
  Buffer<float> x("x", std::vector<float>(kTile, 3.f)), y("y", kTile);
  FOUND(
      "race on shared memory: kernel  ... block (0,0,0), thread (0,0,0): TMA load that signals "
      "full, byte 0 at " +
          line_behind(kLoadTile, 17) + " and its mbarrier.init by thread (0,0,0) at " +
          line_behind(kLoadTile, 6) +
          " have no fence.mbarrier_init (mbarrier_init_fence by the thread that initialised, "
          "before the barrier) between",
      load_tile, kTwoWarps, x, y, Shown::no, 0);
  FOUND("thread (32,0,0): TMA load that signals full", load_tile, kTwoWarps, x, y, Shown::no, 32);
  for (const Shown shown : {Shown::device_fence, Shown::early, Shown::another}) {
    FOUND("no fence.mbarrier_init", load_tile, kTwoWarps, x, y, shown, 0);
  }
  FOUND("no fence.mbarrier_init", load_tile, kTwoWarps, x, y, Shown::late, 32);
  FOUND("TMA load into tile, byte 0 at ... and a store by thread (0,0,0)", load_tile, kTwoWarps, x,
        y, Shown::late, 32);
  SILENT(load_tile, kTwoWarps, x, y, Shown::late, 0);
  for (const Shown shown : {Shown::init_fence, Shown::proxy_fence}) {
    SILENT(load_tile, kTwoWarps, x, y, shown, 0);
    SILENT(load_tile, kTwoWarps, x, y, shown, 32);
    CHECK(y.download()[5] == 3);
  }
  FOUND("no fence.mbarrier_init", init_again, kTwoWarps, x, y, false);
  SILENT(init_again, kTwoWarps, x, y, true);
}

ANALYSED("the mbarriers of all blocks of a cluster must be shown to it",
         "[sim][races][async][cluster]") {
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, Swizzle::none);
  FOUND("no fence.mbarrier_init", multicast, kCluster, map, y, Shown::no);
  // fence.proxy.async is for the block itself.
  FOUND(
      "block (0,0,0), thread (0,0,0): TMA load that signals full, byte 0, in block (1,0,0) at "
      "async_races.cu: ... its mbarrier.init by block (1,0,0), thread (0,0,0) at",
      multicast, kCluster, map, y, Shown::proxy_fence);
  SILENT(multicast, kCluster, map, y, Shown::init_fence);
  SILENT(arrive_at_neighbour, kCluster);  // of the arrivals of threads nothing is asked
}

ANALYSED("stores to device memory need fence.proxy.async before TMA reads them",
         "[sim][races][async]") {
  const TensorMap map = fa::tensor_map(x.get(), {{kTile, 1, kTile}}, Swizzle::none);
  FOUND(
      "race on device memory: kernel  ... block (0,0,0), thread (0,0,0): TMA load that reads x, "
      "byte 0 at async_races.cu: ... and a store by thread (0,0,0) at async_races.cu: ... have no "
      "fence.proxy.async for device memory (fence_proxy_async_global by the storing thread, "
      "before the barrier, or after it by the thread that issues)",
      through_device, kTwoWarps, map, x, y, Fence::none, Way::plain);
  for (const Fence fence : {Fence::shared, Fence::early}) {
    FOUND("for device memory", through_device, kTwoWarps, map, x, y, fence, Way::plain);
  }
  for (const Fence fence : {Fence::device, Fence::issuer}) {
    for (const fa::LaunchConfig& config : {kTwoWarps, kCluster}) {  // each block its own part
      SILENT(through_device, config, map, x, y, fence, Way::plain);
      CHECK(y.download()[config.grid.x * kTile - 1] == 63);
    }
  }
  FOUND("TMA load that reads x, byte 0 at ... and an atomic by thread (0,0,0) at async_races.cu:",
        through_device, kTwoWarps, map, x, y, Fence::none, Way::atomics);
  FOUND("TMA load that reads x, byte 0 at", through_device, kTwoWarps, map, x, y, Fence::none,
        Way::map);
  for (const Way way : {Way::atomics, Way::map}) {
    SILENT(through_device, kTwoWarps, map, x, y, Fence::device, way);
  }
  SILENT(store_and_load, kTwoWarps, x, y);
  SILENT(alone, {1, 1}, x, true);
  FOUND("TMA load that reads x, byte 0 at ... and a store by thread (0,0,0)", alone, {1, 1}, x,
        false);
  SILENT([&] {
    fa::launch(only_store, kTwoWarps, x);
    fa::launch(only_load, kTwoWarps, x, y);
  });
}

ANALYSED("stores to device memory need fence.proxy.async before a bulk store overwrites them",
         "[sim][races][async]") {
  FOUND(
      "thread (0,0,0): bulk store that overwrites x, byte 0 at async_races.cu: ... and a store by "
      "thread (0,0,0) at async_races.cu: ... have no fence.proxy.async for device memory",
      overwrite, kTwoWarps, x, Fence::none);
  for (const Fence fence : {Fence::device, Fence::issuer}) SILENT(overwrite, kTwoWarps, x, fence);
}

ANALYSED("between blocks either side's fence is enough", "[sim][races][async]") {
  const auto of = [&](Fence fence) {
    Buffer<unsigned> done("done", 1);
    return finding(last_block, {2, 32}, x, y, done, fence);
  };
  const auto text = of(Fence::none);
  CAPTURE(text);
  CHECK(says(text,
             "block (1,0,0), thread (0,0,0): TMA load that reads x, byte  ... and a store by  ... "
             "for device memory"));
  CHECK(says(of(Fence::shared), "for device memory"));
  CHECK(of(Fence::device) == "");
  CHECK(of(Fence::issuer) == "");
}
