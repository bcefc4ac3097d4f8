// Step 05: what it is, for its program, its library, its tests and its exercises.
#pragma once

#include "steps/05_recompute_backward/1_standard.cuh"
#include "steps/05_recompute_backward/2_recompute.cuh"

namespace step05 {

inline fa::Variant standard() {
  return {.name = "standard",
          .idea = "P stays in HBM from forward to backward; dP and dS are written",
          .parent = {"02 registers", step02::traffic},
          .forward = step05_standard::forward,
          .traffic = step05_standard::traffic,
          .workspace = step05_standard::workspace,
          .forward_of = "02 registers",
          .backward = step05_standard::backward,
          .backward_traffic = step05_standard::backward_traffic};
}

inline fa::Variant recompute() {
  return {.name = "recompute",
          .idea = "Algorithm 4: P from Q, K and LSE, tile by tile; dQ through HBM",
          .parent = {"04 fused", step04::traffic},
          .forward = forward,
          .traffic = traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "04 fused",
          .backward_parent = {"05 standard", step05_standard::backward_traffic},
          .backward = backward,
          .backward_traffic = backward_traffic};
}

inline fa::Step step() {
  return {.id = "05_recompute_backward",
          .idea = "the backward recomputes P from LSE; beside it the one that stores P",
          .variants = {standard(), recompute()}};
}

}  // namespace step05
