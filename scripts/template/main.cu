// Registers @NAME@ in whatever links this file: its program, its library and its test.
#include "common/harness/linked_step.h"
#include "steps/@NAME@/step.cuh"

static const fa::LinkedStep linked(@NAME@::step());
