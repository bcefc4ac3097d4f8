// Step 06 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/06_work_partitioning/step.cuh"

static const fa::LinkedStep linked(step06::step());
