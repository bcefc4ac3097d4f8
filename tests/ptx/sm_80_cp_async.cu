// cp.async: sizes, zero filling and groups.
#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::Buffer;

// Thread t copies `size` bytes, of which from_bytes(t) are real, and writes back what arrived.
template <int size>
__global__ void zero_fill_kernel(const unsigned char* in, unsigned char* out) {
  __shared__ __align__(16) unsigned char tile[32 * size];
  const int t = threadIdx.x;
  const int from_bytes = t % (size + 1);
  unsigned char* to = tile + t * size;
  for (int i = 0; i < size; ++i) to[i] = 0xee;
  if constexpr (size == 16) {
    fa::cp_async_16(to, in + t * size, from_bytes);
  } else if constexpr (size == 8) {
    fa::cp_async_8(to, in + t * size, from_bytes);
  } else {
    fa::cp_async_4(to, in + t * size, from_bytes);
  }
  fa::cp_async_wait_all();
  for (int i = 0; i < size; ++i) out[t * size + i] = to[i];
}

template <int size>
void check_zero_fill() {
  CAPTURE(size);
  std::vector<unsigned char> bytes(32 * size);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(1 + i % 200);
  Buffer<unsigned char> in("in", bytes), out("out", bytes.size());
  fa::launch(zero_fill_kernel<size>, {1, 32}, in.get(), out.get());
  const auto got = out.download();
  for (int t = 0; t < 32; ++t) {
    for (int i = 0; i < size; ++i) {
      CHECK(int{got[t * size + i]} == (i < t % (size + 1) ? int{bytes[t * size + i]} : 0));
    }
  }
}

// A ring of `kStages` tiles: tile j + kStages - 1 travels while tile j is summed.
constexpr int kStages = 3, kThreads = 64;

__global__ void ring_kernel(const float4* in, float* out, int tiles) {
  __shared__ float4 tile[kStages][kThreads];
  const int t = threadIdx.x;
  auto load = [&](int j) {
    if (j < tiles) fa::cp_async_16(&tile[j % kStages][t], in + j * kThreads + t);
    fa::cp_async_commit();
  };
  for (int j = 0; j < kStages - 1; ++j) load(j);
  float sum = 0;
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait<kStages - 2>();
    __syncthreads();  // tile j is there for all, and all are done with tile j - 1
    load(j + kStages - 1);
    const float4 v = tile[j % kStages][kThreads - 1 - t];  // what another thread copied
    sum += v.x + 2 * v.y + 3 * v.z + 4 * v.w;
  }
  out[t] = sum;
}

}  // namespace

TEST_CASE("cp.async copies its source bytes and fills the rest with zeros", "[ptx][cp_async]") {
  check_zero_fill<4>();
  check_zero_fill<8>();
  check_zero_fill<16>();
}

TEST_CASE("cp.async groups feed a ring of tiles", "[ptx][cp_async]") {
  const int tiles = GENERATE(1, 2, 3, 7);
  CAPTURE(tiles);
  const auto values = test::small_integers<float>(size_t(tiles) * kThreads * 4, 5);
  Buffer<float> in("in", values), out("out", kThreads);
  fa::launch(ring_kernel, {1, kThreads}, reinterpret_cast<const float4*>(in.get()), out.get(),
             tiles);
  const auto got = out.download();
  for (int t = 0; t < kThreads; ++t) {
    float want = 0;
    for (int j = 0; j < tiles; ++j) {
      const float* v = &values[(size_t(j) * kThreads + kThreads - 1 - t) * 4];
      want += v[0] + 2 * v[1] + 3 * v[2] + 4 * v[3];
    }
    CHECK(got[t] == want);
  }
}
