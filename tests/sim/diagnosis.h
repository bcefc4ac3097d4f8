// Each diagnosis is tested with a kernel that has exactly one fault, and a near twin without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/dialect/cuda.h"
#include "common/harness/device_memory.h"
#include "common/sim/sim.h"
#include "tests/test.h"

namespace sim::test {

/// Device memory with a name, filled with zeros unless `written` is false.
template <class T>
struct Buffer : fa::DeviceMemory<T> {
  Buffer(const char* name, size_t n, bool written = true) : fa::DeviceMemory<T>(name, n) {
    if (written) this->fill(0);
  }
  operator T*() const { return this->get(); }
};

/// Options of one test case; the old ones come back at its end.
class WithOptions {
 public:
  explicit WithOptions(const Options& o) : saved_(options()) { options() = o; }
  ~WithOptions() { options() = saved_; }

 private:
  Options saved_;
};

/// What the simulator finds in `run`; empty when it finds nothing, and has looked if it was asked.
template <class F>
std::string finding(F&& run) {
  std::optional<Recording> recording;
  if (options().races || options().uninitialised) recording.emplace();
  try {
    run();
  } catch (const fa::KernelStopped& e) {
    return e.what();
  }
  return recording && recording->finish().analysed == 0 ? "the analysis has looked at nothing" : "";
}

}  // namespace sim::test
