// Stands in for NVIDIA's header of this name, for programs that include it. scripts/sim refuses one
// that uses its fragments.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
namespace nvcuda::wmma {}
