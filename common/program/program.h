/// \file
/// The parts of step_main() that the program for several ranks (common/ranks) shares with it.
#pragma once

#include "common/harness/cli.h"
#include "common/harness/inputs.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/step.h"

namespace fa {

/// Of a step's program: right; a wrong result; bad use; no memory, device or file; not checkable.
enum ExitStatus { kRight = 0, kWrong = 1, kBadUse = 2, kNoResource = 3, kNotCheckable = 4 };

/// \throws UsageError when an output of the command line cannot be written; files stay as they are.
void require_writable_outputs(const Options&);
/// The GPU that the simulator models. \throws UsageError when it does not run the variant.
GpuSpec modelled_gpu(const Options&, const Step&);
/// Q, K, V and dO as the command line wants them.
Inputs make_inputs(const Options&);
/// --out and --out-dir.
void write_outputs(const Options&, const Outputs&);
/// What the command line asked for: help, names, a description.
std::string words_of(const Options&);
/// \returns 0, or the errno that says why output was lost.
int flush_stdout();
/// \param error of flush_stdout(). \throws ResourceError when output was lost.
void require_printed(int error);

}  // namespace fa
