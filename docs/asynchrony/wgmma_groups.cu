// A warpgroup multiplies a matrix of ones by one of twos, then by one of threes.
#include "ptx.h"

__global__ void products(const float* in, float* out) {
  __shared__ alignas(128) __nv_bfloat16 A[64 * 16], B[2][8 * 16];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 16; i += 128) A[i] = in[0];
  for (int i = t; i < 8 * 16; i += 128) B[0][i] = in[1], B[1][i] = in[2];
  fence_proxy_async();  // wgmma reads shared memory by the async proxy
  __syncthreads();
  const uint64_t a = plain_descriptor(A), b0 = plain_descriptor(B[0]), b1 = plain_descriptor(B[1]);
  float first[4] = {}, second[4] = {};
  pin_registers(first);
  pin_registers(second);
  wgmma_fence();  // the registers are set before the products use them
  wgmma(first, a, b0, true);
  wgmma_commit();  // a group
  wgmma(second, a, b1, true);
  wgmma_commit();     // another
  wgmma_wait(1);      // delete this line
  out[t] = first[0];  // while `second` may still be computed
  wgmma_wait(0);      // no group is pending
  out[128 + t] = second[0];
}

int main() {
  return check<float>([](auto in, auto out) { products<<<1, 128>>>(in, out); }, 3, 256,
                      [](int i) { return i + 1.f; },
                      [](const float*, int i) { return i < 128 ? 32.f : 48.f; });
}
