/// \file
/// ldmatrix of two matrices, stmatrix transposed, movmatrix: what ../mma.h leaves out because no
/// step has needed it so far.
#pragma once

#include "common/dialect/ptx/mma.h"

namespace fa {

#if defined(__CUDACC__)

/// Two matrices; the addresses of lanes 16..31 are ignored. With rows n of a [n][k] tile it is the
/// B fragment of mma_m16n8k16: lane passes &tile[lane % 8][lane / 8 % 2 * 8].
FA_PTX void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
/// Two matrices, transposed.
FA_PTX void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
/// Four matrices, transposed: matrix[m][col][row] = r[m].half[i].
FA_PTX void stmatrix_x4_trans(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                   shared_address(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
/// Transposes one 8x8 matrix of bf16 that lies in the registers of a warp, a row in four lanes, as
/// ldmatrix leaves it (sm_75). Scalar meaning:
///
///     for (i = 0..1) {
///       [row, col] = ldmatrix_element(lane, i);
///       matrix[row][col] = r.half[i];             // of every lane; then
///       result.half[i] = matrix[col][row];
///     }
///
/// It makes P^T of P without a way through shared memory. All 32 lanes take part.
FA_PTX uint32_t movmatrix_trans(uint32_t r) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r));
  return transposed;
}

#elif !FA_BACKEND_GPU

FA_PTX void ldmatrix_x2(uint32_t (&r)[2], const void* row, FA_WHERE) {
  sim::ldmatrix(r, 2, false, row, where);
}
FA_PTX void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row, FA_WHERE) {
  sim::ldmatrix(r, 2, true, row, where);
}
FA_PTX void stmatrix_x4_trans(void* row, const uint32_t (&r)[4], FA_WHERE) {
  sim::stmatrix(r, 4, true, row, where);
}
FA_PTX uint32_t movmatrix_trans(uint32_t r, FA_WHERE) { return sim::movmatrix_trans(r, where); }

#endif

}  // namespace fa
