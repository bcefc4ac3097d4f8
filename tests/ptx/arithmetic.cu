// exp2_approx against exp2 in fp64; sums rounded down; extremes of three integers; permuted bytes.
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/test.h"

namespace {

struct Exp2 {
  FA_PTX float operator()(float x) const { return fa::exp2_approx(x); }
};
struct Rcp {
  FA_PTX float operator()(float x) const { return fa::rcp_approx(x); }
};
struct Log2 {
  FA_PTX float operator()(float x) const { return fa::log2_approx(x); }
};
struct Add {
  FA_PTX float operator()(float a, float b) const { return fa::add_round_down(a, b); }
};
std::vector<float> exp2_of(const std::vector<float>& x) { return test::mapped<Exp2>(x); }
std::vector<float> rcp_of(const std::vector<float>& x) { return test::mapped<Rcp>(x); }
std::vector<float> log2_of(const std::vector<float>& x) { return test::mapped<Log2>(x); }

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("exp2_approx is within 2 units in the last place", "[ptx][math]") {
  std::mt19937 rng(1);
  std::vector<float> x;
  // Scores minus their maximum, and the whole range of normal results.
  for (int i = 0; i < 4096; ++i) x.push_back(-20.0f * static_cast<float>(rng()) / 4294967296.0f);
  for (int i = 0; i < 4096; ++i) {
    x.push_back(-126.0f + 253.9f * static_cast<float>(rng()) / 4294967296.0f);
  }
  const auto got = exp2_of(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp2(static_cast<double>(x[i]));
    const double unit = std::ldexp(1.0, std::ilogb(want) - 23);  // of the last place
    const double error = std::abs(got[i] - want) / unit;
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  CHECK(worst <= 2.0);
}

TEST_CASE("rcp_approx is within 1 unit in the last place", "[ptx][math]") {
  std::mt19937 rng(2);
  std::vector<float> x;
  for (int i = 0; i < 8192; ++i) {
    const float size = std::exp2(-125.0f + 250.0f * static_cast<float>(rng()) / 4294967296.0f);
    x.push_back(i % 2 ? size : -size);
  }
  const auto got = rcp_of(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = 1 / static_cast<double>(x[i]);
    const double error = std::abs(got[i] - want) / std::ldexp(1.0, std::ilogb(want) - 23);
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  CHECK(worst <= 1.0);
  CHECK(rcp_of({1.0f, -2.0f, kInfinity, -kInfinity, 0.0f, 1e-39f, 0x1p127f}) ==
        std::vector<float>{1.0f, -0.5f, 0.0f, 0.0f, kInfinity, kInfinity, 0.0f});
}

TEST_CASE("log2_approx is within 2^-22, or 2^-22 of the result", "[ptx][math]") {
  std::mt19937 rng(3);
  std::vector<float> x;
  for (int i = 0; i < 4096; ++i) {
    x.push_back(std::exp2(-126.0f + 253.0f * static_cast<float>(rng()) / 4294967296.0f));
    x.push_back(0.5f + 1.5f * static_cast<float>(rng()) / 4294967296.0f);
  }
  const auto got = log2_of(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::log2(static_cast<double>(x[i]));
    const bool near = x[i] > 0.5f && x[i] < 2.0f;
    const double error = std::abs(got[i] - want) / (near ? 1 : std::abs(want));
    worst = error <= worst ? worst : error;  // keeps a NaN
  }
  CHECK(worst <= 0x1p-22);
  CHECK(log2_of({0.0f, 1e-40f, 1.0f, 8.0f, kInfinity}) ==
        std::vector<float>{-kInfinity, -kInfinity, 0.0f, 3.0f, kInfinity});
}

TEST_CASE("exp2_approx is exact at integers and at the ends of its range", "[ptx][math]") {
  const auto x = test::each<float>(254, [](int i) { return i - 126; });
  CHECK(exp2_of(x) == test::each<float>(254, [](int i) { return std::ldexp(1.0f, i - 126); }));
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK(exp2_of({0.0f, -0.0f, tiny, -tiny}) == std::vector<float>(4, 1));
  // The last two would be subnormal.
  const auto zeros =
      exp2_of({-kInfinity, -std::numeric_limits<float>::max(), -1e30f, -200.0f, -149.0f, -126.5f});
  for (float y : zeros) {
    CHECK(y == 0.0f);
    CHECK_FALSE(std::signbit(y));
  }
  CHECK(exp2_of({128.0f, 1e30f, kInfinity}) == std::vector<float>(3, kInfinity));
  CHECK(std::isnan(exp2_of({std::numeric_limits<float>::quiet_NaN()})[0]));
}

namespace {

constexpr int kResults = 6;

__global__ void three_kernel(const int* x, int n, int* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int a = x[3 * i], b = x[3 * i + 1], c = x[3 * i + 2];
  int* r = y + kResults * i;
  r[0] = __vimax3_s32(a, b, c);
  r[1] = __vimin3_s32(a, b, c);
  r[2] = __vimax3_s32_relu(a, b, c);
  r[3] = __vimin3_s32_relu(a, b, c);
  r[4] = static_cast<int>(__vimax3_u32(a, b, c));
  r[5] = static_cast<int>(__vimin3_u32(a, b, c));
}

__global__ void bytes_kernel(unsigned* out) {
  const unsigned selector = blockIdx.x * blockDim.x + threadIdx.x;
  out[selector] = __byte_perm(0x83828180u, 0x87868584u, selector & 0x7777);
}

}  // namespace

TEST_CASE("add_round_down gives the largest number that is not above the sum", "[ptx][math]") {
  const float far = 12582912.f, tiny = 1e-20f, below_1 = std::nextafter(1.f, 0.f);
  const std::vector<float> a = {far, far, far, far, 1, 1, 1, -1, -tiny, 3};
  const std::vector<float> b = {-3.5f, -tiny, 0.25f, -7, tiny, -tiny, 0x1p-24f, -tiny, 1, -3};
  const std::vector<float> want = {
      far - 4, far - 1, far, far - 7, 1, below_1, 1, std::nextafter(-1.f, -2.f), below_1, 0};
  CHECK(test::mapped<Add>(a, b) == want);
}

TEST_CASE("the largest and smallest of three integers, and of them and zero", "[ptx][integer]") {
  const std::vector<int> values = {0, 1, -1, 7, -7, INT_MAX, INT_MIN};
  std::vector<int> x, want;
  for (int a : values) {
    for (int b : values) {
      for (int c : values) {
        x.insert(x.end(), {a, b, c});
        const auto [ua, ub, uc] = std::tuple<unsigned, unsigned, unsigned>(a, b, c);
        const int least = std::min({a, b, c}), largest = std::max({a, b, c});
        want.insert(want.end(), {largest, least, std::max(largest, 0), std::max(least, 0),
                                 static_cast<int>(std::max({ua, ub, uc})),
                                 static_cast<int>(std::min({ua, ub, uc}))});
      }
    }
  }
  const int n = static_cast<int>(x.size() / 3);
  CHECK(test::results<int>(want.size(), three_kernel, test::threads(n), x, n) == want);
}

TEST_CASE("four bytes of eight, in any order", "[ptx][integer]") {
  constexpr unsigned kSelectors = 1 << 16;  // four bits for each of the four bytes
  const auto got = test::results<unsigned>(kSelectors, bytes_kernel, test::threads(kSelectors));
  for (unsigned selector = 0; selector < kSelectors; ++selector) {
    unsigned want = 0;  // byte b of the eight is 0x80 + b
    for (int at = 0; at < 4; ++at) want |= (0x80 + (selector >> 4 * at & 7)) << 8 * at;
    CAPTURE(selector);
    REQUIRE(got[selector] == want);
  }
}
