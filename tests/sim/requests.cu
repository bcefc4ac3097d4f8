// Requests and sectors of the lanes of a warp.
#include <array>
#include <map>
#include <set>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::counted;
using sim::test::WithOptions;

namespace {

constexpr int kFloatsPerSector = 8;

__global__ void gather(const float* x, const int* index, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[index[i]];
}
// One instruction, n times; a lane without an address is idle.
template <class T>
__global__ void gathers(const T* x, const int* index, float* y, int n) {
  for (int k = 0; k < n; ++k) {
    const int i = index[k * 32 + threadIdx.x];
    if (i < 0) continue;
    const T v = x[i];
    if (*reinterpret_cast<const float*>(&v) != 0) y[threadIdx.x] = 1;  // never: x is zero
  }
}
template <class T>
__global__ void copy(const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void copy4_async(const float4* x) {
  __shared__ float4 tile[32];
  fa::cp_async_16(&tile[threadIdx.x], &x[threadIdx.x]);
  fa::cp_async_commit();
  fa::cp_async_wait<0>();
}
__global__ void halves(const float* x, const float* z, float* y) {
  if (threadIdx.x % 2) {
    y[threadIdx.x] = x[threadIdx.x];
  } else {
    y[threadIdx.x] = z[threadIdx.x];
  }
}
// Lane l makes l % 4 + 1 trips; then all lanes load once more with the same instruction.
__global__ void ragged(const float* x, const float* z, float* y) {
  float sum = 0;
  for (int k = 0; k <= static_cast<int>(threadIdx.x) % 4; ++k) sum += x[k * 32 + threadIdx.x];
  y[threadIdx.x] = sum + z[threadIdx.x];
}
// Rows of 20 floats by half warps, in pieces of 16: in every second trip lanes 4.. of each half
// skip the store, so a lane's n-th store is not its neighbour's n-th.
__global__ void skipped_trips(float* y) {
  const int row = threadIdx.x / 16, col = threadIdx.x % 16;
  for (int pair = 0; pair < 4; ++pair) {
    for (int piece = 0; piece < 2; ++piece) {
      const int c = piece * 16 + col;
      if (c < 20) y[(2 * pair + row) * 64 + c] = 1;
    }
  }
}
__global__ void reduce(float* sum) { atomicAdd(sum + threadIdx.x / 16 * 8, 1.f); }
__global__ void long_loop(const float* x, float* y, int n) {
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[threadIdx.x];
  y[threadIdx.x] = sum;
}

// TMA loads 1024 bytes and stores 512; n products of 64 rows and 64 columns.
__global__ void engines(float* x, int n) {
  char* tile = fa::dynamic_shared<char>();
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, 1024);
    fa::bulk_load(tile, x, 1024, &full);
  }
  __syncthreads();
  fa::mbarrier_wait(&full, 0);
  const uint64_t ab = fa::wgmma_descriptor(tile, fa::Swizzle::b128, 16, 1024);
  float d[32] = {};
  fa::wgmma_fence();
  for (int i = 0; i < n; ++i) fa::wgmma(d, ab, ab);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  if (threadIdx.x > 0) return;
  fa::bulk_store(x, tile, 512);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}

struct Triple {
  float4 a;
  float2 b;
};
struct Point {
  float x, y, z;
};
struct Colour {
  unsigned char r, g, b;
};

// A program without structure: at each step a lane takes one of four paths, chosen by a hash.
// Between steps the lanes meet, so some are further than others when they are switched.
__host__ inline __attribute__((always_inline)) unsigned hash(unsigned a, unsigned b) {
  unsigned h = a * 0x9E3779B1u ^ b * 0x85EBCA77u;
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  return h ^ h >> 13;
}
constexpr int kSteps = 60;
__global__ void chaos(const float* x, float* y) {
  float sum = 0;
  for (int s = 0; s < kSteps; ++s) {
    const unsigned h = hash(threadIdx.x, s), at = h >> 8 & 1023;
    switch (h % 4) {
      case 0:
        sum += x[at];
        break;
      case 1:
        sum -= x[at];
        break;
      case 2:
        sum *= x[at];
        break;
    }
    if (s % 7 == 6) sum += __shfl_xor_sync(0xffffffff, sum, 1);
  }
  y[threadIdx.x] = sum;
}

const sim::Options kRequests{.workers = 1, .requests = true};

}  // namespace

