// Step 10 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/10_warp_specialized/step.cuh"

static const fa::LinkedStep linked(step10::step());
