/// \file
/// Ampere's tensor cores: one warp multiplies, fragments are in registers. ldmatrix loads them from
/// shared memory, stmatrix (sm_90) stores them there.
///
/// Layouts, as functions: common/dialect/ptx/layouts.h. A fragment register holds two bf16.
#pragma once

#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// Loads four 8x8 matrices of bf16. Lanes 8m .. 8m + 7 pass the addresses of rows 0 .. 7 of matrix
/// m (16 bytes each, 16-byte aligned, in shared memory). Scalar meaning:
///
///     for (m = 0..3) for (i = 0..1) {
///       [row, col] = ldmatrix_element(lane, i);   // row lane / 4, columns 2 (lane % 4) + i
///       r[m].half[i] = matrix[m][row][col];
///     }
///
/// With rows 0-7, 8-15 of the left half and then of the right half of a 16x16 tile this is the A
/// fragment of mma_m16n8k16: lane passes &tile[lane % 16][lane / 16 * 8]. All 32 lanes take part.
FA_PTX void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same four matrices as two B fragments of mma_m16n8k16: r[m / 2][m % 2] = matrix m.
FA_PTX void ldmatrix_x4(uint32_t (&r)[2][2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0][0]), "=r"(r[0][1]), "=r"(r[1][0]), "=r"(r[1][1])
               : "r"(shared_address(row))
               : "memory");
}
/// As ldmatrix_x4, each matrix transposed: r[m].half[i] = matrix[m][col][row]. It turns rows of V
/// (keys) into the B fragment of P V, whose registers hold pairs adjacent in k.
FA_PTX void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
/// Two B fragments, each matrix transposed.
FA_PTX void ldmatrix_x4_trans(uint32_t (&r)[2][2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0][0]), "=r"(r[0][1]), "=r"(r[1][0]), "=r"(r[1][1])
               : "r"(shared_address(row))
               : "memory");
}

/// Stores four 8x8 matrices of bf16, the reverse of ldmatrix_x4 (sm_90):
/// matrix[m][row][col] = r[m].half[i]. It writes rows of 16 bytes, where a plain store of an mma's
/// D fragment, packed to bf16, would write 4 bytes per lane.
FA_PTX void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

/// D[16][8] += A[16][16] B[16][8]: bf16 inputs, fp32 accumulators, one warp. Scalar meaning:
///
///     for (r = 0..15) for (c = 0..7) for (k = 0..15) D[r][c] += A[r][k] * B[k][c];
///
/// lane holds  a[i / 2].half[i % 2] = A at mma_a_element(lane, i), i = 0..7
///             b[i / 2].half[i % 2] = B at mma_b_element(lane, i), i = 0..3
///             d[i]                 = D at mma_d_element(lane, i), i = 0..3
/// All 32 lanes take part. It adds as in tensor_sum(mma_bf16_sum()): tensor_sum.h.
FA_PTX void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Two floats as one fragment register, `lo` in the low half (smaller column), to nearest even.
FA_PTX uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

#elif !FA_BACKEND_GPU

FA_PTX void ldmatrix_x4(uint32_t (&r)[4], const void* row, FA_WHERE) {
  sim::ldmatrix(r, 4, false, row, where);
}
FA_PTX void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, FA_WHERE) {
  sim::ldmatrix(r, 4, true, row, where);
}
FA_PTX void ldmatrix_x4(uint32_t (&r)[2][2], const void* row, FA_WHERE) {
  uint32_t four[4];  // r[0] alone has two elements
  sim::ldmatrix(four, 4, false, row, where);
  for (int m = 0; m < 4; ++m) r[m / 2][m % 2] = four[m];
}
FA_PTX void ldmatrix_x4_trans(uint32_t (&r)[2][2], const void* row, FA_WHERE) {
  uint32_t four[4];
  sim::ldmatrix(four, 4, true, row, where);
  for (int m = 0; m < 4; ++m) r[m / 2][m % 2] = four[m];
}
FA_PTX void stmatrix_x4(void* row, const uint32_t (&r)[4], FA_WHERE) {
  sim::stmatrix(r, row, where);
}
FA_PTX void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], FA_WHERE) {
  sim::mma_m16n8k16(d, a, b, where);
}
FA_PTX uint32_t pack_bf16(float lo, float hi) {
  return static_cast<uint32_t>(__nv_bfloat16(lo).bits) |
         static_cast<uint32_t>(__nv_bfloat16(hi).bits) << 16;
}

#endif

}  // namespace fa
