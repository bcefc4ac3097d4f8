// Registers step 02 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/02_tiled/step.cuh"

static const fa::LinkedStep linked(step02::step());
