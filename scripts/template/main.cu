// @NAME@ as a program and as a library; main() is in common/harness/main.cpp.
#include "steps/@NAME@/step.cuh"

static const fa::LinkedStep linked(@NAME@::step());
