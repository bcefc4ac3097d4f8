/// \file
/// All results of one run of a step, as one screen of text and as JSON.
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

/// Version of the JSON of to_json(), which docs/json.md describes.
constexpr int kReportSchema = 1;

/// The shortest time in which a machine can do bytes and arithmetic: the roofline.
struct Bound {
  double memory_ms = 0;      ///< HBM bytes at the machine's bandwidth
  double arithmetic_ms = 0;  ///< executed FLOPs at the machine's rate for the element type
  double ms() const { return memory_ms > arithmetic_ms ? memory_ms : arithmetic_ms; }
};
/// \returns nothing when a required rate is unknown (0); without FLOPs their rate is not required.
std::optional<Bound> roofline(double hbm_bytes, double flops, double bytes_per_s,
                              double flops_per_s);

/// What the parent step predicts for the same problem.
struct ParentTraffic {
  std::string id;
  Bytes requested;
};

/// A part of a run that is counted and timed separately: the prepare, the forward or the backward.
struct Pass {
  std::string name;  ///< "prepare", "forward", "backward"
  Prediction predicted;
  bool predicts = true;              ///< false: the step has no formula, or --no-predict
  Counts seen;                       ///< empty when the run ended before the count
  std::optional<Timing> time;        ///< GPU only
  std::optional<Bound> bound;        ///< simulator: of the modelled GPU; GPU: of the measured roofs
  std::optional<Estimate> estimate;  ///< simulator; GPU: where a report gave one
  std::optional<double> host_ms;     ///< simulator only: duration of the simulation
  double flops = 0;                  ///< by FlashAttention's convention; 0 of a prepare
  std::optional<ParentTraffic> parent;  ///< absent: no parent, or it lacks this problem

  bool counted() const { return seen.source == "counted"; }
  bool measured() const { return seen.source == "measured"; }
  /// Are predicted and counted bytes equal in every buffer, and per element? Nothing without both.
  std::optional<bool> prediction_ok() const;
  /// FLOPs of the tensor cores as measured, else as predicted, else `flops`.
  uint64_t flops_executed() const;
  /// Predicted HBM bytes, each operand once, over the measured time; nothing without both.
  std::optional<double> bytes_per_s() const;
};

/// All results of one run.
struct RunReport {
  std::string step;          ///< "02_tiled"
  std::string idea;          ///< of the step
  std::string variant;       ///< "shared"
  size_t variant_index = 0;  ///< its place in reading order
  std::string variant_idea;
  bool predicted_only = false;  ///< nothing ran
  std::string forward_of;       ///< "04 fused": the owner of the forward; empty: this variant
  Device device;
  Problem problem;
  std::string input;       ///< "real", "normal", "outliers" or "files"
  std::string input_note;  ///< how the input was adapted, or empty
  std::string advice;      ///< Variant::advice for the problem
  std::string cache;       ///< Extras::cache for the problem
  uint64_t seed = 0;
  GpuSpec model;                ///< the GPU that the simulator models
  uint64_t estimate_heads = 0;  ///< B * H for which times are estimated
  CheckResult check;
  MemoryNeed memory;
  std::optional<Roofs> roofs;
  std::optional<Pass> prepare;
  Pass forward;
  std::optional<Pass> backward;
  bool analysed = false;              ///< races and uninitialised reads were searched for
  std::vector<std::string> findings;  ///< KernelStopped::sentences(), or empty
  /// Errors after the last run that followed the checked one; "" if right, nothing without one.
  std::optional<std::string> again;

  std::optional<RanksReport> on_ranks;  ///< nothing where the program was started alone

  /// The existing passes, in execution order.
  std::vector<const Pass*> passes() const;
  /// No finding, every tensor right, also in the last run, and exact predictions where counted.
  bool ok() const;
  /// The same except for tensors that are not checkable.
  bool not_checkable() const;
  /// Workspace of the naive step for S and P: 2*B*H*N*Nk elements.
  uint64_t naive_workspace_bytes() const;

 private:
  bool not_wrong() const;  ///< apart from the tensors
};

/// How much text() prints, and for whom.
struct Screen {
  bool details = false;  ///< everything instead of one screen
  bool colour = false;   ///< for a terminal
};
/// Lines of kScreenWidth columns; the first one is the answer.
std::string text(const RunReport&, const Screen& = {});
/// The contract with scripts: what is absent is null, and so is a NaN.
nlohmann::ordered_json to_json(const RunReport&);
/// {"median_ms", "p10_ms", "p90_ms", "iters"}.
nlohmann::ordered_json to_json(const Timing&);
/// Takes the estimated times of a simulator's report for a run on a GPU.
/// \throws UsageError when it is of another step, variant or problem, or has none.
void read_estimates(const std::string& path, RunReport&);

}  // namespace fa
