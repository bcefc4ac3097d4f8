// Arithmetic and conversions with explicit rounding: to nearest, to zero, down, up, for fp32, fp64
// and integers; out-of-range numbers, NaN, and reinterpreted bits. Exact values in long double, or
// exact comparisons, say where each result must lie.
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check.h"

struct Row {
  float add[4], sub[4], mul[4], div[4], fma[4], root[4], inverse[4];  // rn, rz, rd, ru
  double dadd[4], dmul[4], dsub[4], ddiv[4], dfma[4], droot[4], dinverse[4];
  float saturated;
};
struct Converted {
  int to_int[4], from_double[4];
  unsigned to_unsigned[4];
  long long to_long[4];
  unsigned long long to_unsigned_long[4];
  float from_int[4], from_unsigned[4], from_long[4], from_unsigned_long[4], narrow[4];
  unsigned unsigned_of_double[4];
  long long long_of_double[4];
  unsigned long long unsigned_long_of_double[4];
  double double_of_long[4], double_of_unsigned_long[4], double_of_int, double_of_unsigned;
  int bits, high, low;
  double back, together;
  unsigned address_bits;
};

__host__ __device__ inline float number(int i) {
  const float size = 1.f + i * 0.0123f + i * i * 1e-5f;
  return i % 3 == 1 ? -size : i % 7 == 5 ? size * 1e-6f : size;
}

#define ROUNDED(to, name, ...)    \
  to[0] = name##_rn(__VA_ARGS__); \
  to[1] = name##_rz(__VA_ARGS__); \
  to[2] = name##_rd(__VA_ARGS__); \
  to[3] = name##_ru(__VA_ARGS__)

__global__ void arithmetic(Row* rows) {
  const int i = threadIdx.x;
  const float a = number(i), b = number(i + 40);
  Row& r = rows[i];
  ROUNDED(r.add, __fadd, a, b);
  ROUNDED(r.sub, __fsub, a, b);
  ROUNDED(r.mul, __fmul, a, b);
  ROUNDED(r.div, __fdiv, a, b);
  ROUNDED(r.fma, __fmaf, a, b, a);
  ROUNDED(r.root, __fsqrt, fabsf(a));
  ROUNDED(r.inverse, __frcp, b);
  const double x = a / 3.0, y = b / 7.0;
  ROUNDED(r.dadd, __dadd, x, y);
  ROUNDED(r.dmul, __dmul, x, y);
  ROUNDED(r.dsub, __dsub, x, y);
  ROUNDED(r.ddiv, __ddiv, x, y);
  ROUNDED(r.dfma, __fma, x, y, x);
  ROUNDED(r.droot, __dsqrt, fabs(x));
  ROUNDED(r.dinverse, __drcp, y);
  r.saturated = __saturatef(a);
}
__global__ void convert(const float* values, Converted* rows) {
  const float f = values[threadIdx.x];
  Converted& r = rows[threadIdx.x];
  ROUNDED(r.to_int, __float2int, f);
  ROUNDED(r.to_unsigned, __float2uint, f);
  ROUNDED(r.to_long, __float2ll, f);
  ROUNDED(r.to_unsigned_long, __float2ull, f);
  ROUNDED(r.from_double, __double2int, f * 1.0);
  const int bits = __float_as_int(f);
  r.bits = bits;
  ROUNDED(r.from_int, __int2float, bits);
  ROUNDED(r.from_unsigned, __uint2float, __float_as_uint(f));
  ROUNDED(r.from_unsigned_long, __ull2float, (unsigned long long)__float_as_uint(f) * 0x12345);
  ROUNDED(r.unsigned_of_double, __double2uint, f * 1.0);
  ROUNDED(r.long_of_double, __double2ll, f * 1.0);
  ROUNDED(r.unsigned_long_of_double, __double2ull, f * 1.0);
  ROUNDED(r.double_of_long, __ll2double, (long long)bits * 0x123456789);
  ROUNDED(r.double_of_unsigned_long, __ull2double, __float_as_uint(f) * 0x87654321ull);
  r.double_of_int = __int2double_rn(bits);
  r.double_of_unsigned = __uint2double_rn(__float_as_uint(f));
  ROUNDED(r.from_long, __ll2float, (long long)bits * 0x12345);
  const double d = f * 1.1;
  ROUNDED(r.narrow, __double2float, d);
  r.high = __double2hiint(d);
  r.low = __double2loint(d);
  r.together = __hiloint2double(r.high, r.low);
  r.back = __longlong_as_double(__double_as_longlong(d));
  r.address_bits = __float_as_uint(__int_as_float(bits)) ^ __float_as_uint(__uint_as_float(bits));
}

