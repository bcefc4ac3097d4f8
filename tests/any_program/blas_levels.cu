// cuBLAS's vectors, matrices with a vector, triangles, and batches; each against a plain loop.
#include <cublas_v2.h>

#include "check.h"

#define BLAS(call) EXPECT((call) == CUBLAS_STATUS_SUCCESS)
constexpr cublasFillMode_t LOWER = CUBLAS_FILL_MODE_LOWER, UPPER = CUBLAS_FILL_MODE_UPPER;

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
  // A product with a triangle, and its inverse.
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

  cuComplex *z = room<cuComplex>(2), *H = room<cuComplex>(4), dot, unit = {1, 0}, none = {0, 0};
  z[0] = {1, 2}, z[1] = {3, -1};
  H[0] = {2, 9}, H[1] = {1, 1}, H[3] = {5, 0};  // hermitian, its lower half
  BLAS(cublasCdotc(h, 2, z, 1, z, 1, &dot));
  EXPECT(dot.x == 15 && dot.y == 0);
  BLAS(cublasChemv(h, LOWER, 2, &unit, H, 2, z, 1, &none, H + 2, -1));
  EXPECT(H[3].x == 4 && H[3].y == 0 && H[2].x == 14 && H[2].y == -2);
  BLAS(cublasCher(h, LOWER, 2, &one, z, 1, H, 2));
  EXPECT(H[0].x == 7 && H[0].y == 0 && H[1].x == 2 && H[1].y == -6);
  BLAS(cublasDestroy(h));
  return verdict();
}
