// The ways from a tile in memory to the operands of mma.sync, register by register: each address
// rule that ptx/mma.h states gives the fragment that ptx/layouts.h describes.
#include <functional>

#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::Buffer;

// What the registers of lane should hold: register r, half i.
using Fragment = std::function<unsigned(int lane, int r, int i)>;

// got: [32][registers]
void check_registers(const std::vector<uint32_t>& got, int registers, const Fragment& want) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < registers; ++r) {
      for (int i = 0; i < 2; ++i) {
        CAPTURE(lane, r, i);
        CHECK((got[lane * registers + r] >> (16 * i) & 0xffff) == want(lane, r, i));
      }
    }
  }
}

enum class Operand { a, b, b_of_rows, two_b, two_b_of_rows };

// tile: [16][16], written out as the registers of each lane, [32][4]
template <Operand operand>
__global__ void load_kernel(const uint16_t* in, uint32_t* out) {
  __shared__ __align__(16) uint16_t tile[16][16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 16 * 16; i += 32) tile[i / 16][i % 16] = in[i];
  __syncwarp();  // the tile is complete
  uint32_t r[4] = {};
  uint32_t r2[2] = {};
  if constexpr (operand == Operand::a) {
    fa::ldmatrix_x4(r, &tile[lane % 16][lane / 16 * 8]);
  } else if constexpr (operand == Operand::b) {  // rows are n
    fa::ldmatrix_x2(r2, &tile[lane % 8][lane / 8 % 2 * 8]);
  } else if constexpr (operand == Operand::b_of_rows) {  // rows are k
    fa::ldmatrix_x2_trans(r2, &tile[lane % 16][0]);
  } else if constexpr (operand == Operand::two_b) {
    fa::ldmatrix_x4(r, &tile[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
  } else {
    fa::ldmatrix_x4_trans(r, &tile[lane % 16][lane / 16 * 8]);
  }
  if constexpr (operand == Operand::b || operand == Operand::b_of_rows) {
    r[0] = r2[0];
    r[1] = r2[1];
  }
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = r[i];
}

template <Operand operand>
void check_load(const Fragment& want) {
  Buffer<uint16_t> in("in", test::iota<uint16_t>(16 * 16));
  Buffer<uint32_t> out("out", 32 * 4);
  fa::launch(load_kernel<operand>, {1, 32}, in.get(), out.get());
  check_registers(out.download(), 4, want);
}

// The number that stands at [row][col] of the tile.
unsigned number(int row, int col) { return static_cast<unsigned>(row * 16 + col); }

}  // namespace

TEST_CASE("ldmatrix_x4 of a 16x16 tile is the A fragment", "[ptx][fragments]") {
  check_load<Operand::a>([](int lane, int r, int i) {
    const fa::RowCol e = fa::mma_a_element(lane, 2 * r + i);
    return number(e.row, e.col);
  });
}

TEST_CASE("ldmatrix_x2 of rows n is the B fragment", "[ptx][fragments]") {
  check_load<Operand::b>([](int lane, int r, int i) {
    if (r >= 2) return 0u;
    const fa::RowCol e = fa::mma_b_element(lane, 2 * r + i);
    return number(e.col, e.row);
  });
}

TEST_CASE("ldmatrix_x2_trans of rows k is the B fragment", "[ptx][fragments]") {
  check_load<Operand::b_of_rows>([](int lane, int r, int i) {
    if (r >= 2) return 0u;
    const fa::RowCol e = fa::mma_b_element(lane, 2 * r + i);
    return number(e.row, e.col);
  });
}

TEST_CASE("ldmatrix_x4 is two B fragments of neighbours in n", "[ptx][fragments]") {
  check_load<Operand::two_b>([](int lane, int r, int i) {
    const fa::RowCol e = fa::mma_b_element(lane, r % 2 * 2 + i);
    return number(r / 2 * 8 + e.col, e.row);
  });
  check_load<Operand::two_b_of_rows>([](int lane, int r, int i) {
    const fa::RowCol e = fa::mma_b_element(lane, r % 2 * 2 + i);
    return number(e.row, r / 2 * 8 + e.col);
  });
}

namespace {

// One warp: sQ[16][d] by cp.async, the 16-byte chunk c of row r at c ^ r % 8, then all A fragments.
template <int d>
__global__ void swizzled_tile_kernel(const uint16_t* Q,  // [16][d]
                                     uint32_t* out,      // [d / 16][32][4]
                                     int rows) {         // beyond: zeros
  __shared__ __align__(128) uint16_t sQ[16][d];
  const int lane = threadIdx.x;
  for (int i = lane; i < 16 * d / 8; i += 32) {
    const int r = i / (d / 8), c = i % (d / 8);
    const bool real = r < rows;
    fa::cp_async_16(&sQ[r][(c ^ r % 8) * 8], Q + (real ? r : 0) * d + c * 8, real ? 16 : 0);
  }
  fa::cp_async_commit();
  fa::cp_async_wait<0>();
  __syncwarp();  // all lanes' copies have arrived
  for (int k = 0; k < d / 16; ++k) {
    uint32_t a[4];
    const int r = lane % 16, c = 2 * k + lane / 16;
    fa::ldmatrix_x4(a, &sQ[r][(c ^ r % 8) * 8]);
    for (int i = 0; i < 4; ++i) out[(k * 32 + lane) * 4 + i] = a[i];
  }
}

template <int d>
void check_swizzled_tile(int rows) {
  CAPTURE(d, rows);
  Buffer<uint16_t> Q("Q", test::iota<uint16_t>(16 * d));
  Buffer<uint32_t> out("out", d / 16 * 32 * 4);
  fa::launch(swizzled_tile_kernel<d>, {1, 32}, Q.get(), out.get(), rows);
  const auto got = out.download();
  for (int k = 0; k < d / 16; ++k) {
    CAPTURE(k);
    check_registers({&got[k * 32 * 4], &got[k * 32 * 4] + 32 * 4}, 4, [&](int lane, int r, int i) {
      const fa::RowCol e = fa::mma_a_element(lane, 2 * r + i);
      return e.row < rows ? static_cast<unsigned>(e.row * d + k * 16 + e.col) : 0u;
    });
  }
}

}  // namespace

TEST_CASE("a swizzled tile gives the A fragments of the plain one", "[ptx][fragments]") {
  const int rows = GENERATE(16, 11, 1);
  check_swizzled_tile<64>(rows);
  check_swizzled_tile<128>(rows);
}

namespace {

// Copies one chunk of 16 bytes a group, waits until `pending` groups are in flight, and writes out
// the chunks of the groups that are certain: those before.
template <int pending>
__global__ void groups_kernel(const uint4* in, uint4* out) {  // [4][32]
  __shared__ uint4 tile[4][32];
  const int lane = threadIdx.x;
  for (int g = 0; g < 4; ++g) tile[g][lane] = uint4{};
  for (int g = 0; g < 4; ++g) {
    fa::cp_async_16(&tile[g][lane], in + g * 32 + lane);
    fa::cp_async_commit();
  }
  fa::cp_async_wait<pending>();
  for (int g = 0; g < 4 - pending; ++g) out[g * 32 + lane] = tile[g][lane];
  fa::cp_async_wait<0>();  // no copy outlives the block
}

template <int pending>
void check_groups() {
  CAPTURE(pending);
  const auto numbers = test::iota<unsigned>(4 * 32 * 4);
  Buffer<unsigned> in("in", numbers), out("out", numbers.size());
  fa::launch(groups_kernel<pending>, {1, 32}, reinterpret_cast<const uint4*>(in.get()),
             reinterpret_cast<uint4*>(out.get()));
  const auto got = out.download();
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i] == (i < (4 - pending) * 32 * 4 ? numbers[i] : ~0u));
  }
}

}  // namespace

TEST_CASE("cp_async_wait waits for all but the newest groups", "[ptx][fragments]") {
  check_groups<0>();
  check_groups<1>();
  check_groups<2>();
  check_groups<3>();
}
