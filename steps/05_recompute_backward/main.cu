// Step 05 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/05_recompute_backward/step.cuh"

static const fa::LinkedStep linked(step05::step());
