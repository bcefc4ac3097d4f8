/// \file
/// Stands in for cuBLAS's header, with which programs compare their kernels: its products alone.
/// Computed on the host in fp64, and not counted; what is missing does not compile.
#pragma once

#include "cuComplex.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "library_types.h"

#define CUBLAS_API_H_

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_NOT_INITIALIZED,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR,
  CUBLAS_STATUS_NOT_SUPPORTED,
  CUBLAS_STATUS_LICENSE_ERROR
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH,
  CUBLAS_TENSOR_OP_MATH,
  CUBLAS_PEDANTIC_MATH,
  CUBLAS_TF32_TENSOR_OP_MATH,
  CUBLAS_FP32_EMULATED_BF16X9_MATH,
  CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH = 8
};
enum cublasComputeType_t {
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_32I = 72,
  CUBLAS_COMPUTE_32F_EMULATED_16BFX9 = 78,
  CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT
};
#define SIM_TENS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define SIM_ALGORITHM(n) CUBLAS_GEMM_ALGO##n = n, CUBLAS_GEMM_ALGO1##n = 10 + n,
#define SIM_OF_TENSOR_CORES(n) CUBLAS_GEMM_ALGO##n##_TENSOR_OP = 100 + n,
enum cublasGemmAlgo_t {
  CUBLAS_GEMM_DFALT = -1,
  CUBLAS_GEMM_DEFAULT = -1,
  SIM_TENS(SIM_ALGORITHM) CUBLAS_GEMM_ALGO20,
  CUBLAS_GEMM_ALGO21,
  CUBLAS_GEMM_ALGO22,
  CUBLAS_GEMM_ALGO23,
  CUBLAS_GEMM_DFALT_TENSOR_OP = 99,
  CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99,
  SIM_TENS(SIM_OF_TENSOR_CORES) CUBLAS_GEMM_ALGO10_TENSOR_OP,
  CUBLAS_GEMM_ALGO11_TENSOR_OP,
  CUBLAS_GEMM_ALGO12_TENSOR_OP,
  CUBLAS_GEMM_ALGO13_TENSOR_OP,
  CUBLAS_GEMM_ALGO14_TENSOR_OP,
  CUBLAS_GEMM_ALGO15_TENSOR_OP,
  CUBLAS_GEMM_AUTOTUNE = 999
};
#undef SIM_TENS
#undef SIM_ALGORITHM
#undef SIM_OF_TENSOR_CORES
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER, CUBLAS_FILL_MODE_FULL };
enum cublasDiagType_t { CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT };
enum cublasSideMode_t { CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT };
enum cublasAtomicsMode_t { CUBLAS_ATOMICS_NOT_ALLOWED, CUBLAS_ATOMICS_ALLOWED };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
typedef cudaDataType_t cublasDataType_t;
struct cublasContext;
typedef cublasContext* cublasHandle_t;

enum cublasEmulationStrategy_t {
  CUBLAS_EMULATION_STRATEGY_DEFAULT,
  CUBLAS_EMULATION_STRATEGY_PERFORMANT,
  CUBLAS_EMULATION_STRATEGY_EAGER
};

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
  *version = 120400;
  return CUBLAS_STATUS_SUCCESS;
}
// No effect here.
#define SIM_NOTHING(name, ...)                                        \
  inline cublasStatus_t cublas##name(cublasHandle_t, ##__VA_ARGS__) { \
    return CUBLAS_STATUS_SUCCESS;                                     \
  }
SIM_NOTHING(Destroy)
SIM_NOTHING(SetMathMode, cublasMath_t)
SIM_NOTHING(SetStream, cudaStream_t)
SIM_NOTHING(SetWorkspace, void*, size_t)
SIM_NOTHING(SetPointerMode, cublasPointerMode_t)
SIM_NOTHING(SetAtomicsMode, cublasAtomicsMode_t)
SIM_NOTHING(SetEmulationStrategy, cublasEmulationStrategy_t)
SIM_NOTHING(SetFixedPointEmulationMantissaControl, cudaEmulationMantissaControl)
SIM_NOTHING(SetFixedPointEmulationMaxMantissaBitCount, int)
SIM_NOTHING(SetFixedPointEmulationMantissaBitOffset, int)
#undef SIM_NOTHING

