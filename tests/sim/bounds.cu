// Addresses: out of bounds, freed, of the host, misaligned, beyond the shared memory.
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

TEST_CASE("more device memory than there is is refused", "[sim]") {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, sim::free_bytes() + (size_t{1} << 33)) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
}
