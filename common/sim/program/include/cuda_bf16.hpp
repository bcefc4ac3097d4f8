// Stands in for NVIDIA's header of this name.
#pragma once
#include "cuda_bf16.h"
