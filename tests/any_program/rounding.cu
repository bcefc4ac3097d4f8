// Arithmetic and conversions with a rounding of their own: to nearest, to zero, down, up, of fp32,
// fp64 and integers; numbers that are too large, NaN, and bits as they are. What is exact in long
// double, or can be compared exactly, says where each result must lie.
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check.h"

struct Row {
  float add[4], sub[4], mul[4], div[4], fma[4], root[4], inverse[4];  // rn, rz, rd, ru
  double dadd[4], dmul[4];
  float saturated;
};
struct Converted {
  int to_int[4], from_double[4];
  unsigned to_unsigned[4];
  long long to_long[4];
  unsigned long long to_unsigned_long[4];
  float from_int[4], from_unsigned, from_long[4], narrow[4];
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
  r.from_unsigned = __uint2float_rn(__float_as_uint(f));
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
// Is r[] = {nearest, to zero, down, up} of a number that lies on this side of each x: side(x) is
// negative where x is below the number?
template <class T, class Side>
static bool rounded(const T* r, Side side) {
  const T down = r[2], up = r[3];
  if (side(down) > 0 || side(up) < 0) return false;
  if (side(down) == 0 || side(up) == 0) return down == up && r[0] == down && r[1] == down;
  if (nextafter(down, up) != up) return false;
  if (r[1] != (down < 0 || up <= 0 ? up : down)) return false;
  return r[0] == down || r[0] == up;
}
// ... and the nearest of both, where long double holds the number exactly.
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
      EXPECT(r.to_unsigned[k] == clamped<unsigned>(whole[k], 0, UINT_MAX));
      EXPECT(r.to_unsigned_long[k] == clamped<unsigned long long>(whole[k], 0, ULLONG_MAX));
      EXPECT(r.to_long[k] == clamped<long long>(whole[k], LLONG_MIN, LLONG_MAX));
    }
    int bits;
    memcpy(&bits, list + i, 4);
    EXPECT(r.bits == bits && r.address_bits == 0);
    EXPECT(all_of(r.from_int, bits) && r.from_unsigned == (float)(unsigned)bits);
    EXPECT(all_of(r.from_long, (long long)bits * 0x12345));
    const double d = list[i] * 1.1;
    EXPECT(isinf(d) ? r.narrow[0] == d && r.narrow[3] == d : all_of(r.narrow, d));
    long long wide;
    memcpy(&wide, &d, 8);
    EXPECT(r.high == (int)(wide >> 32) && r.low == (int)wide);
    EXPECT(memcmp(&r.back, &d, 8) == 0 && memcmp(&r.together, &d, 8) == 0);
  }
}

int main() {
  check_arithmetic();
  check_conversions();
  return verdict();
}
