// Step 09: what it is, for its program, its library, its tests and its exercises.
#pragma once

#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/09_tma_wgmma/1_wgmma.cuh"

namespace step09 {

inline fa::Variant wgmma() {
  return {.name = "wgmma",
          .idea = "2 warpgroups of 64 rows, 64 keys a tile; one thread orders the copies",
          .parent = {"07 lazy", step07::traffic, step07::support()},
          .forward = forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "09_tma_wgmma",
          .idea = "tensor maps, mbarriers, wgmma: whole tiles instead of fragments",
          .support = support(),
          .needs = "sm_90a",
          .variants = {wgmma()}};
}

}  // namespace step09
