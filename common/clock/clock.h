/// \file
/// From counts to time: how long a run would take on a GPU. Knows no step.
/// docs/clock.md explains the model and what it is worth.
#pragma once

#include <optional>
#include <string>

#include "common/harness/estimate.h"
#include "common/harness/gpus.h"
#include "common/harness/traffic.h"

namespace fa {

/// How many instructions a kernel executes, of each kind, for one that the simulator counts.
struct InstructionMix {
  double all = 1, fma = 0, alu = 0, special = 0;
};
/// Of the kernel of this name, from common/data/instructions.json, or of the same one with tiles of
/// another size, for the same d; nothing where neither is listed.
/// \throws UsageError when the file is damaged.
std::optional<InstructionMix> instruction_mix(const std::string& kernel);

/// \param counted of the simulator, with its blocks' work
/// \param times so many problems like the counted one run in the same launches
/// \returns nothing when no work was counted.
std::optional<Estimate> estimate(const Counts& counted, const GpuSpec&, double times = 1);

}  // namespace fa
