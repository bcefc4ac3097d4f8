/// \file
/// Stands in for NVIDIA's header of this name; scripts/sim includes it ahead of each .cu file, as
/// nvcc does.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "common/sim/program/functions.h"
#include "common/sim/program/program.h"
#include "common/sim/program/runtime_api.h"
#include "common/sim/program/vectors.h"

#define __builtin_align__(n) __align__(n)

typedef unsigned int uint;  // as glibc's <sys/types.h>
