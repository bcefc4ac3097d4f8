// Step 01 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/01_naive/step.cuh"

static const fa::LinkedStep linked(step01::step());
