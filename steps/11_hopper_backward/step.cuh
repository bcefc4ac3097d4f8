// Step 11: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/08_tensor_core_backward/7_roles.cuh"
#include "steps/10_warp_specialized/5_scheduled.cuh"
#include "steps/11_hopper_backward/2_wgmma.cuh"
#include "steps/11_hopper_backward/3_late.cuh"
#include "steps/11_hopper_backward/4_apart.cuh"
#include "steps/11_hopper_backward/6_columns.cuh"
#include "steps/11_hopper_backward/7_deterministic.cuh"

namespace step11 {

// The forward's workspace and the backward's.
template <std::vector<fa::Scratch> backward(const fa::Problem&)>
std::vector<fa::Scratch> both(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step10::workspace(p);
  for (const fa::Scratch& s : backward(p)) all.push_back(s);
  return all;
}

inline fa::Variant wgmma() {
  return {.name = "wgmma",
          .idea = "step 08's loop by TMA and wgmma",
          .parent = {"10 scheduled", step10::traffic, support()},
          .forward = step10::forward,
          .traffic = step10::traffic,
          .workspace = both<workspace>,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = {"08 roles", step08::backward_traffic, step07::support()},
          .backward = step11_wgmma::backward,
          .backward_traffic = backward_traffic};
}

inline fa::Variant late() {
  return {.name = "late",
          .idea = "products under P and dS; dQ one tile late",
          .parent = {"10 scheduled", step10::traffic, support()},
          .forward = step10::forward,
          .traffic = step10::traffic,
          .workspace = both<workspace>,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = {"11 wgmma", backward_traffic, support()},
          .backward = step11_late::backward,
          .backward_traffic = backward_traffic};
}

inline fa::Variant apart() {
  return {.name = "apart",
          .idea = "a third warpgroup multiplies dQ, adds it, and copies",
          .parent = {"10 scheduled", step10::traffic, support()},
          .forward = step10::forward,
          .traffic = step10::traffic,
          .workspace = both<workspace>,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = {"11 late", backward_traffic, support()},
          .backward = step11_apart::backward,
          .backward_traffic = step11_apart::backward_traffic};
}

inline fa::Variant deterministic() {
  return {.name = "deterministic",
          .idea = "columns with sums of integers: always the same bits",
          .parent = {"10 scheduled", step10::traffic, support()},
          .forward = step10::forward,
          .traffic = step10::traffic,
          .workspace = both<step11_deterministic::workspace>,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = {"11 columns", step11_columns::backward_traffic, support()},
          .backward = step11_deterministic::backward,
          .backward_traffic = step11_deterministic::backward_traffic};
}

inline fa::Variant columns() {
  return {.name = "columns",
          .idea = "LSE and delta as columns of the products",
          .parent = {"10 scheduled", step10::traffic, support()},
          .forward = step10::forward,
          .traffic = step10::traffic,
          .workspace = both<step11_columns::workspace>,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = {"11 apart", step11_apart::backward_traffic, support()},
          .backward = step11_columns::backward,
          .backward_traffic = step11_columns::backward_traffic};
}

inline fa::Step step() {
  return {.id = "11_hopper_backward",
          .idea = "the backward on Hopper: TMA, wgmma, and a warpgroup for dQ",
          .support = support(),
          .needs = "sm_90a",
          .variants = {wgmma(), late(), apart(), deterministic(), columns()}};
}

}  // namespace step11
