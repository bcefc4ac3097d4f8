// wgmma's sums, to the bit: each element of a product is tensor_sum() of its factors.
#include <cmath>
#include <random>

#include "common/dialect/ptx/fp8.h"
#include "common/dialect/ptx/tensor_sum.h"
#include "tests/device.h"
#include "tests/test.h"

namespace {

using e4m3 = __nv_fp8_e4m3;
using fa::Swizzle;
using fa::TensorMap;
using test::bf16;
using test::Buffer;
using test::Distribution;

constexpr int kM = 64, kN = 64, kRowBytes = 32;  // one instruction's k

template <class T>
constexpr fa::TensorSum kSum = sizeof(T) == 1 ? fa::kE4m3Sum : fa::kBf16Sum;

template <class T, class A>
FA_PTX void multiply(float (&d)[kN / 2], const A& a, uint64_t b, bool accumulate) {
  if constexpr (sizeof(T) == 1) {
    fa::wgmma_e4m3(d, a, b, accumulate);
  } else {
    fa::wgmma(d, a, b, accumulate);
  }
}

// D[64][64] = A[64][k] B[64][k]^T (+ D), `steps` instructions on the same operands.
template <class T>
__global__ void __launch_bounds__(128)
    product_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                   const T* A, float* D, int steps, bool accumulate, bool registers) {
  __shared__ __align__(1024) char sA[kM * kRowBytes], sB[kN * kRowBytes];
  __shared__ uint64_t full;
  test::load_and_wait(&full, sizeof sA + sizeof sB, [&] {
    fa::tma_load(sA, &map_a, &full, {0, 0});
    fa::tma_load(sB, &map_b, &full, {0, 0});
  });
  float d[kN / 2];
  UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    const fa::RowCol e = fa::wgmma_d_element(threadIdx.x, i);
    d[i] = D[e.row * kN + e.col];
  }
  constexpr int kEach = 4 / sizeof(T);  // factors per register
  uint32_t a[4];
  UNROLL
  for (int i = 0; i < 4; ++i) {
    const fa::RowCol e = sizeof(T) == 1 ? fa::wgmma_e4m3_a_element(threadIdx.x, i * kEach)
                                        : fa::wgmma_a_element(threadIdx.x, i * kEach);
    a[i] = *reinterpret_cast<const uint32_t*>(A + e.row * kSum<T>.products + e.col);
  }
  const uint64_t a0 = fa::wgmma_descriptor(sA, Swizzle::b32, 16, 8 * kRowBytes);
  const uint64_t b0 = fa::wgmma_descriptor(sB, Swizzle::b32, 16, 8 * kRowBytes);
  fa::wgmma_fence();
  for (int step = 0; step < steps; ++step) {
    if (registers) {
      multiply<T>(d, a, b0, accumulate || step > 0);
    } else {
      multiply<T>(d, a0, b0, accumulate || step > 0);
    }
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  UNROLL
  for (int i = 0; i < kN / 2; ++i) {
    const fa::RowCol e = fa::wgmma_d_element(threadIdx.x, i);
    D[e.row * kN + e.col] = d[i];
  }
}

struct How {
  int steps = 1;
  bool accumulate = true, registers = false;
};

template <class T>
std::vector<float> multiplied(const std::vector<T>& a, const std::vector<T>& b,
                              const std::vector<float>& c, const How& how) {
  constexpr unsigned k = kSum<T>.products;
  Buffer<T> A("A", a), B("B", b);
  Buffer<float> D("D", c);
  const auto map = [](const T* p) {
    using Element = std::conditional_t<sizeof(T) == 1, uint8_t, bf16>;
    const auto* elements = reinterpret_cast<const Element*>(p);
    return fa::tensor_map(elements, {{k, 1, k}, {kM, k, kM}}, Swizzle::b32);
  };
  fa::launch(product_kernel<T>, {1, 128}, map(A.get()), map(B.get()), A.get(), D.get(), how.steps,
             how.accumulate, how.registers);
  return D.download();
}

