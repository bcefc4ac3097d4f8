// Step 02 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/02_tiled/step.cuh"

static const fa::LinkedStep linked(step02::step());
