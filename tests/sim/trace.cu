// A trace: tiles are events, in the block's order, and no byte is lost.
#include <map>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

constexpr int kRows = 8, kColumns = 16, kThreads = 64;

using Events = std::vector<std::string>;

/// The compared parts of an event: place, kind, how, rectangles, bytes.
Events events_of(const fa::Trace& trace, size_t kernel = 0) {
  Events all;
  for (const fa::TraceEvent& e : trace.kernels.at(kernel).events) {
    std::string text = std::to_string(e.block) +
                       (trace.places[e.place].space == fa::TraceSpace::shared ? " s" : " ") +
                       trace.places[e.place].name + " " + e.how + (e.exact ? "" : " around");
    for (const fa::TraceRectangle& r : e.touched) {
      text += " " + std::to_string(r.row) + "+" + std::to_string(r.rows) + "," +
              std::to_string(r.column) + "+" + std::to_string(r.columns);
    }
    all.push_back(text + " " + std::to_string(e.bytes) + " B");
  }
  return all;
}

/// The sums of all events of device memory equal the counts without a trace.
void require_nothing_lost(const fa::Counts& counts) {
  std::map<std::string, fa::BufferCount> sums;
  fa::Bytes hbm;
  for (const fa::TraceKernel& k : counts.trace->kernels) {
    for (const fa::TraceEvent& e : k.events) {
      hbm.read += e.hbm_read, hbm.write += e.hbm_write;
      if (counts.trace->places[e.place].space != fa::TraceSpace::global) continue;
      fa::BufferCount& b = sums[counts.trace->places[e.place].name];
      const auto add = [&](auto& read, auto& write, auto& atomic, uint64_t n) {
        (e.kind == fa::TraceKind::read    ? read
         : e.kind == fa::TraceKind::write ? write
                                          : atomic) += n;
      };
      add(b.bytes.read, b.bytes.write, b.bytes.atomic, e.bytes);
      add(b.requests.load, b.requests.store, b.requests.atomic, e.requests);
      if (e.how != "TMA") add(b.sectors.load, b.sectors.store, b.sectors.atomic, e.transfers);
    }
  }
  REQUIRE(sums.size() == counts.buffers.size());
  for (const auto& [name, b] : counts.buffers) {
    CAPTURE(name);
    CHECK(sums[name].bytes == b.bytes);
    CHECK(sums[name].requests == b.requests);
    CHECK(sums[name].sectors == b.sectors);
  }
  CHECK(hbm == counts.hbm);
}

fa::Counts traced(const std::function<void()>& run, bool trace = true) {
  const WithOptions with({.requests = true, .l2_bytes = 50e6, .trace = trace});
  const fa::Counts counts = sim::test::counted(run);
  if (trace) require_nothing_lost(counts);
  return counts;
}
template <class... P, class... A>
fa::Trace traced(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  return *traced([&] { fa::launch(kernel, config, static_cast<A&&>(args)...); }).trace;
}

