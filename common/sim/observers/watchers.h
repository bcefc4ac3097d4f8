/// \file
/// All that may watch a launch, one function for each file of this folder that has one.
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

/// A trace. Its observer is a RequestSink, sees all accesses, and stands before the next one. Null
/// in a program without trace.cpp, as those of scripts/sim are.
Watcher*& trace_watcher();
/// What accesses become on the hardware: requests, sectors, bank wavefronts, L2 and DRAM traffic.
Watcher& request_watcher();
/// Races, and reads of what nobody wrote.
Watcher& race_watcher();

}  // namespace sim
