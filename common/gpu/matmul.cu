#include <library_types.h>

#include <string>
#include <vector>

#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "common/gpu/matmul.h"
#include "common/gpu/optional_library.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#endif

namespace fa::gpu {

namespace {

// cuBLAS is not a dependency, neither of the build nor at run time: the functions used are declared
// here and looked up at run time. Their names have the suffixes that cublas_v2.h hides in macros.
using Handle = void*;
using CreateFn = int(Handle*);
using DestroyFn = int(Handle);
using GemmExFn = int(Handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                     const void* a, cudaDataType a_type, int lda, const void* b,
                     cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type,
                     int ldc, int compute_type, int algorithm);
constexpr int kNoTranspose = 0;          // CUBLAS_OP_N
constexpr int kCompute32f = 68;          // CUBLAS_COMPUTE_32F
constexpr int kCompute32fPedantic = 69;  // CUBLAS_COMPUTE_32F_PEDANTIC: no TF32
constexpr int kDefaultAlgorithm = -1;    // CUBLAS_GEMM_DEFAULT
#if __has_include(<cublas_v2.h>)
static_assert(kNoTranspose == CUBLAS_OP_N && kCompute32f == CUBLAS_COMPUTE_32F &&
              kCompute32fPedantic == CUBLAS_COMPUTE_32F_PEDANTIC &&
              kDefaultAlgorithm == CUBLAS_GEMM_DEFAULT);
#endif

/// Uniform in [-1, 1), from a hash of the index.
template <class T>
__global__ void fill_kernel(T* x,  // [n]
                            size_t n) {
  const size_t threads = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads) {
    unsigned h = static_cast<unsigned>(i) * 2654435761u;
    h = (h ^ (h >> 15)) * 2246822519u;
    h = (h ^ (h >> 13)) * 3266489917u;
    h ^= h >> 16;
    x[i] = static_cast<T>(static_cast<int>(h) * (1.0f / 2147483648.0f));
  }
}

}  // namespace

struct Matmul::Impl {
  SharedLibrary library{{"libcublas.so." + std::to_string(CUDART_VERSION / 1000), "libcublas.so.13",
                         "libcublas.so.12", "libcublas.so"}};
  CreateFn* create = library.symbol<CreateFn>("cublasCreate_v2");
  DestroyFn* destroy = library.symbol<DestroyFn>("cublasDestroy_v2");
  GemmExFn* gemm = library.symbol<GemmExFn>("cublasGemmEx");
  MatmulType type;
  int n;
  Handle handle = nullptr;
  std::vector<DeviceMemory<>> matrices;  // A, B, C

  Impl(MatmulType type_, int n_) : type(type_), n(n_) {
    if (!create || !destroy || !gemm || create(&handle) != 0) return;
    for (int i = 0; i < 3; ++i) {
      DeviceMemory<> matrix("matrix", size() * element_bytes());
      if (!matrix) return;
      if (type == MatmulType::bf16) {
        fill<__nv_bfloat16>(matrix);
      } else {
        fill<float>(matrix);
      }
      matrices.push_back(std::move(matrix));
    }
  }
  ~Impl() {
    if (handle) destroy(handle);
  }

  template <class T>
  void fill(const DeviceMemory<>& matrix) const {
    launch(fill_kernel<T>, {1024, 256}, reinterpret_cast<T*>(matrix.get()), size());
  }
  size_t size() const { return static_cast<size_t>(n) * n; }
  size_t element_bytes() const { return type == MatmulType::bf16 ? 2 : 4; }
  int multiply() const {
    const float one = 1, zero = 0;
    const cudaDataType t = type == MatmulType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const int compute = type == MatmulType::bf16 ? kCompute32f : kCompute32fPedantic;
    return gemm(handle, kNoTranspose, kNoTranspose, n, n, n, &one, matrices[0].get(), t, n,
                matrices[1].get(), t, n, &zero, matrices[2].get(), t, n, compute,
                kDefaultAlgorithm);
  }
};

Matmul::Matmul(MatmulType type, int n) : n_(n), impl_(std::make_unique<Impl>(type, n)) {}
Matmul::~Matmul() = default;

Matmul::operator bool() const { return impl_->matrices.size() == 3 && impl_->multiply() == 0; }

void Matmul::operator()() const {
  if (impl_->multiply() != 0) throw std::runtime_error("cuBLAS refused a matrix product");
}

}  // namespace fa::gpu
