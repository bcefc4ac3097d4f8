// stmatrix: the way back from fragments to rows in shared memory.
#include "tests/device.h"
#include "tests/test.h"

namespace {

// Lane l holds 4 l + m in the low half of register m and 1000 + 4 l + m in the high half.
template <bool trans>
__global__ void stmatrix_kernel(uint16_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const unsigned lane = threadIdx.x;
  uint32_t r[4];
  for (unsigned m = 0; m < 4; ++m) r[m] = (4 * lane + m) | (1000 + 4 * lane + m) << 16;
  for (int i = 0; i < 8; ++i) tile[lane * 8 + i] = 0xffff;
  __syncwarp();
  void* row = tile + lane * 8;
  trans ? fa::stmatrix_x4_trans(row, r) : fa::stmatrix_x4(row, r);
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = tile[lane * 8 + i];
}

template <bool trans>
void check_stmatrix() {
  CAPTURE(trans);
  std::vector<uint16_t> want(32 * 8, 0xffff);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        const int row = trans ? e.col : e.row, col = trans ? e.row : e.col;
        want[(m * 8 + row) * 8 + col] = static_cast<uint16_t>(4 * lane + m + 1000 * i);
      }
    }
  }
  CHECK(test::results<uint16_t>(32 * 8, stmatrix_kernel<trans>, {1, 32}) == want);
}

}  // namespace

TEST_CASE("stmatrix writes 8x8 matrices from fragments", "[ptx][stmatrix]") {
  check_stmatrix<false>();
  check_stmatrix<true>();
}
