// Registers @NAME@ with what links this file: its program (common/harness/main.cpp has main()), its
// library and its test.
#include "steps/@NAME@/step.cuh"

static const fa::LinkedStep linked(@NAME@::step());
