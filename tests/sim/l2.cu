// The L2 model, and DRAM traffic.
#include <random>
#include <set>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

constexpr size_t kL2 = 1 << 20;  // bytes; small, so that the tests are quick

struct Dram {
  double read, write;
};

/// With one worker, or by the options.
Dram record(auto&& run, const sim::Options& options = {.workers = 1, .l2_bytes = kL2}) {
  WithOptions with(options);
  const auto counts = sim::test::counted(run);
  REQUIRE(counts.hbm);
  return {static_cast<double>(counts.hbm->read), static_cast<double>(counts.hbm->write)};
}

__global__ void load_all(const float4* x, float4* y) {
  const float4 v = x[size_t{blockIdx.x} * blockDim.x + threadIdx.x];
  if (v.x != 0) y[threadIdx.x] = v;  // never: x is zero
}
__global__ void store_all(float4* x) {
  x[size_t{blockIdx.x} * blockDim.x + threadIdx.x] = float4{0, 0, 0, 0};
}
__global__ void add_all(float* x) {
  atomicAdd(x + size_t{blockIdx.x} * blockDim.x + threadIdx.x, 1.f);
}
__global__ void load_strided(const float* x, float* y, int stride) {
  y[threadIdx.x] = x[size_t{blockIdx.x * blockDim.x + threadIdx.x} * stride];
}
__global__ void scattered(const float* x, float* y, int n) {
  unsigned h = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
  float sum = 0;
  for (unsigned k = 0; k <= blockIdx.x % 9; ++k) {  // blocks of different length
    h = h * 1664525u + 1013904223u;
    sum += x[(h >> 8) % n];
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void two_passes(const float4* x, float4* y, int per_warp) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float4* mine = x + (size_t{blockIdx.x} * (blockDim.x / 32) + warp) * per_warp;
  float4 v = {};
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = lane; i < per_warp; i += 32) v.x += mine[i].x;
  }
  if (v.x != 0) y[lane] = v;  // never: x is zero
}
// Warp 1 reads what warp 0 wrote, in reverse; without the barrier it would be there before.
__global__ void hand_over(float* x, float* y, int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp == 0) {
    for (int i = lane; i < n; i += 32) x[i] = 0;
  }
  __syncthreads();
  if (warp == 1) {
    float sum = 0;
    for (int i = lane; i < n; i += 32) sum += x[n - 1 - i];
    if (sum != 0) y[lane] = sum;  // never
  }
}

__global__ void bulk(float* x, bool load) {
  __shared__ __align__(128) float tile[64];
  __shared__ uint64_t full;
  if (load) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::bulk_load(tile, x, sizeof tile, &full);
    fa::mbarrier_wait(&full, 0);
  } else {
    fa::bulk_store(x, tile, sizeof tile);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}

__global__ void copy_without_a_wait(const float4* x) {
  __shared__ float4 tile[32];
  fa::cp_async_16(&tile[threadIdx.x], &x[threadIdx.x]);
}

// Each warp has a list of steps {kind, first word, words from lane to lane, then a barrier?}.
enum Step { kNothing, kLoad, kStore, kAdd };
__global__ void steps(const int4* list, float* x, float* y, int n) {
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int4* mine = list + (blockIdx.x * warps + threadIdx.x / 32) * n;
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    const int4 step = mine[i];
    float* at = x + step.y + lane * step.z;
    if (step.x == kLoad) sum += *at;
    if (step.x == kStore) *at = 0;
    if (step.x == kAdd) atomicAdd(at, 0.f);
    if (step.w) __syncthreads();
  }
  if (sum != 0) y[lane] = sum;  // never: x is zero
}
// Warp 0 loads a line, warp 1 one sector of each of many others, then warp 0 the line again.
__global__ void alternate(const float* x, float* y, int others) {
  float sum = 0;
  if (threadIdx.x < 32) sum = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x >= 32) {
    for (int i = 0; i < others; ++i) sum += x[32 * (i + 1)];
  }
  __syncthreads();
  if (threadIdx.x < 32) sum += x[threadIdx.x];
  if (sum != 0) y[threadIdx.x] = sum;
}

constexpr unsigned kThreads = 256;

