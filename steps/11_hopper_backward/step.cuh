// Step 11: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/6_roles.cuh"
#include "steps/10_warp_specialized/beyond/wide.cuh"
#include "steps/11_hopper_backward/1_wgmma.cuh"
#include "steps/11_hopper_backward/2_late.cuh"
#include "steps/11_hopper_backward/3_columns.cuh"
#include "steps/11_hopper_backward/beyond/deterministic.cuh"
#include "steps/11_hopper_backward/beyond/fastest.cuh"

namespace step11 {

// The workspaces of the forward and the backward.
template <std::vector<fa::Scratch> backward(const fa::Problem&)>
std::vector<fa::Scratch> both(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step10::workspace(p);
  for (const fa::Scratch& s : backward(p)) all.push_back(s);
  return all;
}

// The part that all variants share: the forward is step 10's.
inline fa::Variant over_step_10(const char* name, const char* idea) {
  return {.name = name,
          .idea = idea,
          .support = support(),
          .forward = step10_wide::forward,
          .traffic = step10_wide::traffic,
          .writes_lse = true,
          .forward_of = "10 scheduled"};
}

// --- variants -----------------------------------------------------------------------------------

inline fa::Variant wgmma() {
  fa::Variant v = over_step_10("wgmma", "step 08's loop with TMA and wgmma");
  v.workspace = both<step11_wgmma::workspace>;
  v.backward_parent = "08 roles";
  v.backward = step11_wgmma::backward;
  v.backward_traffic = step11_wgmma::backward_traffic;
  return v;
}

inline fa::Variant late() {
  fa::Variant v = over_step_10("late", "products in flight during P; dQ one tile late");
  v.workspace = both<step11_wgmma::workspace>;
  v.backward_parent = "11 wgmma";
  v.backward = step11_late::backward;
  v.backward_traffic = step11_wgmma::backward_traffic;
  return v;
}

inline fa::Variant columns() {
  fa::Variant v =
      over_step_10("columns", "a third warpgroup for dQ; the products subtract LSE and delta");
  v.workspace = both<step11_columns::workspace>;
  v.backward_parent = "11 late";
  v.backward = step11_columns::backward;
  v.backward_traffic = step11_columns::backward_traffic;
  return v;
}

inline fa::Variant deterministic() {
  fa::Variant v = over_step_10("deterministic", "columns, whose additions to dQ do not round");
  v.workspace = both<step11_deterministic::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_deterministic::backward;
  v.backward_traffic = step11_deterministic::backward_traffic;
  return v;
}

inline fa::Variant persistent() {
  fa::Variant v = over_step_10("persistent", "d = 64: one block per SM, whose walks overlap");
  v.workspace = both<step11_persistent::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_persistent::backward;
  v.backward_traffic = step11_persistent::backward_traffic;
  return v;
}

inline fa::Variant places() {
  fa::Variant v =
      over_step_10("places", "d = 128: dQ's sums of the heads in flight stay in the L2");
  v.support = step11_places::support();
  v.workspace = both<step11_places::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_places::backward;
  v.backward_traffic = step11_places::backward_traffic;
  return v;
}

inline fa::Variant paired() {
  fa::Variant v = over_step_10("paired", "d = 256: two blocks share Q, dO and dQ");
  v.support = step11_paired::support();
  v.workspace = both<step11_columns::workspace>;
  v.backward = step11_paired::backward;
  v.backward_traffic = step11_paired::backward_traffic;
  return v;
}

inline fa::Variant direct() {
  fa::Variant v = over_step_10("direct", "the fastest by size; causal: rows that need no sums");
  v.support = step11_fastest::support();
  v.workspace = both<step11_fastest::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_fastest::backward;
  v.backward_traffic = step11_fastest::backward_traffic;
  return v;
}

inline fa::Step step() {
  return {.id = "11_hopper_backward",
          .idea = "the backward on Hopper: TMA, wgmma, and a warpgroup for dQ",
          .support = step10_wide::support(),
          .parents = {{.id = "08 roles",
                       .backward_traffic = step08::backward_traffic,
                       .support = step07::support()}},
          .variants = {wgmma(), late(), columns(), deterministic(), persistent(), places(),
                       paired(), direct()}};
}

}  // namespace step11
