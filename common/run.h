/// \file
/// Runs one variant of a step on host data: allocation with guard bands, NaN-filled outputs, copies.
/// step_main() and the tests share it, so both see a step through the same eyes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/inputs.h"
#include "common/step.h"

namespace fa {

/// What came back from the device.
struct Outputs {
  std::vector<float> O;             ///< [B, H, N, d]
  std::vector<float> LSE;           ///< [B, H, N], empty when the variant writes none
  std::vector<float> dQ;            ///< [B, H, N, d], the gradients empty without a backward
  std::vector<float> dK;            ///< [B, Hkv, Nk, d]
  std::vector<float> dV;            ///< [B, Hkv, Nk, d]
  std::vector<std::string> damage;  ///< "guard band behind O was overwritten", one sentence each
};

/// Inputs, outputs and workspace of one problem on the device, under their names.
///
/// Every output starts as NaN (all bits set) and has a guard band of 4 KiB behind it.
class Session {
 public:
  /// Allocates and uploads. Needs `dO` in the inputs when the variant has a backward.
  /// \throws ResourceError "needs 68.7 GB of scratch, 24.0 GB free" before anything is allocated.
  Session(const Problem&, const Inputs&, const Variant&);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void forward();
  void backward();
  /// Makes all outputs NaN again and rewrites the guard bands.
  void poison();
  /// Waits, copies the outputs back and looks at the guard bands.
  Outputs download();
  size_t workspace_bytes() const;

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
MemoryNeed memory_need(const Problem&, const Variant&);

/// One forward (and backward, where there is one) from fresh memory. What the tests call.
Outputs run(const Variant&, const Problem&, const Inputs&);

}  // namespace fa