struct Data {
  explicit Data(size_t bytes)
      : blocks(static_cast<unsigned>(bytes / sizeof(float4) / kThreads)),
        bytes(size_t{blocks} * kThreads * sizeof(float4)),
        x("x", this->bytes / sizeof(float4)),
        y("y", kThreads) {}
  void load() { fa::launch(load_all, {blocks, kThreads}, x, y); }
  void store() { fa::launch(store_all, {blocks, kThreads}, x); }

  unsigned blocks;
  size_t bytes;
  Buffer<float4> x, y;
};

}  // namespace

TEST_CASE("what fits into half of the L2 is read from DRAM once", "[sim][l2]") {
  Data data(kL2 / 2);
  const Dram dram = record([&] {
    for (int i = 0; i < 4; ++i) data.load();
  });
  CHECK(dram.read == Approx(data.bytes).epsilon(0.1));
  CHECK(dram.read >= data.bytes);
  CHECK(dram.write == 0);
}

TEST_CASE("what was written and fits is never read, and written back once", "[sim][l2]") {
  Data data(kL2 / 2);
  const Dram dram = record([&] {
    for (int i = 0; i < 3; ++i) {
      data.store();
      data.load();
    }
  });
  CHECK(dram.read <= 0.1 * data.bytes);
  CHECK(dram.write == Approx(data.bytes).epsilon(0.1));
  CHECK(dram.write >= data.bytes);
}

TEST_CASE("what is three times the L2 streams", "[sim][l2]") {
  Data data(3 * kL2);
  const Dram dram = record([&] {
    data.store();
    data.load();
    data.load();
  });
  CHECK(dram.read == Approx(2. * data.bytes).epsilon(0.1));
  CHECK(dram.read <= 2. * data.bytes);
  CHECK(dram.write == data.bytes);
}

// X written and read back, with the L2 full, against an H200's shares: close at both ends only.
TEST_CASE("between half and three times its size the L2 behaves like an H200's", "[sim][l2]") {
  struct Point {
    double size, measured, tolerance;
  };
  const auto p = GENERATE(values<Point>({{32 / 50., .008, .04},
                                         {40 / 50., .11, .05},
                                         {48 / 50., .48, .13},
                                         {64 / 50., .72, .05},
                                         {96 / 50., .82, .13},
                                         {128 / 50., .94, .06}}));
  Data other(4 * kL2), data(static_cast<size_t>(p.size * kL2));
  const Dram before = record([&] {
    other.load();
    data.store();
  });
  const Dram dram = record([&] {
    other.load();
    data.store();
    data.load();
  });
  const double share = (dram.read - before.read) / data.bytes;
  CAPTURE(p.size, share);
  CHECK(share == Approx(p.measured).margin(p.tolerance));
}

TEST_CASE("a line holds only the sectors that were asked for", "[sim][l2]") {
  Buffer<float> x("x", 32 * 1024), y("y", 128);
  const auto run = [&](int stride) {
    return record([&] { fa::launch(load_strided, {8, 128}, x, y, stride); });
  };
  CHECK(run(1).read == 1024 * 4);
  CHECK(run(8).read == 1024 * 32);
  CHECK(run(32).read == 1024 * 32);
}

TEST_CASE("an atomic fetches its sector and leaves it dirty", "[sim][l2]") {
  Buffer<float> x("x", 4096);
  const Dram dram = record([&] { fa::launch(add_all, {16, 256}, x); });
  CHECK(dram.read == 4096 * 4);
  CHECK(dram.write == 4096 * 4);
}

TEST_CASE("copies read or write their own sectors", "[sim][l2]") {
  Buffer<float> x("x", 128);
  for (const bool load : {false, true}) {
    const Dram dram = record([&] { fa::launch(bulk, {1, 1}, x, load); });
    CHECK(dram.read == (load ? 256 : 0));
    CHECK(dram.write == (load ? 0 : 256));
  }
  const Buffer<float4> y("y", 32);
  CHECK(record([&] { fa::launch(copy_without_a_wait, {1, 32}, y); }).read == 512);
}

