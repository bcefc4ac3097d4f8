/// \file
/// What run_grid() throws when CUDA refuses a launch.
#pragma once

#include <string>

#include "common/dialect/errors.h"

namespace sim {

/// A launch that is refused before any block runs.
struct LaunchRefused : fa::KernelStopped {
  enum class Why { shape, shared_memory, too_many_together } why;
  LaunchRefused(Why w, const std::string& text)
      : KernelStopped(fa::FaultKind::refused, text), why(w) {}
};

}  // namespace sim
