// Arithmetic with a rounding of its own: down, up, to zero, to nearest, of fp32 and fp64. What is
// exact in long double, or can be compared exactly, says where each result must lie.
#include <math.h>

#include "check.h"

struct Row {
  float add[4], sub[4], mul[4], div[4], fma[4], root[4], inverse[4];  // rn, rz, rd, ru
  double dadd[4], dmul[4];
  float saturated;
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

__global__ void all(Row* rows) {
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
  const long double below = exact - r[2], above = r[3] - exact;
  return below == above || r[0] == (below < above ? r[2] : r[3]);
}
static int sign(long double x) { return (x > 0) - (x < 0); }

int main() {
  const int n = 128;
  static Row host[n];
  Row* rows;
  CHECK(cudaMalloc(&rows, sizeof host));
  all<<<1, n>>>(rows);
  CHECK(cudaMemcpy(host, rows, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    const Row& r = host[i];
    const float a = number(i), b = number(i + 40);
    const long double A = a, B = b, S = fabsf(a);
    EXPECT(rounded(r.add, [&](float x) { return sign(x - (A + B)); }) && nearest(r.add, A + B));
    EXPECT(rounded(r.sub, [&](float x) { return sign(x - (A - B)); }) && nearest(r.sub, A - B));
    EXPECT(rounded(r.mul, [&](float x) { return sign(x - A * B); }) && nearest(r.mul, A * B));
    // x < a / b where x b < a, for b > 0; 48 bits of a product are exact.
    EXPECT(rounded(r.div, [&](float x) { return sign(x * B - A) * sign(B); }));
    EXPECT(rounded(r.inverse, [&](float x) { return sign(x * B - 1) * sign(B); }));
    EXPECT(rounded(r.root, [&](float x) { return sign((long double)x * x - S); }));
    EXPECT(nearest(r.div, A / B) && nearest(r.inverse, 1 / B) && nearest(r.root, sqrtl(S)));
    EXPECT(rounded(r.fma, [&](float x) { return sign(x - (A * B + A)); }));
    EXPECT(nearest(r.fma, A * B + A));
    const double x = a / 3.0, y = b / 7.0;
    const long double sum = (long double)x + y;
    EXPECT(rounded(r.dadd, [&](double v) { return sign(v - sum); }));
    EXPECT(rounded(r.dmul, [&](double v) {
      const double error = fma(x, y, -v);  // one rounding, whose sign is right
      return (error < 0) - (error > 0);
    }));
    EXPECT(r.saturated == (a < 0 ? 0 : a > 1 ? 1 : a));
  }
  return verdict();
}
