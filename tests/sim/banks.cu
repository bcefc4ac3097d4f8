// Bank conflicts: the wavefronts in which shared memory answers a warp.
#include <map>
#include <sstream>

#include "common/dialect/ptx/mma.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::counted;
using sim::test::WithOptions;

namespace {

constexpr size_t kShared = 64 * 1024;
const sim::Options kRequests{.workers = 1, .requests = true};

template <class T>
__global__ void load_shared(const int* at, uint32_t lanes, T* y) {
  const T* s = fa::dynamic_shared<T>();
  if (lanes >> threadIdx.x & 1) y[threadIdx.x] = s[at[threadIdx.x]];
}
template <class T>
__global__ void store_shared(const int* at, uint32_t lanes, T*) {
  T* s = fa::dynamic_shared<T>();
  if (lanes >> threadIdx.x & 1) s[at[threadIdx.x]] = T{};
}
__global__ void load_matrices(const int* at) {
  fa::bf16* s = fa::dynamic_shared<fa::bf16>();
  uint32_t a[4];
  fa::ldmatrix_x4(a, s + 8 * at[threadIdx.x]);
}
__global__ void store_matrices(const int* at) {
  fa::bf16* s = fa::dynamic_shared<fa::bf16>();
  uint32_t a[4] = {};
  fa::stmatrix_x4(s + 8 * at[threadIdx.x], a);
}
__global__ void add_shared(float* y) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1.f);
  __syncthreads();
  y[threadIdx.x] = sum;
}
__global__ void shuffles(float* y) {
  const float x = __shfl_xor_sync(fa::kFullMask, 1.f, 1);
  const double z = __shfl_sync(fa::kFullMask, 2., 0);
  if (__any_sync(fa::kFullMask, x > 0)) y[threadIdx.x] = x + static_cast<float>(z);
}

// A warp reads `rows` rows of d 2-byte elements, 16 bytes per lane; d / 8 lanes read a row
// together. The chunks of a row are swizzled, so each trip is free of conflicts, including the last
// one, in which lanes after the last row are idle.
__global__ void read_rows(float4* y, int rows, int d) {
  float4* s = fa::dynamic_shared<float4>();
  const int chunks = d / 8, trip = 32 / chunks;
  for (int step = 0; step < 32; step += trip) {
    const int r = step + threadIdx.x / chunks, x = threadIdx.x % chunks;
    if (r >= rows) continue;
    y[r * chunks + x] = s[r * chunks + (x ^ r % 8)];
  }
}

/// The accesses to `at`, in units of T, of a warp whose `lanes` are active.
template <class T>
fa::KernelCount count(bool store, const std::vector<int>& at, uint32_t lanes) {
  Buffer<int> index("index", at);
  Buffer<T> y("y", 32);
  const auto counts =
      counted(store ? store_shared<T> : load_shared<T>, {1, 32, kShared}, index, lanes, y);
  return counts.kernels.at(0);
}

struct Case {
  const char* name;
  int (*index)(int);
  unsigned wavefronts, ideal;
  unsigned loads = wavefronts, loads_ideal = ideal;  ///< neighbours with one address share theirs
  uint32_t lanes = ~0u;
};
template <class T>
void check(const std::vector<Case>& cases) {
  const WithOptions with(kRequests);
  for (const Case& c : cases) {
    CAPTURE(c.name, sizeof(T));
    std::vector<int> at;
    for (int l = 0; l < 32; ++l) at.push_back(c.index(l));
    for (const bool store : {false, true}) {
      const fa::KernelCount k = count<T>(store, at, c.lanes);
      CHECK(k.shared_requests == 1);
      CHECK(k.shared_wavefronts == (store ? c.wavefronts : c.loads));
      CHECK(k.shared_ideal == (store ? c.ideal : c.loads_ideal));
    }
  }
}

}  // namespace

