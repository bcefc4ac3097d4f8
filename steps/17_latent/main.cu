// Registers step 17 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/17_latent/step.cuh"

static const fa::LinkedStep linked(step17::step());
