// cuBLAS's vectors, matrices with a vector, triangles, and batches, compared with plain loops.
#include <cublas_v2.h>

#include "check.h"

#define BLAS(call) EXPECT((call) == CUBLAS_STATUS_SUCCESS)
constexpr cublasFillMode_t LOWER = CUBLAS_FILL_MODE_LOWER, UPPER = CUBLAS_FILL_MODE_UPPER;

static const float kBanded[4][4] = {{1, 2, 3, 0}, {4, 5, 6, 7}, {0, 8, 9, 10}};
template <class... V>
static bool are(const float* p, V... v) {
  int i = 0;
  return ((p[i++] == v) && ...);
}
static bool is(cuComplex z, float re, float im) { return z.x == re && z.y == im; }

// S = 1 2 3 / 2 4 5 / 3 5 6, its halves U and L, and bands of it, in the storage of each call;
// padding is 99 and not read. S x is 321 542 653.
static void storages(cublasHandle_t h) {
  const int n = 3;
  const float one = 1, zero = 0, two = 2, packed_up[] = {1, 2, 4, 3, 5, 6};
  float *up = room<float>(6), *low = room<float>(6), *whole = room<float>(9), *x = room<float>(4),
        *y = room<float>(6), *band = room<float>(16);
  const auto set_x = [&] { x[0] = 1, x[1] = 10, x[2] = 100, x[3] = 1000; };
  for (int i = 0; i < 6; ++i) up[i] = packed_up[i], low[i] = i + 1;
  set_x();
  BLAS(cublasSspmv(h, UPPER, n, &one, up, x, 1, &zero, y, 1));
  EXPECT(are(y, 321, 542, 653));
  BLAS(cublasSspmv(h, LOWER, n, &one, low, x, 1, &two, y, 1));
  EXPECT(are(y, 963, 1626, 1959));
  const struct {
    cublasFillMode_t half;
    cublasOperation_t t;
    cublasDiagType_t diagonal;
    float result[3];
  } rows[] = {{UPPER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, {321, 540, 600}},
              {UPPER, CUBLAS_OP_T, CUBLAS_DIAG_NON_UNIT, {1, 42, 653}},
              {LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, {1, 42, 653}},
              {LOWER, CUBLAS_OP_T, CUBLAS_DIAG_NON_UNIT, {321, 540, 600}},
              {UPPER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, {321, 510, 100}},
              {LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, {1, 12, 153}}};
  for (const auto& r : rows) {
    const float* p = r.half == UPPER ? up : low;
    BLAS(cublasStpmv(h, r.half, r.t, r.diagonal, n, p, x, 1));
    EXPECT(are(x, r.result[0], r.result[1], r.result[2]));
    BLAS(cublasStpsv(h, r.half, r.t, r.diagonal, n, p, x, 1));
    EXPECT(are(x, 1, 10, 100));
    for (int i = 0; i < 9; ++i) whole[i] = 99;
    BLAS(cublasStpttr(h, r.half, n, p, whole, n));
    EXPECT(r.half == UPPER ? are(whole, 1, 99, 99, 2, 4, 99, 3, 5, 6)
                           : are(whole, 1, 2, 3, 99, 4, 5, 99, 99, 6));
    BLAS(cublasStrttp(h, r.half, n, whole, n, y));
    EXPECT(are(y, 1, 2, p[2], p[3]));
    BLAS(cublasStrmv(h, r.half, r.t, r.diagonal, n, whole, n, x, 1));
    EXPECT(are(x, r.result[0], r.result[1], r.result[2]));
    BLAS(cublasStrsv(h, r.half, r.t, r.diagonal, n, whole, n, x, 1));
    EXPECT(are(x, 1, 10, 100));
    BLAS(cublasStrmv(h, r.half, r.t, r.diagonal, n, whole, n, x, 1));
    const bool turned = r.t == CUBLAS_OP_T;  // 2 op(A)^-1 x as a column, and as a row of X A = 2 x
    BLAS(cublasStrsm(h, CUBLAS_SIDE_LEFT, r.half, r.t, r.diagonal, n, 1, &two, whole, n, x, n));
    EXPECT(are(x, 2, 20, 200));
    set_x();
    BLAS(cublasStrmv(h, r.half, r.t, r.diagonal, n, whole, n, x, 1));
    BLAS(cublasStrsm(h, CUBLAS_SIDE_RIGHT, r.half, turned ? CUBLAS_OP_N : CUBLAS_OP_T, r.diagonal,
                     1, n, &two, whole, n, x, 1));
    EXPECT(are(x, 2, 20, 200));
    set_x();
  }
  for (cublasFillMode_t half : {UPPER, LOWER}) {
    for (int i = 0; i < 9; ++i) whole[i] = 99;
    BLAS(cublasStpttr(h, half, n, half == UPPER ? up : low, whole, n));
    BLAS(cublasSsymv(h, half, n, &one, whole, n, x, 1, &zero, y, 1));
    EXPECT(are(y, 321, 542, 653));
    BLAS(cublasSsymm(h, CUBLAS_SIDE_LEFT, half, n, 1, &one, whole, n, x, n, &zero, y, n));
    EXPECT(are(y, 321, 542, 653));
    BLAS(cublasSsymm(h, CUBLAS_SIDE_RIGHT, half, 1, n, &two, whole, n, x, 1, &zero, y, 1));
    EXPECT(are(y, 642, 1084, 1306));
  }
  // Bands with one diagonal beside the main one.
  const float upper_band[] = {99, 1, 2, 4, 5, 6}, lower_band[] = {1, 2, 4, 5, 6, 99};
  for (cublasFillMode_t half : {UPPER, LOWER}) {
    for (int i = 0; i < 6; ++i) band[i] = half == UPPER ? upper_band[i] : lower_band[i];
    BLAS(cublasSsbmv(h, half, n, 1, &one, band, 2, x, 1, &zero, y, 1));
    EXPECT(are(y, 21, 542, 650));
    BLAS(cublasStbmv(h, half, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, 1, band, 2, x, 1));
    EXPECT(half == UPPER ? are(x, 21, 540, 600) : are(x, 1, 42, 650));
    BLAS(cublasStbsv(h, half, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, 1, band, 2, x, 1));
    EXPECT(are(x, 1, 10, 100));
  }
  for (int i = 0; i < 16; ++i) band[i] = 99;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (i - j <= 1 && j - i <= 2) band[2 + i - j + 4 * j] = kBanded[i][j];
    }
  }
  BLAS(cublasSgbmv(h, CUBLAS_OP_N, 3, 4, 1, 2, &one, band, 4, x, 1, &zero, y, 1));
  EXPECT(are(y, 321, 7654, 10980));
  BLAS(cublasSgbmv(h, CUBLAS_OP_T, 3, 4, 1, 2, &one, band, 4, x, 1, &zero, y, 1));
  EXPECT(are(y, 41, 852, 963, 1070));
}

