// Step 09: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/09_tma_wgmma/1_tma.cuh"
#include "steps/09_tma_wgmma/2_wgmma.cuh"

namespace step09 {

inline fa::Variant tma() {
  return {.name = "tma",
          .idea = "07's tiles, copied by TMA and awaited at mbarriers",
          .parent = "07 lazy",
          .forward = step09_tma::forward,
          .traffic = step09_tma::traffic,
          .writes_lse = true};
}

inline fa::Variant wgmma() {
  return {.name = "wgmma",
          .idea = "products by warpgroups of 64 rows; K and V stay in shared memory",
          .parent = "09 tma",
          .forward = forward,
          .traffic = traffic,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "09_tma_wgmma",
          .idea = "tensor maps, mbarriers, wgmma: whole tiles instead of fragments",
          .support = support(),
          .parents = {{.id = "07 lazy", .traffic = step07::traffic, .support = step07::support()}},
          .variants = {tma(), wgmma()}};
}

}  // namespace step09