// The rule itself is compared with an H200's counters below.
TEST_CASE("the least number of wavefronts: what the bytes of the active lanes take",
          "[sim][banks]") {
  check<float>({{"row, shifted", [](int l) { return l + 7; }, 1, 1},
                {"two words of one bank", [](int l) { return l % 2 * 32; }, 2, 1},
                {"column of 32", [](int l) { return 32 * l; }, 32, 1},
                {"column, swizzled", [](int l) { return 32 * l + (5 ^ l); }, 1, 1}});
  check<uint16_t>({{"row", [](int l) { return l; }, 1, 1},
                   {"column of 64", [](int l) { return 64 * l; }, 32, 1}});
  check<float2>({{"broadcast", [](int) { return 1; }, 2, 2, 1, 1},
                 {"column of 16", [](int l) { return 16 * l; }, 32, 2},
                 {"half a warp", [](int l) { return l; }, 1, 1, 1, 1, 0xffff}});
  check<float4>({{"rows of 128 bytes", [](int l) { return 8 * l; }, 32, 4},
                 {"rows of 128 bytes, swizzled", [](int l) { return 8 * l + (l & 7); }, 4, 4},
                 {"broadcast", [](int) { return 0; }, 4, 4, 2, 2},
                 {"a quarter", [](int l) { return l; }, 1, 1, 1, 1, 0xff}});
}

TEST_CASE("lanes that have no row left in the last trip do not move to another trip",
          "[sim][banks]") {
  const WithOptions with(kRequests);
  Buffer<float4> y("y", 32 * 16);
  for (const int d : {64, 128}) {
    for (int rows = 1; rows <= 32; ++rows) {
      CAPTURE(d, rows);
      const auto counts = counted(read_rows, {1, 32, kShared}, y, rows, d);
      const fa::KernelCount& k = counts.kernels.at(0);
      const unsigned quarters = (rows * (d / 8) + 7) / 8;  // of a warp, 8 lanes each
      CHECK(k.shared_requests == (quarters + 3) / 4);
      CHECK(k.shared_wavefronts == quarters);
      CHECK(k.shared_ideal == quarters);
    }
  }
}

TEST_CASE("atomics on one word are one wavefront; shuffles of 8 bytes are two, votes none",
          "[sim][banks]") {
  const WithOptions with(kRequests);
  Buffer<float> y("y", 64);
  const auto counts = counted(add_shared, {1, 32}, y);
  CHECK(counts.shared_wavefronts == fa::Ops{1, 1, 0});  // the load, the zero
  const auto& atomics = counts.kernels.at(0);
  CHECK(atomics.shared_requests == 3);  // the zero, the sum, its load
  CHECK(atomics.shared_wavefronts == 3);
  CHECK(counted(shuffles, {1, 64}, y).kernels.at(0).shuffles == 2 * (1 + 2));
}

// --- an H200's counters --------------------------------------------------------------------------

static constexpr char kMeasured[] =
#include "tests/sim/wavefronts_h200.inc"
    ;

TEST_CASE("each access takes the wavefronts that an H200 takes", "[sim][banks]") {
  const WithOptions with(kRequests);
  const std::map<unsigned, decltype(&count<float>)> by_width = {
      {2, count<uint16_t>}, {4, count<float>}, {8, count<float2>}, {16, count<float4>}};
  std::map<std::string, int> seen;
  std::istringstream text(kMeasured);
  std::string access;
  unsigned bytes, wavefronts;
  uint32_t lanes;
  std::vector<int> at(32);
  while (text >> access >> bytes >> std::hex >> lanes >> std::dec >> wavefronts) {
    for (int& lane : at) text >> lane;
    CAPTURE(access, bytes, lanes, at);
    const bool matrix = access.ends_with("matrix"), store = access.starts_with("st");
    Buffer<int> index("index", at);
    const fa::KernelCount k =
        matrix ? counted(store ? store_matrices : load_matrices, {1, 32, kShared}, index).kernels[0]
               : by_width.at(bytes)(store, at, lanes);
    CHECK(k.load_wavefronts == (store ? 0 : wavefronts));
    CHECK(k.store_wavefronts == (store ? wavefronts : 0));
    ++seen[access];
  }
  CHECK(seen ==
        std::map<std::string, int>{{"load", 39}, {"store", 27}, {"ldmatrix", 7}, {"stmatrix", 6}});
}
