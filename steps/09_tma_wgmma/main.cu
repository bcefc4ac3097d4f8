// Registers step 09 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/09_tma_wgmma/step.cuh"

static const fa::LinkedStep linked(step09::step());
