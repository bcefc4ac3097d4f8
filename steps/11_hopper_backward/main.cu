// Registers step 11 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/11_hopper_backward/step.cuh"

static const fa::LinkedStep linked(step11::step());