__device__ inline void load_tile(const float* g, float (&s)[kRows][kColumns], int tile) {
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    s[i / kColumns][i % kColumns] = g[tile * kRows * kColumns + i];
  }
}
// Two tiles of x and z in sequence; block b writes its own rows of y.
__global__ void tiles(const float* x, const float* z, float* y) {
  __shared__ float s[kRows][kColumns], t[kRows][kColumns];
  float sum = 0;
  for (int tile = 0; tile < 2; ++tile) {
    load_tile(x, s, tile);
    load_tile(z, t, tile);
    __syncthreads();
    sum += s[threadIdx.x / kColumns][threadIdx.x % kColumns] + t[0][0];
    __syncthreads();
  }
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}
__global__ void triangle(const float* x, float* y) {
  const int r = threadIdx.x;
  float sum = 0;
  for (int c = 0; c <= r; ++c) sum += x[r * 32 + c];
  y[r] = sum;
}
__global__ void two_warps(float* x) {
  if (threadIdx.x >= 32) fa::bar_sync(1, 64);
  x[threadIdx.x] = 1;
  if (threadIdx.x < 32) fa::bar_sync(1, 64);
  x[threadIdx.x + 64] = 2;
}
__global__ void pass_on(const float* x, float* y) {
  __shared__ uint64_t full;
  __shared__ float s[32];
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 32);
  __syncthreads();
  for (int tile = 0; tile < 2; ++tile) {
    if (threadIdx.x < 32) {
      s[threadIdx.x] = x[tile * 32 + threadIdx.x];
      fa::mbarrier_arrive(&full);
      fa::bar_sync(1, 64);
    } else {
      fa::mbarrier_wait(&full, tile);
      y[tile * 32 + threadIdx.x - 32] = s[threadIdx.x - 32];
      fa::bar_sync(1, 64);
    }
  }
}
[[gnu::noinline]] __device__ float load_row(const float* x) { return x[threadIdx.x]; }
__global__ void two_calls(const float* x, float* y) {
  float sum = load_row(x);
  sum += load_row(x);
  y[threadIdx.x] = sum;
}
struct Shared {
  union {
    float K[8][20];
    float P[8][24];
  };
  float l[8];
};
__global__ void unions(float* y) {
  Shared& smem = *fa::dynamic_shared<Shared>();
  for (int i = threadIdx.x; i < 8 * 16; i += 32) smem.K[i / 16][i % 16] = 1;
  __syncthreads();
  for (int i = threadIdx.x; i < 8 * 16; i += 32) smem.P[i / 16][i % 16] = 1;
  if (threadIdx.x < 8) smem.l[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = smem.P[threadIdx.x / 16][threadIdx.x % 16];
}
// Arrays, some of which overlap: two warps' tiles, and a row of sums over both.
union TilesOrSums {
  struct {
    __nv_bfloat16 K[4][32], V[4][32];
  } tiles[2];
  struct {
    float O[2][40], m[2];
  } sums;
};
__global__ void tiles_or_sums(float* y) {
  TilesOrSums& smem = *fa::dynamic_shared<TilesOrSums>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = 0; r < 4; ++r) smem.tiles[warp].V[r][lane] = __float2bfloat16(1.f);
  __syncthreads();
  smem.sums.O[warp][lane] = 1;
  if (lane == 0) smem.sums.m[warp] = 1;
  __syncthreads();
  y[threadIdx.x] = smem.sums.O[warp][lane];
}
// Each block of a cluster of two writes its part of x to the other's shared memory.
__global__ void exchange(const float* x, float* y) {
  __shared__ float s[32];
  const unsigned rank = fa::cluster_rank();
  fa::map_shared(s, rank ^ 1)[threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  fa::cluster_sync();
  y[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
  fa::cluster_sync();
}
__global__ void add(float* y) { atomicAdd(y + threadIdx.x / 2, 1.f); }
__global__ void scatter(const float* x, float* y) {
  for (int i = 0; i < 50; ++i) {
    const unsigned h = (threadIdx.x * 31 + i) * 0x9E3779B1u >> 22;
    if (h % 3 == 0) y[h] = x[h ^ 5];
    if (h % 7 == 0) atomicAdd(y + h, 1.f);
    if (i % 9 == 0) __syncthreads();
  }
}

__global__ void diagonal(const float* x, float* y, int n, bool other) {
  const int r = threadIdx.x + 1;
  if (r <= n) y[r] = x[r * 32 + (other ? 30 - r : r + 1)];
}
// Columns 0 to 3 and 8 to 11 of rows 0, 1, 2 and, after a gap, 4.
__global__ void two_runs(const float* x, float* y) {
  const int t = threadIdx.x, r = t / 8 == 3 ? 4 : t / 8, c = t % 4 + t % 8 / 4 * 8;
  y[t] = x[r * 32 + c];
}
// Lane 0 waits for warp 1, which stores, on behalf of its warp; all store, perhaps after a
// __syncwarp.
__global__ void wait_for_all(float* y, bool sync) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (threadIdx.x >= 32) y[threadIdx.x] = 1;
  if (threadIdx.x == 32) fa::mbarrier_arrive(&full);
  if (threadIdx.x >= 32) return;
  if (threadIdx.x == 0) fa::mbarrier_wait(&full, 0);
  if (sync) __syncwarp();
  y[threadIdx.x] = 1;
}
// The second of three requests of a line is the largest.
__global__ void requests(double* y, unsigned largest) {
  [[maybe_unused]] __shared__ double s[3][32];
  for (unsigned i = 0; i < 3; ++i) {
    if (threadIdx.x < (i == 1 ? largest : 3)) {
      s[i][threadIdx.x] = 1;
      y[40 + 32 * i + threadIdx.x] = 1;
    }
    __syncthreads();
  }
}
__global__ void store_place(float* y) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) y[block] = 1;
}
// Two warpgroups multiply the same operands; then thread 0 copies 256 bytes from x + 4.
__global__ void engines(const float* x, float* y) {
  __shared__ __align__(1024) __nv_bfloat16 tile[64][16];
  __shared__ __align__(128) float run[64];
  __shared__ uint64_t full;
  for (int i = threadIdx.x; i < 64 * 16; i += 256) tile[i / 16][i % 16] = 1.f;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1), fa::mbarrier_init_fence();
  fa::fence_proxy_async();
  __syncthreads();
  float d[32];
  const uint64_t a = fa::wgmma_descriptor(tile, fa::Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a, false);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  if (threadIdx.x > 0) return;
  fa::mbarrier_arrive_expect_tx(&full, 256);
  fa::bulk_load(run, x + 4, 256, &full);
  fa::mbarrier_wait(&full, 0);
  y[0] = d[0];
}

