// Registers step 05 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/05_recompute_backward/step.cuh"

static const fa::LinkedStep linked(step05::step());
