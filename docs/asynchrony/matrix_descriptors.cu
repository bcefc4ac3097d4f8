// D[m][n] = sum over k of A[m][k] B[n][k], 64 values of k: four products.
#include "ptx.h"

__device__ uint64_t descriptor(const void* tile) {
  uint64_t d = (SHARED(tile) & 0x3ffff) >> 4;  // bits 0 to 13: start, in units of 16 bytes
  d |= uint64_t{1} << 16;                      // 16 to 29: leading, not used here
  d |= uint64_t{8 * 128 >> 4} << 32;           // delete this line
  d |= uint64_t{1} << 62;                      // 62, 63: rows of 128 bytes, swizzled
  return d;
}

__global__ void product(const float* in, float* out) {  // in: 64 rows of A, then 8 of B
  __shared__ alignas(1024) __nv_bfloat16 tile[72 * 64];
  const int t = threadIdx.x;
  for (int i = t; i < 72 * 64; i += 128) {
    tile[i ^ i / 64 % 8 * 8] = in[i];  // chunk c of row r, 16 bytes, lies at c ^ r % 8
  }
  fence_proxy_async();
  __syncthreads();
  const uint64_t a = descriptor(tile), b = descriptor(tile + 64 * 64);
  float d[4] = {};
  wgmma_fence();
  for (int k = 0; k < 64; k += 16) wgmma(d, a + (2 * k >> 4), b + (2 * k >> 4), true);
  wgmma_commit();
  wgmma_wait(0);
  const int m = t / 32 * 16 + t % 32 / 4, n = t % 4 * 2;  // d as in mma
  for (int i = 0; i < 4; ++i) out[(m + i / 2 * 8) * 8 + n + i % 2] = d[i];
}

int main() {
  return check<float>([](auto in, auto out) { product<<<1, 128>>>(in, out); }, 72 * 64, 64 * 8,
                      [](int i) { return i * 7 % 13; },
                      [](const float* in, int i) {
                        float sum = 0;
                        for (int k = 0; k < 64; ++k) {
                          sum += in[i / 8 * 64 + k] * in[(64 + i % 8) * 64 + k];
                        }
                        return sum;
                      });
}
