// Integer intrinsics: bits, bytes, wide products, dot products of bytes.
#include <stdint.h>

#include "check.h"

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

int main() {
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
  return verdict();
}
