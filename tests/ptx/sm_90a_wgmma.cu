// wgmma: operands in every layout, and A from registers.
#include "tests/device.h"
#include "tests/test.h"

namespace {

using fa::Major;
using fa::Swizzle;
using fa::TensorMap;
using test::bf16;
using test::Buffer;

constexpr int kM = 64, kK = 64;

// An operand of `mn` x 64 in shared memory, as TMA boxes of one swizzle width leave it: panels of
// W / 2 columns, W bytes a row.
template <int mn, Major major, Swizzle swizzle>
struct Operand {
  static constexpr int kWidth = static_cast<int>(swizzle);
  static constexpr int kBytes = mn * kK * 2;
  static constexpr int kRows = major == Major::k ? mn : kK;  // rows of memory
  static constexpr int kCols = major == Major::k ? kK : mn;
  static constexpr int kPanelCols = kWidth / 2;
  static constexpr int kPanels = kCols / kPanelCols;
  static constexpr int kPanelBytes = kRows * kWidth;

  static TensorMap map(const bf16* p) {
    return fa::tensor_map(p, {{kCols, 1, kPanelCols}, {kRows, kCols, kRows}}, swizzle);
  }
  static FA_PTX void load(void* tile, const TensorMap* map, uint64_t* bar) {
    for (int i = 0; i < kPanels; ++i) {
      fa::tma_load(static_cast<char*>(tile) + i * kPanelBytes, map, bar, {i * kPanelCols, 0});
    }
  }
  // The 16 values of k from 16 * step on.
  static FA_PTX uint64_t descriptor(void* tile, int step) {
    char* p = static_cast<char*>(tile);
    if constexpr (major == Major::k) {
      const int inner = step * 32 % kWidth, panel = step * 32 / kWidth;
      return fa::wgmma_descriptor(p + panel * kPanelBytes + inner, swizzle, kPanelBytes,
                                  8 * kWidth);
    } else if constexpr (swizzle == Swizzle::none) {
      return fa::wgmma_descriptor(p + step * 16 * kWidth, swizzle, 8 * kWidth, kPanelBytes);
    } else {
      return fa::wgmma_descriptor(p + step * 16 * kWidth, swizzle, kPanelBytes, 8 * kWidth);
    }
  }
};

template <int N>
__device__ void write_accumulators(float* D, const float (&d)[N / 2]) {
  UNROLL
  for (int i = 0; i < N / 2; ++i) {
    const fa::RowCol e = fa::wgmma_d_element(threadIdx.x % 128, i);
    D[e.row * N + e.col] = d[i];
  }
}

// D[64][N] = A[64][64] B[N][64]^T, both from shared memory, or A from registers.
template <int N, Major a_major, Major b_major, Swizzle swizzle, bool registers>
__global__ void __launch_bounds__(128)
    product_kernel(const bf16* gA, const __grid_constant__ TensorMap map_a,
                   const __grid_constant__ TensorMap map_b, float* D) {
  using A = Operand<kM, a_major, swizzle>;
  using B = Operand<N, b_major, swizzle>;
  char* sA = fa::dynamic_shared<char>();
  char* sB = sA + A::kBytes;
  __shared__ uint64_t full;
  test::load_and_wait(&full, A::kBytes + B::kBytes, [&] {
    A::load(sA, &map_a, &full);
    B::load(sB, &map_b, &full);
  });
  uint32_t a[kK / 16][4];
  UNROLL
  for (int step = 0; step < kK / 16; ++step) {
    UNROLL
    for (int r = 0; r < 4; ++r) {
      const fa::RowCol e = fa::wgmma_a_element(threadIdx.x, 2 * r);  // and its right neighbour
      const bf16* p = gA + e.row * kK + step * 16 + e.col;
      a[step][r] = fa::pack_bf16(static_cast<float>(p[0]), static_cast<float>(p[1]));
    }
  }
  float d[N / 2];
  fa::wgmma_fence();
  UNROLL
  for (int step = 0; step < kK / 16; ++step) {
    if constexpr (registers) {
      fa::wgmma<b_major>(d, a[step], B::descriptor(sB, step), step > 0);
    } else {
      fa::wgmma<a_major, b_major>(d, A::descriptor(sA, step), B::descriptor(sB, step), step > 0);
    }
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  write_accumulators<N>(D, d);
}

// x[rows][cols] as x[cols][rows].
std::vector<bf16> transposed(const std::vector<bf16>& x, int rows, int cols) {
  std::vector<bf16> t(x.size());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) t[c * rows + r] = x[r * cols + c];
  }
  return t;
}

// D[m][n] = sum over k of A[m][k] B[n][k].
std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b, int N) {
  return test::each<float>(kM * N, [&](int i) {
    const int m = i / N, n = i % N;
    float sum = 0;
    for (int k = 0; k < kK; ++k) {
      sum += static_cast<float>(a[m * kK + k]) * static_cast<float>(b[n * kK + k]);
    }
    return sum;
  });
}

template <int N, Major a_major, Major b_major, Swizzle swizzle, bool registers = false>
void check() {
  CAPTURE(N, static_cast<int>(a_major), static_cast<int>(b_major), static_cast<int>(swizzle));
  const auto a = test::small_integers<bf16>(kM * kK, 1), b = test::small_integers<bf16>(N * kK, 2);
  const Buffer<bf16> A("A", a_major == Major::k ? a : transposed(a, kM, kK));
  const Buffer<bf16> B("B", b_major == Major::k ? b : transposed(b, N, kK));
  using OperandA = Operand<kM, a_major, swizzle>;
  using OperandB = Operand<N, b_major, swizzle>;
  const auto got = test::results<float>(
      kM * N, product_kernel<N, a_major, b_major, swizzle, registers>,
      {1, 128, OperandA::kBytes + OperandB::kBytes}, a, OperandA::map(A), OperandB::map(B));
  CHECK((got == product(a, b, N)));
}

}  // namespace

TEST_CASE("wgmma multiplies K-major operands of every swizzle", "[ptx][wgmma]") {
  check<128, Major::k, Major::k, Swizzle::b128>();
  check<128, Major::k, Major::k, Swizzle::b64>();
  check<128, Major::k, Major::k, Swizzle::b32>();
  check<128, Major::k, Major::k, Swizzle::none>();
}

TEST_CASE("wgmma multiplies MN-major operands of every swizzle", "[ptx][wgmma]") {
  check<128, Major::k, Major::mn, Swizzle::b128>();
  check<128, Major::mn, Major::k, Swizzle::b128>();
  check<128, Major::mn, Major::mn, Swizzle::b128>();
  check<128, Major::mn, Major::mn, Swizzle::b64>();
  check<128, Major::mn, Major::mn, Swizzle::b32>();
  check<128, Major::mn, Major::mn, Swizzle::none>();
}

TEST_CASE("wgmma has every width that attention uses", "[ptx][wgmma]") {
  check<32, Major::k, Major::k, Swizzle::b128>();
  check<64, Major::k, Major::mn, Swizzle::b128>();
  check<96, Major::k, Major::k, Swizzle::b128>();
  check<192, Major::k, Major::mn, Swizzle::b128>();
  check<256, Major::k, Major::k, Swizzle::b128>();
}

TEST_CASE("wgmma takes A from registers", "[ptx][wgmma]") {
  check<128, Major::k, Major::k, Swizzle::b128, true>();
  check<128, Major::k, Major::mn, Swizzle::b128, true>();
  check<64, Major::k, Major::mn, Swizzle::b128, true>();
}
