// From registers to memory: stmatrix and red_add_v4.
#include "common/dialect/ptx/reduce.h"
#include "tests/device.h"
#include "tests/test.h"

namespace {

// Lane l holds 4 l + m in the low half of register m and 1000 + 4 l + m in the high half.
__global__ void stmatrix_kernel(uint16_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const unsigned lane = threadIdx.x;
  uint32_t r[4];
  for (unsigned m = 0; m < 4; ++m) r[m] = (4 * lane + m) | (1000 + 4 * lane + m) << 16;
  fa::stmatrix_x4(tile + lane * 8, r);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = tile[lane * 8 + i];
}

__global__ void add_kernel(float* sums) {  // each block adds the same four numbers per lane
  const float x = static_cast<float>(threadIdx.x);
  fa::red_add_v4(sums + 4 * threadIdx.x, x, -x, 0.5f, 1.f);
}

}  // namespace

TEST_CASE("stmatrix writes 8x8 matrices from fragments", "[ptx][stmatrix]") {
  std::vector<uint16_t> want(32 * 8);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        want[(m * 8 + e.row) * 8 + e.col] = static_cast<uint16_t>(4 * lane + m + 1000 * i);
      }
    }
  }
  CHECK(test::results<uint16_t>(32 * 8, stmatrix_kernel, {1, 32}) == want);
}

TEST_CASE("red_add_v4 adds four floats side by side, of all blocks", "[ptx][reduce]") {
  constexpr int kBlocks = 5, kLanes = 64;
  const test::Buffer<float> sums("sums", std::vector<float>(4 * kLanes, 2.f));
  fa::launch(add_kernel, {kBlocks, kLanes}, sums);
  CHECK(sums.download() == test::each<float>(4 * kLanes, [](int i) {
          const float added[] = {1.f * (i / 4), -1.f * (i / 4), 0.5f, 1.f};
          return 2 + kBlocks * added[i % 4];
        }));
}
