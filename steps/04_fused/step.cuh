// Step 04: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/03_online_softmax/4_one_pass.cuh"
#include "steps/04_fused/1_tile.cuh"
#include "steps/04_fused/2_fused.cuh"

namespace step04 {

inline fa::Variant tile() {
  return {.name = "tile",
          .idea = "03 with tiles of 64 keys, their scores in registers",
          .parent = "03 one_pass",
          .support = fa::Support{},  // its tiles have one size: no --smem
          .forward = step04_tile::forward,
          .traffic = step04_tile::traffic,
          .workspace = step04_tile::workspace};
}

inline fa::Variant fused() {
  return {.name = "fused",
          .idea = "Algorithm 1 as printed: K/V tiles outside, Q tiles inside",
          .parent = "03 one_pass",
          .forward = forward,
          .traffic = traffic,
          .workspace = workspace,
          .writes_lse = true};
}

inline fa::Step step() {
  return {.id = "04_fused",
          .idea = "FlashAttention-1: S and P stay on chip; O, m and l go through HBM",
          .support = {.smem = true},
          .parents = {{.id = "03 one_pass", .traffic = step03::traffic}},
          .variants = {tile(), fused()}};
}

}  // namespace step04
