/// \file
/// The steps' own predictions, under names that a student's file cannot replace.
#pragma once

#include <string>

#include "common/harness/step.h"

namespace fa {

/// What a kernel file of a step promises.
struct Spec {
  PredictFn forward = nullptr;
  PredictFn backward = nullptr;  ///< null where there is none
};

/// By the name of its namespace, "step04", or "step03_softmax online".
/// \throws UsageError that lists the known names.
Spec find_spec(const std::string& name);

}  // namespace fa
