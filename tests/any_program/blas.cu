// cuBLAS: column-major matrix products in fp32, fp64 and bf16; batches; a vector.
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

int main() {
  const int m = 5, n = 4, k = 3;
  float A[m * k], B[k * n], C[m * n], x[m], y[m];
  for (int i = 0; i < m * k; ++i) A[i] = i % 7 - 3;
  for (int i = 0; i < k * n; ++i) B[i] = i % 5 - 2;
  for (int i = 0; i < m * n; ++i) C[i] = i;
  for (int i = 0; i < m; ++i) x[i] = i + 1, y[i] = 10 * i;
  float *dA = copied(A, m * k), *dB = copied(B, k * n), *dC = copied(C, m * n);
  float *dx = copied(x, m), *dy = copied(y, m);
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
  // y = A^T x: A is m x k.
  BLAS(cublasSgemv(handle, CUBLAS_OP_T, m, k, &one, dA, m, dx, 1, &zero, dy, 1));
  CHECK(cudaMemcpy(y, dy, sizeof y, cudaMemcpyDeviceToHost));
  for (int l = 0; l < k; ++l) {
    float sum = 0;
    for (int i = 0; i < m; ++i) sum += A[l * m + i] * x[i];
    EXPECT(y[l] == sum);
  }
  EXPECT(y[3] == 30 && y[4] == 40);
  scale<<<1, 3>>>(dy, 2.f);  // a kernel continues with it
  CHECK(cudaMemcpy(x, dy, 3 * sizeof(float), cudaMemcpyDeviceToHost));
  for (int l = 0; l < 3; ++l) EXPECT(x[l] == 2 * y[l]);

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
  EXPECT(cublasScalEx(handle, 5, &d_one, CUDA_R_64F, dU, CUDA_R_64F, 1, CUDA_R_64F) ==
         CUBLAS_STATUS_EXECUTION_FAILED);
  cublasDaxpy(handle, 2, &d_one, U, 1, dW, 1);  // x in host memory
  EXPECT(cublasDgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 2, 1, &d_one, dU, 1, 0, dV,
                                   2, 2, &d_zero, dW, 1, 0, 2) ==  // the second B
         CUBLAS_STATUS_EXECUTION_FAILED);
  BLAS(cublasDestroy(handle));
  return verdict();
}
