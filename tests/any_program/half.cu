// fp16 and bf16: all 65,536 patterns to fp32 and back, rounding against exact arithmetic, pairs,
// shuffles, atomics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include "check.h"

struct Fp16 {
  typedef __half T;
  static const int fraction = 10, bias = 15;
  __device__ static float wide(T h) { return __half2float(h); }
  __device__ static T narrow(float f) { return __float2half_rn(f); }
  __device__ static T of(unsigned short bits) { return __ushort_as_half(bits); }
  __device__ static unsigned short bits_of(T h) { return __half_as_ushort(h); }
};
struct Bf16 {
  typedef __nv_bfloat16 T;
  static const int fraction = 7, bias = 127;
  __device__ static float wide(T h) { return __bfloat162float(h); }
  __device__ static T narrow(float f) { return __float2bfloat16_rn(f); }
  __device__ static T of(unsigned short bits) { return __ushort_as_bfloat16(bits); }
  __device__ static unsigned short bits_of(T h) { return __bfloat16_as_ushort(h); }
};

// The value of a pattern, by its definition. NaN where it is none.
template <class F>
static double value_of(unsigned h) {
  const int one = 1 << F::fraction, exponent = (h & 0x7fff) / one, part = h % one;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 2 * F::bias + 1) return part ? NAN : sign * INFINITY;
  const int shift = 1 - F::bias - F::fraction;
  return sign * (exponent ? ldexp(one + part, exponent - 1 + shift) : ldexp(part, shift));
}
template <class F>
static unsigned infinity() {
  return (2 * F::bias + 1) << F::fraction;
}
// The same, with infinity as the next power of two: where rounding reaches it.
template <class F>
static double finite(unsigned h) {
  return h == infinity<F>() ? ldexp(1, F::bias + 1) : value_of<F>(h);
}
// The pattern nearest to x, ties to the even one, by comparing with its neighbours.
template <class F>
static unsigned nearest(double x) {
  const unsigned sign = signbit(x) ? 0x8000 : 0;
  const double size = fabs(x);
  unsigned low = 0, high = infinity<F>();  // value of low <= size < that of high
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value_of<F>(middle) <= size ? low : high) = middle;
  }
  const double down = size - value_of<F>(low), up = finite<F>(high) - size;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}
static bool same(double a, double b) {
  return a == b ? signbit(a) == signbit(b) : a != a && b != b;
}

template <class F>
__global__ void convert(float* out, unsigned short* back) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = F::wide(F::of((unsigned short)i));
  back[i] = F::bits_of(F::narrow(out[i]));
}
template <class F>
__global__ void narrow(const float* in, unsigned short* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = F::bits_of(F::narrow(in[i]));
}
template <class F>
__global__ void arithmetic(const unsigned short* as, const unsigned short* bs,
                           unsigned short* results) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const typename F::T a = F::of(as[i]), b = F::of(bs[i]);
  const typename F::T all[8] = {__hadd(a, b), a + b, __hsub(a, b),    a - b,
                                __hmul(a, b), a * b, __hfma(a, b, a), __hmax(a, b)};
  for (int k = 0; k < 8; ++k) results[8 * i + k] = F::bits_of(all[k]);
  if (__hgt(a, b) != (results[8 * i + 7] == as[i] && as[i] != bs[i])) results[8 * i] = 0xffff;
}
__global__ void half_pairs(const half2* a, half2* out) {
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
__global__ void bfloat16_pairs(__nv_bfloat162* out, __nv_bfloat16* sum) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(threadIdx.x, 0.5f);
  const __nv_bfloat162 from = __nv_bfloat162(__shfl_down_sync(~0u, __low2bfloat16(v), 1), v.y);
  out[threadIdx.x] = __hfma2(from, __float2bfloat162_rn(2.f), v);
  atomicAdd(sum, __float2bfloat16(1.f));
}

