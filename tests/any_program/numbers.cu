// Numbers: integers, fp8, fp4, vectors, roundings.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "check.h"

// Integer intrinsics: bits, bytes, wide products, dot products of bytes.
namespace integers {
struct Row {
  int popc, popcll, clz, clzll, ffs, ffsll, mulhi, mul24, dp4a;
  unsigned brev, perm, perm_back, shift_l, shift_r, umulhi, sad, usad, udp4a;
  unsigned long long brevll, umul64hi;
  long long mul64hi;
  int lowest, largest, mixed;
};

__host__ __device__ inline unsigned number(unsigned i) {
  return i == 0 ? 0 : i == 1 ? ~0u : i == 2 ? 1u << 31 : i * 2654435761u ^ i << 7;
}

__global__ void all(Row* rows) {
  const unsigned i = threadIdx.x, a = number(i), b = number(i + 17);
  const unsigned long long l = (unsigned long long)a << 32 | b, m = ~l * 3 + i;
  Row& r = rows[i];
  r.popc = __popc(a);
  r.popcll = __popcll(l);
  r.clz = __clz(a);
  r.clzll = __clzll(l);
  r.ffs = __ffs(a);
  r.ffsll = __ffsll(l);
  r.mulhi = __mulhi((int)a, (int)b);
  r.umulhi = __umulhi(a, b);
  r.umul64hi = __umul64hi(l, m);
  r.mul64hi = __mul64hi((long long)l, (long long)m);
  r.mul24 = __mul24((int)(a & 0xfff), -(int)(b & 0xfff));
  r.brev = __brev(a);
  r.brevll = __brevll(l);
  r.perm = __byte_perm(a, b, 0x1357 + (i & 3));
  r.perm_back = __byte_perm(a, b, 0x0123);
  r.shift_l = __funnelshift_l(a, b, i);
  r.shift_r = __funnelshift_r(a, b, i);
  r.sad = __sad((int)a, (int)b, i);
  r.usad = __usad(a, b, i);
  r.dp4a = __dp4a((int)a, (int)b, (int)i);
  r.udp4a = __dp4a(a, b, i);
  r.lowest = min((int)a, (int)b);
  r.largest = max((int)a, (int)b);
  r.mixed = abs((int)(a >> 1)) + (int)umin(a, 5u) + (int)max(3ll, (long long)i);
}

// Averages, clamped funnel shifts, bytes as vectors, scopes of atomics.
__global__ void others(int* out, unsigned* cells) {
  int i = 0;
  out[i++] = __hadd(-3, 2), out[i++] = __rhadd(-3, 2), out[i++] = __hadd(0x7fffffff, 0x7ffffffd);
  out[i++] = __uhadd(~0u, ~0u - 3), out[i++] = __urhadd(~0u, ~0u - 3), out[i++] = __urhadd(4, 7);
  out[i++] = __umul24(0x123456, 3), out[i++] = umax(~0u, 5), out[i++] = __ffsll(0);
  out[i++] = __funnelshift_lc(0x12345678, 0x9abcdef0, 31) == (0x12345678u >> 1);
  out[i++] = __funnelshift_lc(0x12345678, 0x9abcdef0, 32) == 0x12345678;
  out[i++] = __funnelshift_rc(0x12345678, 0x9abcdef0, 31) == (int)(0x9abcdef0u << 1);
  out[i++] = __funnelshift_rc(0x12345678, 0x9abcdef0, 32) == (int)0x9abcdef0;
  out[i++] = __dp4a(make_char4(1, -2, 3, -4), make_char4(5, 6, 7, -8), 10);
  out[i++] = __dp4a(make_uchar4(1, 2, 3, 255), make_uchar4(5, 6, 7, 2), 10u);
  out[i++] = max(-1l, 2l), out[i++] = min(-1ll, 2ll), out[i++] = max(1u, 2u),
  out[i++] = min(3ul, 2ul);
  out[i++] = (int)max(2.5f, 1.), out[i++] = (int)min(2.5, 1.f);
  out[i++] = atomicAdd_block(cells, 5u) + atomicSub_system(cells, 2u) + atomicMax_block(cells, 7u);
  out[i++] = atomicMin_system(cells, 6u) + atomicExch_block(cells, 12u);
  out[i++] = atomicAnd_system(cells, 10u) + atomicOr_block(cells, 3u) + atomicXor_block(cells, 1u);
  out[i++] =
      atomicInc_block(cells, 20u) + atomicDec_block(cells, 20u) + atomicCAS_system(cells, 10u, 1u);
  out[i++] = __ldcg(cells) + __ldca(cells) + __ldcs(cells) + __ldlu(cells) + __ldcv(cells);
  __stcg(cells, 3u), __stcs(cells + 1, 4u), __stwb(cells + 2, 5u), __stwt(cells + 3, 6u);
}
static void expect_others() {
  int* out = room<int>(32);
  unsigned* cells = room<unsigned>(4);
  others<<<1, 1>>>(out, cells);
  done();
  const int right[] = {-1,
                       0,
                       0x7ffffffe,
                       -3,
                       -2,
                       6,
                       0x36 << 16 | 0x9d02,
                       -1,
                       0,
                       1,
                       1,
                       1,
                       1,
                       10 + 5 - 12 + 21 + 32,
                       10 + 5 + 12 + 21 + 510,
                       2,
                       -1,
                       2,
                       2,
                       2,
                       1,
                       0 + 5 + 3,
                       7 + 6,
                       12 + 8 + 11,
                       10 + 11 + 10,
                       5};
  for (int i = 0; i < 26; ++i) EXPECT(out[i] == right[i]);
  EXPECT(cells[0] == 3 && cells[1] == 4 && cells[2] == 5 && cells[3] == 6);
}

static unsigned byte_of(unsigned long long x, int k) { return x >> (8 * k) & 255; }

void run() {
  expect_others();
  const int n = 128;
  Row* rows = room<Row>(n);
  all<<<1, n>>>(rows);
  done();
  for (unsigned i = 0; i < n; ++i) {
    const Row& r = rows[i];
    const unsigned a = number(i), b = number(i + 17);
    const unsigned long long l = (unsigned long long)a << 32 | b, m = ~l * 3 + i;
    int ones = 0, all_ones = 0, leading = 32, all_leading = 64, first = 0, all_first = 0;
    unsigned back = 0;
    unsigned long long all_back = 0;
    for (int k = 0; k < 64; ++k) {
      if (l >> k & 1) {
        ++all_ones, all_leading = 63 - k, all_back |= 1ull << (63 - k);
        if (!all_first) all_first = k + 1;
      }
      if (k < 32 && a >> k & 1) {
        ++ones, leading = 31 - k, back |= 1u << (31 - k);
        if (!first) first = k + 1;
      }
    }
    EXPECT(r.popc == ones && r.clz == leading && r.ffs == first && r.brev == back);
    EXPECT(r.popcll == all_ones && r.clzll == all_leading && r.ffsll == all_first);
    EXPECT(r.brevll == all_back);
    EXPECT(r.mulhi == (int)((long long)(int)a * (int)b >> 32));
    EXPECT(r.umulhi == (unsigned)((unsigned long long)a * b >> 32));
    EXPECT(r.umul64hi == (unsigned long long)((unsigned __int128)l * m >> 64));
    EXPECT(r.mul64hi == (long long)((__int128)(long long)l * (long long)m >> 64));
    EXPECT(r.mul24 == -(int)(a & 0xfff) * (int)(b & 0xfff));
    unsigned perm = 0;
    for (int k = 0; k < 4; ++k) {
      perm |= byte_of((unsigned long long)b << 32 | a, (0x1357 + (i & 3)) >> (4 * k) & 7)
              << (8 * k);
    }
    EXPECT(r.perm == perm &&
           r.perm_back == (a << 24 | (a << 8 & 0xff0000) | (a >> 8 & 0xff00) | a >> 24));
    const unsigned s = i & 31;
    EXPECT(r.shift_l == (s ? b << s | a >> (32 - s) : b));
    EXPECT(r.shift_r == (s ? a >> s | b << (32 - s) : a));
    const long long apart = (long long)(int)a - (int)b;
    EXPECT(r.sad == (unsigned)(apart < 0 ? -apart : apart) + i);
    EXPECT(r.usad == (a > b ? a - b : b - a) + i);
    int dot = (int)i;
    unsigned udot = i;
    for (int k = 0; k < 4; ++k) {
      dot += (int8_t)byte_of(a, k) * (int8_t)byte_of(b, k);
      udot += byte_of(a, k) * byte_of(b, k);
    }
    EXPECT(r.dp4a == dot && r.udp4a == udot);
    EXPECT(r.lowest == ((int)a < (int)b ? (int)a : (int)b));
    EXPECT(r.largest == ((int)a < (int)b ? (int)b : (int)a));
    EXPECT(r.mixed == (int)(a >> 1) + (int)(a < 5 ? a : 5) + (i > 3 ? (int)i : 3));
  }
}
}  // namespace integers

