// Step 02: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/01_naive/1_naive.cuh"
#include "steps/02_tiled/1_shared.cuh"
#include "steps/02_tiled/2_registers.cuh"

namespace step02 {

inline fa::Variant shared() {
  return {.name = "shared",
          .idea = "32 x 32 tiles in shared memory",
          .parent = "01 naive",
          .forward = step02_shared::forward,
          .traffic = step02_shared::traffic,
          .workspace = step02_shared::workspace};
}

inline fa::Variant registers() {
  return {.name = "registers",
          .idea = "64 x 64 tiles, 4 x 4 scores per thread in registers",
          .parent = "01 naive",
          .forward = forward,
          .traffic = traffic,
          .workspace = workspace};
}

inline fa::Step step() {
  return {.id = "02_tiled",
          .idea = "shared-memory tiles, then register tiles; S and P stay in HBM",
          .parents = {{.id = "01 naive", .traffic = step01::traffic}},
          .variants = {shared(), registers()}};
}

}  // namespace step02
