// Step 12: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/10_warp_specialized/6_wide.cuh"
#include "steps/12_fp8/9_late.cuh"

namespace step12 {

inline fa::Variant tensor() {
  return {.name = "tensor",
          .idea = "e4m3, one scale per tensor",
          .parent = "10 scheduled",
          .support = support(),
          .prepare = prepare<false>,
          .prepare_traffic = prepare_traffic<false>,
          .forward = forward,
          .fp8 = true,
          .traffic = traffic<Tiling>,
          .workspace = workspace<false>,
          .writes_lse = true,
          .advice = advice};
}

inline fa::Variant heads() {
  fa::Variant v = tensor();
  v.name = "heads", v.idea = "e4m3, one scale per head";
  v.parent = "12 tensor";
  v.prepare = prepare<true>, v.prepare_traffic = prepare_traffic<true>;
  v.workspace = workspace<true>;
  return v;
}

inline fa::Variant centred() {
  fa::Variant v = heads();
  v.name = "centred", v.idea = "V without its mean, which the epilogue adds to O";
  v.parent = "12 heads";
  v.prepare = prepare_centred, v.prepare_traffic = prepare_centred_traffic;
  v.workspace = workspace_centred;
  return v;
}

inline fa::Variant blocks() {
  fa::Variant v = centred();
  v.name = "blocks", v.idea = "a scale per block of Q and K";
  v.parent = "12 centred";
  v.prepare = prepare_blocks<false>, v.prepare_traffic = blocks_traffic<Tiling>;
  v.workspace = workspace_blocks<Tiling>;
  return v;
}

inline fa::Variant rotated() {
  fa::Variant v = blocks();
  v.name = "rotated", v.idea = "Q and K rotated: outliers are spread over all features";
  v.parent = "12 blocks";
  v.prepare = prepare_blocks<true>;
  return v;
}

inline fa::Variant late() {
  fa::Variant v = rotated();
  v.name = "late", v.idea = "the maximum is checked after the exponentials; smaller key tiles";
  v.parent = "12 rotated", v.support = support_late();
  v.prepare = prepare_late, v.prepare_traffic = prepare_late_traffic;
  v.forward = forward_late, v.traffic = late_traffic;
  v.workspace = workspace_late;
  return v;
}

inline fa::Step step() {
  return {.id = "12_fp8",
          .idea = "e4m3: twice the tensor cores' rate, and what limits its error",
          .support = support_late(),
          .parents = {{.id = "10 scheduled",
                       .traffic = step10_wide::traffic,
                       .support = step10_wide::support()}},
          .variants = {tensor(), heads(), centred(), blocks(), rotated(), late()}};
}

}  // namespace step12