static void updates(cublasHandle_t h) {
  const float one = 1, two = 2;
  float *x = room<float>(3), *y = room<float>(3), *A = room<float>(9), *B = room<float>(6),
        *C = room<float>(6);
  for (int i = 0; i < 3; ++i) x[i] = i == 0 ? 1 : 10 * x[i - 1], y[i] = i + 1;
  const auto sevens = [&] {
    for (int i = 0; i < 9; ++i) A[i] = 7;
  };
  sevens();
  BLAS(cublasSsyr(h, UPPER, 3, &two, x, 1, A, 3));
  EXPECT(are(A, 9, 7, 7, 27, 207, 7, 207, 2007, 20007));
  sevens();
  BLAS(cublasSsyr2(h, LOWER, 3, &two, x, 1, y, 1, A, 3));
  EXPECT(are(A, 11, 31, 213, 7, 87, 467, 7, 7, 1207));
  for (int i = 0; i < 6; ++i) A[i] = i + 1, B[i] = 10 * (i + 1), C[i] = 1;
  BLAS(cublasSsyrk(h, LOWER, CUBLAS_OP_N, 2, 3, &one, A, 2, &two, C, 2));
  EXPECT(are(C, 37, 46, 1, 58, 1));
  BLAS(cublasSgeam(h, CUBLAS_OP_N, CUBLAS_OP_T, 2, 3, &two, A, 2, &one, B, 3, C, 2));
  EXPECT(are(C, 12, 44, 26, 58, 40, 72));
  BLAS(cublasSdgmm(h, CUBLAS_SIDE_LEFT, 2, 3, A, 2, x, 1, C, 2));
  EXPECT(are(C, 1, 20, 3, 40, 5, 60));
  BLAS(cublasSdgmm(h, CUBLAS_SIDE_RIGHT, 2, 3, A, 2, x, 1, C, 2));
  EXPECT(are(C, 1, 2, 30, 40, 500, 600));
  for (int i = 0; i < 6; ++i) C[i] = 1;
  BLAS(cublasSger(h, 2, 3, &two, x, 1, y, 1, C, 2));
  EXPECT(are(C, 3, 21, 5, 41, 7, 61));
  BLAS(cublasSgemv(h, CUBLAS_OP_N, 2, 3, &two, A, 2, x, 1, &one, y, 2));
  EXPECT(are(y, 1 + 2 * 531, 2, 3 + 2 * 642));

  // Level 1: the first of two equal ones, and none of no numbers.
  const float c = 2, s = 3, values[] = {3, -1, 1, -3};
  float* v = room<float>(4);
  int place = -1;
  for (int i = 0; i < 4; ++i) v[i] = values[i];
  BLAS(cublasIsamin(h, 4, v, 1, &place));
  EXPECT(place == 2);
  BLAS(cublasIsamax(h, 4, v, 1, &place));
  EXPECT(place == 1);
  BLAS(cublasIsamax(h, 2, v, 2, &place));
  EXPECT(place == 1);
  BLAS(cublasIsamin(h, 0, v, 1, &place));
  EXPECT(place == 0);
  BLAS(cublasSswap(h, 2, v, 1, v + 2, -1));
  EXPECT(are(v, -3, 1, -1, 3));
  BLAS(cublasScopy(h, 2, v, -2, v + 2, 1));
  EXPECT(are(v, -3, 1, -1, -3));
  BLAS(cublasSrot(h, 1, v, 1, v + 1, 1, &c, &s));
  EXPECT(are(v, 2 * -3 + 3 * 1, 2 * 1 + 3 * 3, -1, -3));
}

