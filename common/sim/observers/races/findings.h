/// \file
/// The races and uninitialised reads of a launch, private to observers/. The search continues after
/// a finding, so that one does not hide the next; the launch ends with one report.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/dialect/errors.h"
#include "common/sim/memory/memory.h"

namespace sim {
struct Where;
}

namespace sim::races {

/// How many findings a report spells out.
constexpr size_t kSpelledOut = 8;

/// The source line of an access: by its code address, or as its instruction gave it.
struct Line {
  const void* pc = nullptr;
  const Where* where = nullptr;
  std::string text() const;  ///< "kernel.cuh:42"; empty when neither is given
};

enum class Fault : uint8_t {
  shared_race,
  device_race,
  register_race,
  tensor_race,
  other_layout,
  uninitialised,
  left_behind,
  // Remarks, not faults:
  register_read,  ///< correct, but slower than it looks
  remark
};

/// Of one launch. With the search on, one OS worker runs at a time, so there is no lock.
class Findings {
 public:
  struct Finding {
    fa::FaultKind kind;
    std::string text;          ///< empty: a new finding, to which the caller gives its text
    bool same_value = false;   ///< a race of stores that all store the value already there
    bool remark = false;       ///< nothing is wrong
    uint64_t unexplained = 0;  ///< uninitialised: reads that no race explains; none: not reported
  };

  /// The finding of this kind at these two lines, in either order; mostly a new or the latest one.
  Finding& at(Fault, const Line&, const Line&);
  size_t number(const Finding& finding) const { return &finding - all_.data(); }
  Finding& operator[](size_t number) { return all_[number]; }
  /// `finding` is a race of two stores; the later one's value is in memory after this event.
  void compare_later(const Finding&, const void* p, unsigned size);
  /// Called before the next store: the values of compare_later() are in memory now.
  void compare() {
    if (has_pending()) compare_now();
  }
  bool has_pending() const { return !pending_.empty(); }
  /// \param fatal what ended the launch, or nothing.
  /// \throws fa::KernelStopped when there is anything to report. Races of equal values are last.
  void report(const std::optional<fa::Finding>& fatal);
  /// Remarks, in the order in which they were found.
  std::vector<std::string> remarks() const;

 private:
  using Key = std::tuple<Fault, uintptr_t, uintptr_t>;
  struct Store {
    size_t finding;
    const unsigned char* p;
    unsigned size;
    unsigned char old[4];
  };
  void compare_now();

  std::vector<Finding> all_;
  std::map<Key, size_t> by_place_;
  std::map<std::string, size_t> by_lines_;
  Key latest_{};
  size_t latest_finding_ = 0;
  std::vector<Store> pending_;
};

}  // namespace sim::races
