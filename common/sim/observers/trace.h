/// \file
/// Records a trace (common/harness/trace.h): what every block did, in its order.
///
/// Accesses become one event as long as they come from the same line by the same calls, go to the
/// same buffer or shared array in the same way, and no thread of theirs has waited for others in
/// between. A thread's clock counts these waits: behind a barrier all have the largest of their
/// clocks plus one, and so has who waited for an mbarrier; behind a __syncwarp all lanes have the
/// largest. So tile j of a loop is an event of its own, and a tile that eight warps load together
/// is one. What wgmma reads is an event per warpgroup.
#pragma once

#include <cstdint>

#include "common/sim/observer.h"

namespace sim {

/// Who groups accesses to requests tells of them here.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  /// Number of the event that the latest access belongs to.
  virtual uint32_t event() const = 0;
  /// A request whose first lane made that event. `at`: by lane, the word of device memory or the
  /// byte of shared memory.
  virtual void request(uint32_t event, uint32_t lanes, uint32_t lane_bytes,
                       const uint32_t (&at)[32], unsigned transfers) = 0;
};

/// Its observer sees all accesses, and stands in front of the one that groups them to requests.
Watcher& trace_watcher();

}  // namespace sim
