// Step 08: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/06_work_partitioning/3_backward.cuh"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/2_keys.cuh"
#include "steps/08_tensor_core_backward/3_wide.cuh"
#include "steps/08_tensor_core_backward/4_deterministic.cuh"
#include "steps/08_tensor_core_backward/5_atomics.cuh"
#include "steps/08_tensor_core_backward/6_roles.cuh"

namespace step08 {

inline fa::Variant keys() {
  return {.name = "keys",
          .idea = "S^T: P and dS stay in registers; a separate kernel computes dQ",
          .support = fa::Support{.d = {64, 128}},  // its heads have keys of their own
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = step08_queries::workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "06 backward",
          .backward = step08_keys::backward,
          .backward_traffic = step08_keys::backward_traffic};
}

inline fa::Variant wide() {
  return {.name = "wide",
          .idea = "a block owns 128 keys, of all heads that share them",
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = step08_queries::workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "08 keys",
          .backward = step08_wide::backward,
          .backward_traffic = step08_wide::backward_traffic};
}

inline fa::Variant deterministic() {
  return {.name = "deterministic",
          .idea = "copies one tile ahead; 7 products, bitwise reproducible",
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = step08_queries::workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "08 wide",
          .backward = step08_deterministic::backward,
          .backward_traffic = step08_deterministic::backward_traffic};
}

inline fa::Variant atomics() {
  return {.name = "atomics",
          .idea = "5 products: dS through shared memory, dQ by atomics",
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "08 deterministic",
          .backward = backward,
          .backward_traffic = backward_traffic};
}

inline fa::Variant roles() {
  return {.name = "roles",
          .idea = "pairs of warps: one computes P and dV, the other dS and dK",
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "08 atomics",
          .backward = step08_roles::backward,
          .backward_traffic = backward_traffic};
}

inline fa::Step step() {
  return {.id = "08_tensor_core_backward",
          .idea = "the backward on tensor cores: transposed scores stay in registers",
          .support = step07::support(),
          .parents = {{.id = "06 backward", .backward_traffic = step06_backward::backward_traffic}},
          .variants = {keys(), wide(), deterministic(), atomics(), roles()}};
}

}  // namespace step08
