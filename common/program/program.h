/// \file
/// A step's program, for one rank or several.
#pragma once

#include "common/counts/gpus.h"
#include "common/harness/cli.h"
#include "common/harness/failure.h"
#include "common/harness/step.h"
#include "common/harness/world.h"

namespace fa {

/// Prints the failure's sentence to standard error, wrapped in a terminal. \returns its status
int complain(const Step&, const Failure&);

/// Parses, allocates, checks, counts, times; rank 0 prints. \returns all ranks' exit status.
int run_program(int argc, char** argv, const Step&, World&);

/// Runs the whole program on one rank. \returns 0 right, 1 wrong result, 2 bad use, 3 no memory,
/// no device, or no room for the output, 4 not checkable.
int step_main(int argc, char** argv, const Step&);

/// The GPU that the simulator models. \throws UsageError when it does not run the variant.
GpuSpec modelled_gpu(const Options&, const Step&);
}  // namespace fa
