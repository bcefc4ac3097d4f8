// fp16 and bf16: all 65,536 patterns, rounding against exact arithmetic, pairs, shuffles, atomics.
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

// The value of a pattern, by its definition; NaN where there is none.
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
// The same, with infinity as the next power of two, the limit for rounding.
template <class F>
static double finite(unsigned h) {
  return h == infinity<F>() ? ldexp(1, F::bias + 1) : value_of<F>(h);
}
// The pattern nearest to x, ties to even, by comparison with its neighbours.
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

  // The neighbourhood of each pattern: the midpoint to the next one, and a little less and more.
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

  // Sums and products, also fused ones (below 2^53), are exact in fp64; the host rounds them once.
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

// One of each function, for fp16 and bf16; exact where the result is.
template <class H, class H2>
static void functions(H2 (*two_of)(H, H)) {
  const auto of = [](float f) { return H(f); };
  const auto is = [](H h, float f) { return float(h) == f; };
  const auto are = [](H2 h, float x, float y) { return float(h.x) == x && float(h.y) == y; };
  const H one = of(1), two = of(2), nan = of(NAN), three = of(3);
  EXPECT(is(__hmax(nan, two), 2) && is(__hmax(two, nan), 2) && is(__hmin(nan, two), 2));
  EXPECT(is(__hmin(two, nan), 2) && is(__hmin(two, three), 2) && is(__hmax(two, three), 3));
  EXPECT(is(__hdiv(three, two), 1.5f) && is(three / two, 1.5f) && is(__hneg(two), -2));
  EXPECT(is(__habs(of(-2)), 2) && is(__habs(two), 2) && __hisnan(nan) && !__hisnan(of(INFINITY)));
  EXPECT(__heq(two, two) && !__heq(two, three) && __hne(two, three) && !__hne(two, two));
  EXPECT(__hlt(two, three) && !__hlt(two, two) && __hle(two, two) && !__hle(three, two));
  EXPECT(__hgt(three, two) && !__hgt(two, two) && __hge(two, two) && !__hge(two, three));
  EXPECT(two == two && two != three && two < three && two <= two && three > two && two >= two);
  EXPECT(!__heq(nan, nan) && __hne(nan, nan) && !__hlt(nan, one) && !__hge(nan, one));
  EXPECT(is(hexp(of(0)), 1) && is(hexp2(three), 8) && is(hexp10(two), 100) && is(hlog(one), 0));
  EXPECT(is(hlog2(of(8)), 3) && is(hlog10(of(100)), 2) && is(hsqrt(of(9)), 3));
  EXPECT(is(hrsqrt(of(4)), 0.5f) && is(hrcp(of(4)), 0.25f) && is(hsin(of(0)), 0));
  EXPECT(is(hcos(of(0)), 1) && is(htanh(of(0)), 0) && is(hfloor(of(-1.5f)), -2));
  EXPECT(is(hceil(of(-1.5f)), -1) && is(htrunc(of(-1.5f)), -1) && is(hrint(of(2.5f)), 2));
  EXPECT(float(hexp(one)) > 2.7f && float(hexp(one)) < 2.73f && float(hsin(one)) > 0.83f);
  EXPECT(float(hsin(one)) < 0.85f && float(htanh(one)) > 0.755f && float(htanh(one)) < 0.77f);
  EXPECT(float(hcos(one)) > 0.53f && float(hcos(one)) < 0.545f && float(hlog(two)) > 0.68f);
  const H2 a = two_of(two, three), b = two_of(of(4), of(-1));
  EXPECT(are(__hadd2(a, b), 6, 2) && are(__hsub2(a, b), -2, 4) && are(__hmul2(a, b), 8, -3));
  EXPECT(are(__h2div(b, a), 2, float(of(-1.f / 3))) && are(a * b, 8, -3) && are(a - b, -2, 4));
  EXPECT(are(a + b, 6, 2) && are(b / two_of(two, two), 2, -0.5f) && are(__hmax2(a, b), 4, 3));
  EXPECT(are(__hmin2(a, b), 2, -1) && are(__hfma2(a, b, a), 10, 0) &&
         are(h2sqrt(two_of(of(4), of(9))), 2, 3));
  EXPECT(are(h2exp2(a), 4, 8) && __low2float(a) == 2 && __high2float(a) == 3);
  H2 c = a;
  c += b, c -= a, c *= a, c /= two_of(two, one);
  EXPECT(are(c, 4, -3));
  H d = two;
  d += three, d -= one, d *= three, d /= two;
  EXPECT(is(d, 6));
}
static void conversions() {
  EXPECT(__half2int_rn(__half(2.5f)) == 2 && __half2int_rz(__half(-2.75f)) == -2);
  EXPECT(__half2short_rn(__half(3.5f)) == 4 && __half2short_rz(__half(3.75f)) == 3);
  EXPECT(__half2float(__int2half_rn(-7)) == -7 && __half2float(__uint2half_rn(9)) == 9);
  EXPECT(__half2float(__double2half(0.1)) == 0.0999755859375f);
  EXPECT(__half_as_short(__short_as_half(-3)) == -3 && __half_as_ushort(__half(1.f)) == 0x3c00);
  EXPECT(__hisinf(__half(INFINITY)) == 1 && __hisinf(__half(-INFINITY)) == -1);
  EXPECT(__hisinf(__half(65504.f)) == 0 && __half_as_ushort(__half(65520.f)) == 0x7c00);
  const half2 a = make_half2(1.f, 2.f);
  EXPECT(__low2float(__low2half2(a)) == 1 && __high2float(__low2half2(a)) == 1);
  EXPECT(__low2float(__high2half2(a)) == 2 && __high2float(__high2half2(a)) == 2);
  EXPECT(__high2float(__half2half2(__half(3.f))) == 3 && __low2float(__hneg2(a)) == -1);
  EXPECT(__high2float(__habs2(__hneg2(a))) == 2 && float((-a).y) == -2 && float(-a.x) == -1);
  const float2 two = {5, 6};
  EXPECT(__low2float(__float22half2_rn(two)) == 5 && __high2float(__float22half2_rn(two)) == 6);
  EXPECT(float(CUDART_INF_FP16) == INFINITY && float(CUDART_MAX_NORMAL_FP16) == 65504);
  EXPECT(__hisnan(CUDART_NAN_FP16) && float(CUDART_ONE_FP16) == 1 && float(CUDART_ZERO_FP16) == 0);
  EXPECT(float(__int2bfloat16_rn(-7)) == -7 && float(__double2bfloat16(0.5)) == 0.5f);
  const __nv_bfloat162 b = __halves2bfloat162(__nv_bfloat16(1.f), __nv_bfloat16(2.f));
  EXPECT(float(__low2bfloat16(b)) == 1 && float(__high2bfloat16(b)) == 2);
  EXPECT(__bfloat1622float2(b).x == 1 && __bfloat1622float2(b).y == 2);
  EXPECT(float(__bfloat162bfloat162(b.y).x) == 2 && float(__float22bfloat162_rn(two).y) == 6);
  EXPECT(float(make_bfloat162(b.y, b.x).x) == 2);
}

int main() {
  functions<__half, __half2>(__halves2half2);
  functions<__nv_bfloat16, __nv_bfloat162>(__halves2bfloat162);
  conversions();
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
