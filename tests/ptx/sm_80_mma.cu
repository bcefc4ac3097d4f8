// ldmatrix, packing and mma.sync against plain code, and the bits of their sums and products.
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "common/counts/backend.h"
#include "common/dialect/ptx/fp8.h"
#include "common/dialect/ptx/tensor_sum.h"
#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::bf16;
using test::Distribution;

// in: [32][8], four 8x8 matrices. Lane l passes the address of row rows[l]; out: registers [32][4].
template <bool trans>
__global__ void ldmatrix_kernel(const uint16_t* in, const int* rows, uint32_t* out) {
  __shared__ __align__(16) uint16_t tile[32 * 8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 32 * 8; i += 32) tile[i] = in[i];
  __syncwarp();
  const void* row = tile + rows[lane] * 8;
  uint32_t r[4];
  trans ? fa::ldmatrix_x4_trans(r, row) : fa::ldmatrix_x4(r, row);
  for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

template <bool trans>
void check_ldmatrix() {
  const auto tile = test::iota<uint16_t>(32 * 8);
  const int step = GENERATE(1, 11);  // rows in order, or each once in no order
  CAPTURE(trans, step);
  const auto rows = test::each<int>(32, [&](int i) { return i * step % 32; });
  const auto want = test::each<uint32_t>(32 * 4, [&](int i) {
    const int lane = i / 4, m = i % 4;
    uint32_t both = 0;
    for (int half = 0; half < 2; ++half) {
      const fa::RowCol e = fa::ldmatrix_element(lane, half);
      const int row = trans ? e.col : e.row, col = trans ? e.row : e.col;
      both |= uint32_t{tile[rows[m * 8 + row] * 8 + col]} << 16 * half;
    }
    return both;
  });
  CHECK(test::results<uint32_t>(32 * 4, ldmatrix_kernel<trans>, {1, 32}, tile, rows) == want);
}

}  // namespace

// The PTX manual's groupID is lane / 4, its threadID_in_group lane % 4.
TEST_CASE("fragments are those of the PTX manual", "[ptx][mma]") {
  auto at = [](fa::RowCol e) { return std::pair(e.row, e.col); };
  for (int thread = 0; thread < 128; ++thread) {
    const int lane = thread % 32, group = lane / 4, pair = lane % 4 * 2;
    const int rows = thread / 32 * 16;  // of the warp, in a warpgroup's fragment
    for (int i = 0; i < 8; ++i) {
      CAPTURE(thread, i);
      const int row = group + (i == 2 || i == 3 || i == 6 || i == 7 ? 8 : 0);
      const int col = pair + i % 2 + (i >= 4 ? 8 : 0);
      CHECK(at(fa::mma_a_element(lane, i)) == std::pair(row, col));
      CHECK(at(fa::wgmma_a_element(thread, i)) == std::pair(rows + row, col));
      CHECK(at(fa::wgmma_d_element(thread, i)) == std::pair(rows + row, col));
      if (i >= 4) continue;
      CHECK(at(fa::mma_b_element(lane, i)) == std::pair(pair + i % 2 + (i >= 2 ? 8 : 0), group));
      CHECK(at(fa::mma_d_element(lane, i)) == std::pair(group + i / 2 * 8, pair + i % 2));
    }
  }
}

TEST_CASE("ldmatrix spreads 8x8 matrices over the lanes: lane 8m + r names row r of matrix m",
          "[ptx][mma]") {
  check_ldmatrix<false>();
  check_ldmatrix<true>();
}

