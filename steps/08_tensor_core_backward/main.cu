// Step 08 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/08_tensor_core_backward/step.cuh"

static const fa::LinkedStep linked(step08::step());
