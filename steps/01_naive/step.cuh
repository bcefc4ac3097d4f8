// Step 01: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/01_naive/1_naive.cuh"

namespace step01 {

inline fa::Variant naive() {
  return {.name = "naive",
          .idea = "one thread per output, nothing shared",
          .forward = forward,
          .traffic = traffic,
          .workspace = workspace};
}

inline fa::Step step() {
  return {.id = "01_naive", .idea = "three kernels; S and P in HBM", .variants = {naive()}};
}

}  // namespace step01