// S = A B^T, from which P is computed; then S += P B^T, all in tensor memory.
__global__ void two_products(float* y) {
  auto* sA = fa::dynamic_shared<__nv_bfloat16>();  // [128][16] and [32][16] in core matrices
  auto* sB = sA + 128 * 16;
  __shared__ uint64_t done[2];
  __shared__ uint32_t address;
  const unsigned warp = threadIdx.x / 32;
  if (warp == 0) fa::tcgen05_alloc(&address, 64);
  if (threadIdx.x == 0) fa::mbarrier_init(&done[0], 1), fa::mbarrier_init(&done[1], 1);
  for (int i = threadIdx.x; i < (128 + 32) * 16; i += blockDim.x) sA[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  const uint32_t s = address, mine = fa::tmem_address(s, 32 * warp, 0);
  const uint64_t a = fa::tcgen05_descriptor(sA, fa::Swizzle::none, 128 * 16, 128);
  const uint64_t b = fa::tcgen05_descriptor(sB, fa::Swizzle::none, 32 * 16, 128);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(128, 32);
  if (threadIdx.x == 0) {
    fa::tcgen05_mma(s, a, b, kInstruction, false);
    fa::tcgen05_commit(&done[0]);
  }
  fa::mbarrier_wait(&done[0], 0);
  float r[32];
  uint32_t packed[16] = {};
  fa::tcgen05_ld(r, mine);
  fa::tcgen05_wait_ld(r);
  fa::tcgen05_st(mine + 32, packed);
  fa::tcgen05_wait_st();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::tcgen05_mma_tmem(s, s + 32, b, kInstruction);
    fa::tcgen05_commit(&done[1]);
  }
  fa::mbarrier_wait(&done[1], 0);
  fa::tcgen05_ld(r, mine);
  fa::tcgen05_wait_ld(r);
  y[threadIdx.x] = r[0];
  __syncthreads();
  if (warp == 0) fa::tcgen05_dealloc(s, 64);
}

Buffer<float> matrix(const char* name, uint64_t rows, uint64_t columns) {
  Buffer<float> b(name, rows * columns);
  sim::shape_buffer(b, {1, rows, columns, sizeof(float)});
  return b;
}

}  // namespace

