/// \file
/// Everything that is known about one run of a step, as one screen of text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/counts/backend.h"
#include "common/counts/counts.h"
#include "common/counts/estimate.h"
#include "common/counts/gpus.h"
#include "common/counts/json.h"
#include "common/harness/check.h"
#include "common/harness/ranks_report.h"
#include "common/harness/run.h"
#include "common/harness/step.h"

namespace fa {

/// Version of the JSON of to_json(); docs/json.md describes it.
constexpr int kReportSchema = 1;

/// The least time that a machine needs for bytes and arithmetic: the roofline.
struct Bound {
  double memory_ms = 0;      ///< HBM bytes at the machine's bandwidth
  double arithmetic_ms = 0;  ///< executed FLOPs at the machine's rate for the element type
  double ms() const { return memory_ms > arithmetic_ms ? memory_ms : arithmetic_ms; }
};
/// \returns nothing when a rate that is needed is unknown (0): without FLOPs theirs is not.
std::optional<Bound> roofline(double hbm_bytes, double flops, double bytes_per_s,
                              double flops_per_s);

/// What the parent step predicts for the same problem.
struct ParentTraffic {
  std::string id;
  Bytes requested;
};

/// One part of a run that is counted and timed by itself: the prepare, the forward or the backward.
struct Pass {
  std::string name;  ///< "prepare", "forward", "backward"
  Prediction predicted;
  bool predicts = true;              ///< false: the step has no formula, or none is wanted
  Counts seen;                       ///< empty when the run ended before it was counted
  std::optional<Timing> time;        ///< GPU only
  std::optional<Bound> bound;        ///< simulator: of the modelled GPU; GPU: of the measured roofs
  std::optional<Estimate> estimate;  ///< simulator; GPU: where one was given
  std::optional<double> host_ms;     ///< simulator only: how long the simulation took
  double flops = 0;                  ///< by FlashAttention's convention; 0 of a prepare
  std::optional<ParentTraffic> parent;  ///< absent: no parent, or it does not do this problem

  bool counted() const { return seen.source == "counted"; }
  bool measured() const { return seen.source == "measured"; }
  /// Predicted and counted bytes are equal in every buffer, and so are the accesses per element;
  /// nothing when nothing was counted or predicted.
  std::optional<bool> prediction_ok() const;
  /// What the tensor cores were seen to do, else what the step predicts, else `flops`.
  uint64_t flops_executed() const;
  /// The predicted HBM bytes, each operand once, in the measured time; nothing without both.
  std::optional<double> bytes_per_s() const;
};

/// Everything known about one run.
struct RunReport {
  std::string step;          ///< "02_tiled"
  std::string idea;          ///< of the step
  std::string variant;       ///< "shared"
  size_t variant_index = 0;  ///< its place in the order of reading
  std::string variant_idea;
  bool predicted_only = false;  ///< nothing ran
  std::string forward_of;       ///< "04 fused": whose forward it is; empty: the variant's own
  Device device;
  Problem problem;
  std::string input;       ///< "real", "normal", "outliers" or "files"
  std::string input_note;  ///< what was done to the input, or empty
  std::string advice;      ///< Variant::advice of the problem
  uint64_t seed = 0;
  GpuSpec model;                ///< the GPU that the simulator models
  uint64_t estimate_heads = 0;  ///< for which the times are estimated; B * H
  CheckResult check;
  MemoryNeed memory;
  std::optional<Roofs> roofs;
  std::optional<Pass> prepare;
  Pass forward;
  std::optional<Pass> backward;
  bool analysed = false;              ///< races and uninitialised reads were looked for
  std::vector<std::string> findings;  ///< KernelStopped::sentences(), or empty
  /// What is wrong after the last of the runs that followed the checked one (on a GPU the timed
  /// ones); "" when it is right, nothing when none followed.
  std::optional<std::string> again;

  std::optional<RanksReport> on_ranks;  ///< nothing where the program was started alone

  /// Those that there are, in the order in which they run.
  std::vector<const Pass*> passes() const;
  /// No finding, every tensor right, in the last run too, and predictions exact where they were
  /// counted: of the kernels' bytes, and of those that ranks sent.
  bool ok() const;
  /// The same but for tensors that are not checkable.
  bool not_checkable() const;
  /// Workspace that the naive step needs for S and P: 2*B*H*N*Nk elements.
  uint64_t naive_workspace_bytes() const;

 private:
  bool not_wrong() const;  ///< but for the tensors
};

/// How much text() prints, and for whom.
struct Screen {
  bool details = false;  ///< all that is known, and not one screen of it
  bool colour = false;   ///< of a terminal
};
/// Lines of kScreenWidth columns, the answer in the first one.
std::string text(const RunReport&, const Screen& = {});
/// The contract that scripts read: absent is null, and so is a NaN.
nlohmann::ordered_json to_json(const RunReport&);
/// {"median_ms", "p10_ms", "p90_ms", "iters"}.
nlohmann::ordered_json to_json(const Timing&);
/// Takes over the estimated times of a simulator's report, for a run on a GPU.
/// \throws UsageError when it is of another step, variant or problem, or holds none.
void read_estimates(const std::string& path, RunReport&);

}  // namespace fa
