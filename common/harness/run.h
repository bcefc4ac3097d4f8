/// \file
/// Runs one variant of a step on host data: allocation with guard bands, NaN-filled outputs,
/// copies. step_main() and the tests share it, so both see a step through the same eyes.
#pragma once

#include <memory>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/step.h"

namespace fa {

/// Whether an element of Outputs still has all bits set, as before the run. The NaN that arithmetic
/// makes has other bits (on x86, unless an operand had these).
bool never_written(float x);

/// Inputs, outputs and workspace of one problem on the device, under their names.
///
/// Outputs and workspace start as NaN (all bits set). On a GPU each has a guard band of 4 KiB
/// behind it; in the simulator none, because there every access past the end is found when it
/// happens.
class Session {
 public:
  /// Allocates and uploads. Needs `dO` in the inputs when the variant has a backward. Rows of K and
  /// V that hold no key (behind CacheFormat::lengths, in what is left of a page) are NaN, and as
  /// never written in the simulator.
  /// \throws ResourceError "needs 68.7 GB of workspace, 24.0 GB free" before anything is allocated.
  Session(const Problem&, const Inputs&, const Variant&);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Only where the variant has one; the forward needs it once before.
  void prepare();
  void forward();
  void backward();
  /// Makes all outputs NaN again and rewrites the guard bands.
  void poison();
  /// Makes the outputs of one direction NaN again and leaves the workspace alone: the next run
  /// finds there what the last one left.
  void forget_forward();
  void forget_backward();
  /// Makes the workspace garbage again, except for what is zeroed (Scratch::zeroed): all that a
  /// prepare may write, so that its next run must write it.
  void forget_prepare();
  /// Some workspace lives from run to run (Scratch::zeroed): a second run may differ from a first.
  bool keeps_state() const;
  /// Waits, copies the outputs back and looks at the guard bands.
  Outputs download();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The device bytes that a Session of this problem needs.
struct MemoryNeed {
  size_t inputs = 0;
  size_t outputs = 0;
  size_t workspace = 0;
  size_t total() const { return inputs + outputs + workspace; }
};
/// Without allocating anything.
/// \param table of a paged cache; empty: shuffled_table(), whose pool has no page too many
MemoryNeed memory_need(const Problem&, const Variant&, const std::vector<int>& table = {});
/// \throws ResourceError "needs 68.7 GB of workspace, 24.0 GB free: ..." when it does not fit.
/// Session calls it first; a program may ask before it makes the inputs.
void require_memory(const MemoryNeed&);

/// One forward (a prepare before it and a backward behind it, where there are any) from fresh
/// memory. What the tests call.
Outputs run(const Variant&, const Problem&, const Inputs&);

}  // namespace fa