TEST_CASE("memsets and device copies pass through the L2", "[sim][l2]") {
  constexpr size_t kBytes = 64 * 1024;
  Buffer<char> x("x", kBytes), y("y", kBytes);
  Dram dram = record([&] { cudaMemset(x.get(), 0, kBytes); });
  CHECK(dram.read == 0);
  CHECK(dram.write == kBytes);
  dram = record([&] { cudaMemcpy(y.get(), x.get(), kBytes, cudaMemcpyDeviceToDevice); });
  CHECK(dram.read == kBytes);
  CHECK(dram.write == kBytes);
  dram = record([&] { cudaMemset(x.get() + 16, 0, 32); });  // parts of two sectors
  CHECK(dram.write == 64);
  dram = record([&] { cudaMemset(x.get() + 40, 0, 300); });  // sectors 1 to 10
  CHECK(dram.write == 320);
  dram = record([&] { cudaMemset(x.get() + 64, 0, 32); });
  CHECK(dram.write == 32);
  dram =
      record([&] { cudaMemset(x.get() + 96, 0, 33); });  // the last of a line, the next one's first
  CHECK(dram.write == 64);
}

TEST_CASE("DRAM traffic does not depend on the number of workers", "[sim][l2]") {
  constexpr int kN = 1 << 20;  // floats: four times the L2
  const unsigned cluster = GENERATE(1u, 2u);
  Buffer<float> x("x", kN), y("y", 600 * 64);
  const auto dram = [&](int workers) {
    const WithOptions with({.workers = workers, .l2_bytes = kL2, .resident_sms = 2});
    const auto counts = sim::test::counted([&] {
      for (int i = 0; i < 2; ++i) fa::launch(scattered, {600, 64, 0, cluster}, x, y, kN);
    });
    return counts.hbm.value();
  };
  const fa::Bytes one = dram(1);
  CHECK(one.read > 2 * kL2);
  for (const int workers : {2, 2, 3, 4}) CHECK(dram(workers) == one);
}

// One SM holds 8 blocks of 8 warps.
TEST_CASE("warps that are resident together share the L2", "[sim][l2]") {
  struct Case {
    size_t range;  // bytes per warp, which always fit for one warp
    size_t smem;   // per block
    double passes_from_dram;
  };
  const auto c = GENERATE(values<Case>({{kL2 / 128, 0, 1},             // half the L2 in flight
                                        {kL2 / 16, 0, 2},              // four times the L2
                                        {kL2 / 16, 200 * 1024, 1}}));  // one block: again half
  const unsigned blocks = 32;
  const size_t bytes = blocks * 8 * c.range;
  Buffer<float4> x("x", bytes / sizeof(float4)), y("y", 32);
  const int per_warp = static_cast<int>(c.range / sizeof(float4));
  const Dram dram = record(
      [&] {
        fa::launch(two_passes, {blocks, kThreads, c.smem}, x, y, per_warp);
      },
      {.workers = 1, .l2_bytes = kL2, .resident_sms = 1});
  CAPTURE(c.range, c.smem);
  CHECK(dram.read == Approx(c.passes_from_dram * bytes).epsilon(0.1));
}

TEST_CASE("what follows a barrier comes after what precedes it", "[sim][l2]") {
  constexpr int kN = kL2 / 4 / sizeof(float);
  Buffer<float> x("x", kN), y("y", 32);
  const Dram dram = record([&] { fa::launch(hand_over, {1, 64}, x, y, kN); });
  CHECK(dram.read == 0);
  CHECK(dram.write == kN * sizeof(float));
}

TEST_CASE("a warp that comes back to a line after a barrier asks the L2 for it again",
          "[sim][l2]") {
  const Buffer<float> x("x", 32 * 128), y("y", 64);
  const auto read = [&](int others, double l2_bytes) {
    return record(
               [&] {
                 fa::launch(alternate, {1, 64}, x, y, others);
               },
               {.workers = 1, .l2_bytes = l2_bytes})
        .read;
  };
  CHECK(read(100, kL2) == 128 + 100 * 32);
  CHECK(read(100, 16 * 128) == 2 * 128 + 100 * 32);  // 16 newer lines have evicted it
}

