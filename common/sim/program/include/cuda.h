// Stands in for NVIDIA's header of this name, which programs include beside the runtime's. The
// driver API is not supported; scripts/sim names what a program uses of it.
#pragma once
#include "cuda_runtime.h"
#define CUDA_VERSION 12040
