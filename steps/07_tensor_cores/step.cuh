// Step 07: what it is, for its program, its library, its tests and its exercises.
#pragma once

#include "steps/06_work_partitioning/2_registers.cuh"
#include "steps/07_tensor_cores/1_mma.cuh"

namespace step07 {

inline fa::Variant mma() {
  return {.name = "mma",
          .idea = "128 rows a block, 32 a warp; S becomes P in registers",
          .parent = {"06 registers", step06_registers::traffic},
          .forward = forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "07_tensor_cores",
          .idea = "mma.sync, ldmatrix, swizzle, cp.async: FlashAttention-2 in bf16",
          .support = support(),
          .needs = "sm_80",
          .variants = {mma()}};
}

}  // namespace step07
