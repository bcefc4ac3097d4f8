// Step 07: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/06_work_partitioning/2_registers.cuh"
#include "steps/07_tensor_cores/1_mma.cuh"
#include "steps/07_tensor_cores/2_pipelined.cuh"
#include "steps/07_tensor_cores/3_bands.cuh"
#include "steps/07_tensor_cores/4_lazy.cuh"

namespace step07 {

inline fa::Variant mma() {
  return {.name = "mma",
          .idea = "both products by mma.sync; S becomes P in registers",
          .parent = "06 registers",
          .support = step07_mma::support(),
          .forward = step07_mma::forward,
          .traffic = step07_mma::traffic,
          .writes_lse = true};
}

inline fa::Variant pipelined() {
  return {.name = "pipelined",
          .idea = "cp.async copies the next tile; swizzled, not padded",
          .parent = "07 mma",
          .support = step07_pipelined::support(),
          .forward = step07_pipelined::forward,
          .traffic = step07_pipelined::traffic,
          .writes_lse = true};
}

inline fa::Variant bands() {
  return {.name = "bands",
          .idea = "32 rows per warp: a fragment of K or V serves two mma",
          .parent = "07 pipelined",
          .support = step07_bands::support(),
          .forward = step07_bands::forward,
          .traffic = step07_bands::traffic,
          .writes_lse = true};
}

inline fa::Variant lazy() {
  return {.name = "lazy",
          .idea = "lazy rescale; GQA; any number of keys",
          .parent = "07 bands",
          .forward = forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "07_tensor_cores",
          .idea = "FlashAttention-2 in bf16 on tensor cores: mma.sync, ldmatrix, cp.async",
          .support = support(),
          .parents = {{.id = "06 registers", .traffic = step06_registers::traffic}},
          .variants = {mma(), pipelined(), bands(), lazy()}};
}

}  // namespace step07
