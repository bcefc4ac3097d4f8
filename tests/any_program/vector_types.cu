// Vector types: sizes, alignments, make_<type>(), and loads and stores in kernels.
#include "check.h"

struct __align__(16) Padded {
  float a;
  int b;
  char c;
};

template <class... T>
constexpr bool all_are(size_t bytes, size_t alignment) {
  return ((sizeof(T) == bytes && alignof(T) == alignment) && ...);
}
static_assert(all_are<char1>(1, 1) && all_are<char2, short1>(2, 2) && all_are<char3>(3, 1), "");
static_assert(all_are<char4, uchar4, short2, int1, uint1, float1>(4, 4), "");
static_assert(all_are<short3>(6, 2), "");
static_assert(all_are<short4, ushort4, int2, uint2, float2, longlong1, double1>(8, 8), "");
static_assert(all_are<int3, uint3, float3, dim3>(12, 4), "");
static_assert(all_are<int4, uint4, float4, longlong2, ulonglong2, double2, Padded>(16, 16), "");
static_assert(all_are<double3>(24, 8), "");

__device__ __host__ inline float3 operator+(float3 a, float3 b) {
  return make_float3(a.x + b.x, a.y + b.y, a.z + b.z);
}

__global__ void swizzle(const float4* in, float4* out) {
  const float4 v = in[threadIdx.x];
  out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}
__global__ void pack(int n, uchar4* bytes, short2* shorts, double2* doubles, float3* threes,
                     longlong2* longs, Padded* padded) {
  const int i = threadIdx.x;
  if (i >= n) return;
  bytes[i] = make_uchar4(i, i + 1, i + 2, 255);
  shorts[i] = make_short2(-i, i);
  doubles[i] = make_double2(i / 8.0, -i);
  threes[i] = make_float3(i, 2 * i, 3 * i) + make_float3(1.f, 1.f, 1.f);
  longs[i] = make_longlong2(1ll << i, -(1ll << i));
  padded[i] = Padded{i * 0.5f, i, (char)i};
}
__global__ void reinterpreted(const int* in, int2* out) {
  out[threadIdx.x] = reinterpret_cast<const int2*>(in)[threadIdx.x];
}

int main() {
  const int n = 32;
  float4 *in = room<float4>(n), *out = room<float4>(n);
  for (int i = 0; i < n; ++i) in[i] = make_float4(i, i + 0.25f, i + 0.5f, i + 0.75f);
  swizzle<<<1, n>>>(in, out);
  done();
  for (int i = 0; i < n; ++i) {
    EXPECT(out[i].x == i + 0.75f && out[i].y == i + 0.5f && out[i].z == i + 0.25f);
    EXPECT(out[i].w == i);
  }
  uchar4* bytes = room<uchar4>(n);
  short2* shorts = room<short2>(n);
  double2* doubles = room<double2>(n);
  float3* threes = room<float3>(n);
  longlong2* longs = room<longlong2>(n);
  Padded* padded = room<Padded>(n);
  pack<<<1, n>>>(n, bytes, shorts, doubles, threes, longs, padded);
  done();
  for (int i = 0; i < n; ++i) {
    EXPECT(bytes[i].x == i && bytes[i].y == i + 1 && bytes[i].z == i + 2 && bytes[i].w == 255);
    EXPECT(shorts[i].x == -i && shorts[i].y == i);
    EXPECT(doubles[i].x == i / 8.0 && doubles[i].y == -i);
    EXPECT(threes[i].x == i + 1 && threes[i].y == 2 * i + 1 && threes[i].z == 3 * i + 1);
    EXPECT(longs[i].x == 1ll << i && longs[i].y == -longs[i].x);
    EXPECT(padded[i].a == i * 0.5f && padded[i].b == i && padded[i].c == i);
  }
  int* words = room<int>(2 * n);
  int2* pairs = room<int2>(n);
  for (int i = 0; i < 2 * n; ++i) words[i] = 7 * i;
  reinterpreted<<<1, n>>>(words, pairs);
  done();
  for (int i = 0; i < n; ++i) EXPECT(pairs[i].x == 14 * i && pairs[i].y == 14 * i + 7);

#define EXPECT_VECTORS(T, name)                                                                   \
  {                                                                                               \
    const name##2 b = make_##name##2(1, 2);                                                       \
    const name##3 c = make_##name##3(1, 2, 3);                                                    \
    const name##4 d = make_##name##4(1, 2, 3, 4);                                                 \
    EXPECT(make_##name##1(7).x == 7 && b.x == 1 && b.y == 2 && c.x == 1 && c.y == 2 && c.z == 3); \
    EXPECT(d.x == 1 && d.y == 2 && d.z == 3 && d.w == 4);                                         \
    static_assert(sizeof(b.x) == sizeof(T) && (decltype(b.y)(-1) < 0) == ((T)-1 < 0), "");        \
    static_assert(sizeof(name##3) == 3 * sizeof(T), "");                                          \
  }
  EXPECT_VECTORS(signed char, char)
  EXPECT_VECTORS(unsigned char, uchar)
  EXPECT_VECTORS(short, short)
  EXPECT_VECTORS(unsigned short, ushort)
  EXPECT_VECTORS(int, int)
  EXPECT_VECTORS(unsigned, uint)
  EXPECT_VECTORS(long, long)
  EXPECT_VECTORS(unsigned long, ulong)
  EXPECT_VECTORS(long long, longlong)
  EXPECT_VECTORS(unsigned long long, ulonglong)
  EXPECT_VECTORS(float, float)
  EXPECT_VECTORS(double, double)

  const dim3 one, two(5, 6);
  const uint3 three = make_uint3(1, 2, 3);
  EXPECT(one.x == 1 && one.y == 1 && one.z == 1 && two.y == 6 && two.z == 1);
  EXPECT(dim3(three).z == 3 && three.x == 1);
  return verdict();
}
