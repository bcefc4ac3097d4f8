/// \file
/// Is another tool watching this program?
#pragma once

#include <cstdlib>

namespace fa::gpu {

/// True when the environment announces a tool such as compute-sanitizer or ncu, or with
/// FLASH_STEPS_UNDER_TOOL set. Then nothing is measured here: two readers of the counters exclude
/// each other, an instrumented time means nothing, and measured_roofs() would take minutes.
inline bool under_tool() {
  return std::getenv("FLASH_STEPS_UNDER_TOOL") || std::getenv("CUDA_INJECTION64_PATH");
}

}  // namespace fa::gpu
