// Inline PTX: integers, floats, conversions, loads and stores, atomics, shuffles and votes, labels,
// each compared with a definition on the host.
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "check.h"

#define TWO(k, ptx) asm volatile(ptx " %0, %1, %2;" : "=r"(out[k]) : "r"(a), "r"(b))
#define THREE(k, ptx) asm volatile(ptx " %0, %1, %2, %3;" : "=r"(out[k]) : "r"(a), "r"(b), "r"(c))
constexpr int kOps = 38;

__global__ void integers(const unsigned* in, unsigned* all) {
  const unsigned a = in[3 * threadIdx.x], b = in[3 * threadIdx.x + 1], c = in[3 * threadIdx.x + 2];
  unsigned* out = all + kOps * threadIdx.x;
  THREE(0, "bfe.u32");
  THREE(1, "bfe.s32");
  asm volatile("bfi.b32 %0, %1, %2, %3, 9;" : "=r"(out[2]) : "r"(a), "r"(b), "r"(c));
  THREE(3, "prmt.b32");
  asm volatile("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(out[4]) : "r"(a), "r"(b), "r"(c));
  asm volatile("lop3.b32 %0, %1, %2, %3, %4;"
               : "=r"(out[5])
               : "r"(a), "r"(b), "r"(c), "n"((0xf0 & 0xcc) | 0xaa));
  THREE(6, "mad.lo.s32");
  THREE(7, "mad.hi.u32");
  TWO(8, "mul.hi.s32");
  TWO(9, "mul24.lo.u32");
  THREE(10, "sad.u32");
  TWO(11, "shl.b32");
  TWO(12, "shr.s32");
  TWO(13, "min.s32");
  TWO(14, "max.u32");
  THREE(15, "shf.l.wrap.b32");
  THREE(16, "shf.r.clamp.b32");
  asm volatile("popc.b32 %0, %1;" : "=r"(out[17]) : "r"(a));
  asm volatile("clz.b32 %0, %1;" : "=r"(out[18]) : "r"(a));
  asm volatile("brev.b32 %0, %1;" : "=r"(out[19]) : "r"(a));
  asm volatile("bfind.u32 %0, %1;" : "=r"(out[20]) : "r"(a));
  asm volatile("not.b32 %0, %1;" : "=r"(out[21]) : "r"(a));
  asm volatile("neg.s32 %0, %1;" : "=r"(out[22]) : "r"(a));
  asm volatile(
      "{ .reg .pred p, q; setp.lt.s32 p, %1, %2; setp.ge.and.u32 q, %1, %3, p;\n"
      "selp.u32 %0, %1, %2, q; @!p add.u32 %0, %0, 7; }"
      : "=r"(out[23])
      : "r"(a), "r"(b), "r"(c));
  asm volatile("add.cc.u32 %0, %2, %3; addc.u32 %1, %2, %4;"  // 64 bits of two registers
               : "=&r"(out[24]), "=r"(out[25])
               : "r"(a), "r"(b), "r"(c));
  asm volatile("sub.cc.u32 %0, %2, %3;\n\tsubc.u32 %1, %2, %4;"
               : "=&r"(out[26]), "=r"(out[27])
               : "r"(a), "r"(b), "r"(c));
  asm volatile("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, 0;"
               : "=&r"(out[28]), "=r"(out[29])
               : "r"(a), "r"(b), "r"(c));
  unsigned long long wide;
  asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(wide) : "r"(a), "r"(b));
  asm volatile("mov.b64 {%0, %1}, %2;" : "=r"(out[30]), "=r"(out[31]) : "l"(wide));
  asm volatile("mov.b64 %0, {%1, %2};" : "=l"(wide) : "r"(a), "r"(b));
  asm volatile("{ .reg .u64 t; mad.wide.u32 t, %1, 3, %2; cvt.u32.u64 %0, t; }"
               : "=r"(out[32])
               : "r"(c), "l"(wide));
  asm volatile("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out[33]) : "r"(a), "r"(b), "r"(c));
  asm volatile("cvt.s32.s8 %0, %1;" : "=r"(out[34]) : "r"(a));
  asm volatile("cvt.sat.u8.s32 %0, %1;" : "=r"(out[35]) : "r"(a));
  int log = 0;  // loops of labels; two statements may use the same labels
  asm volatile(
      "{\n.reg .u32 n;\n.reg .pred done;\nmov.u32 n, %1;\nAGAIN:\nsetp.le.u32 done, n, 1;\n"
      "@done bra END;\nshr.u32 n, n, 1;\nadd.s32 %0, %0, 1;\nbra.uni AGAIN;\nEND:\n}"
      : "+r"(log)
      : "r"(a));
  out[36] = log;
  asm volatile("{ AGAIN_%=: add.u32 %0, %1, 5; }" : [sum] "=r"(out[37]) : [a] "r"(a));
}

static unsigned field(unsigned a, unsigned b, unsigned c, bool sign) {
  unsigned d = 0;
  const unsigned first = b & 255, n = c & 255, last = first + n - 1 < 31 ? first + n - 1 : 31;
  const bool fill = sign && n && (a >> last & 1);
  for (unsigned i = 0; i < 32; ++i) {
    d |= unsigned(i < n && first + i <= 31 ? a >> (first + i) & 1 : fill) << i;
  }
  return d;
}

static void expect_integers(unsigned a, unsigned b, unsigned c, const unsigned* out) {
  typedef unsigned long long u64;
  const int sa = a, sb = b;
  EXPECT(out[0] == field(a, b, c, false) && out[1] == field(a, b, c, true));
  unsigned inserted = b, permuted = 0, majority = 0, dot = c;
  for (unsigned i = 0; i < 9 && (c & 255) + i <= 31; ++i) {
    const unsigned bit = 1u << ((c & 255) + i);
    inserted = a >> i & 1 ? inserted | bit : inserted & ~bit;
  }
  const u64 both = u64(b) << 32 | a;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = c >> 4 * i & 15, byte = both >> 8 * (select & 7) & 255;
    permuted |= (select & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    dot += int8_t(a >> 8 * i) * int8_t(b >> 8 * i);
  }
  majority = (a & b) | c;
  EXPECT(out[2] == inserted && out[3] == permuted && out[4] == (a ^ b ^ c) && out[5] == majority);
  EXPECT(out[6] == a * b + c && out[7] == unsigned(u64(a) * b >> 32) + c);
  EXPECT(out[8] == unsigned((long long)sa * sb >> 32));
  EXPECT(out[9] == unsigned(u64(a & 0xffffff) * (b & 0xffffff)));
  EXPECT(out[10] == c + (a > b ? a - b : b - a));
  EXPECT(out[11] == (b > 31 ? 0 : a << b) && out[12] == unsigned(sa >> (b > 31 ? 31 : b)));
  EXPECT(out[13] == unsigned(sa < sb ? sa : sb) && out[14] == (a > b ? a : b));
  EXPECT(out[15] == unsigned(both << (c & 31) >> 32));
  EXPECT(out[16] == (c > 31 ? b : unsigned(both >> c)));
  unsigned ones = 0, zeros = 32, reversed = 0;
  for (unsigned i = 0; i < 32; ++i) {
    ones += a >> i & 1;
    reversed |= (a >> i & 1) << (31 - i);
    if (a >> i & 1) zeros = 31 - i;
  }
  EXPECT(out[17] == ones && out[18] == zeros && out[19] == reversed && out[20] == 31 - zeros);
  EXPECT(out[21] == ~a && out[22] == 0 - a);
  const bool p = sa < sb, q = a >= c && p;
  EXPECT(out[23] == (q ? a : b) + (p ? 0 : 7));
  const u64 sum = (u64(a) << 32 | a) + (u64(c) << 32 | b);
  EXPECT(out[24] == unsigned(sum) && out[25] == unsigned(sum >> 32));
  const u64 difference = (u64(a) << 32 | a) - (u64(c) << 32 | b);
  EXPECT(out[26] == unsigned(difference) && out[27] == unsigned(difference >> 32));
  const u64 product = u64(a) * b;
  EXPECT(out[28] == unsigned(product + c) && out[29] == unsigned((product + c) >> 32));
  EXPECT(out[30] == unsigned(product) && out[31] == unsigned(product >> 32));
  EXPECT(out[32] == unsigned(both + u64(c) * 3) && out[33] == dot);
  EXPECT(out[34] == unsigned(int(int8_t(a))) && out[35] == unsigned(sa < 0     ? 0
                                                                    : sa > 255 ? 255
                                                                               : sa));
  EXPECT(out[36] == (a ? 31 - zeros : 0) && out[37] == a + 5);
}

constexpr int kFloats = 14;
__global__ void floats(const float* in, float* all, int* whole, unsigned* packed) {
  const float a = in[threadIdx.x], b = in[threadIdx.x + 1];
  float* out = all + kFloats * threadIdx.x;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(out[0]) : "f"(a), "f"(b));
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(out[1]) : "f"(a), "f"(b));
  asm("fma.rp.f32 %0, %1, %2, %3;" : "=f"(out[2]) : "f"(a), "f"(b), "f"(a));
  asm("max.f32 %0, %1, %2;" : "=f"(out[3]) : "f"(a), "f"(b));
  asm("add.sat.f32 %0, %1, 0f00000000;" : "=f"(out[4]) : "f"(a));
  asm("sqrt.rn.f32 %0, %1;" : "=f"(out[5]) : "f"(fabsf(a)));
  asm("neg.f32 %0, %1;" : "=f"(out[6]) : "f"(a));
  asm("cvt.rmi.f32.f32 %0, %1;" : "=f"(out[7]) : "f"(a));
  asm("cvt.rn.f32.s32 %0, %1;" : "=f"(out[8]) : "r"(__float_as_int(a)));
  asm("cvt.rz.f32.u32 %0, %1;" : "=f"(out[9]) : "r"(__float_as_uint(a)));
  unsigned tf32;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(a));
  out[10] = __uint_as_float(tf32);
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(a));
  asm("cvt.f32.f16 %0, %1;" : "=f"(out[11]) : "h"(half));
  asm("{ .reg .pred p; setp.gt.f32 p, %1, %2; selp.f32 %0, %1, 0fBF800000, p; }"
      : "=f"(out[12])
      : "f"(a), "f"(b));
  double wide;
  asm("fma.rn.f64 %0, %1, %1, 0d3FF0000000000000;" : "=d"(wide) : "d"((double)a));
  out[13] = (float)wide;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(whole[2 * threadIdx.x]) : "f"(a));
  asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(whole[2 * threadIdx.x + 1]) : "f"(a));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed[3 * threadIdx.x]) : "f"(a), "f"(b));
  unsigned pair, sum;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(a), "f"(b));
  asm("{ .reg .b32 t; add.f16x2 t, %1, %1; fma.rn.f16x2 %0, t, %1, %1; }" : "=r"(sum) : "r"(pair));
  packed[3 * threadIdx.x + 1] = pair;
  packed[3 * threadIdx.x + 2] = sum;
}