namespace {

__global__ void pack_kernel(const float* lo, const float* hi, int n, uint32_t* out) {
  for (int i = threadIdx.x; i < n; i += 32) out[i] = fa::pack_bf16(lo[i], hi[i]);
}
std::vector<uint32_t> packed(const std::vector<float>& lo, const std::vector<float>& hi) {
  return test::results<uint32_t>(lo.size(), pack_kernel, {1, 32}, lo, hi,
                                 static_cast<int>(lo.size()));
}

// The nearest bf16 in plain arithmetic: the nearer of the two around x, or the even one.
unsigned nearest_bf16(float x) {
  auto value = [](uint32_t bits) { return std::bit_cast<float>(bits << 16); };
  const uint32_t towards_zero = std::bit_cast<uint32_t>(x) >> 16, away = towards_zero + 1;
  const double below = std::abs(double{x} - value(towards_zero));
  // Beyond the largest bf16 is infinity, as if it were the next power of two.
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
  const auto got = packed(lo, hi);
  for (size_t i = 0; i < lo.size(); ++i) {
    CAPTURE(lo[i], hi[i]);
    CHECK((got[i] & 0xffff) == nearest_bf16(lo[i]));
    CHECK(got[i] >> 16 == nearest_bf16(hi[i]));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0x7f800001u);  // its upper half alone is infinity
  CHECK(packed({infinity, nan}, {-infinity, 1.0f}) == std::vector{0xff807f80u, 0x3f807fffu});
}

namespace {

// D[16][8] = A[16][16] B[16][8] + C in each block, fragments filled element by element.
__global__ void mma_kernel(const bf16* A, const bf16* B, const float* C, float* D) {
  const int lane = threadIdx.x;
  A += blockIdx.x * 16 * 16, B += blockIdx.x * 16 * 8;
  C += blockIdx.x * 16 * 8, D += blockIdx.x * 16 * 8;
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
__global__ void attention_like_kernel(const bf16* Q, const bf16* K, const bf16* V,
                                      float* SO) {  // S, then O
  float *S = SO, *O = SO + 16 * 16;
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
    uint32_t b[4];  // two fragments, neighbours in n
    fa::ldmatrix_x4(b, &sK[lane % 8 + lane / 16 * 8][x + lane / 8 % 2 * 8]);
    fa::mma_m16n8k16(s[0], a, {b[0], b[1]});
    fa::mma_m16n8k16(s[1], a, {b[2], b[3]});
  }
  const uint32_t p[4] = {fa::pack_bf16(s[0][0], s[0][1]), fa::pack_bf16(s[0][2], s[0][3]),
                         fa::pack_bf16(s[1][0], s[1][1]), fa::pack_bf16(s[1][2], s[1][3])};
  for (int x = 0; x < 32; x += 16) {
    uint32_t b[4];
    fa::ldmatrix_x4_trans(b, &sV[lane % 16][x + lane / 16 * 8]);
    float o[2][4] = {};
    fa::mma_m16n8k16(o[0], p, {b[0], b[1]});
    fa::mma_m16n8k16(o[1], p, {b[2], b[3]});
    for (int j = 0; j < 2; ++j) {
      for (int i = 0; i < 4; ++i) {
        const fa::RowCol e = fa::mma_d_element(lane, i);
        O[e.row * 32 + x + j * 8 + e.col] = o[j][i];
      }
    }
  }
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 4; ++i) {
      const fa::RowCol e = fa::mma_d_element(lane, i);
      S[e.row * 16 + j * 8 + e.col] = s[j][i];
    }
  }
}

// Row by row: sum over k of A[row][k] B(k, col).
template <class A, class B>
std::vector<float> product(const std::vector<A>& a, int k, int n, const B& b) {
  return test::each<float>(16 * n, [&](int i) {
    float sum = 0;
    for (int x = 0; x < k; ++x) sum += static_cast<float>(a[i / n * k + x]) * b(x, i % n);
    return sum;
  });
}

}  // namespace

TEST_CASE("mma.sync multiplies 16x16 by 16x8 and accumulates in fp32", "[ptx][mma]") {
  const auto a = test::small_integers<bf16>(16 * 16, 1), b = test::small_integers<bf16>(16 * 8, 2);
  const auto want =
      product(a, 16, 8, [&](int k, int n) { return static_cast<float>(b[k * 8 + n]); });
  for (const int least : {0, 1 << 20}) {  // 8 bits would not be enough
    const auto c = test::each<float>(16 * 8, [&](int i) { return least + i; });
    auto got = test::results<float>(16 * 8, mma_kernel, {1, 32}, a, b, c);
    for (int i = 0; i < 16 * 8; ++i) CHECK(got[i] == c[i] + want[i]);
  }
}

