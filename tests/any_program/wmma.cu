// Fragments of a warp: products in fp16, bf16, tf32, int8 and fp64, and arithmetic on elements.
#include <cuda_bf16.h>
#include <mma.h>

#include <climits>

#include "check.h"

using namespace nvcuda;

template <class T>
__host__ __device__ T of(int i) {
  return T(float(i));
}

// D = 2 A B + C: A row-major, B column- or row-major, C and D in either order.
template <class T, class F, class S, int m, int n, int k, class LB, wmma::layout_t order>
__global__ void product(const F* A, const F* B, const S* C, S* D, bool by_rows) {
  wmma::fragment<wmma::matrix_a, m, n, k, T, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, m, n, k, T, LB> b;
  wmma::fragment<wmma::accumulator, m, n, k, S> c, sums;
  wmma::load_matrix_sync(a, A, k);
  wmma::load_matrix_sync(b, B, by_rows ? n : k);
  wmma::load_matrix_sync(c, C, order == wmma::mem_row_major ? n : m, order);
  wmma::fill_fragment(sums, of<S>(0));
  wmma::mma_sync(sums, a, b, sums);
  for (int i = 0; i < sums.num_elements; ++i) sums.x[i] = sums.x[i] * of<S>(2) + c.x[i];
  wmma::store_matrix_sync(D, sums, order == wmma::mem_row_major ? n : m, order);
}

template <class T, class F, class S, int m, int n, int k, class LB, wmma::layout_t order>
void expect_product() {
  F *A = room<F>(m * k), *B = room<F>(k * n);
  S *C = room<S>(m * n), *D = room<S>(m * n);
  for (int i = 0; i < m * k; ++i) A[i] = of<F>(i * 7 % 11 - (F(-1) < F(0) ? 5 : -245));
  for (int i = 0; i < k * n; ++i) B[i] = of<F>(i * 5 % 7 - (F(-1) < F(0) ? 3 : -125));
  for (int i = 0; i < m * n; ++i) C[i] = of<S>(i % 13);
  const bool by_rows = sizeof(LB*) && __is_same(LB, wmma::row_major);
  product<T, F, S, m, n, k, LB, order><<<1, 32>>>(A, B, C, D, by_rows);
  done();
  for (int r = 0; r < m; ++r) {
    for (int c = 0; c < n; ++c) {
      const int at = order == wmma::mem_row_major ? r * n + c : c * m + r;
      float sum = 0;
      for (int i = 0; i < k; ++i) {
        sum += float(A[r * k + i]) * float(B[by_rows ? i * n + c : c * k + i]);
      }
      EXPECT(float(D[at]) == 2 * sum + float(C[at]));
    }
  }
}

// Sums beyond int are clamped with saturation, and wrap around without.
__global__ void full(int* D, int start, signed char factor, bool saturates) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sums;
  wmma::fill_fragment(a, factor);
  wmma::fill_fragment(b, (signed char)1);
  wmma::fill_fragment(sums, start);
  wmma::mma_sync(sums, a, b, sums, saturates);
  wmma::store_matrix_sync(D, sums, 16, wmma::mem_row_major);
}

void expect_sum(int start, int factor, bool saturates, int right) {
  int* D = room<int>(256);
  full<<<1, 32>>>(D, start, (signed char)factor, saturates);
  done();
  EXPECT(D[0] == right && D[255] == right);
}

// A matrix inside a larger one: its stride exceeds the length of its rows.
__global__ void apart(const half* A, float* D) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> one;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
  wmma::load_matrix_sync(a, A, 24);
  wmma::load_matrix_sync(one, A + 24 * 16, 16);
  wmma::fill_fragment(sums, 0.f);
  wmma::mma_sync(sums, a, one, sums);
  wmma::store_matrix_sync(D, sums, 20, wmma::mem_row_major);
}
void expect_apart() {
  half* A = room<half>(24 * 16 + 256);
  float* D = room<float>(20 * 16);
  for (int i = 0; i < 24 * 16; ++i) A[i] = of<half>(i);
  for (int i = 0; i < 16; ++i) A[24 * 16 + 17 * i] = of<half>(1);
  apart<<<1, 32>>>(A, D);
  done();
  for (int i = 0; i < 20 * 16; ++i) {
    EXPECT(D[i] == (i % 20 < 16 ? i / 20 * 24 + i % 20 : 0));
  }
  EXPECT(wmma::__float_to_tf32(1.00048828125f) == 1.0009765625f);  // a tie, away from 0
}

int main() {
  expect_apart();
  expect_sum(INT_MAX, 1, true, INT_MAX);
  expect_sum(INT_MIN, -1, true, INT_MIN);
  expect_sum(INT_MAX, 1, false, INT_MIN + 15);
  expect_sum(0, -1, true, -16);
  using wmma::col_major;
  using wmma::row_major;
  constexpr auto rows = wmma::mem_row_major, columns = wmma::mem_col_major;
  expect_product<half, half, float, 16, 16, 16, col_major, rows>();
  expect_product<half, half, half, 32, 8, 16, row_major, columns>();
  expect_product<__nv_bfloat16, __nv_bfloat16, float, 8, 32, 16, row_major, rows>();
  expect_product<wmma::precision::tf32, float, float, 16, 16, 8, col_major, columns>();
  expect_product<signed char, signed char, int, 16, 16, 16, row_major, rows>();
  expect_product<unsigned char, unsigned char, int, 32, 8, 16, col_major, columns>();
  expect_product<half, half, float, 8, 32, 16, row_major, columns>();
  expect_product<double, double, double, 8, 8, 4, col_major, rows>();
  return verdict();
}