static void complex_numbers(cublasHandle_t h) {
  cuComplex *z = room<cuComplex>(2), *A = room<cuComplex>(4), *y = room<cuComplex>(2), r;
  const cuComplex one = {1, 0}, zero = {0, 0}, i = {0, 1};
  const float real = 1;
  float size;
  int place;
  const auto set = [&] {
    z[0] = {1, 2}, z[1] = {3, -1}, y[0] = {1, 0}, y[1] = {10, 0};
    for (int k = 0; k < 4; ++k) A[k] = zero;
  };
  set();
  BLAS(cublasCdotu(h, 2, z, 1, z, 1, &r));
  EXPECT(is(r, 5, -2));
  BLAS(cublasScasum(h, 2, z, 1, &size));
  EXPECT(size == 7);
  BLAS(cublasScnrm2(h, 2, z, 1, &size));
  EXPECT(size > 3.8729f && size < 3.873f);
  BLAS(cublasIcamax(h, 2, z, 1, &place));
  EXPECT(place == 2);
  BLAS(cublasIcamin(h, 2, z, 1, &place));
  EXPECT(place == 1);
  BLAS(cublasCaxpy(h, 2, &i, z, 1, y, 1));
  EXPECT(is(y[0], -1, 1) && is(y[1], 11, 3));
  BLAS(cublasCscal(h, 1, &i, y, 1));
  EXPECT(is(y[0], -1, -1) && is(y[1], 11, 3));
  set();
  BLAS(cublasCgerc(h, 1, 2, &one, &(A[0] = i), 1, z, 1, A + 1, 1));
  EXPECT(is(A[1], 2, 1) && is(A[2], -1, 3));
  BLAS(cublasCgeru(h, 1, 1, &one, A, 1, z + 1, 1, A + 3, 1));
  EXPECT(is(A[3], 1, 3));
  const struct {
    cublasOperation_t a, b;
    float re, im;
  } products[] = {{CUBLAS_OP_N, CUBLAS_OP_C, 1, 7},
                  {CUBLAS_OP_C, CUBLAS_OP_N, 1, -7},
                  {CUBLAS_OP_T, CUBLAS_OP_N, 5, 5},
                  {CUBLAS_OP_C, CUBLAS_OP_C, 5, -5}};
  for (const auto& p : products) {
    BLAS(cublasCgemm(h, p.a, p.b, 1, 1, 1, &one, z, 1, z + 1, 1, &zero, A, 1));
    EXPECT(is(A[0], p.re, p.im));
  }
  A[0] = {1, 9};
  BLAS(cublasCherk(h, UPPER, CUBLAS_OP_N, 1, 2, &real, z, 1, &real, A, 1));
  EXPECT(is(A[0], 16, 0));
  BLAS(cublasCsyrk(h, UPPER, CUBLAS_OP_N, 1, 2, &one, z, 1, &zero, A, 1));
  EXPECT(is(A[0], 5, -2));
  set(), y[1] = one;
  BLAS(cublasCher2(h, UPPER, 2, &i, z, 1, y, 1, A, 2));
  EXPECT(is(A[0], -4, 0) && is(A[1], 0, 0) && is(A[2], -1, -2) && is(A[3], 2, 0));
  set();
  A[0] = one, A[1] = {99, 99}, A[2] = i, A[3] = {2, 0};
  BLAS(cublasCtrmv(h, UPPER, CUBLAS_OP_C, CUBLAS_DIAG_NON_UNIT, 2, A, 2, y, 1));
  EXPECT(is(y[0], 1, 0) && is(y[1], 20, -1));
  BLAS(cublasCtrsv(h, UPPER, CUBLAS_OP_C, CUBLAS_DIAG_NON_UNIT, 2, A, 2, y, 1));
  EXPECT(is(y[0], 1, 0) && is(y[1], 10, 0));
  A[0] = {2, 9}, A[1] = {1, 1}, A[2] = {5, 9};
  BLAS(cublasChpmv(h, UPPER, 2, &one, A, z, 1, &zero, y, 1));
  EXPECT(is(y[0], 6, 6) && is(y[1], 18, -4));
}

