// The part of the CUDA driver that common/ranks/copy_world.cpp calls.
#pragma once

#include "cuda_runtime.h"

enum CUresult { CUDA_SUCCESS };
using CUdeviceptr = unsigned long long;
