/// \file
/// The last line of a step's main.cu.
#pragma once

#include "common/harness/step.h"

#ifndef FA_NEEDS  // fa_step() of steps/CMakeLists.txt defines it, where a step has NEEDS
#define FA_NEEDS ""
#endif

namespace fa {

/// Registers the step that a main.cu defines in whatever links its object: its program, its library
/// and the tests that name it, so that kernels are compiled once.
class LinkedStep {
 public:
  /// \param needs the architectures of this build: "", "sm_90a", or "sm_90a,sm_80", where the
  /// second is enough for some variants
  explicit LinkedStep(Step, const std::string& needs = FA_NEEDS);
};

}  // namespace fa