static float bits_as_float(unsigned bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static unsigned float_as_bits(float f) {
  unsigned bits;
  memcpy(&bits, &f, 4);
  return bits;
}
static unsigned bf16_of(float f) {
  return (float_as_bits(f) + 0x7fff + (float_as_bits(f) >> 16 & 1)) >> 16;
}
static unsigned f16_bits(float f) {
  const __half h = __float2half(f);
  unsigned short bits;
  memcpy(&bits, &h, 2);
  return bits;
}

static void expect_floats(float a, float b, const float* out, const int* whole,
                          const unsigned* packed) {
  const double sum = (double)a + b;
  float cut = (float)sum;
  if (fabs(cut) > fabs(sum)) cut = nextafterf(cut, 0);
  EXPECT(out[0] == cut && out[1] == a * b && out[3] == (a > b ? a : b));
  const double fused = (double)a * b + a;  // exact
  float up = (float)fused;
  if (up < fused) up = nextafterf(up, INFINITY);
  EXPECT(out[2] == up && out[4] == (a < 0 ? 0 : a > 1 ? 1 : a) && out[5] == sqrtf(fabsf(a)));
  EXPECT(out[6] == -a && out[7] == floorf(a));
  const unsigned bits = float_as_bits(a);
  EXPECT(out[8] == (float)(int)bits);
  float below = (float)bits;
  if (below > (double)bits) below = nextafterf(below, 0);
  EXPECT(out[9] == below && out[10] == bits_as_float((bits + 0x1000) & ~0x1fffu));
  EXPECT(out[11] == __half2float(__float2half(a)) && out[12] == (a > b ? a : -1));
  EXPECT(out[13] == (float)((double)a * a + 1));
  EXPECT(whole[0] == (int)rintf(a) && (unsigned)whole[1] == (a < 0 ? 0 : (unsigned)truncf(a)));
  EXPECT(packed[0] == (bf16_of(a) << 16 | bf16_of(b)));
  EXPECT(packed[1] == (f16_bits(a) << 16 | f16_bits(b)));
  unsigned results[2];
  for (int i = 0; i < 2; ++i) {
    const double h = __half2float(__float2half(i ? a : b));
    results[i] = f16_bits((float)((double)__half2float(__float2half((float)(2 * h))) * h + h));
  }
  EXPECT(packed[2] == (results[1] << 16 | results[0]));
}

__global__ void memory(const float4* in, float* out, unsigned* sums, unsigned* found) {
  __shared__ uint4 tile[64];
  const unsigned t = threadIdx.x;
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(in + t));
  unsigned at;
  asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(at) : "l"(tile + t));
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
  asm volatile("barrier.sync.aligned 0;" ::: "memory");
  float x, y;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2+8];" : "=f"(x), "=f"(y) : "r"(at));
  asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(out + 4 * t), "f"(x) : "memory");
  asm volatile("st.wt.f32 [%0 + 4], %1;" ::"l"(out + 4 * t), "f"(y) : "memory");
  asm volatile("{ .reg .u32 b; ld.global.cg.u8 b, [%1]; cvt.u16.u32 %0, b; }"
               : "=h"(*(unsigned short*)&found[8 * t + 6])
               : "l"((const char*)(in + t) + 3));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(in));
  asm volatile("red.global.add.u32 [%0], %1;" ::"l"(sums), "r"(t) : "memory");
  asm volatile("red.relaxed.gpu.global.max.s32 [%0+4], %1;" ::"l"(sums), "r"(t) : "memory");
  asm volatile("atom.global.add.f32 %0, [%1], %2;" : "=f"(x) : "l"((float*)sums + 2), "f"(1.f));
  asm volatile("atom.global.cas.b32 %0, [%1], 0, %2;"
               : "=r"(found[8 * t])
               : "l"(sums + 3), "r"(t + 1));
  asm volatile("atom.exch.b32 %0, [%1], %2;" : "=r"(found[8 * t + 1]) : "l"(sums + 4 + t), "r"(t));
  asm volatile("shfl.sync.bfly.b32 %0, %1, 3, 0x1f, 0xffffffff;" : "=r"(found[8 * t + 2]) : "r"(t));
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 2, 0x1800, -1; selp.u32 %1, 1, 0, p; }"
               : "=r"(found[8 * t + 3]), "=r"(found[8 * t + 4])
               : "r"(t));
  asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 40; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
               : "=r"(found[8 * t + 5])
               : "r"(t));
  unsigned active, lane, warps;
  asm volatile("activemask.b32 %0;" : "=r"(active));
  asm volatile("mov.u32 %0, %%laneid; mov.u32 %1, %%warpid;" : "=r"(lane), "=r"(warps));
  long long clock, time;
  unsigned sm;
  asm volatile("mov.u64 %0, %%clock64; mov.u64 %1, %%globaltimer; mov.u32 %2, %%smid;"
               : "=l"(clock), "=l"(time), "=r"(sm));
  while (clock64() - clock < 1000000000) {  // time passes ever faster for who waits
  }
  found[8 * t + 7] =
      active == 0xffffffffu && lane == t % 32 && warps == t / 32 && sm < 1000 && clock && time;
}