// Copies: a matrix by columns, a vector as a matrix of one row.
namespace sim::any {
inline cublasStatus_t copy_matrix(int rows, int columns, size_t size, const void* from, int lda,
                                  void* to, int ldb) {
  const cudaError_t status =
      rows == lda && lda == ldb
          ? cudaMemcpy(to, from, size * rows * columns, cudaMemcpyDefault)
          : cudaMemcpy2D(to, ldb * size, from, lda * size, rows * size, columns, cudaMemcpyDefault);
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}
}  // namespace sim::any
#define SIM_BLAS(direction)                                                                        \
  inline cublasStatus_t cublas##direction##Matrix(int rows, int columns, int size, const void* a,  \
                                                  int lda, void* b, int ldb) {                     \
    return sim::any::copy_matrix(rows, columns, size, a, lda, b, ldb);                             \
  }                                                                                                \
  inline cublasStatus_t cublas##direction##MatrixAsync(                                            \
      int rows, int columns, int size, const void* a, int lda, void* b, int ldb, cudaStream_t) {   \
    return sim::any::copy_matrix(rows, columns, size, a, lda, b, ldb);                             \
  }                                                                                                \
  inline cublasStatus_t cublas##direction##Vector(int n, int size, const void* x, int x_step,      \
                                                  void* y, int y_step) {                           \
    return sim::any::copy_matrix(1, n, size, x, x_step, y, y_step);                                \
  }                                                                                                \
  inline cublasStatus_t cublas##direction##VectorAsync(int n, int size, const void* x, int x_step, \
                                                       void* y, int y_step, cudaStream_t) {        \
    return sim::any::copy_matrix(1, n, size, x, x_step, y, y_step);                                \
  }
SIM_BLAS(Set)
SIM_BLAS(Get)
#undef SIM_BLAS
inline const char* cublasGetStatusString(cublasStatus_t) { return "a status of cuBLAS"; }