TEST_CASE("a warp's load takes as many sectors and lines as its lanes touch", "[sim][requests]") {
  struct Case {
    const char* name;
    int (*index)(int);
    unsigned sectors, lines;
  };
  const auto c = GENERATE(values<Case>({
      {"coalesced", [](int l) { return l; }, 4, 1},
      {"broadcast", [](int) { return 5; }, 1, 1},
      {"misaligned by one", [](int l) { return l + 1; }, 5, 2},
      {"stride 2", [](int l) { return 2 * l; }, 8, 2},
      {"stride 32", [](int l) { return 32 * l; }, 32, 32},
      {"backwards", [](int l) { return 31 - l; }, 4, 1},
      {"backwards, stride 8", [](int l) { return 8 * (31 - l); }, 32, 8},
      {"butterfly", [](int l) { return l ^ 21; }, 4, 1},
      {"two rows", [](int l) { return l % 2 * 512 + l / 2; }, 4, 2},
      {"same low bits", [](int l) { return l % 3 * 256; }, 3, 3},
  }));
  CAPTURE(c.name);
  const WithOptions with(kRequests);
  std::vector<int> at;
  for (int l = 0; l < 32; ++l) at.push_back(c.index(l));
  Buffer<float> x("x", 1024), y("y", 32);
  Buffer<int> index("index", at);
  auto counts = counted(gather, {1, 32}, x, index, y);
  CHECK(counts.buffers["x"].requests == fa::Ops{1, 0, 0});
  CHECK(counts.buffers["x"].sectors == fa::Ops{c.sectors, 0, 0});
  CHECK(counts.buffers["y"].requests == fa::Ops{0, 1, 0});
  CHECK(counts.buffers["y"].sectors == fa::Ops{0, 4, 0});
  REQUIRE(counts.kernels.size() == 1);
  const fa::KernelCount& kernel = counts.kernels[0];
  for (const fa::Ops& requests : {*counts.requests, kernel.requests}) {
    CHECK(requests == fa::Ops{2, 1, 0});
  }
  for (const fa::Ops& sectors : {*counts.sectors, kernel.sectors}) {
    CHECK(sectors == fa::Ops{c.sectors + 4, 4, 0});
  }
  for (const fa::Ops& lines : {*counts.lines, kernel.lines}) {
    CHECK(lines == fa::Ops{c.lines + 1, 1, 0});
  }
}

TEST_CASE("an instruction is counted each time by its own addresses and lanes", "[sim][requests]") {
  const WithOptions with(kRequests);
  std::vector<int> at;
  for (int l = 0; l < 32; ++l) at.push_back(l);
  for (int l = 0; l < 32; ++l) at.push_back(l + 1);             // begins in the middle of a sector
  for (int l = 0; l < 32; ++l) at.push_back(l == 31 ? 32 : 1);  // the last lane as before
  Buffer<float> x("x", 64), y("y", 32);
  Buffer<int> index("index", at);
  CHECK(counted(gathers<float>, {1, 32}, x, index, y, 3).buffers["x"].sectors.load == 4 + 5 + 2);
  for (int l = 0; l < 64; ++l) at[l] = l < 40 ? 0 : -1;
  index.upload(at);
  const auto wide = counted(gathers<float4>, {1, 32}, Buffer<float4>("z", 1), index, y, 2);
  CHECK(wide.kernels[0].work[0].lines == 2 + 4 + 1);  // the indices, 512 bytes, 128 bytes
}

TEST_CASE("cp.async looks up lines by quarters of a warp, a load by warps", "[sim][requests]") {
  const WithOptions with(kRequests);
  Buffer<float4> x("x", 36), y("y", 32);
  for (const unsigned begin : {0, 4}) {  // at the beginning and in the middle of a line
    CAPTURE(begin);
    const auto loads = counted(copy<float4>, {1, 32}, x + begin, y);
    CHECK(loads.requests == fa::Ops{1, 1, 0});
    CHECK(loads.sectors == fa::Ops{16, 16, 0});
    CHECK(loads.lines == fa::Ops{begin ? 5u : 4u, 4, 0});
    const auto copies = counted(copy4_async, {1, 32}, x + begin);
    CHECK(copies.sectors == fa::Ops{16, 0, 0});
    CHECK(copies.lines == fa::Ops{begin ? 8u : 4u, 0, 0});
  }
}