// Counts elements that differ from the rule's, by bits; reports the first.
template <class T>
void require_rule(const std::vector<T>& a, const std::vector<T>& b, const std::vector<float>& c,
                  const How& how = {}) {
  constexpr int k = kSum<T>.products;
  const std::vector<float> got = multiplied(a, b, c, how);
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float x[k], y[k], want = how.accumulate ? c[m * kN + n] : 0;
      for (int i = 0; i < k; ++i) {
        x[i] = static_cast<float>(a[m * k + i]), y[i] = static_cast<float>(b[n * k + i]);
      }
      for (int step = 0; step < how.steps; ++step) want = fa::tensor_sum(kSum<T>, x, y, want);
      CAPTURE(m, n, c[m * kN + n], got[m * kN + n], want);
      REQUIRE(std::bit_cast<uint32_t>(got[m * kN + n]) == std::bit_cast<uint32_t>(want));
    }
  }
}

// --- the rule, by hand ---------------------------------------------------------------------------

// D[0][0] for factors (x, y) in the first places, the others 0.
template <class T>
float sum_of(std::initializer_list<std::pair<float, float>> products, float c) {
  std::vector<T> a(kM * kSum<T>.products, T(0.f)), b(kN * kSum<T>.products, T(0.f));
  size_t i = 0;
  for (const auto& [x, y] : products) a[i] = T(x), b[i++] = T(y);
  std::vector<float> all(kM * kN, 0.f);
  all[0] = c;
  return multiplied(a, b, all, {})[0];
}

}  // namespace

TEST_CASE("wgmma of e4m3 drops what is 14 bits below the largest term", "[ptx][fp8]") {
  CHECK(sum_of<e4m3>({{0x1p-6f, 0x1p-7f}}, 1) == 1 + 0x1p-13f);
  CHECK(sum_of<e4m3>({{0x1p-6f, 0x1p-8f}}, 1) == 1);
  CHECK(sum_of<e4m3>({{0x1p-6f, 0x1p-8f}, {0x1p-6f, 0x1p-8f}}, 1) == 1);  // each for itself
  CHECK(sum_of<e4m3>({{0x1p-6f, 1.5f * 0x1p-7f}}, 1) == 1 + 0x1p-13f);
  CHECK(sum_of<e4m3>({{-0x1p-6f, 1.75f * 0x1p-7f}}, 1) == 1 - 0x1p-13f);  // toward zero
  CHECK(sum_of<e4m3>({{0x1p-6f, 0x1p-8f}}, 0) == 0x1p-14f);               // alone it counts
  CHECK(sum_of<e4m3>({{1, 1}, {-1, 1}, {0x1p-6f, 0x1p-8f}}, 0) == 0);     // cut before the sum
  CHECK(sum_of<e4m3>({}, 1 + 0x1p-14f) == 1);                             // also C
  CHECK(sum_of<e4m3>({{1.875f, 1.875f}, {0x1p-6f, 0x1p-6f}}, 0) == 3.515625f + 0x1p-12f);
  CHECK(sum_of<e4m3>({{1.875f, 1.875f}, {0x1p-6f, 0x1p-7f}}, 0) == 3.515625f);  // after the sum
}

TEST_CASE("wgmma of bf16 rounds once, toward zero", "[ptx][fp8]") {
  CHECK(sum_of<bf16>({{0x1p-12f, 0x1p-12f}}, 1) == 1);  // 2^-24
  CHECK(sum_of<bf16>({{0x1p-12f, 0x1p-12f}, {0x1p-12f, 0x1p-12f}}, 1) == 1 + 0x1p-23f);
  CHECK(sum_of<bf16>({{0x1p-12f, 1.9375f * 0x1p-12f}}, 1) == 1);
  CHECK(sum_of<bf16>({{-0x1p-12f, 0x1p-13f}}, 1) == 1 - 0x1p-24f);
  CHECK(sum_of<bf16>({{-0x1p-13f, 0x1p-13f}}, 1) == 1);  // 2^-26: cut before the sum
  CHECK(sum_of<bf16>({{1, 1}, {0x1p-12f, 0x1p-12f}, {-1, 1}}, 0) == 0x1p-24f);
}

