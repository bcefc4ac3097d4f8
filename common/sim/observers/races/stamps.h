/// \file
/// Times in the search for races, and clocks made of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sim::races {

/// A time. One counter numbers the events of a launch.
using Stamp = uint32_t;

/// A vector clock: up to and including which stamp each entry (a thread, for example) is visible.
/// Entries after the vector's end are zero. clocks.h says what has an entry.
using Clock = std::vector<Stamp>;
using SharedClock = std::shared_ptr<const Clock>;  ///< null: all entries are zero

inline bool has(const Clock& clock, unsigned entry, Stamp s) {
  return entry < clock.size() && s <= clock[entry];
}
inline bool has(const SharedClock& clock, unsigned entry, Stamp s) {
  return clock && has(*clock, entry, s);
}
inline void raise(Clock& clock, unsigned entry, Stamp s) {
  if (entry >= clock.size()) clock.resize(entry + 1);
  clock[entry] = std::max(clock[entry], s);
}
inline void raise(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t e = 0; e < other.size(); ++e) clock[e] = std::max(clock[e], other[e]);
}

}  // namespace sim::races
