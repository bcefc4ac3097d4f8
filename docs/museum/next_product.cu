// The first N columns of D = A A^T in rounds: a product of K columns of A, which is added to D.
#include <cuda_bf16.h>
#include <cstdint>
#include <cstdio>

constexpr int M = 128, K = 16, kRounds = 2, N = kRounds * K;

__device__ uint32_t at(const void* p) { return __cvta_generic_to_shared(p); }

__global__ void product(const __nv_bfloat16* A, float* D) {
  __shared__ alignas(128) __nv_bfloat16 sA[kRounds][M * K];  // cores of 8 x 8, two side by side
  __shared__ uint32_t tensor;
  __shared__ uint64_t done;
  const int t = threadIdx.x, shape = 1 << 4 | 1 << 7 | 1 << 10 | N / 8 << 17 | M / 16 << 24;
  for (int k = 0; k < N; ++k) {
    sA[k / K][(t / 8 * 2 + k % K / 8) * 64 + t % 8 * 8 + k % 8] = A[t * N + k];
  }
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at(&done)));
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
  if (t < 32) {
    asm volatile(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(at(&tensor)));
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t from = at(sA[round]) >> 4 | 8ull << 16 | 16ull << 32 | 1ull << 46;
    if (t == 0) {
      asm volatile(R"(tcgen05.fence::after_thread_sync;
                      tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %1, %2, 0;
                      tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%3];)" ::"r"(tensor),
                   "l"(from), "r"(shape), "l"(&done));
    }
    asm volatile(R"({ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;
                      @!p bra again; tcgen05.fence::after_thread_sync; })" ::"r"(at(&done)),
                 "r"(round));
    for (int n = 0; n < N; ++n) {
      float d;
      asm volatile(
          "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1]; tcgen05.wait::ld.sync.aligned;"
          : "=f"(d)
          : "r"(tensor + (t / 32 * 32 << 16) + n));
      D[t * N + n] += d;
    }
    __syncthreads();
  }
  if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tensor));
}

int main() {
  __nv_bfloat16* A;
  float* D;
  cudaMallocManaged(&A, M * N * sizeof *A), cudaMallocManaged(&D, M * N * sizeof *D);
  for (int i = 0; i < M * N; ++i) A[i] = 1, D[i] = -N;
  product<<<1, M>>>(A, D);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int i = 0; i < M * N; ++i) wrong += D[i] != 0;
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
