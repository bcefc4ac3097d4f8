// fp16: all 65,536 patterns to fp32 and back, rounding against exact arithmetic, half2, shuffles.
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include "check.h"

// The value of a pattern, by its definition. NaN where it is none.
static double value_of(unsigned h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}
// The pattern nearest to x, ties to the even one, by comparing with its neighbours.
static unsigned nearest(double x) {
  const unsigned sign = signbit(x) ? 0x8000 : 0;
  const double size = fabs(x);
  if (size >= 65520) return sign | 0x7c00;
  unsigned low = 0, high = 0x7c00;  // value_of(low) <= size < that of high, 65536 for infinity
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value_of(middle) <= size ? low : high) = middle;
  }
  const double above = high == 0x7c00 ? 65536 : value_of(high);
  const double down = size - value_of(low), up = above - size;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}
static bool same(double a, double b) {
  return a == b ? signbit(a) == signbit(b) : a != a && b != b;
}

__global__ void widen(float* out, unsigned short* back) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const __half h = __ushort_as_half((unsigned short)i);
  out[i] = __half2float(h);
  back[i] = __half_as_ushort(__float2half(out[i]));
}
__global__ void narrow(const float* in, __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2half_rn(in[i]);
}
__global__ void arithmetic(const __half* a, const __half* b, __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = __hadd(a[i], b[i]);
  out[n + i] = a[i] - b[i];
  out[2 * n + i] = __hmul(a[i], b[i]);
  out[3 * n + i] = __hfma(a[i], b[i], a[i]);
  out[4 * n + i] = __hgt(a[i], b[i]) ? a[i] : b[i];
}
__global__ void pairs(const half2* a, half2* out) {
  const half2 v = a[threadIdx.x];
  const half2 swapped = __lowhigh2highlow(v);
  half2 sum = __hadd2(v, swapped);
  sum += __float2half2_rn(1.f);
  out[3 * threadIdx.x] = sum;
  out[3 * threadIdx.x + 1] = __hfma2(v, __halves2half2(__low2half(v), __high2half(v)), swapped);
  const float2 f = __half22float2(v);
  out[3 * threadIdx.x + 2] = __floats2half2_rn(f.x * 2, -f.y);
}
__global__ void shuffled(__half* out) {
  __half v = __float2half(threadIdx.x * 0.5f);
  for (int distance = 16; distance; distance /= 2) {
    v = __hadd(v, __shfl_xor_sync(0xffffffff, v, distance));
  }
  half2 two = __float2half2_rn(threadIdx.x);
  two = __shfl_sync(0xffffffff, two, 7);
  out[threadIdx.x] = threadIdx.x % 2 ? v : __high2half(two);
}

int main() {
  static_assert(sizeof(half) == 2 && sizeof(half2) == 4 && alignof(half2) == 4, "as in memory");
  static float wide[65536];
  static unsigned short back[65536];
  float* d_wide;
  unsigned short* d_back;
  CHECK(cudaMalloc(&d_wide, sizeof wide));
  CHECK(cudaMalloc(&d_back, sizeof back));
  widen<<<256, 256>>>(d_wide, d_back);
  CHECK(cudaMemcpy(wide, d_wide, sizeof wide, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(back, d_back, sizeof back, cudaMemcpyDeviceToHost));
  for (unsigned i = 0; i < 65536; ++i) {
    EXPECT(same(wide[i], value_of(i)));
    EXPECT(wide[i] != wide[i] ? (back[i] & 0x7fff) > 0x7c00 : back[i] == i);
  }

  // Each pattern's neighbourhood: the middle to the next one, and a little less and more.
  const int per = 4, n = per * 0x7c00;
  static float in[n];
  static unsigned short out[n];
  for (int i = 0; i < 0x7c00; ++i) {
    const double next = i == 0x7bff ? 65536 : value_of(i + 1);
    const float middle = (float)((value_of(i) + next) / 2);
    in[per * i] = middle;
    in[per * i + 1] = nextafterf(middle, 0);
    in[per * i + 2] = nextafterf(middle, INFINITY);
    in[per * i + 3] = -middle;
  }
  float* d_in;
  __half* d_out;
  CHECK(cudaMalloc(&d_in, sizeof in));
  CHECK(cudaMalloc(&d_out, sizeof out));
  CHECK(cudaMemcpy(d_in, in, sizeof in, cudaMemcpyHostToDevice));
  narrow<<<(n + 255) / 256, 256>>>(d_in, d_out, n);
  CHECK(cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) EXPECT(out[i] == nearest(in[i]));

  // Sums and products are exact in fp64, so they can be rounded once on the host. The fused
  // products stay below 2^53, too.
  const int m = 4096;
  static unsigned short a[m], b[m], results[5 * m];
  unsigned state = 1;
  for (int i = 0; i < m; ++i) {
    state = state * 1664525 + 1013904223;
    a[i] = (state >> 16 & 0x83ff) | (10 + (state >> 8) % 10) << 10;
    state = state * 1664525 + 1013904223;
    b[i] = (state >> 16 & 0x83ff) | (10 + (state >> 8) % 10) << 10;
  }
  __half *d_a, *d_b, *d_results;
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

  half2 two[32], six[96], *d_two, *d_six;
  for (int i = 0; i < 32; ++i) two[i] = __floats2half2_rn(i, i / 4.f);
  CHECK(cudaMalloc(&d_two, sizeof two));
  CHECK(cudaMalloc(&d_six, sizeof six));
  CHECK(cudaMemcpy(d_two, two, sizeof two, cudaMemcpyHostToDevice));
  pairs<<<1, 32>>>(d_two, d_six);
  CHECK(cudaMemcpy(six, d_six, sizeof six, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) {
    const float x = i, y = i / 4.f;
    EXPECT(__low2float(six[3 * i]) == x + y + 1 && __high2float(six[3 * i]) == x + y + 1);
    EXPECT(__low2float(six[3 * i + 1]) == (float)value_of(nearest(x * x + y)));
    EXPECT(__high2float(six[3 * i + 1]) == (float)value_of(nearest(y * y + x)));
    EXPECT(__low2float(six[3 * i + 2]) == 2 * x && __high2float(six[3 * i + 2]) == -y);
  }

  __half lanes[32], *d_lanes;
  CHECK(cudaMalloc(&d_lanes, sizeof lanes));
  shuffled<<<1, 32>>>(d_lanes);
  CHECK(cudaMemcpy(lanes, d_lanes, sizeof lanes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) EXPECT(__half2float(lanes[i]) == (i % 2 ? 248.f : 7.f));
  return verdict();
}
