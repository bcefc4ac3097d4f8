/// \file
/// The product of one wgmma, as fa::tensor_sum adds it. Private to instructions/.
#pragma once

#include "common/dialect/ptx/tensor_sum.h"

namespace sim {

constexpr int kTensorRows = 64, kTensorColumns = 256, kTensorProducts = 32;  // at most

/// An operand, [k][row of A or column of B].
struct TensorOperand {
  float value[kTensorProducts][kTensorColumns];
  float power[kTensorProducts][kTensorColumns];  ///< 2^exponent; 0 for 0
  float row_largest[kTensorColumns];             ///< power of each row; 0: all are 0
  float largest;                                 ///< power; inf when there is an inf or a NaN

  /// Fills all but `value` from the first `rows` values of each k.
  void set_powers(const fa::TensorSum&, int rows);
};

/// D[64][columns] = A B + D.
void multiply_add(const fa::TensorSum&, const TensorOperand& A, const TensorOperand& B, int columns,
                  float (*D)[kTensorColumns]);

}  // namespace sim
