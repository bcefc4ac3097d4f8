// The largest and smallest of three integers, and bytes in another order.
#include <algorithm>
#include <climits>

#include "tests/device.h"
#include "tests/test.h"

namespace {

using test::Buffer;

constexpr int kResults = 6;

__global__ void three_kernel(const int* x, int* y, int n) {
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

}  // namespace

TEST_CASE("the largest and smallest of three integers, and of them and zero", "[ptx][integer]") {
  const std::vector<int> values = {0, 1, -1, 7, -7, INT_MAX, INT_MIN};
  std::vector<int> x;
  for (int a : values) {
    for (int b : values) {
      for (int c : values) x.insert(x.end(), {a, b, c});
    }
  }
  const int n = static_cast<int>(x.size() / 3);
  Buffer<int> in("x", x), out("y", static_cast<size_t>(n) * kResults);
  fa::launch(three_kernel, {static_cast<unsigned>((n + 127) / 128), 128}, in.get(), out.get(), n);
  const auto y = out.download();
  for (int i = 0; i < n; ++i) {
    const int a = x[3 * i], b = x[3 * i + 1], c = x[3 * i + 2];
    const auto u = [](int v) { return static_cast<unsigned>(v); };
    CAPTURE(a, b, c);
    CHECK(y[kResults * i] == std::max({a, b, c}));
    CHECK(y[kResults * i + 1] == std::min({a, b, c}));
    CHECK(y[kResults * i + 2] == std::max({a, b, c, 0}));
    CHECK(y[kResults * i + 3] == std::max(std::min({a, b, c}), 0));
    CHECK(u(y[kResults * i + 4]) == std::max({u(a), u(b), u(c)}));
    CHECK(u(y[kResults * i + 5]) == std::min({u(a), u(b), u(c)}));
  }
}

namespace {

__global__ void bytes_kernel(const unsigned* selectors, unsigned* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __byte_perm(0x83828180u, 0x87868584u, selectors[i]);
}

}  // namespace

TEST_CASE("four bytes of eight, in any order", "[ptx][integer]") {
  std::vector<unsigned> selectors;
  for (unsigned s = 0; s < 8 * 8 * 8 * 8; ++s) {
    selectors.push_back((s & 7) | (s >> 3 & 7) << 4 | (s >> 6 & 7) << 8 | (s >> 9) << 12);
  }
  const unsigned n = static_cast<unsigned>(selectors.size());
  Buffer<unsigned> in("selectors", selectors), out("out", n);
  fa::launch(bytes_kernel, {(n + 127) / 128, 128}, in.get(), out.get(), static_cast<int>(n));
  const auto got = out.download();
  for (unsigned i = 0; i < n; ++i) {
    unsigned want = 0;  // byte b of the eight is 0x80 + b
    for (int at = 0; at < 4; ++at) want |= (0x80 + (selectors[i] >> 4 * at & 7)) << 8 * at;
    CAPTURE(selectors[i]);
    REQUIRE(got[i] == want);
  }
}
