/// \file
/// The program that checks a student's kernel file: ./scripts/learn compiles it with a generated
/// main() that hands the file's host functions to exercise_main().
#pragma once

#include "common/harness/step.h"

namespace fa {

/// A host function of a student's file, which launches kernels in fp32 or in bf16. A pointer: the
/// generated main() then instantiates nothing.
struct HostFunction {
  void (*f32)(const Problem&, const Tensors<float>&) = nullptr;
  void (*b16)(const Problem&, const Tensors<bf16>&) = nullptr;

  HostFunction() = default;
  HostFunction(decltype(f32) f) : f32(f) {}  // NOLINT: `yours.forward = step01::forward`
  HostFunction(decltype(b16) f) : b16(f) {}  // NOLINT
};

/// What a student's file has.
struct Yours {
  HostFunction forward;
  HostFunction backward;            ///< null where there is none
  WorkspaceFn workspace = nullptr;  ///< null: none
  bool writes_lse = false;
};

/// Runs what the request asks for and writes the verdict.
///
/// `program REQUEST.json RESULT.json`. The request: `spec` (whose predictions are the bound),
/// `pass` ("forward" or "backward"), `seed`, `problems` [{n, nk, d, b, h, hkv, causal, input,
/// factor}], `watchdog` (seconds of CPU time that a kernel may take without a barrier or an end),
/// `banks` (bank conflicts count), `coalesced` (buffers whose accesses must be). The result: `ok`,
/// `kind` and `message` of the first thing that is wrong, and `problems`: what was seen of each.
/// The element type is that of `yours`.
///
/// In the simulator it looks for findings, wrong elements, outputs that no kernel wrote, bytes over
/// the prediction, uncoalesced accesses and bank conflicts, in this order; on a GPU for wrong
/// elements.
/// \returns 0 when a verdict was written, right or wrong; 2 for a request that cannot be read; 3
/// without memory or device.
int exercise_main(int argc, char** argv, const Yours& yours);

}  // namespace fa
