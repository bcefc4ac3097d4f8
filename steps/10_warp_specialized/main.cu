// Registers step 10 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/10_warp_specialized/step.cuh"

static const fa::LinkedStep linked(step10::step());
