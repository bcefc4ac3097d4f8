// Compiled once, so that a check need not read the standard library again.
#include "common/ptx/ptx.h"
#include "common/step.h"
#include "common/tiles.h"
#include "steps/exercises/exercise.h"