// --- bits against the rule -----------------------------------------------------------------------

namespace {

template <class T>
void require_rule_for(const std::vector<Distribution>& all) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const Distribution& of : all) {
    CAPTURE(of.name);
    std::vector<T> a(kM * kSum<T>.products), b(kN * kSum<T>.products);
    std::vector<float> c(kM * kN, 0.f);
    for (T& x : a) x = T(test::number(of, random));
    for (T& x : b) x = T(test::number(of, random));
    if (of.c_exponent > -1000) {
      for (float& x : c) x = normal(random) * std::exp2(of.c_exponent);
    }
    require_rule(a, b, c);
    require_rule(a, b, c, {.registers = true});
    require_rule(a, b, c, {.steps = 4});
    require_rule(a, b, c, {.accumulate = false});
  }
}

}  // namespace

TEST_CASE("wgmma of e4m3 adds as tensor_sum", "[ptx][fp8]") {
  require_rule_for<e4m3>({{"near 1", -1, 0},
                          {"any exponent", -9, 7},
                          {"no C", -9, 7, 0, 0, -1000},
                          {"sparse", -9, 7, .9f},
                          {"subnormal", -10, -7, 0, 0, -14},
                          {"large C", -2, 1, 0, 0, 12},
                          {"small C", -2, 1, 0, 0, -12},
                          {"huge C", -2, 1, 0, 0, 125},
                          {"tiny C", -9, -9, .9f, 0, -120},
                          {"subnormal C, no products", 0, 0, 1, 0, -127},
                          {"NaN", -2, 1, 0, .01f},
                          {"NaN and zeros", -2, 1, .5f, .01f}});
}

TEST_CASE("wgmma of bf16 adds as tensor_sum", "[ptx][fp8]") {
  require_rule_for<bf16>({{"near 1", -1, 0},
                          {"wide", -20, 19},
                          {"no C", -20, 19, 0, 0, -1000},
                          {"sparse", -20, 19, .9f},
                          {"large C", -2, 1, 0, 0, 24},
                          {"small C", -2, 1, 0, 0, -24},
                          {"any exponent", -133, 126, .5f},
                          {"overflow", 62, 63, 0, 0, 127},
                          {"underflow", -66, -63, 0, 0, -127},
                          {"below every C", -72, -67, 0, 0, -1000},
                          {"subnormal factors", -134, -127, 0, 0, -127},
                          {"inf and NaN", -2, 1, 0, .01f},
                          {"inf, NaN and zeros", -2, 1, .5f, .01f}});
}

namespace {

// As in padded tiles: the last rows of A and of B are zeros, and so are parts of C.
template <class T>
void require_rule_for_padding() {
  std::mt19937 random(8);
  std::vector<T> a(kM * kSum<T>.products, T(0.f)), b(kN * kSum<T>.products, T(0.f));
  const Distribution of{"padding", -1, 0, .3f};
  for (int i = 0; i < 40 * kSum<T>.products; ++i) a[i] = T(test::number(of, random));
  for (int i = 0; i < 50 * kSum<T>.products; ++i) b[i] = T(test::number(of, random));
  const float none = FA_BACKEND_GPU ? 0.f : -0.f;  // not measured on a GPU for -0
  std::vector<float> c(kM * kN);
  for (float& x : c) x = random() % 4 == 0 ? 1.5f : random() % 2 == 0 ? none : 0.f;
  require_rule(a, b, c);
  require_rule(a, b, c, {.steps = 4});
  require_rule(a, b, c, {.accumulate = false});
  b[0] = T(NAN);  // times 0
  require_rule(a, b, c);
}

}  // namespace

TEST_CASE("wgmma of padding adds as tensor_sum", "[ptx][fp8]") {
  require_rule_for_padding<bf16>();
  require_rule_for_padding<e4m3>();
}

