// Registers step 12 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/12_fp8/step.cuh"

static const fa::LinkedStep linked(step12::step());
