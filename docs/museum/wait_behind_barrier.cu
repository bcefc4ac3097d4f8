// The first warp copies a row of scales to shared memory while the others load their elements.
#include <cstdint>
#include <cstdio>

constexpr int kColumns = 128, kWarps = 4;

__global__ void rescale(const float* scales, const float* in, float* out) {
  __shared__ alignas(16) float sScales[kColumns];
  const int lane = threadIdx.x, warp = threadIdx.y, row = blockIdx.x * kWarps + warp;
  if (warp == 0) {
    const uint32_t to = __cvta_generic_to_shared(&sScales[4 * lane]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(scales + 4 * lane)
                 : "memory");
  }
  float x[kColumns / 32];
  for (int i = 0; i < kColumns / 32; ++i) x[i] = in[row * kColumns + 32 * i + lane];
  __syncthreads();
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (int i = 0; i < kColumns / 32; ++i) {
    out[row * kColumns + 32 * i + lane] = x[i] * sScales[32 * i + lane];
  }
}

int main() {
  constexpr int kRows = 2 * kWarps;
  float *scales, *in, *out;
  int wrong = 0;
  cudaMallocManaged(&scales, kColumns * sizeof(float));
  for (float** p : {&in, &out}) cudaMallocManaged(p, kRows * kColumns * sizeof(float));
  for (int c = 0; c < kColumns; ++c) scales[c] = c + 1;
  for (int i = 0; i < kRows * kColumns; ++i) in[i] = i % 13;
  rescale<<<2, dim3(32, kWarps)>>>(scales, in, out);
  cudaDeviceSynchronize();
  for (int i = 0; i < kRows * kColumns; ++i) wrong += out[i] != in[i] * scales[i % kColumns];
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
