/// \file
/// Flushes the L2: no data of the step remains in it, and nothing dirty.
#pragma once

#include <cstddef>

#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"

namespace fa::gpu {

/// Reads a private buffer four times as large as the L2.
///
/// It reads: lines that a memset leaves dirty would be written back, and counted, inside the next
/// range (250 MB on an H200). Four times, because the L2 is not LRU: after twice its size an H200
/// still holds a sixth of the earlier data.
class L2Sweep {
 public:
  /// \throws ResourceError when the device has no room for the buffer.
  L2Sweep();

  /// Queues one sweep on the default stream; returns before it is done.
  void operator()() const;
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  DeviceMemory<float4> buffer_;  // the last one takes the sum
};

/// False when this program has no code for the GPU it runs on.
bool built_for_this_gpu();

}  // namespace fa::gpu
