// Warp 0 loads weights, warps 1 to 4 multiply by them. An mbarrier tells them that all are there.
#include <cstdint>
#include <cstdio>

constexpr int kWeights = 128;

__device__ uint32_t shared_address(const void* p) { return __cvta_generic_to_shared(p); }
__device__ void init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}
__device__ void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra AGAIN; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

__global__ void weigh(const float* weights, const float* x, float* out) {
  __shared__ float sW[kWeights];
  __shared__ uint64_t loaded;
  const int t = threadIdx.x;
  if (t == 0) init(&loaded, 1);
  __syncthreads();
  if (t < 32) {
    for (int i = t; i < kWeights; i += 32) sW[i] = weights[i];
    if (t == 0) arrive(&loaded);
  } else {
    wait(&loaded, 0);
    out[t - 32] = x[t - 32] * sW[kWeights - 1 - (t - 32)];
  }
}

int main() {
  float *weights, *x, *out;
  int wrong = 0;
  for (float** p : {&weights, &x, &out}) cudaMallocManaged(p, kWeights * sizeof(float));
  for (int i = 0; i < kWeights; ++i) weights[i] = i + 1, x[i] = i % 10;
  weigh<<<1, 32 + kWeights>>>(weights, x, out);
  cudaDeviceSynchronize();
  for (int i = 0; i < kWeights; ++i) wrong += out[i] != x[i] * weights[kWeights - 1 - i];
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
