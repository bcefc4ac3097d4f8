/// \file
/// The stacks that CUDA threads run on: one mapping per worker, 1024 slots with a guard page each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/sim/scheduler/fiber.h"

namespace sim {

class Stacks {
 public:
  /// \param bytes of one stack, rounded up to pages; each slot has a guard page below it.
  /// \throws fa::ResourceError when the process may have no more address space or mappings.
  explicit Stacks(size_t bytes);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  stack_context take();
  void give_back(const stack_context&);
  /// All slots are free again: the fibers on them were abandoned.
  void reset();
  uintptr_t base() const { return reinterpret_cast<uintptr_t>(memory_); }
  size_t size() const { return stride_ * kSlots; }
  size_t bytes() const { return bytes_; }  ///< as they were asked for
  /// Is this address in a guard page, that is, did a CUDA thread overflow its stack?
  bool is_guard(uintptr_t address) const;

 private:
  static constexpr int kSlots = 1024;
  size_t bytes_;
  size_t guard_;   // one page
  size_t stride_;  // from slot to slot
  char* memory_;
  std::vector<uint16_t> free_;
};

}  // namespace sim
