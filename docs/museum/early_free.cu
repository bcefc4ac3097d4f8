// Numbers wait in Blackwell's tensor memory while the registers are used for something else.
#include <cstdint>
#include <cstdio>

constexpr int kThreads = 128, kNumbers = 32;

__global__ void power(const int* in, int* out, int exponent) {
  __shared__ uint32_t tensor;
  const int t = threadIdx.x;
  if (t < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(
        static_cast<uint32_t>(__cvta_generic_to_shared(&tensor))));
  }
  __syncthreads();
  const uint32_t mine = tensor + (t / 32 * 32 << 16);  // a warp reaches 32 of 128 lanes
  for (int i = 0; i < kNumbers; ++i) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(mine + i),
                 "r"(in[t * kNumbers + i]));
  }
  asm volatile("tcgen05.wait::st.sync.aligned;");
  int factor = 1, x[kNumbers];
  for (int i = 0; i < exponent; ++i) factor *= 3;
  for (int i = 0; i < kNumbers; ++i) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(x[i]) : "r"(mine + i));
  }
  __syncthreads();
  if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tensor));
  asm volatile("tcgen05.wait::ld.sync.aligned;");
  for (int i = 0; i < kNumbers; ++i) out[t * kNumbers + i] = factor * x[i];
}

int main() {
  int *in, *out, wrong = 0;
  for (int** p : {&in, &out}) cudaMallocManaged(p, kThreads * kNumbers * sizeof(int));
  for (int i = 0; i < kThreads * kNumbers; ++i) in[i] = i;
  power<<<1, kThreads>>>(in, out, 4);
  cudaDeviceSynchronize();
  for (int i = 0; i < kThreads * kNumbers; ++i) wrong += out[i] != 81 * i;
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
