// red_add_v4, and the conversion that sums of integers need.
#include <climits>
#include <cmath>

#include "common/dialect/ptx/reduce.h"
#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::Buffer;

__global__ void add_kernel(float* sums) {  // each block the same four numbers a lane
  const float x = static_cast<float>(threadIdx.x);
  fa::red_add_v4(sums + 4 * threadIdx.x, x, -x, 0.5f, 1.f);
}

__global__ void round_kernel(const float* x, int* y, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = __float2int_rn(x[i]);
}

}  // namespace

TEST_CASE("red_add_v4 adds four floats side by side, of all blocks", "[ptx][reduce]") {
  constexpr int kBlocks = 5, kLanes = 64;
  const Buffer<float> sums("sums", std::vector<float>(4 * kLanes, 2.f));
  fa::launch(add_kernel, {dim3(kBlocks), dim3(kLanes)}, sums.get());
  const std::vector<float> got = sums.download();
  for (int lane = 0; lane < kLanes; ++lane) {
    CAPTURE(lane);
    const float x = static_cast<float>(kBlocks * lane);
    CHECK(got[4 * lane] == 2 + x);
    CHECK(got[4 * lane + 1] == 2 - x);
    CHECK(got[4 * lane + 2] == 2 + kBlocks * 0.5f);
    CHECK(got[4 * lane + 3] == 2 + kBlocks);
  }
}

TEST_CASE("__float2int_rn: ties to even, saturated, NaN is 0", "[ptx][reduce]") {
  const std::vector<float> x = {0.5f,      1.5f,  2.5f,           -0.5f,   -1.5f,
                                0.49f,     7.51f, 1e10f,          -1e10f,  INFINITY,
                                -INFINITY, NAN,   0x1.fffffep30f, -0x1p31f};
  const std::vector<int> want = {0,       2,       2,       0,       -2, 0,          8,
                                 INT_MAX, INT_MIN, INT_MAX, INT_MIN, 0,  0x7fffff80, INT_MIN};
  const Buffer<float> in("x", x);
  const Buffer<int> out("y", x.size());
  fa::launch(round_kernel, {dim3(1), dim3(32)}, in.get(), out.get(), static_cast<int>(x.size()));
  CHECK(out.download() == want);
}
