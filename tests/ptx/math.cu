// exp2_approx against exp2 in double precision.
#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/test.h"

namespace {

__global__ void exp2_kernel(const float* x, int n, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fa::exp2_approx(x[i]);
}

std::vector<float> exp2_of(const std::vector<float>& x) {
  return test::results<float>(x.size(), exp2_kernel, test::threads(x.size()), x,
                              static_cast<int>(x.size()));
}

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
