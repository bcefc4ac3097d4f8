/// \file
/// Runs one variant of a step on host data: allocation with guard bands, NaN-filled outputs,
/// copies. step_main() and the tests share it, so both run a step in the same way.
#pragma once

#include <memory>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/step.h"

namespace fa {

/// Inputs, outputs and workspace of one problem on the device, under their names.
///
/// Outputs and workspace start as NaN (all bits set). On a GPU a guard band of 4 KiB follows each;
/// in the simulator none, because it reports every access past the end at once.
class Session {
 public:
  /// Allocates and uploads. Needs `dO` in the inputs when the variant has a backward. Rows of K and
  /// V without a key (after CacheFormat::lengths, in the rest of a page) are NaN and unwritten.
  /// \throws ResourceError "needs 68.7 GB of workspace, 24.0 GB free" before anything is allocated.
  Session(const Problem&, const Inputs&, const Variant&);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Only for a variant that has one; the forward needs it once before.
  void prepare();
  void forward();
  void backward();
  /// Makes all outputs NaN again and rewrites the guard bands.
  void poison();
  /// Makes the outputs of one direction NaN again; the next run finds the last one's workspace.
  void forget_forward();
  void forget_backward();
  /// Makes the workspace, which a prepare must write, garbage again; zeroed pieces stay.
  void forget_prepare();
  /// Does workspace live from run to run (Scratch::zeroed), so that a second run may differ?
  bool keeps_state() const;
  /// Waits, copies the outputs back and checks the guard bands.
  Outputs download();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The device memory that a Session of this problem needs.
struct MemoryNeed {
  size_t inputs = 0;
  size_t outputs = 0;
  size_t workspace = 0;
  size_t total() const { return inputs + outputs + workspace; }
};
/// Allocates nothing.
/// \param table of a paged cache; empty: shuffled_table(), whose pool has no spare page
MemoryNeed memory_need(const Problem&, const Variant&, const std::vector<int>& table = {});
/// \throws ResourceError "needs 68.7 GB of workspace, 24.0 GB free: ..." when it does not fit.
/// Session calls it first; a program may call it before it makes the inputs.
void require_memory(const MemoryNeed&);

/// One forward from fresh memory, after a prepare and before a backward where there are any.
Outputs run(const Variant&, const Problem&, const Inputs&);

}  // namespace fa
