// Every load and store of the source is counted once, at its width: the meaning of "counted". Each
// probe is one warp; the numbers are bytes and warp requests of the source.
#include "tests/sim/diagnosis.h"

using bf16 = __nv_bfloat16;
using sim::test::Buffer;
using sim::test::counted;
using sim::test::WithOptions;

namespace {

struct Expected {
  uint64_t load_bytes, load_requests, store_bytes, store_requests, shared_read = 0,
                                                                   shared_write = 0;
};

template <class... P, class... A>
void probe(const char* name, const Expected& want, void (*kernel)(P...), A&&... args) {
  INFO(name);
  const WithOptions with({.requests = true});
  const fa::Counts got = counted(kernel, {1, 32}, static_cast<A&&>(args)...);
  CHECK(got.requested->read == want.load_bytes);
  CHECK(got.requests->load == want.load_requests);
  CHECK(got.requested->write == want.store_bytes);
  CHECK(got.requests->store == want.store_requests);
  CHECK(got.kernels.at(0).shared_read == want.shared_read);
  CHECK(got.kernels.at(0).shared_write == want.shared_write);
}

__global__ void copy_one(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void read_modify_write(float* y) { y[threadIdx.x] += 1.0f; }
__global__ void twice(float* y) {
  y[threadIdx.x] += 1.0f;
  y[threadIdx.x] *= 2.0f;
}
__global__ void dot(const float* x, float* y) {
  float s = 0;
  for (int k = 0; k < 8; ++k) s += x[k] * x[8 + k];
  y[threadIdx.x] = s;
}
__global__ void accumulate_in_memory(const float* x, float* y) {
  for (int i = 0; i < 8; ++i) y[threadIdx.x] += x[i * 32 + threadIdx.x];
}
__global__ void accumulate_restrict(const float* __restrict__ x, float* __restrict__ y) {
  for (int i = 0; i < 8; ++i) y[threadIdx.x] += x[i * 32 + threadIdx.x];
}
__global__ void vector_copy(const float* x, float* y) {
  reinterpret_cast<float4*>(y)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
}
__global__ void vector_sum(const float* x, float* y) {
  const float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void vector_half_used(const float* x, float* y) {  // still one LDG.128
  const float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
  y[threadIdx.x] = v.x + v.y;
}
__global__ void vector_through_shared(const float* x, float* y) {
  __shared__ float4 t[32];
  t[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
  __syncthreads();
  float4 v = t[31 - threadIdx.x];
  v.x += 1;
  reinterpret_cast<float4*>(y)[threadIdx.x] = v;
}
__device__ inline float dot4(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__global__ void by_value_argument(const float4* a, float* y) {
  y[threadIdx.x] = dot4(a[threadIdx.x], a[32 + threadIdx.x]);
}
__device__ inline float4 doubled(float4 a) {
  return make_float4(2 * a.x, 2 * a.y, 2 * a.z, 2 * a.w);
}
__global__ void by_value_result(const float4* a, float4* y) {
  y[threadIdx.x] = doubled(a[threadIdx.x]);
}
__global__ void maximum(const float* x, float* y) {
  y[threadIdx.x] = max(x[threadIdx.x], x[32 + threadIdx.x]);
}
struct View {
  const float* p;
  int stride;
  __device__ float at(int i, int j) const { return p[i * stride + j]; }
};
__global__ void through_view(View t, float* y) {
  float s = 0;
  for (int i = 0; i < 4; ++i) s += t.at(i, threadIdx.x);
  y[threadIdx.x] = s;
}
__device__ inline void for_each(int n, auto f) {
  for (int i = 0; i < n; ++i) f(i);
}
__global__ void through_lambda(const float* x, float* y) {
  float s = 0;
  for_each(4, [&](int i) { s += x[i * 32 + threadIdx.x]; });
  y[threadIdx.x] = s;
}
__global__ void register_tile(const float* x,
                              float* y) {  // local arrays are registers: not counted
  float r[4][2];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) r[i][j] = x[(i * 2 + j) * 32 + threadIdx.x];
  }
  float s = 0;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) s += r[i][j] * r[3 - i][1 - j];
  }
  y[threadIdx.x] = s;
}
__global__ void zero_loop(float* y) {  // must not become one memset
  for (int k = 0; k < 8; ++k) y[threadIdx.x * 8 + k] = 0;
}
__global__ void copy_loop(const float* __restrict__ x, float* __restrict__ y) {  // nor one memcpy
  for (int k = 0; k < 8; ++k) y[threadIdx.x * 8 + k] = x[threadIdx.x * 8 + k];
}
__global__ void invariant_load(const float* __restrict__ x, float* __restrict__ y) {
  for (int k = 0; k < 8; ++k) y[k * 32 + threadIdx.x] = x[0] + k;
}
__global__ void dead_store(const float* x, float* y) {
  y[threadIdx.x] = 1.0f;
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void store_then_load(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];
  y[32 + threadIdx.x] = y[threadIdx.x];
}
__global__ void conditional(const float* x, float* y) {
  float v = 0;
  if (threadIdx.x < 8) v = x[threadIdx.x];
  y[threadIdx.x] = v;
}
__global__ void small_memcpy(const float* x, float* y) {
  std::memcpy(y + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
}
__global__ void long_memcpy(const float* x, float* y) {
  memcpy(y + 8 * threadIdx.x, x + 8 * threadIdx.x, 32);
}
__global__ void memcpy_of_any_length(const float* x, float* y, int bytes) {
  std::memcpy(y + 8 * threadIdx.x, x + 8 * threadIdx.x, bytes);
}
__global__ void memmove_and_memset(const float* x, float* y) {
  std::memmove(y + 8 * threadIdx.x, x + 8 * threadIdx.x, 8);
  memset(y + 8 * threadIdx.x + 2, 0, 24);
}
__global__ void memcpy_to_shared(const float* x, float* y) {
  __shared__ float s[32 * 8];
  memcpy(s + 8 * threadIdx.x, x + 8 * threadIdx.x, 32);
  memcpy(y + 8 * threadIdx.x, s + 8 * threadIdx.x, 32);
}
__global__ void bf16_scale(const bf16* x, bf16* y) {
  y[threadIdx.x] = __float2bfloat16(2.0f * __bfloat162float(x[threadIdx.x]));
}

}  // namespace

TEST_CASE("the hooks count what the source asks for", "[sim][probe]") {
  Buffer<float> x("x", 1024), y("y", 1024);
  Buffer<bf16> h("h", 32), g("g", 32);
  auto* x4 = reinterpret_cast<float4*>(x.get());
  auto* y4 = reinterpret_cast<float4*>(y.get());
  probe("copy_one", {128, 1, 128, 1}, copy_one, x, y);
  probe("read_modify_write", {128, 1, 128, 1}, read_modify_write, y);
  probe("twice", {256, 2, 256, 2}, twice, y);
  probe("dot", {2048, 16, 128, 1}, dot, x, y);
  probe("accumulate_in_memory", {2048, 16, 1024, 8}, accumulate_in_memory, x, y);
  probe("accumulate_restrict", {2048, 16, 1024, 8}, accumulate_restrict, x, y);
  probe("vector_copy", {512, 1, 512, 1}, vector_copy, x, y);
  probe("vector_sum", {512, 1, 128, 1}, vector_sum, x, y);
  probe("vector_half_used", {512, 1, 128, 1}, vector_half_used, x, y);
  probe("vector_through_shared", {512, 1, 512, 1, 512, 512}, vector_through_shared, x, y);
  probe("by_value_argument", {1024, 2, 128, 1}, by_value_argument, x4, y);
  probe("by_value_result", {512, 1, 512, 1}, by_value_result, x4, y4);
  probe("maximum", {256, 2, 128, 1}, maximum, x, y);
  probe("through_view", {512, 4, 128, 1}, through_view, View{x, 32}, y);
  probe("through_lambda", {512, 4, 128, 1}, through_lambda, x, y);
  probe("register_tile", {1024, 8, 128, 1}, register_tile, x, y);
  probe("zero_loop", {0, 0, 1024, 8}, zero_loop, y);
  probe("copy_loop", {1024, 8, 1024, 8}, copy_loop, x, y);
  probe("invariant_load", {1024, 8, 1024, 8}, invariant_load, x, y);
  probe("dead_store", {128, 1, 256, 2}, dead_store, x, y);
  probe("store_then_load", {256, 2, 256, 2}, store_then_load, x, y);
  probe("conditional", {32, 1, 128, 1}, conditional, x, y);
  probe("small_memcpy", {512, 1, 512, 1}, small_memcpy, x, y);
  probe("bf16_scale", {64, 1, 64, 1}, bf16_scale, h, g);
}

TEST_CASE("memcpy, memmove and memset are counted and checked", "[sim][probe]") {
  Buffer<float> x("x", std::vector<float>(256, 1.f)), y("y", 256);
  probe("long_memcpy", {1024, 2, 1024, 2}, long_memcpy, x, y);
  CHECK(y.download() == std::vector<float>(256, 1.f));
  const auto bytes = [](const fa::Counts& c) {
    return std::pair(c.requested->read, c.requested->write);
  };
  CHECK(bytes(counted(memcpy_of_any_length, {1, 32}, x, y, 12)) == std::pair(384ul, 384ul));
  CHECK(bytes(counted(memmove_and_memset, {1, 32}, x, y)) == std::pair(256ul, 1024ul));
  CHECK(y.download()[10] == 0.f);
  probe("memcpy_to_shared", {1024, 2, 1024, 2, 1024, 1024}, memcpy_to_shared, x, y);
  SILENT(memcpy_of_any_length, {1, 1}, nullptr, nullptr, 0);
  FOUND("at byte 992 of buffer x, which has 1024 bytes", memcpy_of_any_length, {1, 32}, x, y, 36);
}

TEST_CASE("memsets and copies inside a recording are counted", "[sim][probe]") {
  Buffer<float> x("x", 64), y("y", 64);
  auto counts = counted([&] {
    cudaMemset(x.get(), 0, 256);
    cudaMemcpy(y.get(), x.get(), 128, cudaMemcpyDeviceToDevice);
  });
  CHECK(counts.buffers["x"].bytes == fa::Bytes{128, 256, 0});
  CHECK(counts.buffers["y"].bytes == fa::Bytes{0, 128, 0});
  CHECK(counts.requested == fa::Bytes{128, 384, 0});
  REQUIRE(counts.kernels.size() == 3);
  const auto check = [&](size_t i, const char* name, const char* buffer, const fa::Bytes& bytes) {
    CAPTURE(i);
    CHECK(counts.kernels[i].name == name);
    CHECK(counts.kernels[i].buffer == buffer);
    CHECK(counts.kernels[i].bytes == bytes);
  };
  check(0, "cudaMemset", "x", {0, 256, 0});
  check(1, "cudaMemcpy", "x", {128, 0, 0});
  check(2, "cudaMemcpy", "y", {0, 128, 0});
}