// As by nvcc -arch=sm_90: a struct moves in parts of its alignment.
template <class T>
static void check_struct(unsigned parts, unsigned sectors) {
  Buffer<T> x("x", 32), y("y", 32);
  auto counts = counted(copy<T>, {1, 32}, x, y);
  CHECK(counts.buffers["x"].bytes.read == 32 * sizeof(T));
  CHECK(counts.requests == fa::Ops{parts, parts, 0});
  CHECK(counts.sectors == fa::Ops{sectors, sectors, 0});
}

TEST_CASE("a struct takes as many requests as a lane needs instructions", "[sim][requests]") {
  const WithOptions with(kRequests);
  check_struct<Triple>(2, 2 * 32);
  check_struct<Point>(3, 3 * 12);  // its alignment is smaller than its size
  check_struct<Colour>(3, 3 * 3);
}

TEST_CASE("an odd block ends in a smaller warp", "[sim][requests]") {
  const WithOptions with(kRequests);
  Buffer<float> x("x", 64), y("y", 64);
  Buffer<int> index("index", 64);
  auto counts = counted(gather, {1, 40}, x, index, y);
  CHECK(counts.buffers["y"].requests == fa::Ops{0, 2, 0});
  CHECK(counts.buffers["y"].sectors == fa::Ops{0, 5, 0});
  CHECK(counts.kernels.at(0).hbm == fa::Bytes{});  // no L2 is modelled
}

TEST_CASE("lanes on different paths make different requests", "[sim][requests]") {
  const WithOptions with(kRequests);
  Buffer<float> x("x", 128), y("y", 512), z("z", 32);
  auto counts = counted(halves, {1, 32}, x, z, y);
  CHECK(counts.buffers["x"].requests == fa::Ops{1, 0, 0});
  CHECK(counts.buffers["z"].requests == fa::Ops{1, 0, 0});
  CHECK(counts.buffers["y"].requests == fa::Ops{0, 2, 0});
  CHECK(counts.sectors == fa::Ops{8, 8, 0});

  counts = counted(ragged, {1, 32}, x, z, y);
  CHECK(counts.buffers["x"].requests == fa::Ops{4, 0, 0});
  CHECK(counts.buffers["x"].sectors == fa::Ops{16, 0, 0});  // each sector has a lane with 4 trips
  CHECK(counts.buffers["z"].requests == fa::Ops{1, 0, 0});
  CHECK(counts.buffers["y"].requests == fa::Ops{0, 1, 0});

  counts = counted(skipped_trips, {1, 32}, y);
  CHECK(counts.requests->store == 8);
  CHECK(counts.sectors->store == 4 * (2 * 2 + 2 * 1));  // 16 floats of two rows, then 4 of two
}

TEST_CASE("atomics are counted as their own kind", "[sim][requests]") {
  const WithOptions with(kRequests);
  Buffer<float> sum("sum", 16);
  const auto count = counted(reduce, {3, 32}, sum).buffers["sum"];
  CHECK(count.bytes == fa::Bytes{0, 0, 3 * 32 * 4});
  CHECK(count.requests == fa::Ops{0, 0, 3});
  CHECK(count.sectors == fa::Ops{0, 0, 6});
}

TEST_CASE("requests of divergent lanes are grouped by instruction and occurrence",
          "[sim][requests]") {
  constexpr int kThreads = 96, kBlocks = 40;
  using Key = std::array<int, 3>;  // warp, instruction, occurrence
  std::map<Key, std::set<unsigned>> sectors;
  for (int t = 0; t < kThreads; ++t) {
    int occurrence[4] = {};
    for (int s = 0; s < kSteps; ++s) {
      const unsigned h = hash(t, s), path = h % 4;
      if (path == 3) continue;
      const Key key{t / 32, static_cast<int>(path), occurrence[path]++};
      sectors[key].insert((h >> 8 & 1023) / kFloatsPerSector);
    }
  }
  uint64_t total = 0;
  for (const auto& [key, set] : sectors) total += set.size();

  Buffer<float> x("x", 1024), y("y", kThreads);
  for (const int workers : {1, 2}) {
    const WithOptions with({.workers = workers, .requests = true});
    auto counts = counted(chaos, {kBlocks, kThreads}, x, y);
    CHECK(counts.buffers["x"].requests == fa::Ops{kBlocks * sectors.size(), 0, 0});
    CHECK(counts.buffers["x"].sectors == fa::Ops{kBlocks * total, 0, 0});
  }
}

