/// \file
/// Stands in for NVIDIA's header; scripts/sim includes it before each .cu file, as nvcc does.
#pragma once

#define lerp std_lerp  // nvcc reads C++17, which has none
#include <math.h>
#undef lerp

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <limits>
#include <new>
#include <utility>

#include "common/sim/any/arithmetic.h"
#include "common/sim/any/functions.h"
#include "common/sim/any/program.h"
#include "common/sim/any/ptx.h"
#include "common/sim/any/runtime_api.h"
#include "common/sim/any/vectors.h"

// Tells other headers of NVIDIA that this one is present.
#define __CUDA_RUNTIME_H__
#define __DRIVER_TYPES_H__
#define __builtin_align__(n) __align__(n)
#define __builtin_assume(condition) ((void)0)
#define __maxnreg__(...)

typedef unsigned int uint;  // as in glibc's <sys/types.h>