// --- conversions ---------------------------------------------------------------------------------

namespace {

__global__ void convert_kernel(const float* in, uint32_t* packed, __nv_fp8_e4m3* four,
                               __nv_fp8_e5m2* five, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  packed[i] = fa::pack_e4m3(in[i], -in[i], 1.f, in[i]);
  four[i] = __nv_fp8_e4m3(in[i]);
  five[i] = __nv_fp8_e5m2(in[i]);
}

// The nearest of all 8-bit numbers, ties to even.
template <class T>
uint8_t nearest(float x, uint8_t largest) {
  if (std::isnan(x)) return 0x7f;
  int best = 0;
  double distance = INFINITY;
  for (int bits = 0; bits <= largest; ++bits) {
    T t;
    t.__x = static_cast<uint8_t>(bits);
    const double to = std::fabs(double{static_cast<float>(t)} - std::fabs(double{x}));
    if (to < distance || (to == distance && bits % 2 == 0)) best = bits, distance = to;
    if (bits == largest && std::fabs(x) >= static_cast<float>(t)) best = largest;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

}  // namespace

TEST_CASE("floats become fp8 as the hardware rounds: every bf16, and every tie", "[ptx][fp8]") {
  std::vector<float> in;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) in.push_back(std::bit_cast<float>(bits << 16));
  const size_t bf16s = in.size();
  for (int bits = 0; bits < 0x7e; ++bits) {
    __nv_fp8_e4m3 low, high;
    low.__x = static_cast<uint8_t>(bits), high.__x = static_cast<uint8_t>(bits + 1);
    const float tie = (static_cast<float>(low) + static_cast<float>(high)) / 2;
    for (const float x : {tie, std::nextafter(tie, 0.f), std::nextafter(tie, 1000.f)}) {
      in.push_back(x), in.push_back(-x);
    }
  }
  const int n = static_cast<int>(in.size());
  Buffer<float> from("in", in);
  Buffer<uint32_t> packed("packed", in.size());
  Buffer<__nv_fp8_e4m3> four("four", in.size());
  Buffer<__nv_fp8_e5m2> five("five", in.size());
  fa::launch(convert_kernel, {unsigned(n + 127) / 128, 128}, from.get(), packed.get(), four.get(),
             five.get(), n);
  const auto got = packed.download();
  const auto e4 = four.download();
  const auto e5 = five.download();
  for (size_t i = 0; i < in.size(); ++i) {
    const float x = in[i];
    CAPTURE(x);
    const uint32_t want = nearest<__nv_fp8_e4m3>(x, 0x7e);
    const uint32_t minus = nearest<__nv_fp8_e4m3>(-x, 0x7e);
    REQUIRE(got[i] == (want | minus << 8 | 0x38u << 16 | want << 24));
    REQUIRE(e4[i].__x == want);
    if (i < bf16s) REQUIRE(e5[i].__x == nearest<__nv_fp8_e5m2>(x, 0x7b));
  }
}

template <class T>
static float of_bits(int bits) {
  T x;
  x.__x = static_cast<uint8_t>(bits);
  return static_cast<float>(x);
}

TEST_CASE("fp8 becomes floats: its first and last numbers", "[ptx][fp8]") {
  const std::pair<int, float> e4[] = {{0x01, 0x1p-9f}, {0x07, 7 * 0x1p-9f},
                                      {0x08, 0x1p-6f}, {0x38, 1.f},
                                      {0xb9, -1.125f}, {0x7e, fa::kLargestE4m3}};
  for (const auto& [bits, value] : e4) CHECK(of_bits<__nv_fp8_e4m3>(bits) == value);
  for (const int bits : {0x7f, 0xff}) CHECK(std::isnan(of_bits<__nv_fp8_e4m3>(bits)));
  const std::pair<int, float> e5[] = {{0x01, 0x1p-16f}, {0x7b, 57344.f}, {0x7c, INFINITY}};
  for (const auto& [bits, value] : e5) CHECK(of_bits<__nv_fp8_e5m2>(bits) == value);
}