TEST_CASE("a log that is full is counted in parts: never too few requests", "[sim][requests]") {
  const WithOptions with(kRequests);
  constexpr int kLoads = 1200000;
  Buffer<float> x("x", 32), y("y", 32);
  auto counts = counted(long_loop, {1, 2}, x, y, kLoads);
  CHECK(counts.buffers["x"].requests.load >= kLoads);
  CHECK(counts.buffers["x"].requests.load <= 2 * kLoads);
  CHECK(counts.remarks.size() == 1);  // the reader is informed
  counts = counted(long_loop, {1, 2}, x, y, kLoads / 2);
  CHECK(counts.buffers["x"].requests.load == kLoads / 2);
  CHECK(counts.remarks.empty());
}

TEST_CASE("with sites there is a row per source line", "[sim][requests]") {
  std::vector<int> at;
  for (int l = 0; l < 64; ++l) at.push_back(8 * l);
  Buffer<float> x("x", 1024), y("y", 64);
  Buffer<int> index("index", at), same("same", std::vector<int>(64, 5));
  for (const bool sites : {false, true}) {
    const WithOptions with({.requests = true, .sites = sites});
    std::map<std::string, fa::SiteCount> rows;
    for (const fa::SiteCount& s : counted(gather, {1, 64}, x, index, y).sites) {
      CHECK_THAT(s.where, ContainsSubstring("requests.cu:"));
      rows[s.what] = s;
    }
    REQUIRE(rows.size() == (sites ? 3 : 0));
    if (!sites) continue;
    CHECK(rows.at("x load32").requests == 2);
    CHECK(rows.at("x load32").transfers == 64);
    CHECK(rows.at("x load32").ideal == 8);
    CHECK(rows.at("index load32").transfers == 8);
    CHECK(rows.at("y store32").transfers == 8);
    CHECK(rows.at("y store32").ideal == 8);
    CHECK(rows.at("x load32").clocks == 16);  // lines
    CHECK(rows.at("index load32").clocks == 2);
    CHECK(rows.at("y store32").clocks == 2);
    const WithOptions two_workers({.workers = 2, .requests = true, .sites = true});
    const auto twice = counted([&] {
      fa::launch(gather, {1, 64}, x, index, y);
      fa::launch(gather, {2, 32}, x, index, y);
    });
    REQUIRE(twice.sites.size() == 3);
    for (const fa::SiteCount& s : twice.sites) {
      CAPTURE(s.what);
      CHECK(s.where == rows.at(s.what).where);
      CHECK(s.requests == 2 * rows.at(s.what).requests);
      CHECK(s.transfers == 2 * rows.at(s.what).transfers);
      CHECK(s.ideal == 2 * rows.at(s.what).ideal);
      CHECK(s.clocks == 2 * rows.at(s.what).clocks);
    }
    for (const unsigned lanes : {1u, 8u, 9u, 17u}) {  // 32 bytes are a sector's
      for (const fa::SiteCount& s : counted(gather, {1, lanes}, x, index, y).sites) {
        if (s.what != "x load32") continue;
        CHECK(s.transfers == lanes);
        CHECK(s.ideal == (lanes + 7) / 8);
      }
    }
    for (const fa::SiteCount& s : counted(gather, {1, 64}, x, same, y).sites) {
      if (s.what == "x load32") CHECK(s.ideal == 2);
    }
  }
}

TEST_CASE("with sites there is a row for what TMA and wgmma move, 128 bytes at a time",
          "[sim][requests]") {
  const WithOptions with({.workers = 1, .requests = true, .sites = true});
  const Buffer<float> x("x", 256);
  std::map<std::string, fa::SiteCount> rows;
  const fa::Counts of = counted(engines, {2, 128, 64 * 1024}, x, 5);
  for (const fa::SiteCount& s : of.sites) rows[s.what] = s;
  const auto require = [&](const char* what, uint64_t requests, uint64_t transfers) {
    CAPTURE(what);
    REQUIRE(rows.count(what) == 1);
    CHECK(rows[what].requests == requests);
    CHECK(rows[what].transfers == transfers);
    CHECK(rows[what].ideal == transfers);
  };
  require("shared TMA load", 2, 2 * 1024 / 128);
  require("shared TMA store", 2, 2 * 512 / 128);
  const uint64_t operands = 2 * 5 * (64 + 64) * 16 * 2;
  require("shared wgmma", 2 * 5, operands / 128);
  const fa::Counts none = counted(engines, {2, 128, 64 * 1024}, x, 0);
  CHECK(of.kernels.at(0).shared_read - none.kernels.at(0).shared_read == operands);
}
