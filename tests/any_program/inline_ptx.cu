// Inline PTX: cp.async, ldmatrix, mma, special registers, approximations.
#include <cuda_bf16.h>
#include <stdint.h>

#include "check.h"

#define CP_ASYNC_16(to, from) \
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from))

__device__ __forceinline__ unsigned lane_id() {
  unsigned id;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__global__ void copied(const float* in, float* out) {
  __shared__ __align__(16) float s[256];
  const unsigned to = (unsigned)__cvta_generic_to_shared(&s[4 * threadIdx.x]);
  CP_ASYNC_16(to, in + 4 * threadIdx.x);
  asm volatile("cp.async.commit_group;\n" ::);
  asm volatile("cp.async.wait_group %0;\n" ::"n"(0));
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = s[255 - (4 * threadIdx.x + i)];
}
// D = A B: A [16, 16] row-major, B [16, 8] column-major.
__global__ void product(const __nv_bfloat16* A, const __nv_bfloat16* B, float* D) {
  __shared__ __align__(16) __nv_bfloat16 sA[16 * 16], sB[8 * 16];
  const int lane = lane_id();
  for (int i = lane; i < 256; i += 32) sA[i] = A[i];
  for (int i = lane; i < 128; i += 32) sB[i] = B[i];
  __syncwarp();
  uint32_t a[4], b[2];
  const uint32_t pa = __cvta_generic_to_shared(sA + lane % 16 * 16 + lane / 16 * 8);
  const uint32_t pb = __cvta_generic_to_shared(sB + lane % 8 * 16 + lane / 8 % 2 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(b[0]), "=r"(b[1])
               : "r"(pb));
  float d[4] = {1.f, 1.f, 1.f, 1.f};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  for (int i = 0; i < 4; ++i) D[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
__global__ void small(float* out, unsigned* ids, const float* in) {
  const int i = threadIdx.x;
  out[i] = exp2_approx(i - 16);
  ids[i] = lane_id();
  float fused, wide;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(fused) : "f"(out[i]), "f"(2.f), "f"(1.f));
  asm volatile("bar.sync 0;" ::: "memory");
  asm("{ mov.b32 %0, %1; }" : "=f"(wide) : "f"(in[i]));
  unsigned bits;
  asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(in[i]));                  // the bits, not the value
  asm volatile("" : "+f"(fused), "+r"(bits) : "l"(out) : "memory");  // a fence for the compiler
  if (bits != __float_as_uint(in[i])) fused = -1;
  out[64 + i] = fused;
  out[128 + i] = wide;
}
// The second block reads what the first one has stored; both orders of the modifiers are in use.
__global__ void hand_over(int* flag, float* x, float* out) {
  if (blockIdx.x == 0) {
    x[0] = 42;
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
  } else {
    int f;
    do {
      asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(f) : "l"(flag) : "memory");
    } while (f == 0);
    out[0] = x[0];
  }
}

// Rare instructions, each with its result: 32, 64 and 16 bits, floats by their bits.
#define OPERANDS                                                                 \
  "r"(-a), "r"(b), "l"(-(long long)a), "l"((1ll << 32) + a - 4), "h"((short)-a), \
      "h"((short)(b + 1)), "f"(x), "f"(-1.5f * x), "d"((double)x), "d"(-2 * (double)x)
#define GIVES(letter, T, ptx, right)                                                    \
  {                                                                                     \
    T is = 0;                                                                           \
    asm volatile(ptx : "=" letter(is) : OPERANDS);                                      \
    if (is != (T)(right))                                                               \
      printf("inline_ptx.cu:%d: %llx\n", __LINE__, (unsigned long long)is), *wrong = 1; \
  }
#define R(ptx, right) GIVES("r", unsigned, ptx, right)
#define W(ptx, right) GIVES("l", unsigned long long, ptx, right)
#define H(ptx, right) GIVES("h", unsigned short, ptx, right)
#define F(ptx, right) R("{ .reg .f32 f; " ptx " mov.b32 %0, f; }", right)
#define D(ptx, right) W("{ .reg .f64 d; " ptx " mov.b64 %0, d; }", right)
#define HALVES(ptx, right) \
  R("{ .reg .b32 u, v; mov.b32 u, 0x3e00c000; mov.b32 v, 0x40003c00; " ptx " }", right)
#define BFLOATS(ptx, right) \
  R("{ .reg .b32 u, v; mov.b32 u, 0x3fc0c000; mov.b32 v, 0x40003f80; " ptx " }", right)
