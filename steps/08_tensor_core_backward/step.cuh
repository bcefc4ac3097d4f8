// Step 08: what it is, for its program, its library, its tests and its exercises.
#pragma once

#include "steps/06_work_partitioning/3_backward.cuh"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/2_atomics.cuh"
#include "steps/08_tensor_core_backward/3_deterministic.cuh"
#include "steps/08_tensor_core_backward/4_roles.cuh"

namespace step08 {

inline fa::Variant atomics() {
  return {.name = "atomics",
          .idea = "a block 128 keys; dS through shared memory, dQ by atomics",
          .parent = {"07 lazy", step07::traffic, step07::support()},
          .forward = forward,
          .traffic = step07::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = {"06 backward", step06_backward::backward_traffic},
          .backward = backward,
          .backward_traffic = backward_traffic};
}

inline fa::Variant deterministic() {
  return {.name = "deterministic",
          .idea = "dQ by a second kernel, 7 products instead of 5: always the same bits",
          .parent = {"07 lazy", step07::traffic, step07::support()},
          .forward = step08_deterministic::forward,
          .traffic = step07::traffic,
          .workspace = step08_deterministic::workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = {"08 atomics", backward_traffic, step07::support()},
          .backward = step08_deterministic::backward,
          .backward_traffic = step08_deterministic::backward_traffic};
}

inline fa::Variant roles() {
  return {.name = "roles",
          .idea = "pairs of warps: one makes P and dV, the other dS and dK",
          .parent = {"07 lazy", step07::traffic, step07::support()},
          .forward = forward,
          .traffic = step07::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = {"08 atomics", backward_traffic, step07::support()},
          .backward = step08_roles::backward,
          .backward_traffic = backward_traffic};
}

inline fa::Step step() {
  return {.id = "08_tensor_core_backward",
          .idea = "the backward on tensor cores: transposed scores stay in registers",
          .support = step07::support(),
          .needs = "sm_80",
          .variants = {atomics(), deterministic(), roles()}};
}

}  // namespace step08
