// Registers step 06 with what links this file: its program (main() is in common/program), its
// library, and tests that name it.
#include "common/harness/linked_step.h"
#include "steps/06_work_partitioning/step.cuh"

static const fa::LinkedStep linked(step06::step());
