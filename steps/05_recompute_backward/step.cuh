// Step 05: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/04_fused/2_fused.cuh"
#include "steps/05_recompute_backward/1_standard.cuh"
#include "steps/05_recompute_backward/2_delta.cuh"
#include "steps/05_recompute_backward/3_from_lse.cuh"
#include "steps/05_recompute_backward/4_recompute.cuh"

namespace step05 {

inline fa::Variant standard() {
  return {.name = "standard",
          .idea = "P stays in HBM from forward to backward; dP and dS are written",
          .forward = step02::forward,
          .traffic = step02::traffic,
          .workspace = step02::workspace,
          .forward_of = "02 registers",
          .backward = step05_standard::backward,
          .backward_traffic = step05_standard::backward_traffic};
}

inline fa::Variant delta() {
  return {.name = "delta",
          .idea = "delta = rowsum(dO * O): the gradient of softmax reads each row once",
          .forward = step02::forward,
          .traffic = step02::traffic,
          .workspace = step05_delta::workspace,
          .forward_of = "02 registers",
          .backward_parent = "05 standard",
          .backward = step05_delta::backward,
          .backward_traffic = step05_delta::backward_traffic};
}

inline fa::Variant from_lse() {
  return {.name = "from_lse",
          .idea = "the forward keeps LSE, not P; a kernel makes tiles of P and dS in HBM",
          .forward = step04::forward,
          .traffic = step04::traffic,
          .workspace = step05_from_lse::workspace,
          .writes_lse = true,
          .forward_of = "04 fused",
          .backward_parent = "05 delta",
          .backward = step05_from_lse::backward,
          .backward_traffic = step05_from_lse::backward_traffic};
}

inline fa::Variant recompute() {
  return {.name = "recompute",
          .idea = "Algorithm 4: P and dS stay on chip, tile by tile; dQ through HBM",
          .forward = step04::forward,
          .traffic = step04::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "04 fused",
          .backward_parent = "05 from_lse",
          .backward = backward,
          .backward_traffic = backward_traffic};
}

inline fa::Step step() {
  return {.id = "05_recompute_backward",
          .idea = "the backward recomputes P from LSE; beside it the one that stores P",
          .variants = {standard(), delta(), from_lse(), recompute()}};
}

}  // namespace step05
