// Registers step 14 with what links this file: its program (main() is in common/ranks), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/14_ring/step.cuh"

static const fa::LinkedStep linked(step14::step());