static int sign(long double x) { return (x > 0) - (x < 0); }
// Is r[] = {nearest, to zero, down, up} for the number where side(x) changes its sign?
template <class T, class Side>
static bool rounded(const T* r, Side side) {
  const T down = r[2], up = r[3];
  if (side(down) > 0 || side(up) < 0) return false;
  if (side(down) == 0 || side(up) == 0) return down == up && r[0] == down && r[1] == down;
  if (nextafter(down, up) != up) return false;
  if (r[1] != (down < 0 || up <= 0 ? up : down)) return false;
  return r[0] == down || r[0] == up;
}
// ... and the nearest of both, where long double represents the number exactly.
template <class T>
static bool nearest(const T* r, long double exact) {
  if (r[2] == r[3]) return r[0] == r[2];
  const long double below = exact - r[2], above = r[3] - exact;
  return below == above || r[0] == (below < above ? r[2] : r[3]);
}
static bool all_of(const float* r, long double exact) {
  return rounded(r, [&](float x) { return sign(x - exact); }) && nearest(r, exact);
}
template <class T>
static T clamped(double x, T low, T high) {
  if (x != x) return 0;
  if (x <= (double)low) return low;
  if (x >= (double)high) return high;
  return (T)x;
}

static void check_arithmetic() {
  const int n = 128;
  Row* rows = room<Row>(n);
  arithmetic<<<1, n>>>(rows);
  done();
  for (int i = 0; i < n; ++i) {
    const Row& r = rows[i];
    const float a = number(i), b = number(i + 40);
    const long double A = a, B = b, S = fabsf(a);
    EXPECT(all_of(r.add, A + B) && all_of(r.sub, A - B) && all_of(r.mul, A * B));
    EXPECT(all_of(r.fma, A * B + A));
    // x < a / b where x b < a, for b > 0; 48 bits of a product are exact.
    EXPECT(rounded(r.div, [&](float x) { return sign(x * B - A) * sign(B); }));
    EXPECT(rounded(r.inverse, [&](float x) { return sign(x * B - 1) * sign(B); }));
    EXPECT(rounded(r.root, [&](float x) { return sign((long double)x * x - S); }));
    EXPECT(nearest(r.div, A / B) && nearest(r.inverse, 1 / B) && nearest(r.root, sqrtl(S)));
    const double x = a / 3.0, y = b / 7.0;
    const long double sum = (long double)x + y;
    EXPECT(rounded(r.dadd, [&](double v) { return sign(v - sum); }));
    EXPECT(rounded(r.dmul, [&](double v) {
      const double error = fma(x, y, -v);  // one rounding, whose sign is right
      return (error < 0) - (error > 0);
    }));
    const long double apart = (long double)x - y;
    EXPECT(rounded(r.dsub, [&](double v) { return sign(v - apart); }));
    EXPECT(rounded(r.ddiv, [&](double v) { return sign(fma(v, y, -x)) * sign(y); }));
    EXPECT(rounded(r.dinverse, [&](double v) { return sign(fma(v, y, -1)) * sign(y); }));
    EXPECT(rounded(r.droot, [&](double v) { return sign(fma(v, v, -fabs(x))); }));
    EXPECT(r.dfma[0] == fma(x, y, x) && r.dfma[2] <= r.dfma[0] && r.dfma[0] <= r.dfma[3]);
    EXPECT(r.dfma[1] == (r.dfma[3] <= 0 ? r.dfma[3] : r.dfma[2]));
    EXPECT(r.dfma[2] == r.dfma[3] || nextafter(r.dfma[2], r.dfma[3]) == r.dfma[3]);
    EXPECT(nearest(r.dadd, sum) && nearest(r.dsub, apart) && r.dmul[0] == x * y);
    EXPECT(r.ddiv[0] == x / y && r.droot[0] == sqrt(fabs(x)) && r.dinverse[0] == 1 / y);
    EXPECT(r.saturated == (a < 0 ? 0 : a > 1 ? 1 : a));
  }
}
static void check_conversions() {
  const float list[33] = {
      0.f,          -0.f,          0.5f,          1.5f,         2.5f,         -0.5f,   -1.5f,
      -2.5f,        0.49999997f,   8388607.5f,    16777217.f,   1e-30f,       -1e-30f, 2147483520.f,
      2147483648.f, -2147483648.f, -2147483904.f, 4294967040.f, 4294967296.f, 1e10f,   -1e10f,
      9.2e18f,      1e19f,         -1e19f,        INFINITY,     -INFINITY,    3.7f,    -3.7f,
      100.25f,      -100.25f,      7.f,           -7.f,         NAN};
  float* values = room<float>(33);
  Converted* rows = room<Converted>(33);
  memcpy(values, list, sizeof list);
  convert<<<1, 33>>>(values, rows);
  done();
  for (int k = 0; k < 4; ++k) EXPECT(rows[32].to_int[k] == 0 && rows[32].to_unsigned[k] == 0);
  for (int i = 0; i < 32; ++i) {
    const Converted& r = rows[i];
    const double x = list[i];
    const double whole[4] = {nearbyint(x), trunc(x), floor(x), ceil(x)};
    for (int k = 0; k < 4; ++k) {
      EXPECT(r.to_int[k] == clamped<int>(whole[k], INT_MIN, INT_MAX));
      EXPECT(r.from_double[k] == clamped<int>(whole[k], INT_MIN, INT_MAX));
      EXPECT(r.unsigned_of_double[k] == r.to_unsigned[k]);
      EXPECT(r.long_of_double[k] == r.to_long[k]);
      EXPECT(r.unsigned_long_of_double[k] == r.to_unsigned_long[k]);
      EXPECT(r.to_unsigned[k] == clamped<unsigned>(whole[k], 0, UINT_MAX));
      EXPECT(r.to_unsigned_long[k] == clamped<unsigned long long>(whole[k], 0, ULLONG_MAX));
      EXPECT(r.to_long[k] == clamped<long long>(whole[k], LLONG_MIN, LLONG_MAX));
    }
    int bits;
    memcpy(&bits, list + i, 4);
    EXPECT(r.bits == bits && r.address_bits == 0);
    EXPECT(all_of(r.from_int, bits) && all_of(r.from_unsigned, (unsigned)bits));
    EXPECT(all_of(r.from_unsigned_long, (unsigned long long)(unsigned)bits * 0x12345));
    const long double exact[] = {(long double)((long long)bits * 0x123456789),
                                 (long double)((unsigned)bits * 0x87654321ull)};
    EXPECT(rounded(r.double_of_long, [&](double v) { return sign(v - exact[0]); }));
    EXPECT(rounded(r.double_of_unsigned_long, [&](double v) { return sign(v - exact[1]); }));
    EXPECT(nearest(r.double_of_long, exact[0]) && nearest(r.double_of_unsigned_long, exact[1]));
    EXPECT(r.double_of_int == bits && r.double_of_unsigned == (unsigned)bits);
    EXPECT(all_of(r.from_long, (long long)bits * 0x12345));
    const double d = list[i] * 1.1;
    EXPECT(isinf(d) ? r.narrow[0] == d && r.narrow[3] == d : all_of(r.narrow, d));
    long long wide;
    memcpy(&wide, &d, 8);
    EXPECT(r.high == (int)(wide >> 32) && r.low == (int)wide);
    EXPECT(memcmp(&r.back, &d, 8) == 0 && memcmp(&r.together, &d, 8) == 0);
  }
}
// CUDA functions that C's library lacks, where their results are known.
__global__ void functions(float* out, double* wide, float x) {
  int i = 0;
  out[i++] = __sinf(x), out[i++] = __cosf(x), out[i++] = __tanf(x), out[i++] = __log10f(100 * x);
  out[i++] = __exp10f(3 * x), out[i++] = __fsqrt_rn(9 * x), out[i++] = __frsqrt_rn(4 * x);
  out[i++] = rcbrtf(8 * x), out[i++] = normcdff(x), out[i++] = sinpif(x / 6),
  out[i++] = cospif(x / 3);
  out[i++] = rsqrt(16 * x), out[i++] = __powf(2 * x, 5), out[i++] = fdividef(7 * x, 2);
  out[i++] = __tanhf(x), __sincosf(x, out + i, out + i + 1), i += 2;
  out[i++] = __saturatef(NAN), out[i++] = __saturatef(2 * x), out[i++] = __saturatef(x / 4);
  wide[0] = sinpi(x / 6.), wide[1] = cospi(x / 3.), wide[2] = normcdf(-x), wide[3] = rsqrt(16. * x);
  wide[4] = __dsqrt_rn(9. * x), wide[5] = __drcp_rn(4. * x), wide[6] = __fma_rn(3. * x, 4, 5);
  const float2 p = {1, 2}, q = {3, 5};
#ifndef NVCC_REFUSES_IT
  const float2 sum = __fadd2_rz(p, q), product = __fmul2_ru(p, q), fused = __ffma2_rd(p, q, q);
  wide[7] = sum.x + 10 * sum.y + 100 * product.x + 1000 * product.y + 100000 * fused.x;
  wide[8] = fused.y;
#endif
}
static void check_functions() {
  float* out = room<float>(20);
  double* wide = room<double>(9);
  functions<<<1, 1>>>(out, wide, 1);
  done();
  const double right[] = {
      sin(1.), cos(1.), tan(1.),  2,       1000,    3, 0.5, 0.5, 0.8413447460685429, 0.5, 0.5, 0.25,
      32,      3.5,     tanh(1.), sin(1.), cos(1.), 0, 1,   0.25};
  for (int i = 0; i < 20; ++i) EXPECT(fabs(out[i] - right[i]) <= 3e-7 * (1 + right[i]));
  const double in_fp64[] = {0.5, 0.5, 0.15865525393145707, 0.25, 3, 0.25, 17, 0, 0};
  for (int i = 0; i < 7; ++i) EXPECT(fabs(wide[i] - in_fp64[i]) < 1e-15);
  EXPECT(wide[7] == 4 + 70 + 300 + 10000 + 600000 && wide[8] == 15);
}

int main() {
  check_functions();
  check_arithmetic();
  check_conversions();
  return verdict();
}