// Vector types: sizes, alignments, make_<type>(), and loads and stores in kernels.
namespace vector_types {
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

void run() {
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
}
}  // namespace vector_types

// fp8: conversions of one, two and four numbers, with and without saturation.
namespace fp8 {
__global__ void convert(const float* in, float* out, __nv_fp8_e4m3* small) {
  const int i = threadIdx.x;
  small[i] = __nv_fp8_e4m3(in[i]);
  out[i] = float(small[i]);
  out[32 + i] = __half2float(__half(
      __nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(in[i], __NV_NOSAT, __NV_E5M2), __NV_E5M2)));
  if (i % 4 == 0) {
    const __nv_fp8x4_e5m2 four(make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]));
    const float4 back = float4(four);
    reinterpret_cast<float4*>(out + 64)[i / 4] = back;
  }
}

void run() {
  float* in = room<float>(32);
  float* out = room<float>(96);
  __nv_fp8_e4m3* small = room<__nv_fp8_e4m3>(32);
  for (int i = 0; i < 32; ++i) in[i] = i / 8.f;
  in[28] = 1000, in[29] = -1e6, in[30] = 0.001f, in[31] = 17;
  convert<<<1, 32>>>(in, out, small);
  done();
  for (int i = 0; i <= 16; ++i) EXPECT(out[i] == in[i]);
  EXPECT(out[17] == 2.f && out[19] == 2.5f && out[28] == 448 && out[31] == 16);  // 4 bits, to even
  EXPECT(out[30] == 0.001953125f * (in[30] > 0.0009765625f));
  EXPECT(out[32 + 17] == 2 && out[32 + 28] == 1024 && out[32 + 29] < -1e9f && out[32 + 31] == 16);
  EXPECT(out[64 + 29] == -57344 && out[64 + 7] == 0.875f);
  EXPECT(small[8].__x == 0x38);
  EXPECT(__nv_cvt_float2_to_fp8x2(make_float2(1, 500), __NV_NOSAT, __NV_E4M3) == 0x7f38);
  // The largest number, the midpoint above it, and NaN.
  const auto bits = [](float x, bool nosat, bool e4m3) {
    return __nv_cvt_float_to_fp8(x, nosat ? __NV_NOSAT : __NV_SATFINITE,
                                 e4m3 ? __NV_E4M3 : __NV_E5M2);
  };
  EXPECT(bits(464, true, true) == 0x7e && bits(464.1f, true, true) == 0x7f);
  EXPECT(bits(464.1f, false, true) == 0x7e && bits(-1e9f, true, true) == 0xff);
  EXPECT(bits(61439, true, false) == 0x7b && bits(61440, true, false) == 0x7c);
  EXPECT(bits(-61440, true, false) == 0xfc && bits(61440, false, false) == 0x7b);
  EXPECT(bits(NAN, true, true) == 0x7f && (bits(NAN, true, false) & 0x7f) > 0x7c);
  const __nv_fp8x2_e4m3 two(make_float2(1, -2));
  EXPECT(two.__x == 0xc038 && float2(two).x == 1 && float2(two).y == -2);
  EXPECT(__nv_fp8x2_e5m2(__floats2half2_rn(1, -2)).__x == 0xc03c);
  EXPECT(__nv_fp8x2_e5m2(__floats2bfloat162_rn(1, -2)).__x == 0xc03c);
  const __nv_fp8x4_e4m3 four(__floats2half2_rn(1, -2), __floats2half2_rn(4, 8));
  EXPECT(four.__x == 0x5048c038 && float4(four).z == 4 && float4(four).w == 8);
  EXPECT(float(__half(__nv_cvt_fp8_to_halfraw(0x7b, __NV_E5M2))) == 57344);
  EXPECT(__nv_cvt_double_to_fp8(1.0625, __NV_SATFINITE, __NV_E4M3) == 0x38);  // a tie, to even
  EXPECT(__nv_cvt_double_to_fp8(1.1875 - 1e-12, __NV_SATFINITE, __NV_E4M3) == 0x39);
  EXPECT(__nv_cvt_double_to_fp8(1.0625 + 1e-12, __NV_SATFINITE, __NV_E4M3) == 0x39);
}

