// ./scripts/learn compiles a student's file with the command that compiles this one.
#include "steps/exercise_checker/prelude.h"
