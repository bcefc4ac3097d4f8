// ldmatrix, movmatrix, packing and mma.sync against plain code; the fragments are placed by
// common/dialect/ptx/layouts.h.
#include <bit>
#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::bf16;
using test::Buffer;

// Loads up to four 8x8 matrices, stacked in in[32][8], and writes the registers as they are.
template <int matrices, bool trans>
__global__ void ldmatrix_kernel(const uint16_t* in, uint32_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 32 * 8; i += 32) tile[i] = in[i];
  __syncwarp();
  const void* row = tile + lane * 8;
  uint32_t r[4] = {};
  uint32_t r2[2] = {};
  if constexpr (matrices == 4) {
    trans ? fa::ldmatrix_x4_trans(r, row) : fa::ldmatrix_x4(r, row);
  } else if constexpr (matrices == 2) {
    trans ? fa::ldmatrix_x2_trans(r2, row) : fa::ldmatrix_x2(r2, row);
    r[0] = r2[0];
    r[1] = r2[1];
  } else {
    trans ? fa::ldmatrix_x1_trans(r[0], row) : fa::ldmatrix_x1(r[0], row);
  }
  for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

template <int matrices, bool trans>
void check_ldmatrix() {
  CAPTURE(matrices, trans);
  const auto tile = test::iota<uint16_t>(32 * 8);
  Buffer<uint16_t> in("in", tile);
  Buffer<uint32_t> out("out", 32 * 4);
  fa::launch(ldmatrix_kernel<matrices, trans>, {1, 32}, in.get(), out.get());
  const auto got = out.download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < matrices; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        const int row = trans ? e.col : e.row, col = trans ? e.row : e.col;
        const unsigned half = got[lane * 4 + m] >> (16 * i) & 0xffff;
        CHECK(half == tile[(m * 8 + row) * 8 + col]);
      }
    }
  }
}

}  // namespace

TEST_CASE("ldmatrix spreads 8x8 matrices over the lanes", "[ptx][mma]") {
  check_ldmatrix<4, false>();
  check_ldmatrix<4, true>();
  check_ldmatrix<2, false>();
  check_ldmatrix<2, true>();
  check_ldmatrix<1, false>();
  check_ldmatrix<1, true>();
}

namespace {

// rows[r]: the row of in[32][8] whose address lane r passes. Writes the registers as they are.
__global__ void scattered_rows_kernel(const uint16_t* in, const int* rows, uint32_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 32 * 8; i += 32) tile[i] = in[i];
  __syncwarp();
  uint32_t r[4];
  fa::ldmatrix_x4(r, tile + rows[lane] * 8);
  for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

// in: one register a lane
__global__ void movmatrix_kernel(const uint32_t* in, uint32_t* out) {
  out[threadIdx.x] = fa::movmatrix_trans(in[threadIdx.x]);
}

__global__ void pack_kernel(const float* lo, const float* hi, uint32_t* out, int n) {
  for (int i = threadIdx.x; i < n; i += 32) out[i] = fa::pack_bf16(lo[i], hi[i]);
}

}  // namespace

TEST_CASE("lane 8m + r of ldmatrix_x4 names row r of matrix m, wherever it lies", "[ptx][mma]") {
  const auto tile = test::iota<uint16_t>(32 * 8);
  std::vector<int> rows(32);
  for (int i = 0; i < 32; ++i) rows[i] = (i * 11 + 5) % 32;  // each once, in no order
  Buffer<uint16_t> in("in", tile);
  Buffer<int> row("rows", rows);
  Buffer<uint32_t> out("out", 32 * 4);
  fa::launch(scattered_rows_kernel, {1, 32}, in.get(), row.get(), out.get());
  const auto got = out.download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int m = 0; m < 4; ++m) {
      for (int i = 0; i < 2; ++i) {
        const fa::RowCol e = fa::ldmatrix_element(lane, i);
        const unsigned half = got[lane * 4 + m] >> (16 * i) & 0xffff;
        CHECK(half == tile[rows[m * 8 + e.row] * 8 + e.col]);
      }
    }
  }
}

TEST_CASE("movmatrix_trans transposes the 8x8 matrix of a warp", "[ptx][mma]") {
  // Element [r][c] is the number 100 r + c.
  auto matrix = [](int row, int col) { return static_cast<unsigned>(100 * row + col); };
  std::vector<uint32_t> registers(32);
  for (int lane = 0; lane < 32; ++lane) {
    const fa::RowCol e0 = fa::ldmatrix_element(lane, 0), e1 = fa::ldmatrix_element(lane, 1);
    registers[lane] = matrix(e0.row, e0.col) | matrix(e1.row, e1.col) << 16;
  }
  Buffer<uint32_t> in("in", registers), out("out", 32);
  fa::launch(movmatrix_kernel, {1, 32}, in.get(), out.get());
  const auto got = out.download();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 2; ++i) {
      const fa::RowCol e = fa::ldmatrix_element(lane, i);
      CHECK((got[lane] >> (16 * i) & 0xffff) == matrix(e.col, e.row));
    }
  }
}

