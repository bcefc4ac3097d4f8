/// \file
/// The program that checks a student's kernel file: ./scripts/learn compiles it with a generated
/// main() that hands the file's variant to exercise_main().
#pragma once

#include "common/harness/step.h"

namespace fa {

/// Runs what the request asks for and writes the verdict.
///
/// `program REQUEST.json RESULT.json`. The request: `pass` ("forward" or "backward"), `seed`,
/// `problems` [{n, nk, d, b, h, hkv, causal, input, factor, spec}], where the spec is what the
/// step's own program predicts, {buffer: {read, write, atomic}}, the bound in the simulator;
/// `watchdog` (seconds of CPU time that a kernel may take without a barrier or an end),
/// `banks` (bank conflicts count), `coalesced` (buffers whose accesses must be). The result: `ok`,
/// `kind` and `message` of the first thing that is wrong, and `problems`: what was seen of each.
/// The element type is that of `yours`. Where it has a prepare pass, that runs first: its findings
/// count, its bytes do not.
///
/// In the simulator it looks for findings, wrong elements, outputs that no kernel wrote, bytes over
/// the prediction, uncoalesced accesses and bank conflicts, in this order; on a GPU for wrong
/// elements.
/// \returns 0 when a verdict was written, right or wrong; 2 for a request that cannot be read; 3
/// without memory or device.
int exercise_main(int argc, char** argv, const Variant& yours);

}  // namespace fa
