// Registers step 03 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/03_online_softmax/step.cuh"

static const fa::LinkedStep linked(step03::step());