// a = 7, b = 2, x = 1.5: the operands are -7, 2, -7, 2^32 + 3, -7, 3, 1.5, -2.25, 1.5, -3.
__global__ void rare_integers(int a, int b, float x, int* wrong) {
  R("set.lt.u32.s32 %0, %1, %2;", ~0u);
  R("set.gt.s32.s32 %0, %1, %2;", 0);
  R("set.lt.u32.f32 %0, %8, %7;", ~0u);
  R("{ .reg .pred p; setp.ne.u32 p, %2, 2; set.lt.and.u32.s32 %0, %1, %2, p; }", 0);
  R("{ .reg .pred p; setp.ne.u32 p, %2, 2; set.lt.or.u32.s32 %0, %1, %2, p; }", ~0u);
  R("{ .reg .pred p; setp.eq.u32 p, %2, 2; setp.gt.or.s32 p, %1, %2, p; selp.b32 %0, 5, 6, p; }",
    5);
  R("{ .reg .pred p; setp.lo.u32 p, %2, %1; setp.hs.and.u32 p, %1, %2, p; selp.b32 %0, 5, 6, p; }",
    5);
  R("{ .reg .pred p, q; setp.lt.and.s32 p|q, %1, %2, 0; selp.b32 %0, 5, 6, q; @p mov.u32 %0, 7; }",
    6);
  R("{ .reg .pred p, q, r; setp.lt.s32 p, %1, %2; not.pred q, p; or.pred r, p, q; and.pred q, p, q;"
    " xor.pred p, p, r; selp.u32 %0, 1, 0, r; @q add.u32 %0, %0, 2; @p add.u32 %0, %0, 4; }",
    1);
  R("slct.u32.f32 %0, %1, %2, %8;", 2);
  R("slct.u32.f32 %0, %1, %2, %7;", -7);
  W("slct.s64.s32 %0, %3, %4, 1;", -7);
  W("{ .reg .pred p; setp.gt.s64 p, %3, %4; selp.b64 %0, %3, %4, p; }", 0x100000003);
  H("mul.hi.s16 %0, %5, %6;", -1);
  H("mul.hi.u16 %0, %5, %6;", 2);
  H("mul.lo.s16 %0, %5, %6;", -21);
  R("mul.wide.s16 %0, %5, %6;", -21);
  R("mul.wide.u16 %0, %5, %6;", 65529 * 3);
  H("mad.lo.u16 %0, %5, %6, %6;", -18);
  H("mad.hi.s16 %0, %5, %6, %6;", 2);
  W("mul.wide.s32 %0, %1, %2;", -14);
  W("mad.wide.s32 %0, %1, %2, %4;", 0xfffffff5);
  W("mad.wide.u32 %0, %1, %2, %4;", 0x2fffffff5);
  R("mad.hi.s32 %0, %1, %2, 5;", 4);
  W("mul.hi.s64 %0, %3, %4;", -1);
  W("mul.hi.u64 %0, %3, %4;", 0x100000002);
  W("mul.lo.u64 %0, %3, %4;", 0xfffffff8ffffffeb);
  W("mad.lo.s64 %0, %3, %4, %4;", 0xfffffff9ffffffee);
  R("mul24.lo.s32 %0, %1, %2;", -14);
  R("mad24.lo.u32 %0, %1, %2, 1;", 0x1fffff3);
  R("div.u32 %0, %1, %2;", 0x7ffffffc);
  R("rem.u32 %0, %1, %2;", 1);
  W("div.s64 %0, %3, 2;", -3);
  W("rem.s64 %0, %3, 2;", -1);
  W("div.u64 %0, %3, 2;", 0x7ffffffffffffffc);
  W("abs.s64 %0, %3;", 7);
  W("neg.s64 %0, %3;", 7);
  W("min.s64 %0, %3, %4;", -7);
  W("min.u64 %0, %3, %4;", 0x100000003);
  W("max.s64 %0, %3, %4;", 0x100000003);
  W("max.u64 %0, %3, %4;", -7);
  W("sub.s64 %0, %4, %3;", 0x10000000a);
  H("min.s16 %0, %5, %6;", -7);
  H("max.u16 %0, %5, %6;", -7);
  H("abs.s16 %0, %5;", 7);
  H("sub.u16 %0, %6, %5;", 10);
  H("add.s16 %0, %5, %6;", -4);
  R("add.sat.s32 %0, 0x7fffffff, %2;", 0x7fffffff);
  R("sub.sat.s32 %0, 0x80000000, %2;", 0x80000000);
  R("add.sat.s32 %0, %1, %2;", -5);
  W("shl.b64 %0, %4, 4;", 0x1000000030);
  W("shl.b64 %0, %4, 64;", 0);
  W("shr.u64 %0, %3, 60;", 15);
  W("shr.u64 %0, %3, 64;", 0);
  W("shr.s64 %0, %3, 1;", -4);
  W("shr.s64 %0, %3, 200;", -1);
  H("shl.b16 %0, %6, 15;", 0x8000);
  H("shl.b16 %0, %6, 16;", 0);
  H("shr.s16 %0, %5, 1;", -4);
  H("shr.u16 %0, %5, 1;", 0x7ffc);
  W("bfe.u64 %0, %4, 1, 40;", 0x80000001);
  W("bfe.s64 %0, %3, 2, 8;", -2);
  W("bfi.b64 %0, %4, %3, 8, 4;", 0xfffffffffffff3f9);
  W("brev.b64 %0, %4;", 0xc000000080000000);
  R("popc.b64 %0, %4;", 3);
  R("clz.b64 %0, %4;", 31);
  R("bfind.u64 %0, %4;", 32);
  R("bfind.s64 %0, %3;", 2);
  W("not.b64 %0, %3;", 6);
  W("and.b64 %0, %3, %4;", 0x100000001);
  W("or.b64 %0, %3, %4;", -5);
  W("xor.b64 %0, %3, %4;", 0xfffffffefffffffa);
  H("and.b16 %0, %5, %6;", 1);
  H("not.b16 %0, %5;", 6);
  R("sad.s32 %0, %1, %2, 4;", 13);
  R("dp4a.u32.u32 %0, %1, 0x01010101, 5;", 1019);
  R("add.cc.u32 %0, %1, %1; addc.cc.u32 %0, %1, 6; addc.u32 %0, 0, 0;", 1);
  R("add.cc.u32 %0, %1, %1; add.u32 %0, 1, 1; addc.u32 %0, %0, 0;", 3);
  R("add.cc.u32 %0, %1, %1; addc.u32 %0, 0, 0; addc.u32 %0, %0, 0;", 2);
  R("add.cc.u32 %0, %1, %1; add.cc.u32 %0, 1, 1; addc.u32 %0, %0, 0;", 2);
  R("sub.cc.u32 %0, 0, 1; subc.cc.u32 %0, 0, 0; subc.u32 %0, 9, 0;", 8);
  R("mad.lo.cc.u32 %0, %1, 1, 7; madc.lo.cc.u32 %0, 2, 3, 0; madc.hi.u32 %0, %1, %2, 10;", 11);
  R("mad.lo.cc.u32 %0, %1, 1, 7; madc.lo.u32 %0, 2, 3, 4;", 11);
  R("mad.hi.cc.u32 %0, %1, %2, -1; addc.u32 %0, %0, 0;", 1);
  W("add.cc.u64 %0, %3, %3; addc.u64 %0, 0, 0;", 1);
  W("mov.b64 %0, {%5, %6, %6, %5};", 0xfff900030003fff9);
  R("{ .reg .b16 a, b, c, d; mov.b64 {a, b, c, d}, %4; mov.b32 %0, {d, c}; }", 0x10000);
  R("mov.b64 {_, %0}, %4;", 1);
  R("{ .reg .b32 r<3>; mov.u32 r0, 5; mov.u32 r2, 0x1FU; sub.u32 %0, r2, r0; }", 26);
  R(".loc 1 2 3\n.pragma \"nounroll\";\nmov.u32 %0, 1; // %0, 2;\n/* mov.u32\n %0, 3; */ add.u32 "
    "%0, %0, 4;",
    5);
  R("mov.u32 %0, 1; bra.uni OVER; mov.u32 %0, 2; OVER: add.u32 %0, %0, 8;", 9);
  R("{ .reg .pred p; setp.eq.u32 p, %2, 2; mov.u32 %0, 1; @!p bra L; add.u32 %0, %0, 2; L: }", 3);
  W("cvt.s64.s32 %0, %1;", -7);
  W("cvt.u64.u32 %0, %1;", 0xfffffff9);
  W("cvt.s64.s16 %0, %5;", -7);
  R("cvt.u32.u16 %0, %5;", 0xfff9);
  R("cvt.u32.u8 %0, %1;", 0xf9);
  R("cvt.u32.u64 %0, %4;", 3);
  R("cvt.sat.u32.s64 %0, %3;", 0);
  R("cvt.sat.s32.s64 %0, %4;", 0x7fffffff);
  H("cvt.sat.s16.s32 %0, -40000;", 0x8000);
  H("cvt.sat.u16.u32 %0, %1;", 0xffff);
}
__global__ void rare_floats(int a, int b, float x, int* wrong) {
  F("set.ge.f32.f32 f, %7, %8;", 0x3f800000);
  F("set.lt.f32.s32 f, %2, %1;", 0);
  F("add.rm.f32 f, %8, 0fB3000000;", 0xc0100001);
  F("add.rz.f32 f, %8, 0fB3000000;", 0xc0100000);
  F("sub.rp.f32 f, %7, 0fB3000000;", 0x3fc00001);
  F("sub.rm.f32 f, %7, 0fB3000000;", 0x3fc00000);
  F("mul.rz.f32 f, 0f3F800001, 0f3F800001;", 0x3f800002);
  F("mul.rp.ftz.f32 f, 0f3F800001, 0f3F800001;", 0x3f800003);
  F("fma.rz.f32 f, 0f3F800001, 0f3F800001, 0f00000000;", 0x3f800002);
  F("fma.rp.f32 f, 0f3F800001, 0f3F800001, 0f00000000;", 0x3f800003);
  F("div.rm.f32 f, 0f3F800000, 0f40400000;", 0x3eaaaaaa);
  F("div.rn.f32 f, 0f3F800000, 0f40400000;", 0x3eaaaaab);
  F("rcp.rz.f32 f, 0f40400000;", 0x3eaaaaaa);
  F("rcp.rp.f32 f, 0f40400000;", 0x3eaaaaab);
  F("sqrt.rm.f32 f, 0f40000000;", 0x3fb504f3);
  F("sqrt.rp.f32 f, 0f40000000;", 0x3fb504f4);
  F("div.full.f32 f, %8, %7;", 0xbfc00000);
  F("mad.rn.f32 f, %7, %8, %7;", 0xbff00000);
  F("fma.rn.sat.f32 f, %7, %7, %7;", 0x3f800000);
  F("mul.sat.f32 f, %7, %8;", 0);
  F("sub.sat.f32 f, 0f3F000000, 0f3E800000;", 0x3e800000);
  F("sub.f32 f, %7, %8;", 0x40700000);
  F("abs.f32 f, %8;", 0x40100000);
  F("min.f32 f, %7, %8;", 0xc0100000);
  F("min.f32 f, %7, 0f7FC00000;", 0x3fc00000);
  F("max.f32 f, 0f7FC00000, %7;", 0x3fc00000);
  F("copysign.f32 f, %8, %7;", 0xbfc00000);
  F("mov.f32 f, 1.5;", 0x3fc00000);
  F("mov.f32 f, 0F3fc00000;", 0x3fc00000);
  F("add.f32 f, %7, -2.5e-1;", 0x3fa00000);
  F("ex2.approx.f32 f, 0f40400000;", 0x41000000);
  F("lg2.approx.f32 f, 0f41000000;", 0x40400000);
  F("rsqrt.approx.ftz.f32 f, 0f40800000;", 0x3f000000);
  F("rcp.approx.f32 f, 0f40800000;", 0x3e800000);
  F("sqrt.approx.f32 f, 0f40800000;", 0x40000000);
  F("sin.approx.f32 f, 0f00000000;", 0);
  F("cos.approx.f32 f, 0f00000000;", 0x3f800000);
  F("tanh.approx.f32 f, 0f42000000;", 0x3f800000);
  D("add.rp.f64 d, %9, 0d3C90000000000000;", 0x3ff8000000000001);
  D("add.rm.f64 d, %9, 0d3C90000000000000;", 0x3ff8000000000000);
  D("mul.f64 d, %9, %10;", 0xc012000000000000);
  D("div.rn.f64 d, %10, %9;", 0xc000000000000000);
  D("sqrt.rn.f64 d, 0d4010000000000000;", 0x4000000000000000);
  D("rcp.rn.f64 d, 0D4010000000000000;", 0x3fd0000000000000);
  D("fma.rz.f64 d, %9, %9, %10;", 0xbfe8000000000000);
  D("max.f64 d, %9, %10;", 0x3ff8000000000000);
  D("min.f64 d, %9, %10;", 0xc008000000000000);
  D("abs.f64 d, %10;", 0x4008000000000000);
  D("neg.f64 d, %9;", 0xbff8000000000000);
  D("copysign.f64 d, %10, %9;", 0xbff8000000000000);
  HALVES("add.f16x2 %0, u, v;", 0x4300bc00);
  HALVES("sub.rn.f16x2 %0, u, v;", 0xb800c200);
  HALVES("mul.f16x2 %0, u, v;", 0x4200c000);
  HALVES("max.f16x2 %0, u, v;", 0x40003c00);
  HALVES("min.f16x2 %0, u, v;", 0x3e00c000);
  HALVES("fma.rn.f16x2 %0, u, v, v;", 0x4500bc00);
  HALVES("fma.rn.relu.f16x2 %0, u, v, v;", 0x45000000);
  HALVES("fma.rn.sat.f16x2 %0, u, v, v;", 0x3c000000);
  HALVES("neg.f16x2 %0, u;", 0xbe004000);
  HALVES("abs.f16x2 %0, u;", 0x3e004000);
  HALVES("ex2.approx.f16x2 %0, v;", 0x44004000);
  BFLOATS("add.rn.bf16x2 %0, u, v;", 0x4060bf80);
  BFLOATS("mul.bf16x2 %0, u, v;", 0x4040c000);
  BFLOATS("max.bf16x2 %0, u, v;", 0x40003f80);
  BFLOATS("min.bf16x2 %0, u, v;", 0x3fc0c000);
  BFLOATS("fma.rn.bf16x2 %0, u, v, v;", 0x40a0bf80);
  BFLOATS("fma.rn.relu.bf16x2 %0, u, v, v;", 0x40a00000);
  BFLOATS("neg.bf16x2 %0, u;", 0xbfc04000);
  H("{ .reg .b16 u; mov.b16 u, 0x3e00; add.f16 %0, u, u; }", 0x4200);
  H("{ .reg .b16 u; mov.b16 u, 0x3e00; fma.rn.f16 %0, u, u, u; }", 0x4380);
  H("{ .reg .b16 u; mov.b16 u, 0x3fc0; mul.bf16 %0, u, u; }", 0x4010);
  H("{ .reg .b16 u; mov.b16 u, 0x3fc0; fma.rn.bf16 %0, u, u, u; }", 0x4070);
  R("{ .reg .b16 u, v; .reg .pred p; mov.b16 u, 0x3e00; mov.b16 v, 0x3c00;"
    " setp.gt.f16 p, u, v; selp.u32 %0, 1, 0, p; }",
    1);
  R("cvt.rpi.s32.f32 %0, %8;", -2);
  R("cvt.rmi.s32.f32 %0, %8;", -3);
  R("cvt.rzi.s32.f32 %0, %8;", -2);
  R("cvt.rni.s32.f32 %0, 0f40200000;", 2);
  R("cvt.rmi.u32.f32 %0, %8;", 0);
  R("cvt.rzi.s32.f32 %0, 0f4F800000;", 0x7fffffff);
  R("cvt.rzi.s32.f32 %0, 0f7FC00000;", 0);
  R("cvt.rzi.s32.f64 %0, 0d7FF8000000000000;", 0x80000000);
  W("cvt.rzi.u64.f32 %0, 0f7FC00000;", 1ull << 63);
  W("cvt.rmi.s64.f64 %0, %10;", -3);
  R("cvt.rpi.s32.f64 %0, %9;", 2);
  R("{ .reg .b16 u; mov.b16 u, 0xc080; cvt.rmi.s32.f16 %0, u; }", -3);
  F("cvt.rm.f32.f64 f, 0d3FF0000008000000;", 0x3f800000);
  F("cvt.rp.f32.f64 f, 0d3FF0000008000000;", 0x3f800001);
  F("cvt.rz.f32.f64 f, 0dBFF0000018000000;", 0xbf800000);
  F("cvt.rn.f32.f64 f, 0dBFF0000018000000;", 0xbf800001);
  D("cvt.f64.f32 d, %8;", 0xc002000000000000);
  D("cvt.rn.f64.s32 d, %1;", 0xc01c000000000000);
  D("cvt.rn.f64.u32 d, %1;", 0x41efffffff200000);
  F("cvt.rn.f32.u64 f, %4;", 0x4f800000);
  F("cvt.rp.f32.u64 f, %4;", 0x4f800001);
  F("cvt.rn.f32.s16 f, %5;", 0xc0e00000);
  F("cvt.rn.f32.u16 f, %5;", 0x477ff900);
  F("cvt.sat.f32.f32 f, %7;", 0x3f800000);
  F("cvt.rpi.f32.f32 f, %8;", 0xc0000000);
  F("cvt.rzi.f32.f32 f, %8;", 0xc0000000);
  F("cvt.rni.f32.f32 f, 0f40200000;", 0x40000000);
  H("cvt.rn.f16.f32 %0, %8;", 0xc080);
  H("cvt.rn.f16.s32 %0, %1;", 0xc700);
  H("cvt.rn.bf16.f32 %0, %8;", 0xc010);
  H("cvt.rn.relu.f16.f32 %0, %8;", 0);
  H("cvt.rn.relu.bf16.f32 %0, %7;", 0x3fc0);
  F("{ .reg .b16 u; mov.b16 u, 0xc010; cvt.f32.bf16 f, u; }", 0xc0100000);
  R("cvt.rn.relu.f16x2.f32 %0, %7, %8;", 0x3e000000);
  R("cvt.rn.relu.bf16x2.f32 %0, %8, %7;", 0x3fc0);
  R("cvt.rn.relu.bf16x2.f32 %0, 0f7FC00000, %8;", 0x7fff0000);
  H("cvt.rn.satfinite.e4m3x2.f32 %0, %7, %8;", 0x3cc1);
  H("cvt.rn.satfinite.e5m2x2.f32 %0, %7, %8;", 0x3ec0);
  R("cvt.rna.tf32.f32 %0, 0f3F801000;", 0x3f802000);
}