namespace {

// The nearest bf16 in plain arithmetic: of the two around x the nearer one, or the even one.
unsigned nearest_bf16(float x) {
  auto value = [](uint32_t bits) { return std::bit_cast<float>(bits << 16); };
  const uint32_t towards_zero = std::bit_cast<uint32_t>(x) >> 16, away = towards_zero + 1;
  const double below = std::abs(double{x} - value(towards_zero));
  // Beyond the largest bf16 lies infinity, as if it were the next power of two.
  const double next =
      std::isinf(value(away)) ? std::copysign(std::ldexp(1.0, 128), x) : double{value(away)};
  const double above = std::abs(next - x);
  return below < above || (below == above && towards_zero % 2 == 0) ? towards_zero : away;
}

}  // namespace

TEST_CASE("pack_bf16 rounds to nearest even, the first into the low half", "[ptx][mma]") {
  std::mt19937 rng(1);
  std::vector<float> lo, hi;
  auto finite = [&] {
    while (true) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(rng()));
      if (std::isfinite(x)) return x;
    }
  };
  for (int i = 0; i < 2048; ++i) {
    lo.push_back(finite());
    hi.push_back(std::ldexp(static_cast<float>(rng() % 1024), -9));  // many ties
  }
  const float tiny = std::ldexp(1.0f, -134);  // half of the smallest bf16
  for (float x : {0.0f, -0.0f, tiny, -tiny, 3 * tiny, std::numeric_limits<float>::max(),
                  -std::numeric_limits<float>::max()}) {
    lo.push_back(x);
    hi.push_back(-x);
  }
  Buffer<float> Lo("lo", lo), Hi("hi", hi);
  Buffer<uint32_t> out("out", lo.size());
  fa::launch(pack_kernel, {1, 32}, Lo.get(), Hi.get(), out.get(), static_cast<int>(lo.size()));
  const auto got = out.download();
  for (size_t i = 0; i < lo.size(); ++i) {
    CAPTURE(lo[i], hi[i]);
    CHECK((got[i] & 0xffff) == nearest_bf16(lo[i]));
    CHECK(got[i] >> 16 == nearest_bf16(hi[i]));
  }
}

TEST_CASE("pack_bf16 keeps infinity and NaN", "[ptx][mma]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0x7f800001u);  // its upper half alone is infinity
  Buffer<float> Lo("lo", std::vector<float>{infinity, nan});
  Buffer<float> Hi("hi", std::vector<float>{-infinity, 1.0f});
  Buffer<uint32_t> out("out", 2);
  fa::launch(pack_kernel, {1, 32}, Lo.get(), Hi.get(), out.get(), 2);
  const auto got = out.download();
  CHECK(got[0] == 0xff807f80u);
  CHECK(got[1] == 0x3f807fffu);
}

namespace {

// D[16][8] = A[16][16] B[16][8] + C, fragments filled element by element.
__global__ void mma_kernel(const bf16* A, const bf16* B, const float* C, float* D) {
  const int lane = threadIdx.x;
  uint32_t a[4], b[2];
  float d[4];
  for (int r = 0; r < 4; ++r) {
    const fa::RowCol e0 = fa::mma_a_element(lane, 2 * r), e1 = fa::mma_a_element(lane, 2 * r + 1);
    a[r] = fa::pack_bf16(static_cast<float>(A[e0.row * 16 + e0.col]),
                         static_cast<float>(A[e1.row * 16 + e1.col]));
  }
  for (int r = 0; r < 2; ++r) {
    const fa::RowCol e0 = fa::mma_b_element(lane, 2 * r), e1 = fa::mma_b_element(lane, 2 * r + 1);
    b[r] = fa::pack_bf16(static_cast<float>(B[e0.row * 8 + e0.col]),
                         static_cast<float>(B[e1.row * 8 + e1.col]));
  }
  for (int i = 0; i < 4; ++i) {
    const fa::RowCol e = fa::mma_d_element(lane, i);
    d[i] = C[e.row * 8 + e.col];
  }
  fa::mma_m16n8k16(d, a, b);
  for (int i = 0; i < 4; ++i) {
    const fa::RowCol e = fa::mma_d_element(lane, i);
    D[e.row * 8 + e.col] = d[i];
  }
}

// S[16][16] = Q[16][32] K[16][32]^T and O[16][32] = S V[16][32], as attention uses the
// instructions: Q and K by ldmatrix, S repacked as an A fragment, V by ldmatrix.trans.
__global__ void attention_like_kernel(const bf16* Q, const bf16* K, const bf16* V, float* S,
                                      float* O) {
  __shared__ __align__(16) bf16 sQ[16][32], sK[16][32], sV[16][32];
  const int lane = threadIdx.x;
  for (int i = lane; i < 16 * 32; i += 32) {
    sQ[i / 32][i % 32] = Q[i];
    sK[i / 32][i % 32] = K[i];
    sV[i / 32][i % 32] = V[i];
  }
  __syncwarp();
  float s[2][4] = {};
  for (int x = 0; x < 32; x += 16) {
    uint32_t a[4];
    fa::ldmatrix_x4(a, &sQ[lane % 16][x + lane / 16 * 8]);
    for (int j = 0; j < 2; ++j) {
      uint32_t b[2];
      fa::ldmatrix_x2(b, &sK[j * 8 + lane % 8][x + lane / 8 % 2 * 8]);
      fa::mma_m16n8k16(s[j], a, b);
    }
  }
  const uint32_t p[4] = {fa::pack_bf16(s[0][0], s[0][1]), fa::pack_bf16(s[0][2], s[0][3]),
                         fa::pack_bf16(s[1][0], s[1][1]), fa::pack_bf16(s[1][2], s[1][3])};
  for (int x = 0; x < 32; x += 8) {
    uint32_t b[2];
    fa::ldmatrix_x2_trans(b, &sV[lane % 16][x]);
    float o[4] = {};
    fa::mma_m16n8k16(o, p, b);
    for (int i = 0; i < 4; ++i) {
      const fa::RowCol e = fa::mma_d_element(lane, i);
      O[e.row * 32 + x + e.col] = o[i];
    }
  }
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 4; ++i) {
      const fa::RowCol e = fa::mma_d_element(lane, i);
      S[e.row * 16 + j * 8 + e.col] = s[j][i];
    }
  }
}

}  // namespace

