/// \file
/// The observers of a launch: one function for each file of this folder that has one.
#pragma once

#include <cstdint>

#include "common/sim/observer.h"

namespace sim {

/// Receives the requests into which accesses are grouped.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  /// Number of the event of the latest access.
  virtual uint32_t event() const = 0;
  /// A request whose first lane made that event. `at`: per lane a word, or a byte of shared memory.
  virtual void request(uint32_t event, uint32_t lanes, uint32_t lane_bytes,
                       const uint32_t (&at)[32], unsigned transfers) = 0;
};

/// A trace. Its observer is a RequestSink, sees all accesses, and precedes the next observer. Null
/// in a program without trace.cpp, as those of scripts/sim are.
Watcher*& trace_watcher();
/// The cost of accesses on the hardware: requests, sectors, bank wavefronts, L2 and DRAM traffic.
Watcher& request_watcher();
/// Races, and reads of words that no thread wrote.
Watcher& race_watcher();

}  // namespace sim
