/// \file
/// Hardware counters of a stretch of GPU work, through CUPTI's range profiler.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fa::gpu {

/// The counters cannot be read here. The message says in one line why, and what to do.
struct NoCounters : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads counters of the current CUDA context. libcupti is loaded at run time.
class RangeProfiler {
 public:
  /// \throws NoCounters
  RangeProfiler();
  ~RangeProfiler();
  RangeProfiler(const RangeProfiler&) = delete;
  RangeProfiler& operator=(const RangeProfiler&) = delete;

  /// Measures `metrics` over one user range around `body`. Hardware has few counters, so the
  /// metrics are split into groups of one pass each, and `body` runs once per group.
  /// \param before runs before each pass, outside the range.
  /// \returns the value of each metric; omits what this chip does not have.
  /// \throws NoCounters, and whatever `before` or `body` throws.
  std::map<std::string, double> measure(const std::vector<std::string>& metrics,
                                        const std::function<void()>& before,
                                        const std::function<void()>& body);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fa::gpu
