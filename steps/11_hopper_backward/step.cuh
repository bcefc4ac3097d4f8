// Step 11: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/08_tensor_core_backward/7_roles.cuh"
#include "steps/10_warp_specialized/6_wide.cuh"
#include "steps/11_hopper_backward/11_persistent.cuh"
#include "steps/11_hopper_backward/13_places.cuh"
#include "steps/11_hopper_backward/14_resident.cuh"
#include "steps/11_hopper_backward/15_wide.cuh"
#include "steps/11_hopper_backward/16_paired.cuh"
#include "steps/11_hopper_backward/17_direct.cuh"
#include "steps/11_hopper_backward/3_wgmma.cuh"
#include "steps/11_hopper_backward/4_late.cuh"
#include "steps/11_hopper_backward/5_apart.cuh"
#include "steps/11_hopper_backward/7_columns.cuh"
#include "steps/11_hopper_backward/9_deterministic.cuh"

namespace step11 {

// The forward's workspace and the backward's.
template <std::vector<fa::Scratch> backward(const fa::Problem&)>
std::vector<fa::Scratch> both(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step10::workspace(p);
  for (const fa::Scratch& s : backward(p)) all.push_back(s);
  return all;
}

// What all variants share: the forward is step 10's.
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
  v.workspace = both<workspace>;
  v.backward_parent = "08 roles";
  v.backward = step11_wgmma::backward;
  v.backward_traffic = backward_traffic;
  return v;
}

inline fa::Variant late() {
  fa::Variant v = over_step_10("late", "products in flight during P; dQ one tile late");
  v.workspace = both<workspace>;
  v.backward_parent = "11 wgmma";
  v.backward = step11_late::backward;
  v.backward_traffic = backward_traffic;
  return v;
}

inline fa::Variant apart() {
  fa::Variant v = over_step_10("apart", "a third warpgroup multiplies dQ, adds it, and copies");
  v.workspace = both<workspace>;
  v.backward_parent = "11 late";
  v.backward = step11_apart::backward;
  v.backward_traffic = step11_apart::backward_traffic;
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

inline fa::Variant columns() {
  fa::Variant v = over_step_10("columns", "the products subtract LSE and delta");
  v.workspace = both<step11_columns::workspace>;
  v.backward_parent = "11 apart";
  v.backward = step11_columns::backward;
  v.backward_traffic = step11_columns::backward_traffic;
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
  fa::Variant v = over_step_10("places", "dQ's sums of the heads in flight stay in the L2");
  v.workspace = both<step11_places::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_places::backward;
  v.backward_traffic = step11_places::backward_traffic;
  return v;
}

inline fa::Variant resident() {
  fa::Variant v =
      over_step_10("resident", "the best by size; of many short heads dQ's sums stay in the L2");
  v.workspace = both<step11_resident::workspace>;
  v.backward_parent = "11 persistent";
  v.backward = step11_resident::backward;
  v.backward_traffic = step11_resident::backward_traffic;
  return v;
}

inline fa::Variant direct() {
  fa::Variant v = over_step_10("direct", "resident; causal, d = 128: the first rows need no sums");
  v.workspace = both<step11_resident::workspace>;
  v.backward_parent = "11 columns";
  v.backward = step11_direct::backward;
  v.backward_traffic = step11_direct::backward_traffic;
  return v;
}

inline fa::Variant wide() {
  fa::Variant v = over_step_10("wide", "d = 256: a warpgroup for dV, one for dK, one for dQ");
  v.support = step11_wide::support();
  v.workspace = both<step11_columns::workspace>;
  v.backward = step11_wide::backward;
  v.backward_traffic = step11_wide::backward_traffic;
  return v;
}

inline fa::Variant paired() {
  fa::Variant v = over_step_10("paired", "d = 256: two blocks share Q, dO and dQ");
  v.support = step11_wide::support();
  v.workspace = both<step11_columns::workspace>;
  v.backward_parent = "11 wide";
  v.backward = step11_paired::backward;
  v.backward_traffic = step11_paired::backward_traffic;
  return v;
}

inline fa::Step step() {
  return {.id = "11_hopper_backward",
          .idea = "the backward on Hopper: TMA, wgmma, and a warpgroup for dQ",
          .support = step10_wide::support(),
          .parents = {{.id = "08 roles",
                       .backward_traffic = step08::backward_traffic,
                       .support = step07::support()}},
          .variants = {wgmma(), late(), apart(), deterministic(), persistent(), places(),
                       resident(), direct(), wide(), paired(), columns()}};
}

}  // namespace step11
