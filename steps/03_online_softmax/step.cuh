// Step 03: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/02_tiled/2_registers.cuh"
#include "steps/03_online_softmax/2_naive.cuh"
#include "steps/03_online_softmax/3_online.cuh"
#include "steps/03_online_softmax/4_one_pass.cuh"

namespace step03 {

inline fa::Variant naive() {
  return {.name = "naive",
          .idea = "02 with a softmax that subtracts no maximum",
          .parent = "02 registers",
          .forward = step03_naive::forward,
          .traffic = step03_naive::traffic,
          .workspace = step02::workspace};
}

inline fa::Variant safe() {
  return {.name = "safe",
          .idea = "02 with a softmax that finds the maximum first",
          .parent = "02 registers",
          .forward = step02::forward,
          .traffic = step03_naive::safe_traffic,
          .workspace = step02::workspace};
}

inline fa::Variant online() {
  return {.name = "online",
          .idea = "02 with a softmax that finds maximum and sum in one pass",
          .parent = "02 registers",
          .forward = step03_online::forward,
          .traffic = step03_online::traffic,
          .workspace = step02::workspace};
}

inline fa::Variant one_pass() {
  return {.name = "one_pass",
          .idea = "softmax and P V in one pass over S",
          .parent = "02 registers",
          .forward = forward,
          .traffic = traffic,
          .workspace = workspace};
}

inline fa::Step step() {
  return {.id = "03_online_softmax",
          .idea = "running m and l: P is never stored, S stays in HBM",
          .parents = {{.id = "02 registers", .traffic = step02::traffic}},
          .variants = {naive(), safe(), online(), one_pass()}};
}

}  // namespace step03