// Scales of 8 bits, and numbers of 4.
void run_scales() {
  const auto scale = [](float x, bool up) {
    return int(__nv_cvt_float_to_e8m0(x, __NV_SATFINITE, up ? cudaRoundPosInf : cudaRoundZero));
  };
  EXPECT(scale(1, true) == 127 && scale(1.0001f, true) == 128 && scale(-1.9f, false) == 127);
  EXPECT(scale(0, true) == 0 && scale(NAN, true) == 255 && scale(3e38f, true) == 254);
  EXPECT(__nv_fp8_e8m0(0.3f).__x == 126 && float(__nv_fp8_e8m0(0.3f)) == 0.5f);
  EXPECT(__nv_fp8x2_e8m0(make_float2(1, 4)).__x == 0x817f);
  const __nv_bfloat162_raw scales = __nv_cvt_e8m0x2_to_bf162raw(0x8100);
  EXPECT(scales.x == 0x0040 && scales.y == 0x4080);
  const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int i = 0; i < 8; ++i) {
    EXPECT(__nv_fp4_e2m1(numbers[i]).__x == i && float(__nv_fp4_e2m1(-numbers[i])) == -numbers[i]);
    const float tie = i < 7 ? (numbers[i] + numbers[i + 1]) / 2 : 100;  // to even
    EXPECT(__nv_fp4_e2m1(tie).__x == (i < 7 ? (i + 1) / 2 * 2 : 7));
  }
  const __nv_fp4x2_e2m1 two(make_float2(1, -6));
  EXPECT(two.__x == 0xf2 && float2(two).x == 1 && float2(two).y == -6);
  EXPECT(__nv_fp4x4_e2m1(make_float4(1, -6, 0.5f, 3)).__x == 0x51f2);
}
}  // namespace fp8

// Arithmetic and conversions with explicit rounding: to nearest, to zero, down, up, for fp32, fp64
// and integers; out-of-range numbers, NaN, and reinterpreted bits. Exact values in long double, or
// exact comparisons, say where each result must lie.
namespace rounding {
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

void run() {
  check_functions();
  check_arithmetic();
  check_conversions();
}
}  // namespace rounding

int main() {
  integers::run();
  vector_types::run();
  fp8::run();
  fp8::run_scales();
  rounding::run();
  return verdict();
}
