// Each diagnosis is tested with a kernel that has exactly one fault, and a near twin without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "common/sim/sim.h"
#include "tests/test.h"

namespace sim::test {

/// Device memory with a name, filled with zeros unless `written` is false.
template <class T>
struct Buffer : fa::DeviceMemory<T> {
  Buffer(const char* name, size_t n, bool written = true) : fa::DeviceMemory<T>(name, n) {
    if (written) this->fill(0);
  }
  Buffer(const char* name, const std::vector<T>& data) : Buffer(name, data.size()) {
    this->upload(data);
  }
  operator T*() const { return this->get(); }
};

/// Options of one test case; the old ones are restored at its end.
class WithOptions {
 public:
  explicit WithOptions(const Options& o) : saved_(options()) { options() = o; }
  ~WithOptions() { options() = saved_; }

 private:
  Options saved_;
};

struct Analysed {
  Analysed() { options().analyse = true; }
  WithOptions with{Options{}};
  Buffer<float> x{"x", 512}, y{"y", 512};
};

/// The finding of `run`; empty when there is none, and, with --analyse, something was examined.
std::string finding(auto&& run) {
  std::optional<Recording> recording;
  if (options().analyse) recording.emplace();
  try {
    run();
  } catch (const fa::KernelStopped& e) {
    return e.what();
  }
  return recording && recording->finish().analysed == 0 ? "the analysis has looked at nothing" : "";
}
template <class... P, class... A>
std::string finding(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  return finding([&] { fa::launch(kernel, config, static_cast<A&&>(args)...); });
}

fa::Counts counted(auto&& run) {
  Recording recording;
  run();
  return recording.finish();
}
template <class... P, class... A>
fa::Counts counted(void (*kernel)(P...), const fa::LaunchConfig& config, A&&... args) {
  return counted([&] { fa::launch(kernel, config, static_cast<A&&>(args)...); });
}

/// Are all parts of `pattern`, separated by " ... ", in the text, in this order?
inline bool says(const std::string& text, const std::string& pattern) {
  const std::string gap = " ... ";
  size_t at = 0;
  for (size_t from = 0, to; from <= pattern.size(); from = to + gap.size()) {
    to = std::min(pattern.find(gap, from), pattern.size());
    at = text.find(pattern.substr(from, to - from), at);
    if (at == text.npos) return false;
    at += to - from;
  }
  return true;
}

}  // namespace sim::test

/// A TEST_CASE whose launches are analysed.
#define ANALYSED(...) TEST_CASE_METHOD(sim::test::Analysed, __VA_ARGS__)

/// The finding of a launch (kernel, config, arguments) or a lambda must match the pattern.
#define FOUND(pattern, ...)                                    \
  do {                                                         \
    const std::string found = sim::test::finding(__VA_ARGS__); \
    CAPTURE(found, pattern);                                   \
    CHECK(sim::test::says(found, pattern));                    \
  } while (false)
#define SILENT(...) CHECK(sim::test::finding(__VA_ARGS__) == "")
