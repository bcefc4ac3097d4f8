/// \file
/// Products of a warp in any shape and type, for external programs.
#pragma once

#include "common/dialect/instructions.h"

namespace sim {

/// A warp's product: D[m][n] = A[m][k] B[k][n] + C. Each lane's elements are consecutive in memory:
/// as in PTX's fragments of mma.sync, or in 32 equal parts of the matrix.
enum class Number { f16, bf16, tf32, e4m3, e5m2, s8, u8, s32, f32, f64 };
enum class Layout { mma, by_rows, by_columns };
struct WarpProduct {
  int m, n, k;
  Number a_type, b_type, c_type;
  const void *a, *b, *c;
  void* d;
  bool saturate = false;  ///< integers
  Layout a_layout = Layout::mma, b_layout = Layout::mma, c_layout = Layout::mma;
};
void multiply(const WarpProduct&, Where);

}  // namespace sim
