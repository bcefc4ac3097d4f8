// Registers step 07 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/07_tensor_cores/step.cuh"

static const fa::LinkedStep linked(step07::step());
