// Registers step 13 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/13_decode/step.cuh"

static const fa::LinkedStep linked(step13::step());
