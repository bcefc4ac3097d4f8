// Addresses: out of bounds, freed, of the host, misaligned, beyond shared memory.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/dialect/ptx/ptx.h"
#include "common/sim/memory/device_memory.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;

namespace {

__global__ void store(float* x, int offset) {
  x[static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) + offset] = 1;
}
__global__ void load(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void use_dynamic(float* y, int offset) {
  __shared__ float fixed[128];
  fixed[threadIdx.x] = 0;
  fa::dynamic_shared<float>()[static_cast<int>(threadIdx.x) + offset] = 1;
  y[threadIdx.x] = fixed[threadIdx.x];
}
__global__ void overrun_bytes(float* y, int byte) {
  __shared__ unsigned char s[5];
  unsigned char* p = s;
  p[threadIdx.x] = 1;
  if (threadIdx.x == 4) p[byte] = 2;
  y[threadIdx.x] = s[threadIdx.x];
}

// Thread 0 accesses a place `byte` bytes after the start of an array, through a pointer, whose type
// does not tell the array. The arrays fill their lines of 128 bytes.
enum class Touch { load, store, atomic, copy, cp_async, ldmatrix, bulk_load, bulk_store };
constexpr int kBytes = 1024;
constexpr int kTouch = __LINE__;  // the load is 10 lines further down, the others follow it
__global__ void touch(float* y, Touch how, int byte) {
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

// A wgmma whose operand begins `byte` bytes after the start of its array.
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
__global__ void own_pointer(float* y, int n) {
  float a[8];
  float* p = a;
  for (int i = 0; i < n; ++i) p[i] = static_cast<float>(i);
  y[threadIdx.x] = a[n % 8];
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
struct [[gnu::packed]] Packed {
  char c;
  float v;
};
__global__ void load_packed(const Packed* x, float* y) { y[threadIdx.x] = x[threadIdx.x].v; }

// One element, `byte` bytes after p, or after the start of dynamic shared memory.
template <class T>
__global__ void one_element(char* p, int byte, bool stores, float* y) {
  T* at = reinterpret_cast<T*>((p ? p : fa::dynamic_shared<char>()) + byte);
  if (stores) {
    *at = T{};
  } else {
    const T v = *at;
    if (*reinterpret_cast<const char*>(&v) != 0) *y = 1;
  }
}

float* far(const float* from, int64_t bytes) {
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(from) +
                                  static_cast<uintptr_t>(bytes));
}
void* allocated(size_t bytes) {
  void* p = nullptr;
  REQUIRE(cudaMalloc(&p, bytes) == cudaSuccess);
  return p;
}

}  // namespace

TEST_CASE("stores past either end of a buffer are found", "[sim]") {
  Buffer<float> before("before", 64), x("x", 100), after("after", 64);
  FOUND(
      "store, block (1,0,0), thread (36,0,0): 4-byte store at bounds.cu: ... at byte 400 of buffer "
      "x, which has 400 bytes",
      store, {2, 64}, x, 0);
  FOUND("4 bytes before the start of buffer x", store, {1, 64}, x, -1);
  SILENT(store, {1, 100}, x, 0);
  FOUND("of an address that no cudaMalloc returned, 8589934336 bytes past the end of buffer after",
        store, {1, 1}, far(after, int64_t{1} << 33), 0);
  FOUND("of an address at which nothing is, 8589934592 bytes before the start of buffer before",
        store, {1, 1}, far(before, -(int64_t{1} << 33)), 0);
  FOUND("of an address at which nothing is", store, {1, 1}, far(x, int64_t{1} << 60), 0);
}

TEST_CASE("a buffer may be smaller than one access", "[sim]") {
  const Buffer<char> tiny("tiny", 2);
  const Buffer<float> y("y", 1);
  FOUND("4-byte load at bounds.cu: ... at byte 0 of buffer tiny, which has 2 bytes",
        one_element<float>, {1, 1}, tiny.get(), 0, false, y);
  SILENT(one_element<uint16_t>, {1, 1}, tiny.get(), 0, false, y);
}

TEST_CASE("between two buffers the nearer one is named", "[sim]") {
  constexpr int kPage = 64 * 1024;
  const Buffer<char> x("x", kPage), after("after", 64);
  const Buffer<float> y("y", 1);
  REQUIRE(after.get() - x.get() == 2 * kPage);  // with a guard page between them
  const auto found = [&](int byte, const std::string& words) {
    for (const bool stores : {false, true}) {
      FOUND(words, one_element<float>, {1, 1}, x.get(), byte, stores, y);
    }
  };
  found(kPage, "at byte 65536 of buffer x, which has 65536 bytes");
  found(kPage + kPage / 2, "at byte 98304 of buffer x");
  found(kPage + kPage / 2 + 4, "32764 bytes before the start of buffer after");
  found(2 * kPage - 4, "4 bytes before the start of buffer after");
  found(2 * kPage + 64, "at byte 64 of buffer after, which has 64 bytes");
}

TEST_CASE("an access of any size lies inside, as a whole and at a multiple of it, or is found",
          "[sim]") {
  constexpr int kSize = 100;
  const Buffer<char> before("before", 64), x("x", kSize), after("after", 64);
  const Buffer<float> y("y", 1);
  const auto check = [&](auto kernel, int size) {
    for (int step = 0; step <= 36; ++step) {
      const int byte = step < 18 ? step - 16 : kSize - 36 + step;
      for (const bool stores : {false, true}) {
        for (char* p : {x.get(), static_cast<char*>(nullptr)}) {
          const bool inside = byte >= 0 && byte + size <= kSize, whole = byte % size == 0;
          const std::string found = finding(kernel, {1, 1, kSize}, p, byte, stores, y);
          CAPTURE(size, byte, stores, p != nullptr, found);
          const std::string access = std::to_string(size) + "-byte ";
          if (inside && whole) {
            CHECK(found == "");
          } else if (inside || (p == nullptr && !whole)) {
            CHECK_THAT(found, ContainsSubstring(access + "access at ") &&
                                  ContainsSubstring("not a multiple of " + std::to_string(size)));
          } else {
            CHECK_THAT(found, ContainsSubstring(access + (stores ? "store at " : "load at ")));
            const std::string where = byte < 0
                                          ? std::to_string(-byte) + " bytes before the start of "
                                          : "at byte " + std::to_string(byte) + " of ";
            CHECK_THAT(found,
                       ContainsSubstring(where + (p ? "buffer x" : "dynamic shared memory")));
          }
        }
      }
    }
  };
  check(one_element<char>, 1);
  check(one_element<uint16_t>, 2);
  check(one_element<float>, 4);
  check(one_element<float2>, 8);
  check(one_element<float4>, 16);
}

TEST_CASE("use after cudaFree is found", "[sim]") {
  void* first = allocated(256);
  Buffer<float> y("y", 64);
  auto* x = static_cast<float*>(allocated(256));
  sim::name_buffer(x, "x");
  cudaMemset(x, 0, 256);
  SILENT(load, {1, 64}, x, y);
  FOUND("an address that cudaMalloc did not return", [&] { cudaFree(x + 1); });
  cudaFree(x);
  FOUND("of buffer x after cudaFree", load, {1, 64}, x, y);
  FOUND("freed twice", [&] { cudaFree(x); });
  float host[64] = {};
  const char* freed = "bytes of buffer x, which is freed";
  FOUND(freed, [&] { cudaMemcpy(host, x, 256, cudaMemcpyDeviceToHost); });
  FOUND(freed, [&] { cudaMemcpy(x, host, 256, cudaMemcpyHostToDevice); });
  FOUND(freed, [&] { cudaMemset(x, 0, 256); });
  cudaFree(first);  // a freed buffer on either side of y is nearer, and is not named
  FOUND("no cudaMalloc returned, 8589934336 bytes past the end of buffer y", store, {1, 1},
        far(y, int64_t{1} << 33), 0);
  FOUND("nothing is, 8589934592 bytes before the start of buffer y", store, {1, 1},
        far(y, -(int64_t{1} << 33)), 0);
}

TEST_CASE("a freed address stays unused for long, memory does not run out", "[sim]") {
  Buffer<float> y("y", 64);
  std::vector<float*> seen;
  for (int i = 0; i < 3000; ++i) {
    auto* x = static_cast<float*>(allocated(1 << 20));
    cudaMemset(x, 0, 256);
    fa::launch(load, {1, 64}, x, y);
    cudaFree(x);
    if (i < 500) {
      for (const float* old : seen) REQUIRE(x != old);
      seen.push_back(x);
    }
  }
  for (int i = 0; i < 40000; ++i) cudaFree(allocated(64));  // too many mappings for one process
}

TEST_CASE("addresses are used again when all have been, around a buffer that lives", "[sim]") {
  void* last = nullptr;
  for (int i = 0; i < 1000; ++i) {  // more than the window of addresses holds
    void* p = allocated(size_t{256} << 20);
    REQUIRE(p != last);
    cudaFree(last);
    last = p;
  }
  cudaFree(last);
}

TEST_CASE("host memory used by a kernel is found, a constant is none", "[sim]") {
  Buffer<float> y("y", 64);
  std::vector<float> host(64, 1.f);
  FOUND("of host memory; copy it to device memory first", load, {1, 64}, host.data(), y);
  FOUND("4-byte load at bounds.cu: ... of host memory", load, {1, 64}, host_table, y);
  FOUND("4-byte store at bounds.cu: ... of host memory", store, {1, 64}, host_table, 0);
  FOUND("of host memory", store, {1, 4}, const_cast<float*>(kTable), 0);
  CHECK(host_table[0] == 1.f);
  fa::launch(load_constants, {1, 64}, y);
  const auto got = y.download();
  CHECK(got[0] == 3.f);   // 1 + 2 + 0
  CHECK(got[63] == 7.f);  // 2 + 4 + 1
}

TEST_CASE("dynamic shared memory outside the launch's size is found", "[sim]") {
  Buffer<float> y("y", 128);
  FOUND("at byte 256 of dynamic shared memory, but the launch asked for 256", use_dynamic,
        {1, 128, 256}, y, 0);
  SILENT(use_dynamic, {1, 128, 512}, y, 0);
  FOUND("at byte 0 of dynamic shared memory, but the launch asked for 0", use_dynamic, {1, 32}, y,
        0);
  FOUND("4 bytes before the start of dynamic shared memory", use_dynamic, {1, 32, 128}, y, -1);
}

TEST_CASE("an access past a static shared array is found, whatever follows it", "[sim]") {
  Buffer<float> y("y", 64);
  const auto touch_both_ends = [&](Touch how, int size) {
    const std::string at = "bounds.cu:" + std::to_string(kTouch + 10 + static_cast<int>(how));
    const auto found = [&](int byte, const std::string& pattern) {
      FOUND(at + " ... " + pattern, touch, {1, 32}, y, how, byte);
    };
    found(kBytes, "past the end of the shared array array, at byte 1024 of 1024");
    found(kBytes + 2000, "past the end of the shared array array");
    found(-16, "16 bytes before the start of the shared array array");
    if (size > 16) found(kBytes - 16, "across the end of the shared array array");
    SILENT(touch, {1, 32}, y, how, 0);
    SILENT(touch, {1, 32}, y, how, kBytes - size);
  };
  for (const bool watched : {false, true}) {
    const sim::test::WithOptions with({.requests = watched, .analyse = watched});
    touch_both_ends(Touch::load, 4);
    touch_both_ends(Touch::store, 4);
    touch_both_ends(Touch::atomic, 4);
    touch_both_ends(Touch::copy, 64);
    touch_both_ends(Touch::cp_async, 16);
    touch_both_ends(Touch::ldmatrix, 16);
  }
  touch_both_ends(Touch::bulk_load, 64);
  touch_both_ends(Touch::bulk_store, 64);
  SILENT(overrun_bytes, {1, 5}, y, 4);
  FOUND("past the end of the shared array s, at byte 5 of 5", overrun_bytes, {1, 5}, y, 5);
}

TEST_CASE("an operand of wgmma past its shared array is found", "[sim]") {
  Buffer<float> y("y", 128);
  SILENT(operand, {1, 128}, y, 0);
  FOUND("past the end of the shared array tile, at byte 2048", operand, {1, 128}, y, 128);
}

TEST_CASE("an index beyond an array that a thread keeps for itself is found", "[sim]") {
  Buffer<float> y("y", 32);
  for (const int n : {9, 12, 40000}) {
    FOUND(
        "own_array, block (0,0,0), thread (0,0,0): index 8 at bounds.cu: ... is outside of its "
        "array (float [8])",
        own_array, {1, 32}, y, n);
  }
  SILENT(own_array, {1, 32}, y, 8);
  FOUND("index -1 at bounds.cu: ... (float [4][8])", own_matrix, {1, 32}, y, -1, 0);
  SILENT(own_matrix, {1, 32}, y, 0, 8);  // the next row
  CHECK(y.download()[0] == 1.f);
  FOUND(
      "own_pointer, block (0,0,0), thread (0,0,0) crashes at bounds.cu: ... gdb shows its "
      "variables there (docs/debugging.md)",
      own_pointer, {1, 32}, y, 1 << 26);  // leaves its stack
}

TEST_CASE("a misaligned vector load is found", "[sim]") {
  Buffer<float> x("x", 64), y("y", 32);
  FOUND("16-byte access at bounds.cu:", load_vector, {1, 32}, x, y, 1);
  SILENT(load_vector, {1, 32}, x, y, 4);
  SILENT(load_packed, {1, 32}, reinterpret_cast<const Packed*>(x.get()), y);  // byte by byte
}

TEST_CASE("copies outside a buffer, or in the wrong direction, are refused", "[sim]") {
  Buffer<float> x("x", 16), y("y", 16);
  std::vector<float> host(32), other(16);
  FOUND("128 bytes do not lie inside one device buffer (x, 64 bytes)",
        [&] { cudaMemcpy(x.get(), host.data(), 128, cudaMemcpyHostToDevice); });
  FOUND("128 bytes do not lie inside one device buffer (x, 64 bytes)",
        [&] { cudaMemcpy(host.data(), x.get(), 128, cudaMemcpyDeviceToHost); });
  FOUND("cudaMemset", [&] { cudaMemset(x.get() + 8, 0, 64); });
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
