#include "common/sim/scheduler/stacks.h"

#include <sys/mman.h>

#include "common/sim/sim.h"

namespace sim {

Stacks::Stacks(size_t bytes) : stride_(bytes + kGuard) {
  void* p = mmap(nullptr, size(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("no address space for the stacks of the simulated threads");
  memory_ = static_cast<char*>(p);
  for (int i = 0; i < kSlots; ++i) mprotect(memory_ + i * stride_, kGuard, PROT_NONE);
  reset();
}

Stacks::~Stacks() { munmap(memory_, size()); }

void Stacks::reset() {
  free_.clear();
  for (int i = kSlots - 1; i >= 0; --i) free_.push_back(static_cast<uint16_t>(i));
}

boost::context::stack_context Stacks::take() {
  const uint16_t slot = free_.back();
  free_.pop_back();
  boost::context::stack_context stack;
  // Tops are staggered: with equal offsets all stacks would fight for the same cache sets.
  stack.sp = memory_ + (slot + 1) * stride_ - slot % 61 * 192;
  stack.size = stride_ - kGuard - slot % 61 * 192;
  return stack;
}

void Stacks::give_back(const boost::context::stack_context& stack) {
  free_.push_back(static_cast<uint16_t>((static_cast<char*>(stack.sp) - memory_ - 1) / stride_));
}

bool Stacks::is_guard(uintptr_t address) const {
  const uintptr_t offset = address - base();
  return offset < size() && offset % stride_ < kGuard;
}

}  // namespace sim