// Each comparison of 1, 2 and NaN with 2, as three bits; signed and unsigned; thread indices.
#define COMPARED(k, how)                                                      \
  for (int i = 0, one; i < 3; ++i) {                                          \
    asm("{ .reg .pred p; setp." how ".f32 p, %1, %2; selp.s32 %0, 1, 0, p; }" \
        : "=r"(one)                                                           \
        : "f"(x[i]), "f"(2.f));                                               \
    out[k] = 2 * out[k] + one;                                                \
  }
#define OF_TWO(k, ptx) asm(ptx : "=r"(out[k]) : "r"(a), "r"(b))
__global__ void more(const float* x, int a, int b, int* out) {
  COMPARED(0, "eq");
  COMPARED(1, "ne");
  COMPARED(2, "lt");
  COMPARED(3, "le");
  COMPARED(4, "gt");
  COMPARED(5, "ge");
  COMPARED(6, "equ");
  COMPARED(7, "neu");
  COMPARED(8, "ltu");
  COMPARED(9, "leu");
  COMPARED(10, "gtu");
  COMPARED(11, "geu");
  COMPARED(12, "num");
  COMPARED(13, "nan");
  OF_TWO(14, "div.s32 %0, %1, %2;");
  OF_TWO(15, "rem.s32 %0, %1, %2;");
  OF_TWO(16, "abs.s32 %0, %1;");
  OF_TWO(17, "max.s32 %0, %1, %2;");
  OF_TWO(18, "min.u32 %0, %1, %2;");
  OF_TWO(19, "mul.hi.u32 %0, %1, %2;");
  OF_TWO(20, "shr.u32 %0, %1, 28;");
  OF_TWO(21, "shr.s32 %0, %1, 40;");
  OF_TWO(22, "bfind.s32 %0, %1;");
  OF_TWO(23, "slct.s32.s32 %0, %1, %2, -1;");
  OF_TWO(24, "slct.s32.s32 %0, %1, %2, 0;");
  OF_TWO(25, "xor.b32 %0, %1, %2;");
  OF_TWO(26, "and.b32 %0, %1, 3;");
  OF_TWO(27, "or.b32 %0, %1, %2;");
  OF_TWO(28, "mad24.lo.s32 %0, %1, %2, 1;");
  OF_TWO(29, "shf.l.clamp.b32 %0, %1, %2, 33;");
  OF_TWO(30, "shf.r.wrap.b32 %0, %1, %2, 33;");
  OF_TWO(31, "cvt.sat.s8.s32 %0, 300;");
  OF_TWO(32, "cvt.sat.u16.s32 %0, %1;");
  OF_TWO(33, "{ .reg .pred p; setp.hi.u32 p, %1, %2; selp.s32 %0, 1, 0, p; }");
  OF_TWO(34, "{ .reg .pred p; setp.ls.u32 p, %1, %2; selp.s32 %0, 1, 0, p; }");
  OF_TWO(35, "{ .reg .pred p, q; setp.lt.s32 p|q, %1, %2; selp.s32 %0, 1, 0, q; }");
  OF_TWO(36,
         "{ .reg .pred p, q; setp.lt.s32 p, %1, %2; setp.eq.xor.s32 q, %1, %2, p;"
         " selp.s32 %0, 1, 0, q; }");
  OF_TWO(37, "{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l}; }");
}
// Each comparison of 1, 2 and -1 (or 2^32 - 1) with 2, as three bits.
#define COMPARED_INTEGERS(k, how)                                         \
  for (int i = 0, one; i < 3; ++i) {                                      \
    asm("{ .reg .pred p; setp." how " p, %1, %2; selp.s32 %0, 1, 0, p; }" \
        : "=r"(one)                                                       \
        : "r"(i == 2 ? -1 : i + 1), "r"(2));                              \
    out[k] = 2 * out[k] + one;                                            \
  }
