// Step 15: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/15_masks/2_window_backward.cuh"

namespace step15 {

inline fa::Variant window() {
  return {.name = "window",
          .idea = "a sliding window: the first and the last tile by arithmetic",
          .parent = "07 lazy",
          .support = step15_window::support(),
          .forward = step15_window::forward,
          .traffic = step15_window::traffic,
          .workspace = step08::workspace,
          .writes_lse = true,
          .backward_parent = "08 atomics",
          .backward = step15_backward::backward,
          .backward_traffic = step08::backward_traffic};
}

inline fa::Step step() {
  return {.id = "15_masks",
          .idea = "a mask is a list of tiles to visit, and a test in those that it cuts",
          .support = step15_window::support(),
          .parents = {{.id = "07 lazy", .traffic = step07::traffic, .support = step07::support()},
                      {.id = "08 atomics",
                       .backward_traffic = step08::backward_traffic,
                       .support = step07::support()}},
          .variants = {window()}};
}

}  // namespace step15
