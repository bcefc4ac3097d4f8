// Requirements of every backward on tensor cores.
#pragma once

#include "tests/attention.h"

namespace fa::test {

/// A variant and a d that it has kernels for.
struct Kernels {
  const Variant* variant;
  int d;
  bool square = false;     ///< only for as many keys as rows, and a key head for each query head
  bool one_order = false;  ///< the sum of dQ has one order, so its bits are the same in each run
};

/// In sections: right at the edges of tiles, for real input, outliers, any size of score; no
/// gradient where V is constant, known sums over the keys, linear in dO, as `parent` in fp32, the
/// same in each run. Unless the kernels are `square`, also for few rows and keys, any remainder of
/// a tile, shared heads, rows without keys. In the simulator: bytes and operations are as
/// predicted, and the analysis finds nothing. Belongs in its own TEST_CASE with the tag [all].
void require_backward(const Kernels& of, const Variant& parent);

/// Some of these sections: no gradient where V is constant, known sums over the keys, linear in dO,
/// the same in each run. Also in fp32, there in a separate case.
void require_gradient_properties(const Kernels& of);

/// Scores far below zero, where 2^(0 - LSE) of a key past the end overflows, at each tile's end.
void require_backward_right_far_below_zero(const Variant& v, int d);

}  // namespace fa::test