// The calls in which every operand has its own type, and the copies.
static void any_type(cublasHandle_t h) {
  const int n = 2;
  __half* a = room<__half>(4);
  float *f = room<float>(8), *g = room<float>(8), one = 1, zero = 0, three = 3, size = 0;
  double *d = room<double>(4), d_one = 1, d_zero = 0;
  const __half h_two = __float2half(2), h_zero = __float2half(0);
  for (int i = 0; i < 4; ++i) a[i] = __float2half(i + 1), d[i] = i + 1;
  // The older form gives the type of the sums, which is also the scalars'.
  BLAS(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_16F, n, a, CUDA_R_16F, n,
                    &zero, f, CUDA_R_32F, n, CUDA_R_32F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 7, 10, 15, 22));
  BLAS(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &h_two, a, CUDA_R_16F, n, a, CUDA_R_16F,
                    n, &h_zero, f, CUDA_R_32F, n, CUDA_R_16F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 20, 28, 28, 40));
  BLAS(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &d_one, d, CUDA_R_64F, n, d, CUDA_R_64F,
                    n, &d_zero, f, CUDA_R_32F, n, CUDA_R_64F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 5, 11, 11, 25));
  BLAS(cublasHgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, n, &h_two, a, 1, a + 2, n, &h_zero, a, 1));
  EXPECT(__half2float(a[0]) == 22 && __half2float(a[1]) == 2);
  BLAS(cublasAxpyEx(h, n, &three, CUDA_R_32F, a, CUDA_R_16F, -1, f, CUDA_R_32F, 2, CUDA_R_32F));
  EXPECT(are(f, 5 + 3 * 2, 11, 11 + 3 * 22, 25));
  BLAS(cublasNrm2Ex(h, 2, d + 2, CUDA_R_64F, 1, &size, CUDA_R_32F, CUDA_R_64F));
  EXPECT(size == 5);
  const auto status = [&](int m, int k, int lda, int ldb, int ldc, cublasOperation_t t, int count) {
    return cublasSgemmStridedBatched(h, t, t, m, 1, k, &one, f, lda, 0, f, ldb, 0, &zero, g, ldc, 0,
                                     count);
  };
  const auto N = CUBLAS_OP_N, T = CUBLAS_OP_T;
  const auto bad = CUBLAS_STATUS_INVALID_VALUE;
  EXPECT(status(2, 3, 2, 3, 2, N, 1) == CUBLAS_STATUS_SUCCESS);
  EXPECT(status(2, 3, 3, 1, 2, T, 1) == CUBLAS_STATUS_SUCCESS);
  EXPECT(status(2, 3, 1, 3, 2, N, 1) == bad && status(2, 3, 2, 2, 2, N, 1) == bad);
  EXPECT(status(2, 3, 2, 3, 1, N, 1) == bad && status(2, 3, 2, 1, 2, T, 1) == bad);
  EXPECT(status(2, 3, 3, 0, 2, T, 1) == bad && status(2, -1, 2, 3, 2, N, 1) == bad);
  EXPECT(status(-1, 3, 2, 3, 2, N, 1) == bad && status(2, 3, 2, 3, 2, N, -1) == bad);
  EXPECT(status(0, 3, 1, 3, 1, N, 1) == CUBLAS_STATUS_SUCCESS);

  // 2 x 2 numbers of a matrix of 3 rows; vectors with steps.
  const float host[] = {1, 2, 3, 4, 5, 6};
  float back[6] = {};
  BLAS(cublasSetMatrix(2, 2, sizeof(float), host, 3, f, 4));
  CHECK(cudaDeviceSynchronize());
  EXPECT(are(f, 1, 2) && are(f + 4, 4, 5) && f[2] != 3);
  BLAS(cublasGetMatrix(2, 2, sizeof(float), f, 4, back, 3));
  EXPECT(are(back, 1, 2, 0, 4, 5, 0));
  BLAS(cublasSetVector(3, sizeof(float), host, 2, g, 1));
  BLAS(cublasGetVector(2, sizeof(float), g + 1, 1, back, 3));
  EXPECT(are(back, 3, 2, 0, 5, 5, 0));
  BLAS(cublasSetMatrixAsync(3, 2, sizeof(float), host, 3, g, 3, 0));
  BLAS(cublasGetVectorAsync(6, sizeof(float), g, 1, back, 1, 0));
  EXPECT(are(back, 1, 2, 3, 4, 5, 6));
  int version = 0;
  BLAS(cublasGetVersion(h, &version));
  EXPECT(version >= 120000 && cublasGetStatusString(CUBLAS_STATUS_SUCCESS) != nullptr);
}