namespace sim::any {

/// A column-major matrix.
struct Matrix {
  cudaDataType_t type;
  const void* p;
  long long leading, stride;
  cublasOperation_t op;
};
/// C = alpha A B + beta C, `count` times; alpha and beta have the type `scalar`.
/// \returns false where a matrix leaves its buffer
bool multiply(int m, int n, int k, cudaDataType_t scalar, const void* alpha, const Matrix& a,
              const Matrix& b, const void* beta, const Matrix& c, int count);
inline cublasStatus_t status_of(bool executed) {
  return executed ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
/// The type of alpha and beta.
inline cudaDataType_t scalar_of(cublasComputeType_t c, cudaDataType_t result) {
  if (result == CUDA_C_32F || result == CUDA_C_64F) return result;
  switch (c) {
    case CUBLAS_COMPUTE_16F:
      return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      return CUDA_R_64F;
    case CUBLAS_COMPUTE_32I:
      return CUDA_R_32I;
    default:
      return CUDA_R_32F;
  }
}

}  // namespace sim::any

inline cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const void* alpha, const void* A, cudaDataType_t type_a, int lda, long long stride_a,
    const void* B, cudaDataType_t type_b, int ldb, long long stride_b, const void* beta, void* C,
    cudaDataType_t type_c, int ldc, long long stride_c, int count, cublasComputeType_t compute,
    cublasGemmAlgo_t) {
  using namespace sim::any;
  const auto fits = [](int leading, int rows) { return leading >= (rows > 1 ? rows : 1); };
  if (m < 0 || n < 0 || k < 0 || count < 0 || !fits(lda, ta == CUBLAS_OP_N ? m : k) ||
      !fits(ldb, tb == CUBLAS_OP_N ? k : n) || !fits(ldc, m)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return status_of(multiply(m, n, k, scalar_of(compute, type_c), alpha,
                            {type_a, A, lda, stride_a, ta}, {type_b, B, ldb, stride_b, tb}, beta,
                            {type_c, C, ldc, stride_c, CUBLAS_OP_N}, count));
}
// The older form gives the type of the sums.
inline cublasComputeType_t compute_of(cudaDataType_t type) {
  return type == CUDA_R_16F                         ? CUBLAS_COMPUTE_16F
         : type == CUDA_R_64F || type == CUDA_C_64F ? CUBLAS_COMPUTE_64F
         : type == CUDA_R_32I                       ? CUBLAS_COMPUTE_32I
                                                    : CUBLAS_COMPUTE_32F;
}
inline cublasComputeType_t compute_of(cublasComputeType_t type) { return type; }
inline cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                                   int m, int n, int k, const void* alpha, const void* A,
                                   cudaDataType_t type_a, int lda, const void* B,
                                   cudaDataType_t type_b, int ldb, const void* beta, void* C,
                                   cudaDataType_t type_c, int ldc, auto compute,
                                   cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, type_a, lda, 0, B, type_b, ldb, 0,
                                    beta, C, type_c, ldc, 0, 1, compute_of(compute), algorithm);
}
#define SIM_BLAS(letter, T, type, compute)                                                         \
  inline cublasStatus_t cublas##letter##gemmStridedBatched(                                        \
      cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,           \
      const T* alpha, const T* A, int lda, long long stride_a, const T* B, int ldb,                \
      long long stride_b, const T* beta, T* C, int ldc, long long stride_c, int count) {           \
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, A, type, lda, stride_a, B, type,  \
                                      ldb, stride_b, beta, C, type, ldc, stride_c, count, compute, \
                                      CUBLAS_GEMM_DEFAULT);                                        \
  }                                                                                                \
  inline cublasStatus_t cublas##letter##gemm(                                                      \
      cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,           \
      const T* alpha, const T* A, int lda, const T* B, int ldb, const T* beta, T* C, int ldc) {    \
    return cublas##letter##gemmStridedBatched(h, ta, tb, m, n, k, alpha, A, lda, 0, B, ldb, 0,     \
                                              beta, C, ldc, 0, 1);                                 \
  }
SIM_BLAS(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
SIM_BLAS(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)
SIM_BLAS(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)
SIM_BLAS(C, cuComplex, CUDA_C_32F, CUBLAS_COMPUTE_32F)
SIM_BLAS(Z, cuDoubleComplex, CUDA_C_64F, CUBLAS_COMPUTE_64F)
#undef SIM_BLAS
#define SIM_BLAS(letter, T)                                                                       \
  inline cublasStatus_t cublas##letter##gemmBatched(                                              \
      cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,          \
      const T* alpha, const T* const A[], int lda, const T* const B[], int ldb, const T* beta,    \
      T* const C[], int ldc, int count) {                                                         \
    const sim::any::Library library("cuBLAS");                                                    \
    for (int i = 0; i < count; ++i) {                                                             \
      const cublasStatus_t status =                                                               \
          cublas##letter##gemm(h, ta, tb, m, n, k, alpha, A[i], lda, B[i], ldb, beta, C[i], ldc); \
      if (status != CUBLAS_STATUS_SUCCESS) return status;                                         \
    }                                                                                             \
    return CUBLAS_STATUS_SUCCESS;                                                                 \
  }
SIM_BLAS(S, float)
SIM_BLAS(D, double)
SIM_BLAS(H, __half)
SIM_BLAS(C, cuComplex)
SIM_BLAS(Z, cuDoubleComplex)
#undef SIM_BLAS