__global__ void compared(int* out) {
  COMPARED_INTEGERS(0, "eq.s32");
  COMPARED_INTEGERS(1, "ne.s32");
  COMPARED_INTEGERS(2, "lt.s32");
  COMPARED_INTEGERS(3, "le.s32");
  COMPARED_INTEGERS(4, "gt.s32");
  COMPARED_INTEGERS(5, "ge.s32");
  COMPARED_INTEGERS(6, "lo.u32");
  COMPARED_INTEGERS(7, "ls.u32");
  COMPARED_INTEGERS(8, "hi.u32");
  COMPARED_INTEGERS(9, "hs.u32");
  COMPARED_INTEGERS(10, "lt.u32");
  COMPARED_INTEGERS(11, "le.u32");
  COMPARED_INTEGERS(12, "gt.u32");
  COMPARED_INTEGERS(13, "ge.u32");
}
__global__ void registers(unsigned* out) {
  unsigned* o = out + 12 * (blockIdx.y * 64 + threadIdx.x);
  asm("mov.u32 %0, %%lanemask_eq; mov.u32 %1, %%lanemask_lt; mov.u32 %2, %%lanemask_le;"
      : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]));
  asm("mov.u32 %0, %%lanemask_ge; mov.u32 %1, %%lanemask_gt;" : "=r"(o[3]), "=r"(o[4]));
  asm("mov.u32 %0, %%tid.x; mov.u32 %1, %%ntid.x; mov.u32 %2, %%ctaid.y; mov.u32 %3, %%nctaid.y;"
      : "=r"(o[5]), "=r"(o[6]), "=r"(o[7]), "=r"(o[8]));
  asm("mov.u32 %0, %%tid.z; mov.u32 %1, %%ntid.z; mov.u32 %2, %%nctaid.x;"
      : "=r"(o[9]), "=r"(o[10]), "=r"(o[11]));
}
static void expect_more() {
  float* x = room<float>(3);
  int* out = room<int>(38);
  x[0] = 1, x[1] = 2, x[2] = NAN;
  more<<<1, 1>>>(x, -7, 2, out);
  done();
  const int right[] = {
      2, 4,  4,  6, 0, 2,  3,  5, 5,  7,   1,  3,          6,   1, -3, -1, 7, 2, 2,
      1, 15, -1, 2, 2, -7, -5, 1, -5, -13, -7, 0x7ffffffc, 127, 0, 1,  0,  0, 1, (int)0xfff9ffff};
  for (int i = 0; i < 38; ++i) EXPECT(out[i] == right[i]);
  int* compare = room<int>(14);
  compared<<<1, 1>>>(compare);
  done();
  const int bits[] = {2, 5, 5, 7, 0, 2, 4, 6, 1, 3, 4, 6, 1, 3};
  for (int i = 0; i < 14; ++i) EXPECT(compare[i] == bits[i]);
  unsigned* o = room<unsigned>(12 * 128);
  registers<<<dim3(1, 2), 64>>>(o);
  done();
  for (unsigned t = 0; t < 128; ++t, o += 12) {
    const unsigned mine = 1u << t % 32;
    EXPECT(o[0] == mine && o[1] == mine - 1 && o[2] == (mine | (mine - 1)));
    EXPECT(o[3] == ~(mine - 1) && o[4] == ~(mine | (mine - 1)));
    EXPECT(o[5] == t % 64 && o[6] == 64 && o[7] == t / 64 && o[8] == 2);
    EXPECT(o[9] == 0 && o[10] == 1 && o[11] == 1);
  }
}

