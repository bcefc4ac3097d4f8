// Step 07 as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/07_tensor_cores/step.cuh"

static const fa::LinkedStep linked(step07::step());
