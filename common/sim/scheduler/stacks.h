/// \file
/// The stacks of CUDA threads: one mapping per worker, 1024 slots with a guard page each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/sim/scheduler/fiber.h"

namespace sim {

class Stacks {
 public:
  /// \param bytes of one stack, rounded up to pages
  /// \param guarded each slot has a guard page below it: two mappings of the process per slot.
  /// \throws fa::ResourceError when the process may have no more address space or mappings.
  Stacks(size_t bytes, unsigned slots, bool guarded);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  stack_context take();
  void give_back(const stack_context&);
  /// Frees all slots: the fibers on them were abandoned.
  void reset();
  uintptr_t base() const { return reinterpret_cast<uintptr_t>(memory_); }
  size_t size() const { return stride_ * slots_; }
  /// Do they have these properties?
  bool are(size_t bytes, unsigned slots, bool guarded) const {
    return bytes == bytes_ && slots == slots_ && guarded == (guard_ > 0);
  }
  /// Is this address in a guard page, that is, did a CUDA thread overflow its stack?
  bool is_guard(uintptr_t address) const;

 private:
  size_t bytes_;
  unsigned slots_;
  size_t guard_;   // one page, or nothing
  size_t stride_;  // between slots
  char* memory_;
  std::vector<uint16_t> free_;
};

}  // namespace sim
