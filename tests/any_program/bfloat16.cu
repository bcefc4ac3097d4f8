// bf16: all 65,536 patterns, rounding, arithmetic that is rounded once, pairs, shuffles, atomics.
#include <cuda_bf16.h>
#include <math.h>
#include <string.h>

#include "check.h"

static float value_of(unsigned b) {
  const unsigned bits = b << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
// The pattern nearest to x, ties to even, for what is far from infinity.
static unsigned nearest(double x) {
  const unsigned sign = signbit(x) ? 0x8000 : 0;
  const double size = fabs(x);
  unsigned low = 0, high = 0x7f80;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value_of(middle) <= size ? low : high) = middle;
  }
  const double down = size - value_of(low), up = value_of(high) - size;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

__global__ void convert(float* out, unsigned short* back) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const __nv_bfloat16 h = __ushort_as_bfloat16((unsigned short)i);
  out[i] = __bfloat162float(h);
  back[i] = __bfloat16_as_ushort(__float2bfloat16(out[i]));
}
__global__ void arithmetic(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out,
                           int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = a[i] + b[i];
  out[n + i] = __hsub(a[i], b[i]);
  out[2 * n + i] = a[i] * b[i];
  out[3 * n + i] = __hfma(a[i], b[i], a[i]);
  out[4 * n + i] = __hmax(a[i], b[i]);
}
__global__ void narrow(const float* in, __nv_bfloat16* out) {
  out[threadIdx.x] = __float2bfloat16_rn(in[threadIdx.x]);
}
__global__ void pairs(__nv_bfloat162* out, __nv_bfloat16* sum) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(threadIdx.x, 0.5f);
  const __nv_bfloat162 from = __nv_bfloat162(__shfl_down_sync(~0u, __low2bfloat16(v), 1), v.y);
  out[threadIdx.x] = __hfma2(from, __float2bfloat162_rn(2.f), v);
  atomicAdd(sum, __float2bfloat16(1.f));
}

int main() {
  static float wide[65536];
  static unsigned short back[65536];
  float* d_wide;
  unsigned short* d_back;
  CHECK(cudaMalloc(&d_wide, sizeof wide));
  CHECK(cudaMalloc(&d_back, sizeof back));
  convert<<<256, 256>>>(d_wide, d_back);
  CHECK(cudaMemcpy(wide, d_wide, sizeof wide, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(back, d_back, sizeof back, cudaMemcpyDeviceToHost));
  for (unsigned i = 0; i < 65536; ++i) {
    const float f = value_of(i);
    EXPECT(f != f ? wide[i] != wide[i] && (back[i] & 0x7fff) > 0x7f80
                  : wide[i] == f && back[i] == i);
  }

  float in[32];
  unsigned short out[32];
  for (int i = 0; i < 32; ++i) {  // 1 + half a unit, a little less, a little more; their odd twins
    const float middle = 1 + (i / 6 * 2 + (i % 2 ? 1 : 3)) / 256.f;
    in[i] = i % 3 == 0 ? middle : nextafterf(middle, i % 3 == 1 ? 0 : 2);
  }
  float* d_in;
  __nv_bfloat16* d_out;
  CHECK(cudaMalloc(&d_in, sizeof in));
  CHECK(cudaMalloc(&d_out, sizeof out));
  CHECK(cudaMemcpy(d_in, in, sizeof in, cudaMemcpyHostToDevice));
  narrow<<<1, 32>>>(d_in, d_out);
  CHECK(cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) EXPECT(out[i] == nearest(in[i]));

  const int m = 2048;
  static unsigned short a[m], b[m], results[5 * m];
  unsigned state = 7;
  for (int i = 0; i < m; ++i) {
    state = state * 1664525 + 1013904223;
    a[i] = (state >> 16 & 0x807f) | (120 + (state >> 8) % 14) << 7;
    state = state * 1664525 + 1013904223;
    b[i] = (state >> 16 & 0x807f) | (120 + (state >> 8) % 14) << 7;
  }
  __nv_bfloat16 *d_a, *d_b, *d_results;
  CHECK(cudaMalloc(&d_a, sizeof a));
  CHECK(cudaMalloc(&d_b, sizeof b));
  CHECK(cudaMalloc(&d_results, sizeof results));
  CHECK(cudaMemcpy(d_a, a, sizeof a, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(d_b, b, sizeof b, cudaMemcpyHostToDevice));
  arithmetic<<<m / 256, 256>>>(d_a, d_b, d_results, m);
  CHECK(cudaMemcpy(results, d_results, sizeof results, cudaMemcpyDeviceToHost));
  for (int i = 0; i < m; ++i) {
    const double x = value_of(a[i]), y = value_of(b[i]);
    EXPECT(results[i] == nearest(x + y));
    EXPECT(results[m + i] == nearest(x - y));
    EXPECT(results[2 * m + i] == nearest(x * y));
    EXPECT(results[3 * m + i] == nearest(x * y + x));
    EXPECT(results[4 * m + i] == (x > y ? a[i] : b[i]));
  }

  __nv_bfloat162 two[32], *d_two;
  __nv_bfloat16 sum, *d_sum;
  CHECK(cudaMalloc(&d_two, sizeof two));
  CHECK(cudaMalloc(&d_sum, sizeof sum));
  CHECK(cudaMemset(d_sum, 0, sizeof sum));
  pairs<<<1, 32>>>(d_two, d_sum);
  CHECK(cudaMemcpy(two, d_two, sizeof two, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&sum, d_sum, sizeof sum, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) {
    EXPECT(__low2float(two[i]) == 2 * (i < 31 ? i + 1 : 31) + i);
    EXPECT(__high2float(two[i]) == 1.5f);
  }
  EXPECT(__bfloat162float(sum) == 32);
  return verdict();
}
