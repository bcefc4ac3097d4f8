// Addresses: out of bounds, freed, of the host, misaligned, beyond the shared memory.
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
__global__ void overrun_static(float* y, int n) {
  __shared__ float s[60];  // ends in a gap: arrays start at multiples of 128 bytes
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}

template <int kByte>
__global__ void overrun_bytes(float* y) {
  __shared__ unsigned char s[5];
  s[threadIdx.x] = 1;
  if (threadIdx.x == 4) s[kByte] = 2;
  y[threadIdx.x] = s[threadIdx.x];
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

TEST_CASE("an overrun of a static shared array into the gap behind it is found", "[sim]") {
  sim::Options o;
  o.requests = true;
  sim::test::WithOptions with(o);
  Buffer<float> y("y", 32);
  CHECK_THAT(finding([&] {
               fa::launch(overrun_static, {dim3(1), dim3(32)}, y, 62);
             }),
             ContainsSubstring("runs past the end of a shared array"));
  CHECK(finding([&] { fa::launch(overrun_static, {dim3(1), dim3(32)}, y, 60); }) == "");
  const fa::LaunchConfig five{dim3(1), dim3(5)};
  CHECK(finding([&] { fa::launch(overrun_bytes<4>, five, y); }) == "");
  CHECK_THAT(finding([&] { fa::launch(overrun_bytes<5>, five, y); }),
             ContainsSubstring("runs past the end of a shared array"));
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
