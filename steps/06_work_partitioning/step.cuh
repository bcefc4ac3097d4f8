// Step 06: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/04_fused/2_fused.cuh"
#include "steps/05_recompute_backward/4_recompute.cuh"
#include "steps/06_work_partitioning/1_swapped.cuh"
#include "steps/06_work_partitioning/2_registers.cuh"
#include "steps/06_work_partitioning/3_backward.cuh"

namespace step06 {

inline fa::Variant swapped() {
  return {.name = "swapped",
          .idea = "04 with the loops swapped: O, m and l in registers",
          .parent = "04 fused",
          .forward = forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Variant registers() {
  return {.name = "registers",
          .idea = "8 x 4 scores per thread in registers",
          .parent = "06 swapped",
          .forward = step06_registers::forward,
          .traffic = step06_registers::traffic,
          .writes_lse = true};
}

inline fa::Variant backward() {
  return {.name = "backward",
          .idea = "registers' forward; backward: one block per tile of keys, dQ by atomics",
          .parent = "06 swapped",
          .forward = step06_registers::forward,
          .traffic = step06_registers::traffic,
          .workspace = step06_backward::workspace,
          .writes_lse = true,
          .forward_of = "06 registers",
          .backward_parent = "05 recompute",
          .backward = step06_backward::backward,
          .backward_traffic = step06_backward::backward_traffic};
}

inline fa::Step step() {
  return {.id = "06_work_partitioning",
          .idea = "FlashAttention-2: one block per Q tile; O, m and l stay in registers",
          .parents = {{.id = "04 fused", .traffic = step04::traffic},
                      {.id = "05 recompute", .backward_traffic = step05::backward_traffic}},
          .variants = {swapped(), registers(), backward()}};
}

}  // namespace step06
