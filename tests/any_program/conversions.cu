// Conversions: the four roundings, numbers that are too large, NaN, and bits as they are.
#include <limits.h>
#include <math.h>
#include <string.h>

#include "check.h"

struct Row {
  int to_int[4], from_double[4];  // rn, rz, rd, ru
  unsigned to_unsigned[4];
  long long to_long[4];
  unsigned long long to_unsigned_long[4];
  float from_int[4], from_unsigned, from_long[4], narrow[4];
  int bits, high, low;
  double back, together;
  unsigned address_bits;
};

__global__ void all(const float* values, Row* rows) {
  const int i = threadIdx.x;
  const float f = values[i];
  Row& r = rows[i];
#define FOUR(to, name, x) \
  to[0] = name##_rn(x), to[1] = name##_rz(x), to[2] = name##_rd(x), to[3] = name##_ru(x)
  FOUR(r.to_int, __float2int, f);
  FOUR(r.to_unsigned, __float2uint, f);
  FOUR(r.to_long, __float2ll, f);
  FOUR(r.to_unsigned_long, __float2ull, f);
  FOUR(r.from_double, __double2int, f * 1.0);
  const int bits = __float_as_int(f);
  r.bits = bits;
  FOUR(r.from_int, __int2float, bits);
  r.from_unsigned = __uint2float_rn(__float_as_uint(f));
  FOUR(r.from_long, __ll2float, (long long)bits * 0x12345);
  const double d = f * 1.1;
  FOUR(r.narrow, __double2float, d);
  r.high = __double2hiint(d);
  r.low = __double2loint(d);
  r.together = __hiloint2double(r.high, r.low);
  r.back = __longlong_as_double(__double_as_longlong(d));
  r.address_bits = __float_as_uint(__int_as_float(bits)) ^ __float_as_uint(__uint_as_float(bits));
}

template <class T>
static T clamped(double x, T low, T high) {
  if (x != x) return 0;
  if (x <= (double)low) return low;
  if (x >= (double)high) return high;
  return (T)x;
}

// Is r[] = {nearest, to zero, down, up} of x? The host's own conversion is to the nearest.
static bool rounded(const float* r, long double x) {
  if (r[0] != (float)x || r[1] != (x < 0 ? r[3] : r[2])) return false;
  if (r[2] == x || r[3] == x) return r[2] == r[3];
  return r[2] < x && x < r[3] && nextafterf(r[2], INFINITY) == r[3];
}

int main() {
  const float list[] = {
      0.f,          -0.f,          0.5f,          1.5f,         2.5f,         -0.5f,   -1.5f,
      -2.5f,        0.49999997f,   8388607.5f,    16777217.f,   1e-30f,       -1e-30f, 2147483520.f,
      2147483648.f, -2147483648.f, -2147483904.f, 4294967040.f, 4294967296.f, 1e10f,   -1e10f,
      9.2e18f,      1e19f,         -1e19f,        INFINITY,     -INFINITY,    3.7f,    -3.7f,
      100.25f,      -100.25f,      7.f,           -7.f};
  const int n = sizeof list / sizeof *list;
  static_assert(n == 32, "a warp");
  float* values;
  Row *rows, host[n + 1];
  CHECK(cudaMalloc(&values, sizeof list));
  CHECK(cudaMalloc(&rows, sizeof host));
  CHECK(cudaMemcpy(values, list, sizeof list, cudaMemcpyHostToDevice));
  all<<<1, n>>>(values, rows);
  CHECK(cudaMemcpy(host, rows, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    const Row& r = host[i];
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
    unsigned unsigned_bits;
    memcpy(&bits, list + i, 4);
    memcpy(&unsigned_bits, list + i, 4);
    EXPECT(r.bits == bits && r.address_bits == 0);
    EXPECT(rounded(r.from_int, bits));
    EXPECT(r.from_unsigned == (float)unsigned_bits);
    EXPECT(rounded(r.from_long, (long long)bits * 0x12345));
    const double d = list[i] * 1.1;
    EXPECT(rounded(r.narrow, d));
    long long wide;
    memcpy(&wide, &d, 8);
    EXPECT(r.high == (int)(wide >> 32) && r.low == (int)wide);
    EXPECT(memcmp(&r.back, &d, 8) == 0 && memcmp(&r.together, &d, 8) == 0);
  }
  const float nan = NAN;
  CHECK(cudaMemcpy(values, &nan, sizeof nan, cudaMemcpyHostToDevice));
  all<<<1, 1>>>(values, rows);
  CHECK(cudaMemcpy(host, rows, sizeof *host, cudaMemcpyDeviceToHost));
  for (int k = 0; k < 4; ++k) EXPECT(host[0].to_int[k] == 0 && host[0].to_unsigned[k] == 0);
  return verdict();
}
