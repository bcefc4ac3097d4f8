// The largest and smallest of three integers, and bytes in another order.
#include <algorithm>
#include <climits>

#include "tests/device.h"
#include "tests/test.h"

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