int main() {
  const int n = 4;
  float *A = room<float>(n * n), *B = room<float>(n * n), *C = room<float>(n * n);
  float *x = room<float>(2 * n), *y = room<float>(n), result, one = 1, zero = 0, two = 2;
  for (int i = 0; i < n * n; ++i) A[i] = (i * 7) % 5 + 1 + 4 * (i % 5 == 0), B[i] = i % 3;
  for (int i = 0; i < n; ++i) x[2 * i] = i + 1, y[i] = -i;
  cublasHandle_t h;
  BLAS(cublasCreate(&h));
  BLAS(cublasSaxpy(h, n, &two, x, 2, y, 1));
  EXPECT(y[0] == 2 && y[3] == 5);
  BLAS(cublasSdot(h, n, x, 2, y, -1, &result));  // y backwards
  EXPECT(result == 1 * 5 + 2 * 4 + 3 * 3 + 4 * 2);
  BLAS(cublasSnrm2(h, n, y, 1, &result));
  EXPECT(result > 7.348f && result < 7.349f);
  y[2] = -9;
  int largest;
  BLAS(cublasIsamax(h, n, y, 1, &largest));
  BLAS(cublasSasum(h, n, y, 1, &result));
  EXPECT(largest == 3 && result == 2 + 3 + 9 + 5);
  BLAS(cublasSscal(h, n, &two, y, 1));
  BLAS(cublasScopy(h, n, y, 1, C, 1));
  EXPECT(C[2] == -18);

  BLAS(cublasSger(h, n, n, &two, x, 2, y, 1, B, n));
  EXPECT(B[1 + 2 * n] == 9 % 3 + 2 * 2 * -18.f);
  BLAS(cublasSsymv(h, LOWER, n, &one, A, n, x, 2, &zero, y, 1));
  for (int i = 0; i < n; ++i) {
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += A[i > j ? i + j * n : j + i * n] * x[2 * j];
    EXPECT(y[i] == sum);
  }
  for (cublasOperation_t t : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    for (int i = 0; i < n; ++i) y[i] = i + 1;
    BLAS(cublasStrmv(h, UPPER, t, CUBLAS_DIAG_NON_UNIT, n, A, n, y, 1));
    if (t == CUBLAS_OP_N) EXPECT(y[3] == 4 * A[15] && y[2] == 3 * A[10] + 4 * A[14]);
    BLAS(cublasStrsv(h, UPPER, t, CUBLAS_DIAG_NON_UNIT, n, A, n, y, 1));
    for (int i = 0; i < n; ++i) EXPECT(y[i] > i + 0.999f && y[i] < i + 1.001f);
  }
  for (int i = 0; i < n * n; ++i) C[i] = B[i];
  BLAS(cublasStrsm(h, CUBLAS_SIDE_RIGHT, LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, n, n, &two, A, n, C,
                   n));
  for (int j = 0; j < n; ++j) {  // C L = 2 B
    float sum = C[1 + j * n];
    for (int k = j + 1; k < n; ++k) sum += C[1 + k * n] * A[k + j * n];
    EXPECT(sum > 2 * B[1 + j * n] - 0.01f && sum < 2 * B[1 + j * n] + 0.01f);
  }
  BLAS(cublasSgeam(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, &one, A, n, &zero, nullptr, n, C, n));
  EXPECT(C[1 + 3 * n] == A[3 + 1 * n]);
  C[3] = 77;
  BLAS(cublasSsyrk(h, UPPER, CUBLAS_OP_T, n, n, &one, A, n, &zero, C, n));
  EXPECT(C[3] == 77 && C[n] == A[0] * A[4] + A[1] * A[5] + A[2] * A[6] + A[3] * A[7]);

  __half* half = room<__half>(n);
  for (int i = 0; i < n; ++i) half[i] = __float2half(i + 0.5f);
  BLAS(cublasScalEx(h, n, &two, CUDA_R_32F, half, CUDA_R_16F, 1, CUDA_R_32F));
  BLAS(cublasDotEx(h, 2, half, CUDA_R_16F, -2, x, CUDA_R_32F, 2, &result, CUDA_R_32F, CUDA_R_32F));
  EXPECT(result == 5 * 1 + 1 * 2);
  signed char* bytes = room<signed char>(4);
  int *sums = room<int>(4), int_one = 1, int_zero = 0;
  for (int i = 0; i < 4; ++i) bytes[i] = 100 - i;
  BLAS(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, 4, &int_one, bytes, CUDA_R_8I, 4, bytes,
                    CUDA_R_8I, 4, &int_zero, sums, CUDA_R_32I, 4, CUBLAS_COMPUTE_32I,
                    CUBLAS_GEMM_DEFAULT));
  EXPECT(sums[0] == 10000 + 9801 + 9604 + 9409);

  float** pointers = room<float*>(3);
  pointers[0] = A, pointers[1] = B, pointers[2] = C;
  BLAS(cublasSgemmBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, pointers, n, pointers + 1, n,
                          &zero, pointers + 2, n, 1));
  EXPECT(C[n] == A[0] * B[n] + A[n] * B[n + 1]);
  float** more = room<float*>(6);  // two products
  more[0] = A, more[1] = B, more[2] = B, more[3] = A, more[4] = C, more[5] = C + 1;
  BLAS(cublasSgemmBatched(h, CUBLAS_OP_N, CUBLAS_OP_T, 1, 1, 2, &one, more, n, more + 2, n, &zero,
                          more + 4, n, 2));
  EXPECT(C[0] == A[0] * B[0] + A[n] * B[n] && C[1] == C[0]);

  cuComplex *z = room<cuComplex>(2), *H = room<cuComplex>(4), dot, unit = {1, 0}, none = {0, 0};
  z[0] = {1, 2}, z[1] = {3, -1};
  H[0] = {2, 9}, H[1] = {1, 1}, H[3] = {5, 0};  // hermitian, its lower half
  BLAS(cublasCdotc(h, 2, z, 1, z, 1, &dot));
  EXPECT(dot.x == 15 && dot.y == 0);
  BLAS(cublasChemv(h, LOWER, 2, &unit, H, 2, z, 1, &none, H + 2, -1));
  EXPECT(H[3].x == 4 && H[3].y == 0 && H[2].x == 14 && H[2].y == -2);
  BLAS(cublasCher(h, LOWER, 2, &one, z, 1, H, 2));
  EXPECT(H[0].x == 7 && H[0].y == 0 && H[1].x == 2 && H[1].y == -6);
  storages(h);
  updates(h);
  complex_numbers(h);
  any_type(h);
  BLAS(cublasDestroy(h));
  return verdict();
}
