// Step 14 -- for exercises whose check runs no backward, so its kernels need not be compiled.
#pragma once

#include <stdexcept>

#include "steps/14_ring/3_backward.cuh"
#include "steps/14_ring/beyond/ampere.cuh"

namespace step14 {

using ForwardOnly = Ring<Ampere, Cut::zigzag>;
template <>
inline void ForwardOnly::backward(const fa::Tensors<void>&) {
  throw std::logic_error("forward_only.cuh has no backward: include beyond/ampere.cuh instead");
}

}  // namespace step14
