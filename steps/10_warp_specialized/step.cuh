// Step 10: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/09_tma_wgmma/2_wgmma.cuh"
#include "steps/10_warp_specialized/1_producer.cuh"
#include "steps/10_warp_specialized/2_specialized.cuh"
#include "steps/10_warp_specialized/3_persistent.cuh"
#include "steps/10_warp_specialized/4_scheduled.cuh"
#include "steps/10_warp_specialized/beyond/wide.cuh"

namespace step10 {

inline fa::Variant producer() {
  return {.name = "producer",
          .idea = "one warpgroup only copies; setmaxnreg gives its registers to the others",
          .parent = "09 wgmma",
          .support = support(),
          .forward = step10_producer::forward,
          .traffic = step10_producer::traffic,
          .writes_lse = true};
}

inline fa::Variant specialized() {
  return {.name = "specialized",
          .idea = "products overlap the softmax, consumers alternate: FlashAttention-3",
          .parent = "10 producer",
          .support = support(),
          .forward = step10_specialized::forward<false>,
          .traffic = step10_specialized::traffic,
          .writes_lse = true};
}

inline fa::Variant lazy() {
  return {.name = "lazy",
          .idea = "lazy rescale: the maximum moves only when P would exceed 2^8",
          .parent = "10 specialized",
          .support = support(),
          .forward = step10_specialized::forward<true>,
          .traffic = step10_specialized::traffic,
          .writes_lse = true};
}

inline fa::Variant persistent() {
  return {.name = "persistent",
          .idea = "as many blocks as SMs; their work tiles overlap",
          .parent = "10 lazy",
          .support = support(),
          .forward = step10_persistent::forward,
          .traffic = step10_persistent::traffic,
          .writes_lse = true};
}

inline fa::Variant scheduled() {
  return {.name = "scheduled",
          .idea = "causal: a tile scheduler, and tiles of keys that a warpgroup skips",
          .parent = "10 persistent",
          .forward = step10_wide::forward,
          .traffic = step10_wide::traffic,
          .workspace = workspace,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "10_warp_specialized",
          .idea = "FlashAttention-3 and beyond: roles, lazy rescale, overlapping work tiles",
          .support = step10_wide::support(),
          .parents = {{.id = "09 wgmma", .traffic = step09::traffic, .support = step09::support()}},
          .variants = {producer(), specialized(), lazy(), persistent(), scheduled()}};
}

}  // namespace step10