TEST_CASE("S = Q K^T, then S V, from ldmatrix fragments", "[ptx][mma]") {
  // Values of -1, 0 and 1 keep |S| below 33, which bf16 holds exactly.
  auto values = [](unsigned seed) {
    auto v = test::small_integers<bf16>(16 * 32, seed);
    for (bf16& x : v) x = bf16(static_cast<float>(static_cast<int>(static_cast<float>(x)) % 2));
    return v;
  };
  const auto q = values(1), k = values(2), v = values(3);
  auto want = product(q, 32, 16, [&](int x, int c) { return static_cast<float>(k[c * 32 + x]); });
  const auto o =
      product(want, 16, 32, [&](int c, int x) { return static_cast<float>(v[c * 32 + x]); });
  want.insert(want.end(), o.begin(), o.end());
  CHECK(test::results<float>(want.size(), attention_like_kernel, {1, 32}, q, k, v) == want);
}

// --- bits against the rule -----------------------------------------------------------------------

namespace {

// One sum of all k products, step after step.
float sum_of_steps(const fa::TensorSum& rule, int k, const float* a, const float* b, float c) {
  for (int i = 0; i < k; i += rule.products) c = fa::tensor_sum(rule, a + i, b + i, c);
  return c;
}

// MMA-Sim's sums: bits, with the first factor in the lowest bits of `a` and `b`.
struct MmaSim {
  int arch;
  bool e4m3;
  uint32_t a[8], b[8], c, d;
};
constexpr MmaSim kMmaSim[] = {
#include "tests/ptx/mma_sim.inc"
};

const Distribution kDistributions[] = {{"near 1", -1, 1},
                                       {"wide", -12, 12},
                                       {"wider", -60, 60, .5f},
                                       {"no C", -12, 12, 0, 0, -1000},
                                       {"sparse", -12, 12, .9f},
                                       {"large C", -2, 2, 0, 0, 24},
                                       {"small C", -2, 2, 0, 0, -24},
                                       {"overflow", 62, 64, 0, 0, 127},
                                       {"underflow", -66, -62, 0, 0, -127},
                                       {"below every C", -72, -66, 0, 0, -1000},
                                       {"subnormal", -134, -126, 0, 0, -127},
                                       {"inf and NaN", -2, 2, .1f, .01f}};

void require_rule(const fa::TensorSum& rule) {
  constexpr int kBlocks = 16, kM = 16, kN = 8, kK = 16;
  std::mt19937 random(7);
  for (const Distribution& of : kDistributions) {
    auto a = test::each<bf16>(kBlocks * kM * kK, [&](int) { return test::number(of, random); });
    auto b = test::each<bf16>(kBlocks * kK * kN, [&](int) { return test::number(of, random); });
    for (int k = 0; k < kK; ++k) {  // padding: a row of A and a column of B
      a[(kM - 1) * kK + k] = b[k * kN + kN - 1] = bf16(0.f);
    }
    const Distribution of_c{"C", of.c_exponent - 1, of.c_exponent + 1};
    const auto c = test::each<float>(kBlocks * kM * kN, [&](int) {
      return of.c_exponent == -1000 ? 0.f : test::number(of_c, random);
    });
    const auto got = test::results<float>(c.size(), mma_kernel, {kBlocks, 32}, a, b, c);
    for (int i = 0; i < kBlocks * kM * kN; ++i) {
      const int block = i / (kM * kN), row = i / kN % kM, column = i % kN;
      float x[kK], y[kK];
      for (int k = 0; k < kK; ++k) {
        x[k] = static_cast<float>(a[(block * kM + row) * kK + k]);
        y[k] = static_cast<float>(b[(block * kK + k) * kN + column]);
      }
      const float want = sum_of_steps(rule, kK, x, y, c[i]);
      CAPTURE(of.name, i, c[i], got[i], want);
      REQUIRE(std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want));
    }
  }
}

}  // namespace

