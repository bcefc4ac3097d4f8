// stmatrix: the way back from fragments to rows in shared memory.
#include "tests/device.h"
#include "tests/test.h"

namespace {

// Lane l holds 4 l + m in the low half of register m and 1000 + 4 l + m in the high half.
template <int matrices, bool trans>
__global__ void stmatrix_kernel(uint16_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const unsigned lane = threadIdx.x;
  uint32_t r[4];
  for (unsigned m = 0; m < 4; ++m) r[m] = (4 * lane + m) | (1000 + 4 * lane + m) << 16;
  for (int i = 0; i < 8; ++i) tile[lane * 8 + i] = 0xffff;
  __syncwarp();
  void* row = tile + lane * 8;
  if constexpr (matrices == 4) {
    trans ? fa::stmatrix_x4_trans(row, r) : fa::stmatrix_x4(row, r);
  } else if constexpr (matrices == 2) {
    const uint32_t r2[2] = {r[0], r[1]};
    trans ? fa::stmatrix_x2_trans(row, r2) : fa::stmatrix_x2(row, r2);
  } else {
    trans ? fa::stmatrix_x1_trans(row, r[0]) : fa::stmatrix_x1(row, r[0]);
  }
  __syncwarp();
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = tile[lane * 8 + i];
}

template <int matrices, bool trans>
void check_stmatrix() {
  CAPTURE(matrices, trans);
  std::vector<uint16_t> want(32 * 8, 0xffff);
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < matrices; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        const int row = trans ? e.col : e.row, col = trans ? e.row : e.col;
        want[(m * 8 + row) * 8 + col] = static_cast<uint16_t>(4 * lane + m + 1000 * i);
      }
    }
  }
  CHECK(test::results<uint16_t>(32 * 8, stmatrix_kernel<matrices, trans>, {1, 32}) == want);
}

}  // namespace

TEST_CASE("stmatrix writes 8x8 matrices from fragments", "[ptx][stmatrix]") {
  check_stmatrix<4, false>();
  check_stmatrix<4, true>();
  check_stmatrix<2, false>();
  check_stmatrix<2, true>();
  check_stmatrix<1, false>();
  check_stmatrix<1, true>();
}
