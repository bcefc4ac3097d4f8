// Step 09 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/09_tma_wgmma/step.cuh"

static const fa::LinkedStep linked(step09::step());