template <class F>
static void check() {
  typedef unsigned short Bits;
  float* wide = room<float>(65536);
  Bits* back = room<Bits>(65536);
  convert<F><<<256, 256>>>(wide, back);
  done();
  for (unsigned i = 0; i < 65536; ++i) {
    EXPECT(same(wide[i], value_of<F>(i)));
    EXPECT(wide[i] != wide[i] ? (back[i] & 0x7fff) > infinity<F>() : back[i] == i);
  }

  // Each pattern's neighbourhood: the middle to the next one, and a little less and more.
  const int n = 4 * infinity<F>();
  float* in = room<float>(n);
  Bits* out = room<Bits>(n);
  for (int i = 0; i < n / 4; ++i) {
    const float middle = (float)((value_of<F>(i) + finite<F>(i + 1)) / 2);
    in[4 * i] = middle;
    in[4 * i + 1] = nextafterf(middle, 0);
    in[4 * i + 2] = nextafterf(middle, INFINITY);
    in[4 * i + 3] = -middle;
  }
  narrow<F><<<(n + 255) / 256, 256>>>(in, out, n);
  done();
  for (int i = 0; i < n; ++i) EXPECT(out[i] == nearest<F>(in[i]));

  // Sums and products are exact in fp64, so they can be rounded once on the host. The fused
  // products stay below 2^53, too.
  const int m = 2048;
  Bits *a = room<Bits>(m), *b = room<Bits>(m), *results = room<Bits>(8 * m);
  unsigned state = 1;
  for (int i = 0; i < 2 * m; ++i) {
    state = state * 1664525 + 1013904223;
    const unsigned exponent = F::bias - 5 + (state >> 8) % 10;
    const unsigned kept = 0x8000 | ((1 << F::fraction) - 1);
    (i % 2 ? a : b)[i / 2] = (state >> 16 & kept) | exponent << F::fraction;
  }
  arithmetic<F><<<m / 256, 256>>>(a, b, results);
  done();
  for (int i = 0; i < m; ++i) {
    const double x = value_of<F>(a[i]), y = value_of<F>(b[i]);
    const double exact[8] = {x + y, x + y, x - y, x - y, x * y, x * y, x * y + x, x > y ? x : y};
    for (int k = 0; k < 8; ++k) EXPECT(results[8 * i + k] == nearest<F>(exact[k]));
  }
}

int main() {
  static_assert(sizeof(half) == 2 && sizeof(half2) == 4 && alignof(half2) == 4, "as in memory");
  check<Fp16>();
  check<Bf16>();

  half2 *two = room<half2>(32), *six = room<half2>(96);
  for (int i = 0; i < 32; ++i) two[i] = __floats2half2_rn(i, i / 4.f);
  half_pairs<<<1, 32>>>(two, six);
  done();
  for (int i = 0; i < 32; ++i) {
    const float x = i, y = i / 4.f;
    EXPECT(__low2float(six[3 * i]) == x + y + 1 && __high2float(six[3 * i]) == x + y + 1);
    EXPECT(__low2float(six[3 * i + 1]) == (float)value_of<Fp16>(nearest<Fp16>(x * x + y)));
    EXPECT(__high2float(six[3 * i + 1]) == (float)value_of<Fp16>(nearest<Fp16>(y * y + x)));
    EXPECT(__low2float(six[3 * i + 2]) == 2 * x && __high2float(six[3 * i + 2]) == -y);
  }
  __half* lanes = room<__half>(32);
  shuffled<<<1, 32>>>(lanes);
  done();
  for (int i = 0; i < 32; ++i) EXPECT(__half2float(lanes[i]) == (i % 2 ? 248.f : 7.f));

  __nv_bfloat162* pairs = room<__nv_bfloat162>(32);
  __nv_bfloat16* sum = room<__nv_bfloat16>(1);
  bfloat16_pairs<<<1, 32>>>(pairs, sum);
  done();
  for (int i = 0; i < 32; ++i) {
    EXPECT(__low2float(pairs[i]) == 2 * (i < 31 ? i + 1 : 31) + i);
    EXPECT(__high2float(pairs[i]) == 1.5f);
  }
  EXPECT(__bfloat162float(*sum) == 32);
  return verdict();
}
