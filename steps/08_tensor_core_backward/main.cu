// Registers step 08 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/08_tensor_core_backward/step.cuh"

static const fa::LinkedStep linked(step08::step());