TEST_CASE("a tile that warps load together is one event, the next tile another", "[sim][trace]") {
  const auto x = matrix("x", 16, 16), z = matrix("z", 16, 16), y = matrix("y", 2, 64);
  const fa::Trace trace = traced(tiles, {2, kThreads}, x, z, y);
  const Events events = events_of(trace);
  const Events want = {
      "0 x load 0+8,0+16 512 B",   "0 ss store 0+8,0+16 512 B", "0 z load 0+8,0+16 512 B",
      "0 st store 0+8,0+16 512 B", "0 ss load 0+4,0+16 256 B",  "0 st load 0+1,0+1 256 B",
      "0 x load 8+8,0+16 512 B",   "0 ss store 0+8,0+16 512 B", "0 z load 8+8,0+16 512 B",
      "0 st store 0+8,0+16 512 B", "0 ss load 0+4,0+16 256 B",  "0 st load 0+1,0+1 256 B",
      "0 y store 0+1,0+64 256 B"};
  REQUIRE(events.size() == 2 * want.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(events[i] == want[i]);
  CHECK(events.back() == "1 y store 1+1,0+64 256 B");

  // An event records the line and the call that led there.
  const auto stack_of = [&](size_t event) {
    std::vector<int> numbers;
    for (const uint32_t line : trace.stacks.at(trace.kernels[0].events.at(event).stack)) {
      CHECK(trace.lines.at(line).path == "tests/sim/trace.cu");
      numbers.push_back(trace.lines[line].number);
    }
    return numbers;
  };
  const auto first = stack_of(0), second = stack_of(2);  // the loads of x and z
  REQUIRE(first.size() == 2);
  REQUIRE(second.size() == 2);
  CHECK(first[0] == second[0]);
  CHECK(first[1] + 1 == second[1]);
}

TEST_CASE("two calls of a function that is not inlined are two events", "[sim][trace]") {
  const auto x = matrix("x", 1, 32), y = matrix("y", 1, 32);
  const fa::Trace trace = traced(two_calls, {1, 32}, x, y);
  REQUIRE(events_of(trace) ==
          Events{"0 x load 0+1,0+32 128 B", "0 x load 0+1,0+32 128 B", "0 y store 0+1,0+32 128 B"});
  const auto caller = [&](size_t event) {
    const auto& stack = trace.stacks.at(trace.kernels[0].events.at(event).stack);
    REQUIRE(stack.size() == 2);
    return trace.lines.at(stack[1]).number;
  };
  CHECK(caller(0) + 1 == caller(1));
}

TEST_CASE("what is no rectangle is so called", "[sim][trace]") {
  const auto x = matrix("x", 32, 32), y = matrix("y", 32, 1);
  CHECK(events_of(traced(triangle, {1, 32}, x, y)) ==
        Events{"0 x load around 0+32,0+32 2112 B", "0 y store 0+32,0+1 128 B"});
}

TEST_CASE("an event has up to 16 rectangles, else the one around them", "[sim][trace]") {
  const auto x = matrix("x", 32, 32), y = matrix("y", 32, 1);
  std::string rows;
  for (int r = 0; r < 16; ++r) rows += " " + std::to_string(r) + "+1,0+" + std::to_string(r + 1);
  CHECK(events_of(traced(triangle, {1, 16}, x, y))[0] == "0 x load" + rows + " 544 B");
  CHECK(events_of(traced(triangle, {1, 17}, x, y))[0] == "0 x load around 0+17,0+17 612 B");
  CHECK(events_of(traced(diagonal, {1, 32}, x, y, 20, false))[0] ==
        "0 x load around 1+20,2+20 80 B");
  CHECK(events_of(traced(diagonal, {1, 32}, x, y, 20, true))[0] ==
        "0 x load around 1+20,10+20 80 B");
  CHECK(events_of(traced(two_runs, {1, 32}, x, y))[0] ==
        "0 x load 0+3,0+4 0+3,8+4 4+1,0+4 4+1,8+4 128 B");
}

TEST_CASE("after a __syncwarp all lanes have waited", "[sim][trace]") {
  const auto y = matrix("y", 1, 64);
  const auto stores = [&](bool sync) {
    Events all;
    for (const std::string& e : events_of(traced(wait_for_all, {1, 64}, y, sync))) {
      if (e.starts_with("0 y")) all.push_back(e);
    }
    return all;
  };
  const std::string other = "0 y store 0+1,32+32 128 B";
  CHECK(stores(true) == Events{other, "0 y store 0+1,0+32 128 B"});
  CHECK(stores(false) == Events{"0 y store 0+1,1+31 124 B", other, "0 y store 0+1,0+1 4 B"});
}

TEST_CASE("what wgmma reads is an event of each warpgroup, what TMA moves has its own transfers",
          "[sim][trace]") {
  const auto x = matrix("x", 1, 128), y = matrix("y", 1, 1);
  const fa::Trace trace = traced(engines, {1, 256}, x, y);
  Events events;
  for (size_t i = 0; const std::string& e : events_of(trace)) {
    const fa::TraceEvent& event = trace.kernels[0].events[i++];
    if (event.how != "wgmma" && event.how != "TMA") continue;
    events.push_back(e + " " + std::to_string(event.transfers));
  }
  const std::string product = "0 stile wgmma 0+64,0+16 4096 B 32";
  CHECK(events ==
        Events{product, "0 x TMA 0+1,4+64 256 B 9", "0 srun TMA 0+1,0+64 256 B 2", product});
}

TEST_CASE("after a barrier comes what is after it in the program", "[sim][trace]") {
  const auto x = matrix("x", 1, 128), y = matrix("y", 1, 64);
  // The last two are concurrent: either warp may be first.
  CHECK(events_of(traced(two_warps, {1, 64}, x)) == Events{"0 x store 0+1,0+32 128 B",
                                                           "0 x store 0+1,64+64 256 B",
                                                           "0 x store 0+1,32+32 128 B"});
  Events global;  // a thread that waits for an mbarrier comes after its arrivals
  for (const std::string& e : events_of(traced(pass_on, {1, 64}, x, y))) {
    if (e.starts_with("0 x") || e.starts_with("0 y")) global.push_back(e);
  }
  CHECK(global == Events{"0 x load 0+1,0+32 128 B", "0 y store 0+1,0+32 128 B",
                         "0 x load 0+1,32+32 128 B", "0 y store 0+1,32+32 128 B"});
}

TEST_CASE("of a union, the members whose rows fit and that are touched", "[sim][trace]") {
  const auto y = matrix("y", 1, 32), z = matrix("z", 1, 64);
  const fa::Trace of_unions = traced(unions, {1, 32, sizeof(Shared)}, y);
  const auto place = [&](const std::string& name) {
    const auto at = std::find_if(of_unions.places.begin(), of_unions.places.end(),
                                 [&](const auto& p) { return p.name == name; });
    REQUIRE(at != of_unions.places.end());
    return *at;
  };
  CHECK(place("K").layout == fa::Layout{1, 8, 20, 4});
  CHECK(place("P").layout == fa::Layout{1, 8, 24, 4});
  CHECK(place("l").layout == fa::Layout{1, 1, 8, 4});
  CHECK(place("y").layout == fa::Layout{1, 1, 32, 4});
  CHECK(place("K").bytes == 640);
  CHECK(place("y").bytes == 128);
  CHECK(place("P").offset == 0);
  CHECK(place("l").offset == 768);
  CHECK(events_of(of_unions) == Events{"0 sK store 0+8,0+16 512 B", "0 sP store 0+8,0+16 512 B",
                                       "0 sl store 0+1,0+8 32 B", "0 sP load 0+2,0+16 128 B",
                                       "0 y store 0+1,0+32 128 B"});
  const fa::Trace of_tiles = traced(tiles_or_sums, {1, 64, sizeof(TilesOrSums)}, z);
  std::map<std::string, int> examples;  // their lanes begin at the member's
  for (const fa::TraceRequest& r : of_tiles.requests) {
    const std::string& name = of_tiles.places.at(r.place).name;
    if (name.empty() || r.how != "store" || name == "z") continue;
    ++examples[name];
    CAPTURE(name);
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (r.lanes >> lane & 1) CHECK(r.at[lane] == r.lane_bytes * lane);
    }
  }
  CHECK(examples == std::map<std::string, int>{
                        {"tiles[0].V", 1}, {"tiles[1].V", 1}, {"sums.O", 1}, {"sums.m", 1}});
  CHECK(events_of(of_tiles) ==
        Events{"0 stiles[0].V store 0+4,0+32 256 B", "0 stiles[1].V store 0+4,0+32 256 B",
               "0 ssums.O store 0+2,0+32 256 B", "0 ssums.m store 0+1,0+2 8 B",
               "0 ssums.O load 0+2,0+32 256 B", "0 z store 0+1,0+64 256 B"});
}

