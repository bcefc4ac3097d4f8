// Step 14: its description, for its program, library, tests and exercises.
#pragma once

#include "common/harness/ranks.h"
#include "common/harness/step_options.h"
#include "steps/14_ring/3_backward.cuh"
#include "steps/14_ring/4_heads.cuh"
#include "steps/14_ring/beyond/ampere.cuh"
#include "steps/14_ring/beyond/cuda_cores.cuh"
#ifndef FA_NO_WGMMA
#include "steps/10_warp_specialized/beyond/wide.cuh"  // traffic of 10 scheduled
#include "steps/14_ring/beyond/fused.cuh"
#include "steps/14_ring/hopper.cuh"
#endif

namespace step14 {

// A sequence attends to itself: there are as many keys as queries.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true}; }

// With one rank it is step 06.
inline fa::Variant fp32() {
  return {.name = "fp32",
          .idea = "plain with the kernels of 06",
          .support = fa::Support{.d = {64, 128}},
          .forward = step06_registers::forward,
          .traffic = step06_registers::traffic,
          .workspace = step06_backward::workspace,
          .writes_lse = true,
          .forward_of = "06 registers",
          .backward_parent = "06 backward",
          .backward = step06_backward::backward,
          .backward_traffic = step06_backward::backward_traffic,
          .extras = {.sharding = fp32_ring()}};
}

// With one rank it is steps 07 and 08.
inline fa::Variant mma() {
  return {.name = "mma",
          .idea = "zigzag with the kernels of 07 and 08",
          .forward = step07::forward,
          .traffic = step07::traffic,
          .workspace = step08::workspace,
          .writes_lse = true,
          .forward_of = "07 lazy",
          .backward_parent = "08 atomics",
          .backward = step08::backward,
          .backward_traffic = step08::backward_traffic,
          .extras = {.sharding = ring<Ampere, Cut::zigzag>()}};
}

#ifndef FA_NO_WGMMA  // else nvcc compiles for GPUs that are not Hopper's
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {  // of one rank alone
  std::vector<fa::Scratch> all = step10::workspace(p);
  for (const fa::Scratch& s : step11_columns::workspace(p)) all.push_back(s);
  return all;
}

// With one rank it is steps 10 and 11.
inline fa::Variant plain() {
  return {.name = "plain",
          .idea = "a ring; each rank has one chunk of the rows",
          .newer = true,
          .forward = step10::forward,
          .traffic = step10_wide::traffic,
          .workspace = workspace,
          .writes_lse = true,
          .forward_of = "10 scheduled",
          .backward_parent = "11 columns",
          .backward = step11_columns::backward,
          .backward_traffic = step11_columns::backward_traffic,
          .extras = {.sharding = ring<Hopper, Cut::plain>()}};
}

inline fa::Variant heads() {
  fa::Variant v = plain();
  v.name = "heads", v.idea = "no ring: each rank has all rows of some heads";
  v.extras.sharding = heads_to_ranks<Hopper>();
  return v;
}

inline fa::Variant zigzag() {
  fa::Variant v = plain();
  v.name = "zigzag", v.idea = "each rank has an early and a late chunk: a causal mask is balanced";
  v.extras.sharding = ring<Hopper, Cut::zigzag>();
  return v;
}

inline fa::Variant fused() {
  fa::Variant v = zigzag();
  v.name = "fused", v.idea = "a hop's O is merged in the epilogue; rows and keys in place";
  v.extras.sharding = fused_ring();
  return v;
}
#endif

inline fa::Step step() {
  fa::Step s{
      .id = "14_ring",
      .idea = "one problem on several GPUs: K and V travel round a ring of ranks",
      .support = support(),
      .parents = {{.id = "06 backward", .backward_traffic = step06_backward::backward_traffic},
                  {.id = "08 atomics",
                   .backward_traffic = step08::backward_traffic,
                   .support = step07::support()}},
      .options = fa::rank_options()};
  s.variants = {fp32(), mma()};
#ifndef FA_NO_WGMMA
  s.parents.push_back({.id = "11 columns",
                       .backward_traffic = step11_columns::backward_traffic,
                       .support = step11::support()});
  for (const fa::Variant& v : {plain(), heads(), zigzag(), fused()}) s.variants.push_back(v);
#endif
  return s;
}

}  // namespace step14
