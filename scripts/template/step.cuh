// @NAME@: its description, for its program, its library and its test.
#pragma once

#include "steps/@NAME@/kernel.cuh"

namespace @NAME@ {

inline fa::Variant kernel() {
  return {.name = "kernel",
          .idea = "one thread per query row",
          .forward = forward,
          .traffic = traffic};
}

inline fa::Step step() {
  return {.id = "@NAME@",
          .idea = "a step of your own",
          .support = {.d = {32, 64}},
          .variants = {kernel()}};
}

}  // namespace @NAME@