TEST_CASE("of tensor memory, whole columns and who waits for whom", "[sim][trace]") {
  const auto y = matrix("y", 1, 128);
  const fa::Trace trace = traced(two_products, {1, 128, (128 + 32) * 16 * 2}, y);
  Events events;
  std::vector<uint32_t> waits;
  std::vector<uint64_t> transfers;
  for (size_t i = 0; const std::string& e : events_of(trace)) {
    const fa::TraceEvent& event = trace.kernels[0].events[i++];
    if (!e.starts_with("0 tensor memory ")) continue;
    events.push_back(e.substr(16) + (event.kind == fa::TraceKind::atomic ? ", added" : ""));
    waits.push_back(event.waits);
    transfers.push_back(event.transfers);
  }
  CHECK(events == Events{"tcgen05.mma 0+128,0+32 16384 B", "tcgen05.ld 0+128,0+32 16384 B",
                         "tcgen05.st 0+128,32+16 8192 B", "tcgen05.mma 0+128,32+8 4096 B",
                         "tcgen05.mma 0+128,0+32 16384 B, added", "tcgen05.ld 0+128,0+32 16384 B"});
  CHECK(transfers == std::vector<uint64_t>{128, 128, 64, 32, 128, 128});
  REQUIRE(waits.size() == 6);
  CHECK(waits[0] < waits[1]);  // a commit
  CHECK(waits[1] == waits[2]);
  CHECK(waits[2] < waits[3]);  // a barrier
  CHECK(waits[3] == waits[4]);
  CHECK(waits[4] < waits[5]);
}

