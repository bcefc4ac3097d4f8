/// \file
/// The program with a student's kernel file: ./scripts/learn compiles it with a generated main()
/// that hands the file's variant to exercise_main().
#pragma once

#include "common/harness/step.h"

namespace fa {

/// `program IN OUT`, two file descriptors: runs the problems that learn_lib/judging.py asks for and
/// sends outputs, counts and findings back. It never learns the seed, the reference and the bounds.
/// The element type is that of `yours`. Where it has a prepare pass, that runs first: its findings
/// count, its bytes do not.
/// \returns 0 when the judge asks no more; 2 where the student's code throws; 3 without memory or
/// device.
int exercise_main(int argc, char** argv, const Variant& yours);

}  // namespace fa