#undef OPERANDS
#define OPERANDS "l"(p), "r"(s), "l"(p + 2), "r"(5), "l"(0x123456789abcdef0), "h"((short)-7)
#define ATOMIC(order, red, op, start, after)                                                \
  R("st.global.b32 [%1], " #start "; atom" order ".global" op " %0, [%1], %4;", start)      \
  R("ld.global.b32 %0, [%1];", after)                                                       \
  R("st.shared.b32 [%2], " #start "; atom" order ".shared::cta" op " %0, [%2], %4;", start) \
  R("ld.shared.b32 %0, [%2];", after)                                                       \
  R("st.b32 [%1], " #start "; red" red op " [%1], %4; ld.b32 %0, [%1];", after)
#define ATOMIC_64(op, start, operand, after) \
  W("st.b64 [%1], " #start "; atom" op " %0, [%1], " operand "; ld.b64 %0, [%1];", after)
__global__ void rare_memory(unsigned long long* p, int* wrong) {
  __shared__ unsigned long long room[4];
  const unsigned s = (unsigned)__cvta_generic_to_shared(room);
  W("st.global.b64 [%1], %5; ld.global.u64 %0, [%1];", 0x123456789abcdef0);
  R("ld.s8 %0, [%1];", -16);
  R("ld.global.nc.u8 %0, [%1];", 0xf0);
  R("ld.s16 %0, [%1+0];", 0xffffdef0);
  R("ld.cs.u16 %0, [%1];", 0xdef0);
  R("ld.volatile.s32 %0, [%1+4];", 0x12345678);
  R("ld.relaxed.gpu.u32 %0, [%1];", 0x9abcdef0);
  R("ld.acquire.sys.global.b32 %0, [%1 + 4];", 0x12345678);
  W("ld.relaxed.cta.b64 %0, [%1];", 0x123456789abcdef0);
  W("ld.global.acquire.cluster.b64 %0, [%1];", 0x123456789abcdef0);
  R("ldu.global.u32 %0, [%1];", 0x9abcdef0);
  R("ld.ca.u32 %0, [%1+4];", 0x12345678);
  R("ld.cv.u32 %0, [%1];", 0x9abcdef0);
  R("ld.global.L1::evict_last.L2::256B.u32 %0, [%1];", 0x9abcdef0);
  R("{ .reg .u16 x, y; ld.v2.u8 {x, y}, [%1+2]; mov.b32 %0, {x, y}; }", 0x9a00bc);
  R("{ .reg .s16 x, y; ld.v2.s8 {x, y}, [%1+2]; mov.b32 %0, {x, y}; }", 0xff9affbc);
  R("{ .reg .s32 x, y; ld.v2.s16 {x, y}, [%1]; add.s32 %0, x, y; }", -8464 - 25924);
  W("{ .reg .b16 a, b, c, d; ld.v4.u16 {a, b, c, d}, [%1]; mov.b64 %0, {d, c, b, a}; }",
    0xdef09abc56781234);
  W("{ .reg .u64 x, y; st.v2.b64 [%3], {%5, 9}; ld.v2.u64 {x, y}, [%3]; sub.u64 %0, x, y; }",
    0x123456789abcdee7);
  W("st.shared.v2.u32 [%2], {%4, 6}; ld.shared.u64 %0, [%2];", 0x600000005);
  W("st.shared::cta.v4.u16 [%2], {%6, 1, 2, 3}; ld.shared::cta.b64 %0, [%2];", 0x300020001fff9);
  R("st.shared.v4.b8 [%2], {%4, 1, 2, 3}; ld.shared.u32 %0, [%2];", 0x3020105);
#ifndef NVCC_REFUSES_IT  // below sm_100
  W("st.global.v8.b32 [%1+64], {%4, 1, 2, 3, 4, 5, 6, 7}; ld.b64 %0, [%1+88];", 0x700000006);
  W("{ .reg .b32 r<8>; ld.global.v8.b32 {r0, r1, r2, r3, r4, r5, r6, r7}, [%1+64];"
    " mov.b64 %0, {r5, r3}; }",
    0x300000005);
  W("st.global.v4.b64 [%1+128], {1, 2, 3, %5}; ld.global.b64 %0, [%1+152];", 0x123456789abcdef0);
  W("{ .reg .b64 a, b, c, d; ld.global.v4.b64 {a, b, c, d}, [%1+128]; sub.u64 %0, d, c; }",
    0x123456789abcdeed);
#endif
  R("st.relaxed.sys.global.u32 [%1], 7; ld.u32 %0, [%1];", 7);
  W("st.release.cta.u64 [%1], %5; ld.u64 %0, [%1];", 0x123456789abcdef0);
  W("st.volatile.global.u16 [%1+2], %6; ld.u64 %0, [%1];", 0x12345678fff9def0);
  W("st.cg.u8 [%1+7], %4; ld.u64 %0, [%1];", 0x05345678fff9def0);
  R("st.release.gpu.f32 [%1], 0f3F800000; ld.u32 %0, [%1];", 0x3f800000);
  F("ld.acquire.gpu.f32 f, [%1];", 0x3f800000);
  ATOMIC("", "", ".add.u32", 12, 17);
  ATOMIC(".relaxed.gpu", ".relaxed.gpu", ".add.s32", -3, 2);
  ATOMIC(".acquire.cta", ".relaxed.cta", ".min.s32", -3, -3);
  ATOMIC(".release.sys", ".release.sys", ".min.u32", -3, 5);
  ATOMIC(".acq_rel.gpu", ".release.gpu", ".max.s32", -3, 5);
  ATOMIC(".relaxed.cluster", ".relaxed.cluster", ".max.u32", -3, -3);
  ATOMIC(".relaxed.sys", ".relaxed.sys", ".and.b32", 14, 4);
  ATOMIC(".release.cta", ".release.cta", ".or.b32", 14, 15);
  ATOMIC(".acquire.sys", ".relaxed.sys", ".xor.b32", 14, 11);
  ATOMIC("", "", ".inc.u32", 4, 5);
  ATOMIC("", "", ".inc.u32", 5, 0);
  ATOMIC("", "", ".dec.u32", 0, 5);
  ATOMIC("", "", ".dec.u32", 9, 5);
  ATOMIC("", "", ".dec.u32", 3, 2);
  R("st.b32 [%1], 12; atom.relaxed.gpu.global.exch.b32 %0, [%1], %4;", 12);
  R("atom.acquire.gpu.global.cas.b32 %0, [%1], 5, 9;", 5);
  R("atom.release.gpu.cas.b32 %0, [%1], 5, 11;", 9);
  R("ld.b32 %0, [%1];", 9);
  ATOMIC_64(".add.u64", -3, "%5", 0x123456789abcdeed);
  ATOMIC_64(".global.add.u64", -3, "5", 2);
  ATOMIC_64(".max.s64", -3, "9", 9);
  ATOMIC_64(".max.u64", -3, "9", -3);
  ATOMIC_64(".min.s64", -3, "9", -3);
  ATOMIC_64(".min.u64", -3, "9", 9);
  ATOMIC_64(".and.b64", -3, "%5", 0x123456789abcdef0);
  ATOMIC_64(".or.b64", 15, "%5", 0x123456789abcdeff);
  ATOMIC_64(".xor.b64", 0xf1, "%5", 0x123456789abcde01);
  ATOMIC_64(".exch.b64", -3, "%5", 0x123456789abcdef0);
  ATOMIC_64(".cas.b64", 8, "8, %5", 0x123456789abcdef0);
  ATOMIC_64(".cas.b64", 8, "9, %5", 8);
  R("st.b32 [%1], 0x40000000; red.global.add.f32 [%1], 0f3FC00000; ld.b32 %0, [%1];", 0x40600000);
  W("st.b64 [%1], 0x4000000000000000; red.relaxed.gpu.add.f64 [%1], 0d3FF8000000000000;"
    " ld.b64 %0, [%1];",
    0x400c000000000000);
  R("{ .reg .b32 v; mov.b32 v, 0x40003c00; st.b32 [%1], 0x3e00c000;"
    " red.global.add.noftz.f16x2 [%1], v; ld.b32 %0, [%1]; }",
    0x4300bc00);
  R("{ .reg .b32 v; mov.b32 v, 0x40003f80; st.b32 [%1], 0x3fc0c000;"
    " red.add.noftz.bf16x2 [%1], v; ld.b32 %0, [%1]; }",
    0x4060bf80);
  H("st.b16 [%1], 3; atom.cas.b16 %0, [%1], 3, %6; ld.u16 %0, [%1];", -7);
  W("st.shared.b64 [%2], -1; st.global.b64 [%1], %5;"
    " cp.async.ca.shared.global [%2], [%1], 8, 4; cp.async.wait_all; ld.shared.b64 %0, [%2];",
    0x9abcdef0);
  W("cp.async.ca.shared::cta.global.L2::cache_hint [%2], [%1], 8, %5; cp.async.wait_all;"
    " ld.shared.b64 %0, [%2];",
    0x123456789abcdef0);
  W("st.shared.b64 [%2], -1; cp.async.ca.shared.global.L2::128B [%2], [%1], 8, 0;"
    " cp.async.wait_all; ld.shared.b64 %0, [%2];",
    0);
}
#undef OPERANDS
#define OPERANDS "r"(t), "r"(odd)
// All factors are 255 or -1, and 128 or -128.
#define INTEGERS(a, b, product)                                                          \
  R("{ .reg .b32 u, v, w; mov.b32 u, -1; mov.b32 v, 0x80808080; mov.b32 w, 5;"           \
    "mma.sync.aligned.m8n8k16.row.col.s32." a "." b ".s32 {%0, w}, {u}, {v}, {w, w}; }", \
    16 * (product) + 5)
__global__ void rare_warps(int* wrong) {  // of (4, 2, 4) threads, in a grid of (2, 3, 4)
  const unsigned t = threadIdx.x + 4 * (threadIdx.y + 2 * threadIdx.z);
  const unsigned odd = t == 3 ? 0x80000001u : 5;
  R("shfl.sync.idx.b32 %0, %1, 5, 0x1f, -1;", 5);
  R("shfl.sync.idx.b32 %0, %1, 1, 0x181f, -1;", (t & 24) + 1);
  R("{ .reg .pred p; shfl.sync.down.b32 %0|p, %1, 3, 0x181f, -1; @!p add.u32 %0, %0, 100; }",
    t % 8 < 5 ? t + 3 : t + 100);
  R("{ .reg .pred p; shfl.sync.up.b32 %0|p, %1, 3, 0x1000, -1; @!p add.u32 %0, %0, 100; }",
    t % 16 < 3 ? t + 100 : t - 3);
  R("{ .reg .pred p; shfl.sync.bfly.b32 %0|p, %1, 9, 0x101f, -1; @!p add.u32 %0, %0, 100; }",
    t ^ 9);
  R("{ .reg .pred p; setp.eq.u32 p, %1, 7; vote.sync.any.pred p, p, -1; selp.u32 %0, 1, 0, p; }",
    1);
  R("{ .reg .pred p; setp.eq.u32 p, %1, 99; vote.sync.any.pred p, p, -1; selp.u32 %0, 1, 0, p; }",
    0);
  R("{ .reg .pred p; setp.ne.u32 p, %1, 7; vote.sync.all.pred p, p, -1; selp.u32 %0, 1, 0, p; }",
    0);
  R("{ .reg .pred p; setp.ne.u32 p, %1, 99; vote.sync.all.pred p, p, -1; selp.u32 %0, 1, 0, p; }",
    1);
  R("redux.sync.add.u32 %0, %2, -1;", 0x80000001 + 31 * 5);
  R("redux.sync.min.s32 %0, %2, -1;", 0x80000001);
  R("redux.sync.min.u32 %0, %2, -1;", 5);
  R("redux.sync.max.s32 %0, %2, -1;", 5);
  R("redux.sync.max.u32 %0, %2, -1;", 0x80000001);
  R("redux.sync.and.b32 %0, %2, -1;", 1);
  R("redux.sync.or.b32 %0, %2, -1;", 0x80000005);
  R("redux.sync.xor.b32 %0, %2, -1;", 0x80000004);
  R("match.any.sync.b32 %0, %2, -1;", t == 3 ? 8 : ~8u);
  INTEGERS("u8", "u8", 255 * 128);
  INTEGERS("u8", "s8", 255 * -128);
  INTEGERS("s8", "u8", -1 * 128);
  INTEGERS("s8", "s8", -1 * -128);
  R("{ .reg .pred p; elect.sync %0|p, -1; @p add.u32 %0, %0, 50; }", t == 0 ? 50 : 0);
  R("bar.warp.sync -1; activemask.b32 %0;", ~0u);
  R("mov.u32 %0, %%laneid;", t);
  R("mov.u32 %0, %%tid.x;", threadIdx.x);
  R("mov.u32 %0, %%tid.y;", t / 4 % 2);
  R("mov.u32 %0, %%tid.z;", t / 8);
  R("mov.u32 %0, %%ntid.x;", 4);
  R("mov.u32 %0, %%ntid.y;", 2);
  R("mov.u32 %0, %%ntid.z;", 4);
  R("mov.u32 %0, %%ctaid.x;", blockIdx.x);
  R("mov.u32 %0, %%ctaid.y;", blockIdx.y);
  R("mov.u32 %0, %%ctaid.z;", blockIdx.z);
  R("mov.u32 %0, %%nctaid.x;", 2);
  R("mov.u32 %0, %%nctaid.y;", 3);
  R("mov.u32 %0, %%nctaid.z;", 4);
  R("mov.u32 %0, %%clusterid.x;", blockIdx.x);
  R("mov.u32 %0, %%clusterid.y;", blockIdx.y);
  R("mov.u32 %0, %%nclusterid.z;", 4);
  R("mov.u32 %0, %%cluster_ctaid.x;", 0);
  R("mov.u32 %0, %%cluster_nctaid.y;", 1);
}

int main() {
  int* bad = room<int>(1);
  rare_integers<<<1, 1>>>(7, 2, 1.5f, bad);
  rare_floats<<<1, 1>>>(7, 2, 1.5f, bad);
  rare_memory<<<1, 1>>>(room<unsigned long long>(32), bad);
  rare_warps<<<dim3(2, 3, 4), dim3(4, 2, 4)>>>(bad);
  done();
  EXPECT(*bad == 0);

  float *in = room<float>(256), *out = room<float>(256);
  for (int i = 0; i < 256; ++i) in[i] = i;
  copied<<<1, 64>>>(in, out);
  done();
  for (int i = 0; i < 256; ++i) EXPECT(out[i] == 255 - i);

  __nv_bfloat16 *A = room<__nv_bfloat16>(256), *B = room<__nv_bfloat16>(128);
  for (int i = 0; i < 256; ++i) A[i] = __float2bfloat16((i * 7 % 13) - 6.f);
  for (int i = 0; i < 128; ++i) B[i] = __float2bfloat16((i * 5 % 11) - 5.f);
  product<<<1, 32>>>(A, B, out);
  done();
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 8; ++c) {
      float sum = 1;
      for (int k = 0; k < 16; ++k) {
        sum += __bfloat162float(A[16 * r + k]) * __bfloat162float(B[16 * c + k]);
      }
      EXPECT(out[8 * r + c] == sum);
    }
  }

  unsigned* ids = room<unsigned>(64);
  small<<<1, 64>>>(out, ids, in);
  done();
  for (int i = 0; i < 64; ++i) {
    const float power = i < 16 ? 1.f / (1 << (16 - i)) : (float)(1ull << (i - 16));
    EXPECT(out[i] == power && ids[i] == i % 32);  // exact at whole numbers
    EXPECT(out[64 + i] == power * 2 + 1 && out[128 + i] == i);
  }
  int* flag = room<int>(1);
  flag[0] = 0;
  hand_over<<<2, 1>>>(flag, in, out);
  done();
  EXPECT(out[0] == 42);
  return verdict();
}