TEST_CASE("the blocks of a cluster have a track each", "[sim][trace]") {
  const auto x = matrix("x", 1, 128), y = matrix("y", 1, 128);
  const Events events = events_of(traced(exchange, {4, 32, 0, 2}, x, y));
  REQUIRE(events.size() == 16);
  CHECK(Events(events.begin() + 12, events.end()) ==
        Events{"3 x load 0+1,96+32 128 B", "3 ss store 0+1,0+32 128 B", "3 ss load 0+1,0+32 128 B",
               "3 y store 0+1,96+32 128 B"});
}

TEST_CASE("a line has one request as an example", "[sim][trace]") {
  Buffer<float> y("y", 32);
  const fa::Trace trace = traced(add, {1, 32}, y);
  REQUIRE(trace.requests.size() == 1);
  const fa::TraceRequest& r = trace.requests[0];
  CHECK(r.kind == fa::TraceKind::atomic);
  CHECK(r.lanes == ~0u);
  CHECK(r.lane_bytes == 4);
  CHECK(r.transfers == 2);
  for (unsigned lane = 0; lane < 32; ++lane) CHECK(r.at[lane] == lane / 2 * 4);
}

TEST_CASE("of a line's requests the example is the one with the most lanes", "[sim][trace]") {
  Buffer<double> y("y", 136);
  const fa::Trace trace = *traced([&] {
                             for (const unsigned largest : {3u, 20u, 10u}) {
                               fa::launch(requests, {1, 32}, y, largest);
                             }
                           }).trace;
  unsigned found = 0;
  for (const fa::TraceRequest& r : trace.requests) {
    if (r.lanes != (1u << 20) - 1) continue;
    const bool shared = trace.places.at(r.place).space == fa::TraceSpace::shared;
    CAPTURE(shared);
    found += shared ? 1 : 10;
    CHECK(trace.places.at(r.place).name == (shared ? "s" : "y"));
    if (shared) CHECK(trace.places.at(r.place).kernel == 1);
    CHECK(r.kernel == 1);
    CHECK(r.kind == fa::TraceKind::write);
    CHECK(r.how == "store");
    CHECK(r.lane_bytes == 8);
    CHECK(r.transfers == (shared ? 2 : 5));  // of half warps; of 160 bytes
    CHECK(trace.lines.at(trace.stacks.at(r.stack).at(0)).path == "tests/sim/trace.cu");
    for (unsigned lane = 0; lane < 20; ++lane) {
      CHECK(r.at[lane] == 8 * ((shared ? 0 : 40) + 32 + lane));
    }
  }
  CHECK(found == 11);
  CHECK(trace.requests.size() == 4);  // of y's line one, of each launch's arrays one
}

