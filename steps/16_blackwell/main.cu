// Registers step 16 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/16_blackwell/step.cuh"

static const fa::LinkedStep linked(step16::step());
