// Registers step 15 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/15_masks/step.cuh"

static const fa::LinkedStep linked(step15::step());
