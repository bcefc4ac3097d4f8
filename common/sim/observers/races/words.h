/// \file
/// What is said of a fault: turns what the rules tell into findings with a sentence each. Speaks as
/// the current thread of the current block (sim::self).
#pragma once

#include "common/sim/observers/races/faults.h"
#include "common/sim/observers/races/findings.h"

namespace sim::races {

class Words final : public Faults {
 public:
  explicit Words(Findings& findings) : findings_(findings) {}
  std::string preceding;  ///< the kernel beside which this one may run

  void race(const Race&) override;
  size_t unwritten(const Use&, uint64_t byte) override;
  void explained(size_t unwritten) override { --findings_[unwritten].unexplained; }
  void absent(const Use&, bool ended) override;  ///< ends the launch
  void left(unsigned entry, const SharedHistory::Guest&) override;
  void left(const Operation& load, const Wait* other_phase) override;
  void tensor_race(const TensorPlace&, const Operation&, TensorMissing) override;
  void tensor_unwritten(const TensorPlace&) override;
  void other_swizzle(const SharedOperand&, const Where&, const Operation& load) override;

  // What instructions see themselves; Observer (observer.h) has the words.
  void leave_store(const Where&);
  void touch_busy(RegisterUse, size_t element, Kind, const void* pc, const Where& user);
  void remark(const Where&, const std::string& sentence);

 private:
  /// Null: it has a sentence already.
  std::string* fresh(Fault, const Line&, const Line& other = {});

  Findings& findings_;
};

}  // namespace sim::races
