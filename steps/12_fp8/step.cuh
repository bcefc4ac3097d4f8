// Step 12: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/10_warp_specialized/beyond/wide.cuh"
#include "steps/12_fp8/2_tensor.cuh"
#include "steps/12_fp8/4_blocks.cuh"
#include "steps/12_fp8/beyond/late.cuh"

namespace step12 {

// Where quantising takes longer than 8 bits save, measured on an H100 for d = 64 and 128, N = Nk
// and H = Hkv. In general the ratio of scores to quantised rows decides, three per query there.
inline std::string advice(const fa::Problem& p) {
  const double queries = double(p.H) * p.N, rows = queries + 2. * p.Hkv * p.Nk;
  const double least = 524288, work = 3 * queries * p.Nk / rows * p.d / (p.causal ? 2 : 1);
  if (p.d == 256 || work >= least) return "";
  const int keys = int(least) / p.d * (p.causal ? 2 : 1);
  return "use 10 scheduled here, or quantise where Q, K and V are written: 8 bits save more time "
         "than the prepare takes from " +
         std::to_string(keys) + " queries and keys on";
}

inline fa::Variant tensor() {
  return {.name = "tensor",
          .idea = "e4m3, one scale per tensor",
          .parent = "10 scheduled",
          .support = step12_tensor::support(),
          .prepare = prepare<false>,
          .prepare_traffic = prepare_traffic<false>,
          .forward = step12_tensor::forward,
          .fp8 = true,
          .traffic = step12_tensor::traffic,
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
  v.prepare = prepare_blocks<false>, v.prepare_traffic = blocks_traffic;
  v.workspace = workspace_blocks;
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
  v.parent = "12 rotated", v.support = step12_late::support();
  v.prepare = step12_late::prepare, v.prepare_traffic = step12_late::prepare_traffic;
  v.forward = step12_late::forward, v.traffic = step12_late::traffic;
  v.workspace = step12_late::workspace;
  return v;
}

inline fa::Step step() {
  return {.id = "12_fp8",
          .idea = "e4m3: twice the tensor cores' rate, and what limits its error",
          .support = step12_late::support(),
          .parents = {{.id = "10 scheduled",
                       .traffic = step10_wide::traffic,
                       .support = step10_wide::support()}},
          .variants = {tensor(), heads(), centred(), blocks(), rotated(), late()}};
}

}  // namespace step12
