// Stands in for NVIDIA's header of this name.
#pragma once
#include "cuda_runtime.h"
