// Vector types: sizes, alignments, make_<type>(), and what a kernel loads and stores with them.
#include "check.h"

#define IS(type, bytes, align)                                 \
  static_assert(sizeof(type) == bytes, #type " has its size"); \
  static_assert(alignof(type) == align, #type " has its alignment")
IS(char1, 1, 1);
IS(char2, 2, 2);
IS(char3, 3, 1);
IS(char4, 4, 4);
IS(uchar4, 4, 4);
IS(short1, 2, 2);
IS(short2, 4, 4);
IS(short3, 6, 2);
IS(short4, 8, 8);
IS(ushort4, 8, 8);
IS(int1, 4, 4);
IS(int2, 8, 8);
IS(int3, 12, 4);
IS(int4, 16, 16);
IS(uint1, 4, 4);
IS(uint2, 8, 8);
IS(uint3, 12, 4);
IS(uint4, 16, 16);
IS(float1, 4, 4);
IS(float2, 8, 8);
IS(float3, 12, 4);
IS(float4, 16, 16);
IS(longlong1, 8, 8);
IS(longlong2, 16, 16);
IS(ulonglong2, 16, 16);
IS(double1, 8, 8);
IS(double2, 16, 16);
IS(double3, 24, 8);
IS(dim3, 12, 4);

struct __align__(16) Padded {
  float a;
  int b;
  char c;
};
IS(Padded, 16, 16);

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

  const dim3 one, two(5, 6);
  const uint3 three = make_uint3(1, 2, 3);
  EXPECT(one.x == 1 && one.y == 1 && one.z == 1 && two.y == 6 && two.z == 1);
  EXPECT(dim3(three).z == 3 && three.x == 1);
  return verdict();
}