TEST_CASE("tensor_sum is MMA-Sim's, bit for bit", "[ptx][mma]") {
  for (const MmaSim& sim : kMmaSim) {
    const fa::TensorSum& rule = sim.e4m3 ? fa::kE4m3Sum : fa::mma_bf16_sum(sim.arch);
    const int k = sim.e4m3 ? 32 : 16, bits = 256 / k;
    float a[32], b[32];
    const auto value = [&](const uint32_t* words, int i) {
      const uint32_t x = words[i * bits / 32] >> i * bits % 32;
      if (!sim.e4m3) return std::bit_cast<float>(x << 16);
      __nv_fp8_e4m3 e;
      e.__x = static_cast<uint8_t>(x);
      return static_cast<float>(e);
    };
    for (int i = 0; i < k; ++i) a[i] = value(sim.a, i), b[i] = value(sim.b, i);
    const float sum = sum_of_steps(rule, k, a, b, std::bit_cast<float>(sim.c));
    CAPTURE(sim.arch, sim.e4m3, &sim - kMmaSim);
    CHECK(std::bit_cast<uint32_t>(sum) == sim.d);
  }
}

TEST_CASE("mma.sync adds as tensor_sum, on each architecture by its own rule", "[ptx][mma]") {
  const std::string arch = fa::open_device("", "").arch;
  if (arch != "sim") return require_rule(fa::mma_bf16_sum(std::atoi(arch.c_str() + 3)));
  for (const char* name : {"A100", "RTX 4090", "RTX 5090", "H200"}) {  // the default last
    CAPTURE(name);
    fa::SimOptions options;
    options.gpu = fa::find_gpu(name);
    fa::configure(options);
    require_rule(fa::mma_bf16_sum(options.gpu.arch_number()));
  }
}

TEST_CASE("mma.sync: 8 products a step and 24 bits before Hopper, then 16 and 25", "[ptx][mma]") {
  CHECK(fa::mma_bf16_sum(80).products == 8);
  CHECK(fa::mma_bf16_sum(89).aligned_bits == 24);
  CHECK(fa::mma_bf16_sum(90).products == 16);
  CHECK(fa::mma_bf16_sum(120).aligned_bits == 25);
}

// multiply_bf16x2 against exact products in double precision, rounded explicitly.

namespace {

struct Multiply {
  FA_PTX uint32_t operator()(uint32_t a, uint32_t b) const { return fa::multiply_bf16x2(a, b); }
};

double value(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude > 0x7f80) return std::nan("");
  const int exponent = static_cast<int>(magnitude >> 7);
  const double x = magnitude == 0x7f80 ? std::numeric_limits<double>::infinity()
                   : exponent == 0     ? std::ldexp(magnitude, -133)
                                       : std::ldexp(magnitude % 128 + 128, exponent - 134);
  return bits & 0x8000 ? -x : x;
}

// To the nearest bf16, ties to even.
double rounded(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int unit = std::max(std::ilogb(x), -126) - 7;
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  return std::abs(y) < std::ldexp(1.0, 128)
             ? y
             : std::copysign(std::numeric_limits<double>::infinity(), x);
}

bool same(double x, double y) {
  return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
}

}  // namespace

// The second factors: 1, the power of two that turns e4m3 into bf16 in chapter 13, one that makes
// subnormal products of normal numbers, and some that round.
TEST_CASE("multiply_bf16x2 rounds all products to nearest even", "[ptx][bf16]") {
  const uint32_t factor =
      GENERATE(0x3f80, 0x7b80, 0x0480, 0x3f81, 0xbfff, 0x0001, 0x0000, 0x8000, 0x7f80);
  CAPTURE(factor);
  const auto a = test::each<uint32_t>(1 << 16, [](uint32_t bits) {
    return bits | (bits ^ 0x5a5a) << 16;  // in one half, with another number in the other half
  });
  const auto got =
      test::mapped<Multiply>(a, std::vector<uint32_t>(1 << 16, factor | 0x3fc0u << 16));
  int wrong = 0;
  uint32_t first = 0;
  for (uint32_t i = 0; i < a.size(); ++i) {
    const bool low = same(value(got[i] & 0xffff), rounded(value(a[i] & 0xffff) * value(factor)));
    const bool high = same(value(got[i] >> 16), rounded(value(a[i] >> 16) * 1.5));
    if (!(low && high) && wrong++ == 0) first = a[i];
  }
  CAPTURE(first);
  CHECK(wrong == 0);
}
