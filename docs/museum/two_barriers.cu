// Two warps share a row: each sums its half, the first one adds the halves, both divide by the sum.
#include <cstdio>

constexpr int kRows = 2, kHalf = 32;

__global__ void normalise(const float* in, float* out) {
  __shared__ float halves[2 * kRows], sums[kRows];
  const int lane = threadIdx.x, warp = threadIdx.y, row = warp / 2;
  const float x = in[warp * kHalf + lane];
  float sum = x;
  for (int n = 16; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
  if (lane == 0) halves[warp] = sum;
  __syncthreads();
  if (warp % 2 == 0) {
    if (lane == 0) sums[row] = halves[warp] + halves[warp + 1];
    __syncthreads();  // the sums are there
  } else {
    __syncthreads();
  }
  out[warp * kHalf + lane] = x / sums[row];
}

int main() {
  float *in, *out;
  for (float** p : {&in, &out}) cudaMallocManaged(p, 2 * kRows * kHalf * sizeof(float));
  for (int i = 0; i < 2 * kRows * kHalf; ++i) in[i] = i % 9 + 1;
  normalise<<<1, dim3(kHalf, 2 * kRows)>>>(in, out);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int r = 0; r < kRows; ++r) {
    const float* x = in + r * 2 * kHalf;
    float sum = 0;
    for (int c = 0; c < 2 * kHalf; ++c) sum += x[c];
    for (int c = 0; c < 2 * kHalf; ++c) wrong += out[r * 2 * kHalf + c] != x[c] / sum;
  }
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}