TEST_CASE("mma.sync multiplies 16x16 by 16x8 and accumulates", "[ptx][mma]") {
  const auto a = test::small_integers<bf16>(16 * 16, 1), b = test::small_integers<bf16>(16 * 8, 2);
  const auto c = test::small_integers<float>(16 * 8, 3);
  Buffer<bf16> A("A", a), B("B", b);
  Buffer<float> C("C", c), D("D", 16 * 8);
  fa::launch(mma_kernel, {1, 32}, A.get(), B.get(), C.get(), D.get());
  const auto got = D.download();
  for (int r = 0; r < 16; ++r) {
    for (int col = 0; col < 8; ++col) {
      float want = c[r * 8 + col];
      for (int k = 0; k < 16; ++k) {
        want += static_cast<float>(a[r * 16 + k]) * static_cast<float>(b[k * 8 + col]);
      }
      CHECK(got[r * 8 + col] == want);
    }
  }
}

TEST_CASE("mma.sync keeps its accumulators in fp32", "[ptx][mma]") {
  const std::vector<bf16> a(16 * 16, bf16(1.0f)), b(16 * 8, bf16(1.0f));
  std::vector<float> c(16 * 8);
  for (int i = 0; i < 16 * 8; ++i) c[i] = static_cast<float>((1 << 20) + i);  // 8 bits would not do
  Buffer<bf16> A("A", a), B("B", b);
  Buffer<float> C("C", c), D("D", 16 * 8);
  fa::launch(mma_kernel, {1, 32}, A.get(), B.get(), C.get(), D.get());
  const auto got = D.download();
  for (int i = 0; i < 16 * 8; ++i) CHECK(got[i] == c[i] + 16);
}

TEST_CASE("S = Q K^T, then S V, from ldmatrix fragments", "[ptx][mma]") {
  // Values of -1, 0 and 1 keep |S| below 33, which bf16 holds exactly.
  auto values = [](unsigned seed) {
    auto v = test::small_integers<bf16>(16 * 32, seed);
    for (bf16& x : v) x = bf16(static_cast<float>(static_cast<int>(static_cast<float>(x)) % 2));
    return v;
  };
  const auto q = values(1), k = values(2), v = values(3);
  Buffer<bf16> Q("Q", q), K("K", k), V("V", v);
  Buffer<float> S("S", 16 * 16), O("O", 16 * 32);
  fa::launch(attention_like_kernel, {1, 32}, Q.get(), K.get(), V.get(), S.get(), O.get());
  const auto s = S.download(), o = O.download();
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      float want = 0;
      for (int x = 0; x < 32; ++x) {
        want += static_cast<float>(q[r * 32 + x]) * static_cast<float>(k[c * 32 + x]);
      }
      CHECK(s[r * 16 + c] == want);
    }
    for (int x = 0; x < 32; ++x) {
      float want = 0;
      for (int c = 0; c < 16; ++c) want += s[r * 16 + c] * static_cast<float>(v[c * 32 + x]);
      CHECK(o[r * 32 + x] == want);
    }
  }
}