TEST_CASE("launches and copies follow each other in a trace", "[sim][trace]") {
  const auto x = matrix("x", 16, 16);
  Buffer<float> y("y", 256);
  const auto counts = traced([&] {
    fa::launch(store_place, {dim3(3, 2, 5), dim3(8, 4, 2), 512}, y);
    cudaMemset(x + 32, 0, 128);
    cudaMemset(x + 1, 0, 68);
    cudaMemcpy(y, x + 32, 64, cudaMemcpyDeviceToDevice);
    fa::launch(triangle, {1, 8}, x, y);
  });
  const fa::Trace& trace = *counts.trace;
  REQUIRE(trace.kernels.size() == 6);
  const fa::TraceKernel& k = trace.kernels[0];
  CHECK_THAT(k.name, ContainsSubstring("store_place"));
  CHECK(k.grid == std::array{3u, 2u, 5u});
  CHECK(k.block == std::array{8u, 4u, 2u});
  CHECK(k.shared_bytes == 512);
  CHECK(k.events.size() == 30);
  CHECK(k.ticks == 1);  // all its blocks in parallel
  uint64_t now = 0;
  for (const fa::TraceKernel& each : trace.kernels) {
    CAPTURE(each.name);
    CHECK(each.start == now);
    now += each.ticks;
    CHECK(each.events.at(0).start == each.start);
  }
  CHECK(events_of(trace, 1) == Events{"0 x cudaMemset 2+2,0+16 128 B"});
  CHECK(trace.kernels[1].ticks == 4);
  CHECK(trace.kernels[1].slots == 1);
  CHECK(events_of(trace, 2) == Events{"0 x cudaMemset 0+1,1+15 1+1,0+2 68 B"});
  CHECK(trace.kernels[2].ticks == 3);
  CHECK(events_of(trace, 3) == Events{"0 x cudaMemcpy 2+1,0+16 64 B"});
  CHECK(trace.kernels[3].events[0].kind == fa::TraceKind::read);
  CHECK(trace.kernels[4].events[0].kind == fa::TraceKind::write);
  CHECK(trace.kernels[5].ticks == traced(triangle, {1, 8}, x, y).kernels[0].ticks);
  CHECK(trace.places.at(trace.kernels[4].events[0].place).name == "y");
}

TEST_CASE("a kernel without structure loses no byte", "[sim][trace]") {
  Buffer<float> x("x", 1024), y("y", 1024);
  const auto run = [&] {
    fa::cuda_check(cudaMemset(y, 0, 4096));
    fa::launch(scatter, {3, 96}, x, y);
    fa::cuda_check(cudaMemcpy(y, x, 2048, cudaMemcpyDeviceToDevice));
  };
  CHECK(traced(run).trace->kernels.size() == 4);  // the copy is a read and a write
  CHECK(!traced(run, false).trace);
}

TEST_CASE("a trace has an order, the same each time", "[sim][trace]") {
  Buffer<float> x("x", 256), z("z", 256), y("y", 5 * 64);
  sim::Options o{.workers = 4, .requests = true, .resident_sms = 1, .trace = true};  // it uses one
  o.sm.blocks = 2;
  const WithOptions with(o);
  const auto run = [&] { return *sim::test::counted(tiles, {5, kThreads}, x, z, y).trace; };
  const fa::Trace first = run(), again = run();
  CHECK(events_of(first) == events_of(again));
  CHECK(first.requests == again.requests);
  CHECK(first.stacks == again.stacks);
  const fa::TraceKernel& k = first.kernels[0];
  CHECK(k.slots == 2);
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> span;  // of a block
  for (const fa::TraceEvent& e : k.events) {
    auto [at, fresh] = span.try_emplace(e.block, e.start, e.start);
    CHECK(e.start == at->second.second);  // no gap
    at->second.second = e.start + e.ticks;
  }
  CHECK(span[0].first == 0);
  CHECK(span[1].first == 0);
  CHECK(span[2].first == span[0].second);  // it takes the first free slot
  CHECK(k.ticks == span[4].second);
}
