/// \file
/// The counters of a tile scheduler, which all blocks of a persistent kernel share.
#pragma once

#include "common/dialect/cuda.h"

namespace fa {

/// The last block to leave resets the counters for the next launch; concurrent launches need
/// separate ones. By one thread of each block. taken [2]: work tiles, blocks that left.
__device__ inline void leave(unsigned* taken) {
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

}  // namespace fa
