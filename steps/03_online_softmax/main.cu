// Step 03 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/03_online_softmax/step.cuh"

static const fa::LinkedStep linked(step03::step());
