// cp.async: sizes, zero filling and groups.
#include "tests/device.h"
#include "tests/test.h"

namespace {

// Thread t copies `size` bytes, the first t % (size + 1) of them real, and writes back the result.
template <int size>
__global__ void zero_fill_kernel(const unsigned char* in, unsigned char* out) {
  __shared__ __align__(16) unsigned char tile[32 * size];
  const int t = threadIdx.x, from_bytes = t % (size + 1);
  unsigned char* to = tile + t * size;
  for (int i = 0; i < size; ++i) to[i] = 0xee;
  if constexpr (size == 16) fa::cp_async_16(to, in + t * size, from_bytes);
  if constexpr (size == 4) fa::cp_async_4(to, in + t * size, from_bytes);
  fa::cp_async_wait_all();
  for (int i = 0; i < size; ++i) out[t * size + i] = to[i];
}

template <int size>
void check_zero_fill() {
  CAPTURE(size);
  const auto bytes = test::each<unsigned char>(32 * size, [](int i) { return 1 + i % 200; });
  const auto want = test::each<unsigned char>(
      32 * size, [&](int i) { return i % size < i / size % (size + 1) ? bytes[i] : 0; });
  CHECK(test::results<unsigned char>(32 * size, zero_fill_kernel<size>, {1, 32}, bytes) == want);
}

// One 16-byte chunk per group; with `pending` groups in flight, writes out the complete ones.
template <int pending>
__global__ void groups_kernel(const unsigned* in, unsigned* out) {  // [4][32][4]
  __shared__ uint4 tile[4][32];
  const int lane = threadIdx.x;
  for (int g = 0; g < 4; ++g) tile[g][lane] = uint4{};
  for (int g = 0; g < 4; ++g) {
    fa::cp_async_16(&tile[g][lane], in + (g * 32 + lane) * 4);
    fa::cp_async_commit();
  }
  fa::cp_async_wait<pending>();
  for (int g = 0; g < 4 - pending; ++g) {
    reinterpret_cast<uint4*>(out)[g * 32 + lane] = tile[g][lane];
  }
  fa::cp_async_wait<0>();  // no copy outlives the block
}

template <int pending>
void check_groups() {
  CAPTURE(pending);
  const auto numbers = test::iota<unsigned>(4 * 32 * 4);
  const auto want = test::each<unsigned>(numbers.size(),
                                         [](int i) { return i < (4 - pending) * 32 * 4 ? i : -1; });
  CHECK(test::results<unsigned>(numbers.size(), groups_kernel<pending>, {1, 32}, numbers) == want);
}

}  // namespace

TEST_CASE("cp.async copies its source bytes and fills the rest with zeros", "[ptx][cp_async]") {
  check_zero_fill<4>();
  check_zero_fill<16>();
}

TEST_CASE("cp_async_wait waits for all but the newest groups", "[ptx][cp_async]") {
  check_groups<0>();
  check_groups<1>();
  check_groups<2>();
  check_groups<3>();
}
