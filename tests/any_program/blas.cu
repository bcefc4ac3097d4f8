// cuBLAS: column-major matrix products of each type, and in batches.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "check.h"

#define BLAS(call) EXPECT((call) == CUBLAS_STATUS_SUCCESS)

template <class T>
static T* copied(const T* host, int n) {
  T* p = nullptr;
  CHECK(cudaMalloc(&p, n * sizeof(T)));
  CHECK(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
__global__ void scale(float* p, float by) { p[threadIdx.x] *= by; }

template <class... V>
static bool are(const float* p, V... v) {
  int i = 0;
  return ((p[i++] == v) && ...);
}
// The calls in which every operand has its own type, and the copies.
static void any_type(cublasHandle_t h) {
  const int n = 2;
  const auto N = CUBLAS_OP_N, T = CUBLAS_OP_T, C = CUBLAS_OP_C;
  __half* a = room<__half>(4);
  float *f = room<float>(8), *g = room<float>(8), one = 1, zero = 0;
  double *d = room<double>(4), d_one = 1, d_zero = 0;
  const __half h_two = __float2half(2), h_zero = __float2half(0);
  for (int i = 0; i < 4; ++i) a[i] = __float2half(i + 1), d[i] = i + 1;
  // The older form gives the type of the sums, which is also the scalars'.
  BLAS(cublasGemmEx(h, N, N, n, n, n, &one, a, CUDA_R_16F, n, a, CUDA_R_16F, n, &zero, f,
                    CUDA_R_32F, n, CUDA_R_32F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 7, 10, 15, 22));
  BLAS(cublasGemmEx(h, N, T, n, n, n, &h_two, a, CUDA_R_16F, n, a, CUDA_R_16F, n, &h_zero, f,
                    CUDA_R_32F, n, CUDA_R_16F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 20, 28, 28, 40));
  BLAS(cublasGemmEx(h, T, N, n, n, n, &d_one, d, CUDA_R_64F, n, d, CUDA_R_64F, n, &d_zero, f,
                    CUDA_R_32F, n, CUDA_R_64F, CUBLAS_GEMM_DFALT));
  EXPECT(are(f, 5, 11, 11, 25));
  BLAS(cublasHgemm(h, N, N, 1, 1, n, &h_two, a, 1, a + 2, n, &h_zero, a, 1));
  EXPECT(__half2float(a[0]) == 22 && __half2float(a[1]) == 2);
  signed char* bytes = room<signed char>(4);
  int *sums = room<int>(1), int_one = 1, int_zero = 0;
  for (int i = 0; i < 4; ++i) bytes[i] = 100 - i;
  BLAS(cublasGemmEx(h, T, N, 1, 1, 4, &int_one, bytes, CUDA_R_8I, 4, bytes, CUDA_R_8I, 4, &int_zero,
                    sums, CUDA_R_32I, 4, CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT));
  EXPECT(sums[0] == 10000 + 9801 + 9604 + 9409);
  const auto status = [&](int m, int k, int lda, int ldb, int ldc, cublasOperation_t t, int count) {
    return cublasSgemmStridedBatched(h, t, t, m, 1, k, &one, f, lda, 0, f, ldb, 0, &zero, g, ldc, 0,
                                     count);
  };
  const auto bad = CUBLAS_STATUS_INVALID_VALUE;
  EXPECT(status(2, 3, 2, 3, 2, N, 1) == CUBLAS_STATUS_SUCCESS);
  EXPECT(status(2, 3, 3, 1, 2, T, 1) == CUBLAS_STATUS_SUCCESS);
  EXPECT(status(2, 3, 1, 3, 2, N, 1) == bad && status(2, 3, 2, 2, 2, N, 1) == bad);
  EXPECT(status(2, 3, 2, 3, 1, N, 1) == bad && status(2, 3, 2, 1, 2, T, 1) == bad);
  EXPECT(status(2, 3, 3, 0, 2, T, 1) == bad && status(2, -1, 2, 3, 2, N, 1) == bad);
  EXPECT(status(-1, 3, 2, 3, 2, N, 1) == bad && status(2, 3, 2, 3, 2, N, -1) == bad);
  EXPECT(status(0, 3, 1, 3, 1, N, 1) == CUBLAS_STATUS_SUCCESS);

  // Two products whose operands have pointers; f is 5 11 11 25.
  float** p = room<float*>(6);
  p[0] = p[3] = f, p[1] = p[2] = f + 1, p[4] = g, p[5] = g + 1;
  BLAS(cublasSgemmBatched(h, N, N, 1, 1, n, &one, p, 2, p + 2, n, &zero, p + 4, 1, 2));
  EXPECT(are(g, 5 * 11 + 11 * 11, 11 * 5 + 25 * 11));
  cuComplex *z = room<cuComplex>(3), c_one = {1, 0}, c_zero = {0, 0};
  z[0] = {1, 2}, z[1] = {3, -1};
  const struct {
    cublasOperation_t a, b;
    float re, im;
  } products[] = {{N, C, 1, 7}, {C, N, 1, -7}, {T, N, 5, 5}, {C, C, 5, -5}};
  for (const auto& x : products) {
    BLAS(cublasCgemm(h, x.a, x.b, 1, 1, 1, &c_one, z, 1, z + 1, 1, &c_zero, z + 2, 1));
    EXPECT(z[2].x == x.re && z[2].y == x.im);
  }

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
  const int m = 5, n = 4, k = 3;
  float A[m * k], B[k * n], C[m * n], x[m];
  for (int i = 0; i < m * k; ++i) A[i] = i % 7 - 3;
  for (int i = 0; i < k * n; ++i) B[i] = i % 5 - 2;
  for (int i = 0; i < m * n; ++i) C[i] = i;
  float *dA = copied(A, m * k), *dB = copied(B, k * n), *dC = copied(C, m * n);
  cublasHandle_t handle;
  BLAS(cublasCreate(&handle));
  BLAS(cublasSetStream(handle, 0));
  BLAS(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
  const float two = 2, half = 0.5f, one = 1, zero = 0;
  float got[m * n];

  BLAS(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &two, dA, m, dB, k, &half, dC, m));
  CHECK(cudaMemcpy(got, dC, sizeof got, cudaMemcpyDeviceToHost));
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += A[l * m + i] * B[j * k + l];
      EXPECT(got[j * m + i] == 2 * sum + 0.5f * C[j * m + i]);
    }
  }
  // The same numbers as transposed matrices: A is k x m, B n x k; C is NaN before, and not read.
  CHECK(cudaMemset(dC, 0xff, sizeof got));
  BLAS(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_T, m, n, k, &one, dA, k, dB, n, &zero, dC, m));
  CHECK(cudaMemcpy(got, dC, sizeof got, cudaMemcpyDeviceToHost));
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += A[i * k + l] * B[l * n + j];
      EXPECT(got[j * m + i] == sum);
    }
  }
  scale<<<1, m>>>(dC, 2.f);  // a kernel continues with it
  CHECK(cudaMemcpy(x, dC, sizeof x, cudaMemcpyDeviceToHost));
  for (int i = 0; i < m; ++i) EXPECT(x[i] == 2 * got[i]);

  // Two 2 x 2 products at once, in bf16, with fp32 sums.
  __nv_bfloat16 P[8], Q[8], R[8];
  for (int i = 0; i < 8; ++i) P[i] = __float2bfloat16(i + 1), Q[i] = __float2bfloat16(2 - i);
  __nv_bfloat16 *dP = copied(P, 8), *dQ = copied(Q, 8), *dR = copied(R, 8);
  BLAS(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, dP, CUDA_R_16BF,
                                  2, 4, dQ, CUDA_R_16BF, 2, 4, &zero, dR, CUDA_R_16BF, 2, 4, 2,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  CHECK(cudaMemcpy(R, dR, sizeof R, cudaMemcpyDeviceToHost));
  for (int b = 0; b < 8; b += 4) {
    for (int j = 0; j < 2; ++j) {
      for (int i = 0; i < 2; ++i) {
        const float sum =
            float(P[b + i]) * float(Q[b + 2 * j]) + float(P[b + 2 + i]) * float(Q[b + 2 * j + 1]);
        EXPECT(float(R[b + 2 * j + i]) == float(__float2bfloat16(sum)));
      }
    }
  }
  const double U[4] = {1, 2, 3, 4}, V[4] = {5, 6, 7, 8}, d_one = 1, d_zero = 0;
  double W[4], *dU = copied(U, 4), *dV = copied(V, 4), *dW = copied(U, 4);
  BLAS(
      cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &d_one, dU, 2, dV, 2, &d_zero, dW, 2));
  CHECK(cudaMemcpy(W, dW, sizeof W, cudaMemcpyDeviceToHost));
  EXPECT(W[0] == 23 && W[1] == 34 && W[2] == 31 && W[3] == 46);

  any_type(handle);

  // Operands outside a buffer or in host memory are reported, not computed.
  static_assert(CUBLAS_GEMM_DFALT == -1 && CUBLAS_GEMM_ALGO23 == 23);
  static_assert(CUBLAS_GEMM_DFALT_TENSOR_OP == 99 && CUBLAS_GEMM_ALGO15_TENSOR_OP == 115);
  const auto product = [&](const double* a, int lda) {
    return cublasDgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 2, &d_one, a, lda, dV, 2, &d_zero,
                       dW, 2);
  };
  EXPECT(product(dU, 64) == CUBLAS_STATUS_EXECUTION_FAILED);  // beyond A
  EXPECT(product(U, 2) == CUBLAS_STATUS_EXECUTION_FAILED);    // of the host
  EXPECT(product(dU, 1) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasDgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 2, 1, &d_one, dU, 1, 0, dV,
                                   2, 2, &d_zero, dW, 1, 0, 2) ==  // the second B
         CUBLAS_STATUS_EXECUTION_FAILED);
  BLAS(cublasDestroy(handle));
  return verdict();
}
