// The first N columns of D = A A^T, by one product of Blackwell's tensor cores.
#include <cuda_bf16.h>
#include <cstdint>
#include <cstdio>

constexpr int M = 128, N = 16, K = 16;

__device__ uint32_t at(const void* p) { return __cvta_generic_to_shared(p); }

__global__ void product(const __nv_bfloat16* A, float* D) {
  __shared__ alignas(128) __nv_bfloat16 sA[M * K];  // cores of 8 x 8, two of them side by side
  __shared__ uint32_t tensor;
  const int t = threadIdx.x;
  for (int k = 0; k < K; ++k) {
    sA[(t / 8 * 2 + k / 8) * 64 + t % 8 * 8 + k % 8] = A[t * K + k];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (t < 32) {
    asm volatile(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(at(&tensor)));
  }
  __syncthreads();
  if (t == 0) {  // 128 bytes from core to core along k, 256 along rows; float, bf16, bf16, N, M
    const uint64_t operand = at(sA) >> 4 | 128ull >> 4 << 16 | 256ull >> 4 << 32 | 1ull << 46;
    const int shape = 1 << 4 | 1 << 7 | 1 << 10 | N / 8 << 17 | M / 16 << 24;
    asm volatile("tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %1, %2, 0;" ::"r"(tensor),
                 "l"(operand), "r"(shape));
  }
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;");
  for (int n = 0; n < N; ++n) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1]; tcgen05.wait::ld.sync.aligned;"
                 : "=f"(D[t * N + n])
                 : "r"(tensor + (t / 32 * 32 << 16) + n));
  }
  __syncthreads();
  if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tensor));
}

int main() {
  __nv_bfloat16* A;
  float* D;
  int wrong = 0;
  cudaMallocManaged(&A, M * K * sizeof *A);
  cudaMallocManaged(&D, M * N * sizeof *D);
  for (int i = 0; i < M * K; ++i) A[i] = i % 7;
  product<<<1, M>>>(A, D);
  cudaDeviceSynchronize();
  for (int i = 0; i < M * N; ++i) {
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += float(A[i / N * K + k]) * float(A[i % N * K + k]);
    wrong += D[i] != sum;
  }
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