int main() {
  expect_more();
  unsigned *in = room<unsigned>(3 * 64), *out = room<unsigned>(kOps * 64);
  for (unsigned i = 0, x = 1; i < 3 * 64; ++i) {
    x = x * 1664525 + 1013904223;
    in[i] = i % 5 == 4 ? x % 40 : i % 7 == 6 ? ~0u - i % 3 : x;
  }
  in[0] = 0, in[3] = 0x80000000u, in[4] = 31, in[5] = 2;
  integers<<<1, 64>>>(in, out);
  done();
  for (int i = 0; i < 64; ++i) {
    expect_integers(in[3 * i], in[3 * i + 1], in[3 * i + 2], out + kOps * i);
  }

  float *x = room<float>(256), *y = room<float>(kFloats * 64);
  int* whole = room<int>(128);
  unsigned* packed = room<unsigned>(3 * 64);
  for (int i = 0; i < 256; ++i) x[i] = (i * 37 % 101 - 50) * 0.37f + (i % 3 ? 0 : 0.001f);
  floats<<<1, 64>>>(x, y, whole, packed);
  done();
  for (int i = 0; i < 64; ++i) {
    expect_floats(x[i], x[i + 1], y + kFloats * i, whole + 2 * i, packed + 3 * i);
  }

  unsigned *sums = room<unsigned>(4 + 64), *found = room<unsigned>(8 * 64);
  memory<<<1, 64>>>((const float4*)x, y, sums, found);
  done();
  EXPECT(sums[0] == 64 * 63 / 2 && sums[1] == 63 && bits_as_float(sums[2]) == 64 && sums[3] == 1);
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned* f = found + 8 * t;
    EXPECT(y[4 * t] == x[4 * t + 2] && y[4 * t + 1] == x[4 * t + 3] && sums[4 + t] == t);
    EXPECT(f[0] == (t ? 1 : 0) && f[1] == 0 && f[2] == (t ^ 3) && f[7] == 1);
    EXPECT(f[3] == (t % 8 < 2 ? t : t - 2) && f[4] == (t % 8 >= 2));
    EXPECT(f[5] == (t < 32 ? 0 : ~0u << 9) && (f[6] & 0xffff) == float_as_bits(x[4 * t]) >> 24);
  }
  return verdict();
}
