/// \file
/// From counts to time: what limits each kernel of a run, and how long the run would take on a GPU.
/// Independent of the steps. docs/clock.md explains the model and its accuracy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/counts/counts.h"
#include "common/counts/gpus.h"

namespace fa {

/// A resource that a kernel keeps busy, or waits for.
enum class Part {
  l1,
  shared,
  instructions,
  exponentials,
  tensor,
  atomics,
  l2,
  hbm,
  waiting,
  start
};
/// "L1 lines", "shared memory", ...
const char* name_of(Part);

/// A part's busy time, as a share of the kernel's estimated time.
struct PartShare {
  Part part = Part::start;
  double share = 0;
};

/// One launch.
struct KernelEstimate {
  std::string name;              ///< without namespace and template arguments
  double seconds = 0;            ///< estimated
  std::vector<PartShare> parts;  ///< the largest first
  uint64_t blocks = 0;
  unsigned sms = 0;        ///< that have a block
  bool arithmetic = true;  ///< false: the kernel's plain arithmetic is unknown and left out
};

/// Heads (batch x heads) for which times are estimated by default: few leave most of a GPU idle.
constexpr uint64_t kFullGpuHeads = 128;

/// One run: its kernels one after the other.
struct Estimate {
  double seconds = 0;
  std::vector<KernelEstimate> kernels;
  std::string gpu;
  bool verified = false;  ///< the project has compared measurements of this GPU with its estimates

  /// The kernel that takes longest; null when none ran.
  const KernelEstimate* longest() const;
  /// What limits the longest kernel.
  Part limit() const;
  /// Does every kernel's estimate include its arithmetic?
  bool arithmetic() const;
};

/// The number of instructions that a kernel executes, by kind, for each that the simulator counts.
struct InstructionMix {
  double all = 1, fma = 0, alu = 0, special = 0;
};
/// The mix of the kernel of this name in common/data/instructions.json, or of the same kernel with
/// other tiles for the same d; nothing where neither is listed.
/// \throws UsageError when the file is damaged.
std::optional<InstructionMix> instruction_mix(const std::string& kernel);

/// \param counted by the simulator, with its blocks' work
/// \param times number of problems like the counted one that run in the same launches
/// \returns nothing when no work was counted.
std::optional<Estimate> estimate(const Counts& counted, const GpuSpec&, double times = 1);

}  // namespace fa
