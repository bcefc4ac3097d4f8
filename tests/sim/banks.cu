// Bank conflicts: in how many wavefronts shared memory answers a warp.
#include <functional>

#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

template <class T>
__global__ void load_shared(const int* index, T* y) {
  T* s = fa::dynamic_shared<T>();
  y[threadIdx.x] = s[index[threadIdx.x]];
}
template <class T>
__global__ void store_shared(const int* index) {
  T* s = fa::dynamic_shared<T>();
  s[index[threadIdx.x]] = T{};
}
__global__ void add_shared(float* y) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1.f);
  __syncthreads();
  y[threadIdx.x] = sum;
}

// A warp reads `rows` rows of d 2-byte elements, 16 bytes a lane; d / 8 lanes read a row together.
// The chunks of a row are swizzled, so each trip is free of conflicts, the last one too, in which
// lanes behind the last row have nothing to do.
template <int d>
__global__ void read_rows(float4* y, int rows) {
  float4* s = fa::dynamic_shared<float4>();
  constexpr int kChunks = d / 8, kTrip = 32 / kChunks;
  for (int step = 0; step < 32; step += kTrip) {
    const int r = step + threadIdx.x / kChunks, x = threadIdx.x % kChunks;
    if (r >= rows) continue;
    y[r * kChunks + x] = s[r * kChunks + (x ^ r % 8)];
  }
}
template <int d>
void check_rows() {
  sim::Options o;
  o.requests = true;
  o.workers = 1;
  WithOptions with(o);
  Buffer<float4> y("y", 32 * d / 8);
  for (int rows = 1; rows <= 32; ++rows) {
    CAPTURE(d, rows);
    sim::Recording recording;
    fa::launch(read_rows<d>, {dim3(1), dim3(32), 32 * d * 2}, y, rows);
    const fa::KernelCount k = recording.finish().kernels.at(0);
    const unsigned quarters = (rows * (d / 8) + 7) / 8;  // of a warp, 8 lanes each
    CHECK(k.shared_requests == (quarters + 3) / 4);
    CHECK(k.shared_wavefronts == quarters);
    CHECK(k.shared_ideal == quarters);
  }
}

struct Case {
  const char* name;
  std::function<int(int)> index;
  unsigned wavefronts, ideal;
  unsigned loads = wavefronts, loads_ideal = ideal;  ///< neighbours with one address share theirs
};

constexpr size_t kShared = 64 * 1024;

template <class T>
fa::KernelCount run(const Case& c, bool store, int threads) {
  sim::Options o;
  o.requests = true;
  o.workers = 1;
  WithOptions with(o);
  Buffer<int> index("index", 32);
  Buffer<T> y("y", 32);
  std::vector<int> at;
  for (int l = 0; l < 32; ++l) at.push_back(c.index(l));
  index.upload(at);
  sim::Recording recording;
  if (store) {
    fa::launch(store_shared<T>, {dim3(1), dim3(threads), kShared}, index);
  } else {
    fa::launch(load_shared<T>, {dim3(1), dim3(threads), kShared}, index, y);
  }
  return recording.finish().kernels.at(0);
}

template <class T>
void check(const Case& c, int threads = 32) {
  CAPTURE(c.name, sizeof(T), threads);
  for (const bool store : {false, true}) {
    const fa::KernelCount k = run<T>(c, store, threads);
    CHECK(k.shared_requests == 1);
    CHECK(k.shared_wavefronts == (store ? c.wavefronts : c.loads));
    CHECK(k.shared_ideal == (store ? c.ideal : c.loads_ideal));
  }
}

}  // namespace

TEST_CASE("4-byte accesses: one wavefront per different word of a bank", "[sim][banks]") {
  check<float>({"row", [](int l) { return l; }, 1, 1});
  check<float>({"row, shifted", [](int l) { return l + 7; }, 1, 1});
  check<float>({"broadcast", [](int) { return 3; }, 1, 1});
  check<float>({"two words of different banks", [](int l) { return l % 2 * 33; }, 1, 1});
  check<float>({"two words of one bank", [](int l) { return l % 2 * 32; }, 2, 1});
  check<float>({"stride 2", [](int l) { return 2 * l; }, 2, 1});
  check<float>({"stride 3", [](int l) { return 3 * l; }, 1, 1});
  check<float>({"stride 8", [](int l) { return 8 * l; }, 8, 1});
  check<float>({"column of 32", [](int l) { return 32 * l; }, 32, 1});
  check<float>({"column, padded", [](int l) { return 33 * l; }, 1, 1});
  check<float>({"column, swizzled", [](int l) { return 32 * l + (5 ^ l); }, 1, 1});
  check<float>({"16 x 2 tile of width 64", [](int l) { return l / 16 * 64 + l % 16; }, 2, 1});
}

TEST_CASE("2-byte accesses: two lanes share a word", "[sim][banks]") {
  check<uint16_t>({"row", [](int l) { return l; }, 1, 1});
  check<uint16_t>({"stride 2", [](int l) { return 2 * l; }, 1, 1});
  check<uint16_t>({"column of 64", [](int l) { return 64 * l; }, 32, 1});
}

TEST_CASE("8-byte accesses go by half warps, loads of equal neighbours at once", "[sim][banks]") {
  check<float2>({"row", [](int l) { return l; }, 2, 2});
  check<float2>({"broadcast", [](int) { return 1; }, 2, 2, 1, 1});
  check<float2>({"pairs", [](int l) { return l / 2; }, 2, 2, 1, 1});
  check<float2>({"every other lane", [](int l) { return l / 4 * 2 + l % 2; }, 2, 2, 1, 1});
  check<float2>({"fours, one lane apart", [](int l) { return (l + 1) / 4; }, 2, 2});
  check<float2>({"stride 2", [](int l) { return 2 * l; }, 4, 2});
  check<float2>({"column of 16", [](int l) { return 16 * l; }, 32, 2});
  check<float2>({"half a warp", [](int l) { return l; }, 1, 1}, 16);
}

TEST_CASE("16-byte accesses go by quarter warps, loads of equal neighbours by halves",
          "[sim][banks]") {
  check<float4>({"row", [](int l) { return l; }, 4, 4});
  check<float4>({"rows of 128 bytes", [](int l) { return 8 * l; }, 32, 4});
  check<float4>({"rows of 128 bytes, swizzled", [](int l) { return 8 * l + (l & 7); }, 4, 4});
  check<float4>({"rows of 128 bytes, padded by 16", [](int l) { return 9 * l; }, 4, 4});
  check<float4>({"broadcast", [](int) { return 0; }, 4, 4, 2, 2});
  check<float4>({"two rows", [](int l) { return l / 16 * 9; }, 4, 4, 2, 2});
  check<float4>({"a quarter", [](int l) { return l; }, 1, 1}, 8);
}

TEST_CASE("lanes that have no row left in the last trip do not move to another trip",
          "[sim][banks]") {
  check_rows<64>();
  check_rows<128>();
}

TEST_CASE("atomics on one word of shared memory are one wavefront", "[sim][banks]") {
  sim::Options o;
  o.requests = true;
  WithOptions with(o);
  Buffer<float> y("y", 32);
  sim::Recording recording;
  fa::launch(add_shared, {dim3(1), dim3(32)}, y);
  const auto kernel = recording.finish().kernels.at(0);
  CHECK(kernel.shared_requests == 3);  // the zero, the sum, its load
  CHECK(kernel.shared_wavefronts == 3);
}
