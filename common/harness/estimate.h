/// \file
/// An estimated time: what limits each kernel of a run, and how long the run would take on a GPU.
/// common/clock estimates it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fa {

/// What a kernel keeps busy, or waits for.
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

/// A part's own time, as a share of the kernel's estimated time.
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
  bool arithmetic = true;  ///< false: the kernel's plain arithmetic is not known, and left out
};

/// Heads (batch x heads) for which times are estimated by default: few leave most of a GPU idle.
constexpr uint64_t kFullGpuHeads = 128;

/// One run: its kernels one after the other.
struct Estimate {
  double seconds = 0;
  std::vector<KernelEstimate> kernels;
  std::string gpu;
  bool verified = false;  ///< the project has measured this GPU beside its estimates

  /// The kernel that takes longest; null when none ran.
  const KernelEstimate* longest() const;
  /// What limits the longest kernel.
  Part limit() const;
  /// Does every kernel's estimate hold its arithmetic?
  bool arithmetic() const;
};

/// docs/json.md describes it.
nlohmann::ordered_json to_json(const Estimate&);
/// \throws nlohmann::json::exception when something is missing, or a part is not known.
Estimate estimate_of(const nlohmann::ordered_json&);

}  // namespace fa
