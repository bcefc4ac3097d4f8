/// \file
/// Flushes the L2: leaves nothing of the step in it, and nothing dirty.
#pragma once

#include <cstddef>

#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"

namespace fa::gpu {

/// Reads a buffer of its own, four times as large as the L2.
///
/// A read, not a memset: lines that a memset leaves dirty would be written back, and counted,
/// inside the next range (250 MB on an H200). Four times: the L2 is not LRU, and after twice its
/// size an H200 still holds a sixth of what was there before.
class L2Sweep {
 public:
  /// \throws ResourceError when the device has no room for the buffer.
  L2Sweep();

  /// One sweep, queued on the default stream: returns before it is done.
  void operator()() const;
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  DeviceMemory<float4> buffer_;  // the last one takes the sum
};

/// False when this program holds no code for the GPU it runs on.
bool built_for_this_gpu();

}  // namespace fa::gpu
