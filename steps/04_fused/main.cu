// Step 04 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/04_fused/step.cuh"

static const fa::LinkedStep linked(step04::step());
