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
// D = A B: A [16, 16] by rows, B [16, 8] by columns.
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

int main() {
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
