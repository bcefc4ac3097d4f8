/// \file
/// Options that few steps have. A step.cuh that needs them includes this file and puts them into
/// Step::options.
#pragma once

#include <vector>

#include "common/harness/step.h"

namespace fa {

/// Step 13's --lengths of batch entries, --page and --table.
std::vector<StepOption> cache_options();

/// Step 15's --lengths of documents, --window, --mask, --tiles, --cap, --alibi and --sinks.
/// \param masks  the names for --mask, with Predicate::n as the default
std::vector<StepOption> mask_options(const std::vector<Predicate>& masks);

/// Step 14's --limit.
std::vector<StepOption> rank_options();

}  // namespace fa
