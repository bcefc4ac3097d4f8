/// \file
/// Stands in for cuBLASLt's header: programs that mention it compile; its calls are refused.
#pragma once

#include "cublas_v2.h"

typedef void *cublasLtHandle_t, *cublasLtMatmulDesc_t, *cublasLtMatrixLayout_t,
    *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
};
enum {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_SCALE_TYPE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
};
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT,
  CUBLASLT_EPILOGUE_GELU,
  CUBLASLT_EPILOGUE_BIAS,
  CUBLASLT_EPILOGUE_GELU_BIAS,
  CUBLASLT_EPILOGUE_GELU_AUX,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
  CUBLASLT_EPILOGUE_DGELU,
  CUBLASLT_EPILOGUE_BGRADB
};
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
#define SIM_LT(name)              \
  template <class... A>           \
  cublasStatus_t name(A...) {     \
    sim::any::unsupported(#name); \
  }
SIM_LT(cublasLtMatmul)
SIM_LT(cublasLtMatmulDescCreate)
SIM_LT(cublasLtMatmulDescSetAttribute)
SIM_LT(cublasLtMatmulDescDestroy)
SIM_LT(cublasLtMatrixLayoutCreate)
SIM_LT(cublasLtMatrixLayoutSetAttribute)
SIM_LT(cublasLtMatrixLayoutDestroy)
SIM_LT(cublasLtMatmulPreferenceCreate)
SIM_LT(cublasLtMatmulPreferenceSetAttribute)
SIM_LT(cublasLtMatmulPreferenceDestroy)
SIM_LT(cublasLtMatmulAlgoGetHeuristic)
#undef SIM_LT