// A change of the model changes these figures.
TEST_CASE("random programs read and write exactly these bytes", "[sim][l2]") {
  struct Case {
    unsigned warps, blocks;
    double l2_bytes;
    int resident_sms;
    uint64_t l2_bytes_of_blocks, read, write;
  };
  // A cache of one set, 16 lines, is exact; with several sets the buffers' places matter.
  const auto c = GENERATE(values<Case>({{1, 1, 2048, 1, 45920, 28896, 20768},
                                        {3, 40, 2048, 2, 5284384, 4169280, 2265472},
                                        {2, 40, 32768, 2, 3698944, 2477000, 1437800},
                                        {4, 7, 65536, 132, 1215936, 718000, 452500}}));
  const double tolerance = c.l2_bytes == 2048 ? 0 : 0.01;
  constexpr int kSteps = 150, kWords = 1 << 15;
  std::mt19937 random(c.warps + c.blocks);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  std::vector<int4> list;
  fa::Ops requests, sectors, lines;
  for (unsigned warp = 0; warp < c.warps * c.blocks; ++warp) {
    int first = 0;
    for (int i = 0; i < kSteps; ++i) {
      const int stride = (int[]){0, 1, 1, 2, 8, 32}[below(6)];
      const int next = below(3);
      first = next == 0 ? first : next == 1 ? first + 32 : below(kWords);
      first = std::min(first, kWords - 32 * 32);
      const int kind = (int[]){kNothing, kLoad, kLoad, kLoad, kStore, kAdd}[below(6)];
      list.push_back({kind, first, stride, i % 16 == 15});
      std::set<int> of_sectors, of_lines;
      for (int lane = 0; lane < 32; ++lane) {
        of_sectors.insert((first + lane * stride) / 8),
            of_lines.insert((first + lane * stride) / 32);
      }
      const auto add = [&](uint64_t fa::Ops::*of) {
        requests.*of += 1, sectors.*of += of_sectors.size(), lines.*of += of_lines.size();
      };
      if (kind == kLoad) add(&fa::Ops::load);
      if (kind == kStore) add(&fa::Ops::store);
      if (kind == kAdd) add(&fa::Ops::atomic);
    }
  }
  Buffer<int4> steps_of_warps("steps", list);
  Buffer<float> x("x", kWords), y("y", 32);
  CAPTURE(c.warps, c.blocks, c.l2_bytes);
  for (const int workers : {1, 2}) {
    const WithOptions with({.workers = workers,
                            .requests = true,
                            .l2_bytes = c.l2_bytes,
                            .resident_sms = c.resident_sms});
    const auto counts =
        sim::test::counted(steps, {c.blocks, 32 * c.warps}, steps_of_warps, x, y, kSteps);
    const fa::BufferCount& of_x = counts.buffers.at("x");
    CHECK(of_x.requests == requests);
    CHECK(of_x.sectors == sectors);
    const uint64_t reads_of_steps = uint64_t{c.warps} * c.blocks * kSteps;  // a request each
    CHECK(counts.lines->load == lines.load + reads_of_steps);
    fa::BlockWork sum;
    const fa::KernelCount& kernel = counts.kernels.at(0);
    for (const fa::BlockWork& w : kernel.work) {
      sum.lines += w.lines, sum.atomic_lines += w.atomic_lines, sum.l2_bytes += w.l2_bytes;
      sum.instructions += w.instructions;
    }
    CHECK(sum.lines == lines.load + lines.store + 4 * reads_of_steps);  // of 16 bytes
    CHECK(sum.atomic_lines == lines.atomic);
    CHECK(sum.instructions == requests.load + requests.store + requests.atomic + reads_of_steps);
    CHECK(sum.l2_bytes == c.l2_bytes_of_blocks);
    CHECK(counts.hbm->read == Approx(c.read).epsilon(tolerance));
    CHECK(counts.hbm->write == Approx(c.write).epsilon(tolerance));
    CHECK(kernel.hbm.read == counts.hbm->read);
  }
}

// All blocks fit on the GPU: none has reached the L2 when the last one fails.
TEST_CASE("an abandoned launch leaves nothing to the next one", "[sim][l2]") {
  Data data(kL2 / 4);
  const Dram alone = record([&] { data.load(); });
  const Dram after = record([&] {
    const std::string found = sim::test::finding([&] {
      fa::launch(store_all, {data.blocks + 1, kThreads}, data.x);
    });
    CHECK(found.find("buffer x") != std::string::npos);
    data.load();
  });
  CHECK(alone.read == data.bytes);
  CHECK(after.read == alone.read);
  CHECK(after.write == 0);
}

TEST_CASE("a recording begins with a cold L2", "[sim][l2]") {
  Data data(kL2 / 4);
  const auto load = [&] { return record([&] { data.load(); }).read; };
  const double first = load();
  CHECK(first == data.bytes);
  CHECK(load() == first);
}
