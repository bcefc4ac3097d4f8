// wgmma: operands in every layout, and A from registers.
#include "tests/ptx/operand.h"

namespace {

using fa::Major;
using fa::Swizzle;
using fa::TensorMap;
using test::bf16;
using test::kK;
using test::Operand;

constexpr int kM = 64;

// The 16 values of k from 16 * step on.
template <class T>
FA_PTX uint64_t descriptor(char* tile, int step) {
  if constexpr (T::major == Major::k) {
    const int inner = step * 32 % T::kWidth, panel = step * 32 / T::kWidth;
    return fa::wgmma_descriptor(tile + panel * T::kPanelBytes + inner, T::swizzle, T::kPanelBytes,
                                8 * T::kWidth);
  } else {
    constexpr bool none = T::swizzle == Swizzle::none;
    return fa::wgmma_descriptor(tile + step * 16 * T::kWidth, T::swizzle,
                                none ? 8 * T::kWidth : T::kPanelBytes,
                                none ? T::kPanelBytes : 8 * T::kWidth);
  }
}

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
      fa::wgmma<b_major>(d, a[step], descriptor<B>(sB, step), step > 0);
    } else {
      fa::wgmma<a_major, b_major>(d, descriptor<A>(sA, step), descriptor<B>(sB, step), step > 0);
    }
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  write_accumulators<N>(D, d);
}

template <int N, Major a_major, Major b_major, Swizzle swizzle, bool registers = false>
void check() {
  test::check_product<Operand<kM, a_major, swizzle>, Operand<N, b_major, swizzle>>(
      product_kernel<N, a_major, b_major, swizzle, registers>,
      test::small_integers<bf16>(kM * kK, 1), test::small_integers<bf16>(N * kK, 2));
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
