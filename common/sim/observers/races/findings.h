/// \file
/// What is said of the faults of a launch. The search continues after a finding, so that one does
/// not hide the next; the launch ends with one report.
#pragma once

#include <optional>
#include <tuple>

#include "common/dialect/errors.h"
#include "common/sim/observers/races/faults.h"

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
  early_wait,  ///< it may end two phases before the one for which it waits
  // Remarks, not faults:
  register_read,  ///< correct, but slower than it looks
  remark
};

/// Keeps one finding per pair of lines. Words adds them; the watcher asks for the report. With the
/// search on, one OS worker runs at a time, so there is no lock.
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
  size_t latest() const { return latest_finding_; }  ///< what at() has returned
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

/// Makes a sentence of what the rules report, as the current thread of the current block
/// (sim::self).
class Words final : public Faults {
 public:
  explicit Words(Findings& findings) : findings_(findings) {}
  std::string preceding;  ///< the kernel that may still run

  void race(const Race&) override;
  size_t unwritten(const Use&, uint64_t byte) override;
  void explained(size_t unwritten) override { --findings_[unwritten].unexplained; }
  void absent(const Use&, bool ended) override;  ///< ends the launch
  void left(const Past&) override;
  void left(const Operation& load, const Wait* other_phase) override;
  void tensor_race(const TensorPlace&, const Operation&, Missing) override;
  void tensor_unwritten(const TensorPlace&) override;
  void other_swizzle(const SharedOperand&, const Issue&, const Operation& load) override;
  // What instructions see themselves, as in Observer.
  void leave_store(const Where&);
  void touch_busy(RegisterUse, size_t element, Kind, const void* pc, const Where& user);
  void remark(const Where&, const std::string& sentence);
  void early_wait(int parity, const Where&);

 private:
  /// Null: it has a sentence already.
  std::string* fresh(Fault, const Line&, const Line& other = {});

  Findings& findings_;
};

}  // namespace sim::races
