/// \file
/// Is another tool watching this program?
#pragma once

#include <cstdlib>

namespace fa::gpu {

/// True when a tool such as compute-sanitizer or ncu announces itself in the environment, or with
/// FLASH_STEPS_UNDER_TOOL set. Then nothing is measured here: two readers of the hardware's
/// counters exclude each other, an instrumented kernel's time says nothing, and the yardsticks of
/// measured_roofs() would take minutes.
inline bool under_tool() {
  return std::getenv("FLASH_STEPS_UNDER_TOOL") || std::getenv("CUDA_INJECTION64_PATH");
}

}  // namespace fa::gpu
