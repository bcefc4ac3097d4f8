/// \file
/// The program behind a step's main() when MPI has started several of it.
#pragma once

#include "common/harness/step.h"

namespace fa {

/// As step_main(): parse, allocate, check, count, time; rank 0 prints. All ranks return the same
/// status: 0 right, 1 wrong result or a rank that waited in vain, 2 bad use, 3 no memory or device.
int ranks_main(int argc, char** argv, const Step&);

}  // namespace fa
