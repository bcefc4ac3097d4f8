// Addresses: out of bounds, freed, of the host, misaligned, beyond the shared memory.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/dialect/ptx/ptx.h"
#include "common/sim/memory/free_bytes.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;

namespace {

__global__ void store(float* x, int offset) {
  x[static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + offset] = 1;
}
__global__ void load(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void store_dynamic(float* y) {
  float* s = fa::dynamic_shared<float>();
  s[threadIdx.x] = 1;
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void before_dynamic(float* y, int floats) {
  float* s = fa::dynamic_shared<float>();
  s[static_cast<int>(threadIdx.x) - floats] = 1;
  y[threadIdx.x] = s[threadIdx.x];
}

__global__ void both_kinds(float* y) {
  __shared__ float fixed[32];
  fixed[threadIdx.x] = 0;
  fa::dynamic_shared<float>()[threadIdx.x] = 1;
  y[threadIdx.x] = fixed[threadIdx.x];
}

template <int kByte>
__global__ void overrun_bytes(float* y) {
  __shared__ unsigned char s[5];
  unsigned char* p = s;
  p[threadIdx.x] = 1;
  if (threadIdx.x == 4) p[kByte] = 2;
  y[threadIdx.x] = s[threadIdx.x];
}

// Thread 0 touches a place `byte` bytes behind the begin of an array, by way of a pointer, whose
// type does not tell the array. The arrays fill their lines of 128 bytes.
enum class Touch { load, store, atomic, copy, cp_async, ldmatrix, bulk_load, bulk_store };
constexpr int kBytes = 1024;
constexpr int kTouch = __LINE__;  // the load is 11 lines further down, the others follow it
template <Touch how>
__global__ void touch(float* y, int byte) {
  __shared__ __align__(128) unsigned char before[kBytes], array[kBytes], after[kBytes];
  __shared__ uint64_t bar;
  for (int i = threadIdx.x; i < kBytes; i += blockDim.x) before[i] = array[i] = after[i] = 0;
  if (threadIdx.x == 0) fa::mbarrier_init(&bar, 1);
  __syncthreads();
  if (how != Touch::ldmatrix && threadIdx.x > 0) return;
  float* p = reinterpret_cast<float*>(array) + byte / 4 + before[0] + after[0];
  uint32_t r[4];
  if (how == Touch::load) *y = *p;
  if (how == Touch::store) *p = 1;
  if (how == Touch::atomic) atomicAdd(p, 1.f);
  if (how == Touch::copy) std::memcpy(p, y, 64);
  if (how == Touch::cp_async) fa::cp_async_16(p, y);
  if (how == Touch::ldmatrix) fa::ldmatrix_x4(r, p);
  if (how == Touch::bulk_load) fa::bulk_load(p, y, 64, &bar);
  if (how == Touch::bulk_store) fa::bulk_store(y, p, 64);
}

// A wgmma whose operand begins `byte` bytes behind the begin of its array.
__global__ void operand(float* y, int byte) {
  __shared__ __align__(1024) unsigned char tile[64 * 16 * 2], other[4096];
  for (int i = threadIdx.x; i < 2048; i += 128) tile[i] = other[i] = 0;
  __syncthreads();
  float d[32];
  const unsigned char* p = tile;
  const uint64_t a = fa::wgmma_descriptor(p + byte, fa::Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a, false);
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  y[threadIdx.x] = d[0];
}

// Arrays that a thread keeps for itself.
__global__ void own_array(float* y, int n) {
  float a[8];
  for (int i = 0; i < n; ++i) a[i] = static_cast<float>(i);
  y[threadIdx.x] = a[n - 1];
}
__global__ void own_matrix(float* y, int row, int column) {
  float m[4][8] = {};
  m[row][column] = 1;
  y[threadIdx.x] = m[1][0];
}

float host_table[64] = {1};
constexpr float kTable[4] = {1, 2, 3, 4};
constexpr const float* kRows[2] = {kTable, kTable + 2};

__global__ void load_constants(float* y) {
  const char* digits = "0123456789";
  const int i = static_cast<int>(threadIdx.x) % 2;
  y[threadIdx.x] = kTable[i] + kRows[i][1] + static_cast<float>(digits[i] - '0');
}

__global__ void load_vector(const float* x, float* y, int offset) {
  const float4 v = *reinterpret_cast<const float4*>(x + offset);
  y[threadIdx.x] = v.x;
}

__global__ void own_pointer(float* y, int n) {
  float a[8];
  float* p = a;
  for (int i = 0; i < n; ++i) p[i] = static_cast<float>(i);
  y[threadIdx.x] = a[n % 8];
}

}  // namespace

TEST_CASE("stores past either end of a buffer are found", "[sim]") {
  Buffer<float> before("before", 64), x("x", 100), after("after", 64);
  const auto text = finding([&] { fa::launch(store, {dim3(2), dim3(64)}, x, 0); });
  CHECK_THAT(
      text, ContainsSubstring("store, block (1,0,0), thread (36,0,0): 4-byte store at bounds.cu:"));
  CHECK_THAT(text, ContainsSubstring("at byte 400 of buffer x, which has 400 bytes"));
  CHECK_THAT(finding([&] {
               fa::launch(store, {dim3(1), dim3(64)}, x, -1);
             }),
             ContainsSubstring("4 bytes before the start of buffer x"));
  CHECK(finding([&] { fa::launch(store, {dim3(1), dim3(100)}, x, 0); }) == "");
}

TEST_CASE("use after cudaFree is found", "[sim]") {
  Buffer<float> y("y", 64);
  float* x = nullptr;
  REQUIRE(cudaMalloc(&x, 256) == cudaSuccess);
  sim::name_buffer(x, "x");
  cudaMemset(x, 0, 256);
  CHECK(finding([&] { fa::launch(load, {dim3(1), dim3(64)}, x, y); }) == "");
  cudaFree(x);
  CHECK_THAT(finding([&] {
               fa::launch(load, {dim3(1), dim3(64)}, x, y);
             }),
             ContainsSubstring("of buffer x after cudaFree"));
  CHECK_THAT(finding([&] { cudaFree(x); }), ContainsSubstring("freed twice"));
}

TEST_CASE("a freed address stays unused for long, memory does not run out", "[sim]") {
  Buffer<float> y("y", 64);
  std::vector<float*> seen;
  for (int i = 0; i < 3000; ++i) {
    float* x = nullptr;
    REQUIRE(cudaMalloc(&x, 1 << 20) == cudaSuccess);
    cudaMemset(x, 0, 256);
    fa::launch(load, {dim3(1), dim3(64)}, x, y);
    cudaFree(x);
    if (i < 500) {
      for (const float* old : seen) REQUIRE(x != old);
      seen.push_back(x);
    }
  }
}

TEST_CASE("a host pointer given to a kernel is found", "[sim]") {
  Buffer<float> y("y", 64);
  std::vector<float> host(64, 1.f);
  CHECK_THAT(finding([&] {
               fa::launch(load, {dim3(1), dim3(64)}, host.data(), y);
             }),
             ContainsSubstring("of host memory; copy it to device memory first"));
}

TEST_CASE("a host variable used by a kernel is found, a constant is none", "[sim]") {
  Buffer<float> y("y", 64);
  CHECK_THAT(finding([&] {
               fa::launch(load, {dim3(1), dim3(64)}, host_table, y);
             }),
             ContainsSubstring("4-byte load at bounds.cu:") && ContainsSubstring("of host memory"));
  CHECK_THAT(
      finding([&] {
        fa::launch(store, {dim3(1), dim3(64)}, host_table, 0);
      }),
      ContainsSubstring("4-byte store at bounds.cu:") && ContainsSubstring("of host memory"));
  CHECK_THAT(finding([&] {
               fa::launch(store, {dim3(1), dim3(4)}, const_cast<float*>(kTable), 0);
             }),
             ContainsSubstring("of host memory"));
  CHECK(host_table[0] == 1.f);
  fa::launch(load_constants, {dim3(1), dim3(64)}, y);
  const auto got = y.download();
  CHECK(got[0] == 3.f);   // 1 + 2 + 0
  CHECK(got[63] == 7.f);  // 2 + 4 + 1
}

TEST_CASE("dynamic shared memory beyond the launch's size is found", "[sim]") {
  Buffer<float> y("y", 128);
  CHECK_THAT(
      finding([&] {
        fa::launch(store_dynamic, {dim3(1), dim3(128), 256}, y);
      }),
      ContainsSubstring("at byte 256 of dynamic shared memory, but the launch asked for 256"));
  CHECK(finding([&] { fa::launch(store_dynamic, {dim3(1), dim3(128), 512}, y); }) == "");
}

TEST_CASE("dynamic shared memory that no launch asked for is told so", "[sim]") {
  Buffer<float> y("y", 32);
  CHECK_THAT(finding([&] {
               fa::launch(both_kinds, {dim3(1), dim3(32)}, y);
             }),
             ContainsSubstring("at byte 0 of dynamic shared memory, but the launch asked for 0"));
}

TEST_CASE("in front of dynamic shared memory is nothing", "[sim]") {
  Buffer<float> y("y", 32);
  const fa::LaunchConfig config{dim3(1), dim3(32), 128};
  CHECK_THAT(finding([&] { fa::launch(before_dynamic, config, y, 1); }),
             ContainsSubstring("4 bytes before the start of dynamic shared memory"));
  CHECK(finding([&] { fa::launch(before_dynamic, config, y, 0); }) == "");
}

template <Touch how>
static void touch_both_ends(float* y, int size) {
  const auto found = [&](int byte) {
    const std::string text = finding([&] { fa::launch(touch<how>, {dim3(1), dim3(32)}, y, byte); });
    const std::string line = std::to_string(kTouch + 11 + static_cast<int>(how));
    return text.find("bounds.cu:" + line) == text.npos ? "not at line " + line + ": " + text : text;
  };
  const std::string array = " the shared array array";
  CHECK_THAT(found(kBytes),
             ContainsSubstring("past the end of" + array + ", at byte 1024 of 1024"));
  CHECK_THAT(found(kBytes + 2000), ContainsSubstring("past the end of" + array));
  CHECK_THAT(found(-16), ContainsSubstring("16 bytes before the start of" + array));
  if (size > 16) CHECK_THAT(found(kBytes - 16), ContainsSubstring("across the end of" + array));
  for (const int byte : {0, kBytes - size}) {
    CHECK(finding([&] { fa::launch(touch<how>, {dim3(1), dim3(32)}, y, byte); }) == "");
  }
}

TEST_CASE("an access past a static shared array is found, whatever lies behind it", "[sim]") {
  Buffer<float> y("y", 64);
  for (const bool watched : {false, true}) {
    sim::Options o;
    o.requests = o.races = watched;
    sim::test::WithOptions with(o);
    touch_both_ends<Touch::load>(y, 4);
    touch_both_ends<Touch::store>(y, 4);
    touch_both_ends<Touch::atomic>(y, 4);
    touch_both_ends<Touch::copy>(y, 64);
    touch_both_ends<Touch::cp_async>(y, 16);
    touch_both_ends<Touch::ldmatrix>(y, 16);
  }
  touch_both_ends<Touch::bulk_load>(y, 64);
  touch_both_ends<Touch::bulk_store>(y, 64);
  const fa::LaunchConfig five{dim3(1), dim3(5)};
  CHECK(finding([&] { fa::launch(overrun_bytes<4>, five, y); }) == "");
  CHECK_THAT(finding([&] { fa::launch(overrun_bytes<5>, five, y); }),
             ContainsSubstring("past the end of the shared array s, at byte 5 of 5"));
}

TEST_CASE("an operand of wgmma past its shared array is found", "[sim]") {
  Buffer<float> y("y", 128);
  const auto found = [&](int byte) {
    return finding([&] { fa::launch(operand, {dim3(1), dim3(128)}, y, byte); });
  };
  CHECK(found(0) == "");
  CHECK_THAT(found(128), ContainsSubstring("past the end of the shared array tile, at byte 2048"));
}

TEST_CASE("an index beyond an array that a thread keeps for itself is found", "[sim]") {
  Buffer<float> y("y", 32);
  const fa::LaunchConfig config{dim3(1), dim3(32)};
  for (const int n : {9, 12, 40000}) {
    CHECK_THAT(
        finding([&] { fa::launch(own_array, config, y, n); }),
        ContainsSubstring("own_array, block (0,0,0), thread (0,0,0): index 8 at bounds.cu:") &&
            ContainsSubstring("(float [8])"));
  }
  CHECK(finding([&] { fa::launch(own_array, config, y, 8); }) == "");
  CHECK_THAT(finding([&] { fa::launch(own_matrix, config, y, -1, 0); }),
             ContainsSubstring("index -1 at bounds.cu:") && ContainsSubstring("(float [4][8])"));
  CHECK(finding([&] { fa::launch(own_matrix, config, y, 0, 8); }) == "");  // the next row
  CHECK(y.download()[0] == 1.f);
}

TEST_CASE("a thread that leaves its stack is told with its line", "[sim]") {
  Buffer<float> y("y", 32);
  CHECK_THAT(
      finding([&] {
        fa::launch(own_pointer, {dim3(1), dim3(32)}, y, 1 << 26);
      }),
      ContainsSubstring("own_pointer, block (0,0,0), thread (0,0,0) crashes at bounds.cu:") &&
          ContainsSubstring("has it run past the end of a local array?"));
}

TEST_CASE("an address far from every buffer is no host memory", "[sim]") {
  Buffer<float> x("x", 100);
  const auto found = [&](int64_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(x.get()) + static_cast<uintptr_t>(bytes);
    return finding([&] {
      fa::launch(store, {dim3(1), dim3(1)}, reinterpret_cast<float*>(address), 0);
    });
  };
  CHECK_THAT(found(int64_t{1} << 33),
             ContainsSubstring("of an address that no cudaMalloc returned, 8589934192 bytes behind "
                               "the end of buffer x; has an index overflowed?"));
  CHECK_THAT(found(-(int64_t{1} << 33)),
             ContainsSubstring("of an address at which nothing is, 8589934592 bytes before the "
                               "start of buffer x; has an index overflowed?"));
  CHECK_THAT(found(int64_t{1} << 60), ContainsSubstring("of an address at which nothing is"));
}

TEST_CASE("a misaligned vector load is found", "[sim]") {
  Buffer<float> x("x", 64), y("y", 32);
  CHECK_THAT(finding([&] {
               fa::launch(load_vector, {dim3(1), dim3(32)}, x, y, 1);
             }),
             ContainsSubstring("16-byte access at bounds.cu:"));
  CHECK(finding([&] { fa::launch(load_vector, {dim3(1), dim3(32)}, x, y, 4); }) == "");
}

TEST_CASE("copies outside a buffer are refused", "[sim]") {
  Buffer<float> x("x", 16);
  std::vector<float> host(32);
  CHECK_THAT(finding([&] { cudaMemcpy(x.get(), host.data(), 128, cudaMemcpyHostToDevice); }),
             ContainsSubstring("128 bytes do not lie inside one device buffer (x, 64 bytes)"));
  CHECK_THAT(finding([&] { cudaMemset(x.get() + 8, 0, 64); }), ContainsSubstring("cudaMemset"));
}

TEST_CASE("a copy in the wrong direction is refused", "[sim]") {
  Buffer<float> x("x", 16), y("y", 16);
  std::vector<float> host(16), other(16);
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind) {
    return finding([&] { cudaMemcpy(to, from, 64, kind); });
  };
  CHECK(copy(host.data(), x, cudaMemcpyHostToDevice) ==
        "cudaMemcpy with cudaMemcpyHostToDevice: the destination is host memory");
  CHECK(copy(x, y, cudaMemcpyHostToDevice) ==
        "cudaMemcpy with cudaMemcpyHostToDevice: the source is device memory");
  CHECK(copy(x, host.data(), cudaMemcpyDeviceToHost) ==
        "cudaMemcpy with cudaMemcpyDeviceToHost: the destination is device memory");
  CHECK(copy(x, host.data(), cudaMemcpyDeviceToDevice) ==
        "cudaMemcpy with cudaMemcpyDeviceToDevice: the source is host memory");
  CHECK(copy(x, host.data(), cudaMemcpyHostToHost) ==
        "cudaMemcpy with cudaMemcpyHostToHost: the destination is device memory");
  CHECK(copy(x, host.data(), cudaMemcpyHostToDevice) == "");
  CHECK(copy(host.data(), x, cudaMemcpyDeviceToHost) == "");
  CHECK(copy(y, x, cudaMemcpyDeviceToDevice) == "");
  CHECK(copy(host.data(), other.data(), cudaMemcpyHostToHost) == "");
}

TEST_CASE("addresses are used again when all have been, around a buffer that lives", "[sim]") {
  constexpr size_t kBytes = size_t{256} << 20;
  void* last = nullptr;
  for (int i = 0; i < 1000; ++i) {  // more than the window of addresses holds
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, kBytes) == cudaSuccess);
    REQUIRE(p != last);
    cudaFree(last);
    last = p;
  }
  cudaFree(last);
}

TEST_CASE("the page cache of a control group counts as free", "[sim]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("cgroup" + std::to_string(getpid()));
  fs::create_directories(folder / "memory");
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  const auto left = [&] { return sim::free_in_control_group(folder); };
  CHECK(left() == SIZE_MAX);
  write("memory.max", "max\n");
  write("memory.current", "950\n");
  write("memory.stat", "anon 300\ninactive_file 400\nactive_file 200\nslab 50\n");
  CHECK(left() == SIZE_MAX);
  write("memory.max", "1000\n");
  CHECK(left() == 650);
  write("memory/memory.limit_in_bytes", "800\n");
  write("memory/memory.usage_in_bytes", "790\n");
  write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 60\n");
  CHECK(left() == 100);
  write("memory/memory.usage_in_bytes", "900\n");
  CHECK(left() == 0);
  fs::remove_all(folder);
}

TEST_CASE("more device memory than there is is refused", "[sim]") {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, sim::free_bytes() + (size_t{1} << 33)) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
}

TEST_CASE("as many buffers as one likes, one after the other", "[sim]") {
  for (int i = 0; i < 40000; ++i) {  // each of them a mapping would be too many for one process
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, 64) == cudaSuccess);
    cudaFree(p);
  }
}
