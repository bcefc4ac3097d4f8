#include "common/sim/scheduler/stacks.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/dialect/errors.h"

namespace sim {

static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

Stacks::Stacks(size_t bytes, unsigned slots, bool guarded)
    : bytes_(bytes),
      slots_(slots),
      guard_(guarded ? page : 0),
      stride_((bytes + page - 1) / page * page + guard_) {
  const fa::ResourceError no_room(
      "no address space for the stacks of the simulated threads: take fewer workers or a smaller "
      "stack_bytes");
  void* p = mmap(nullptr, size(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw no_room;
  memory_ = static_cast<char*>(p);
  for (unsigned i = 0; guarded && i < slots; ++i) {
    if (mprotect(memory_ + i * stride_, guard_, PROT_NONE) != 0) {
      munmap(memory_, size());
      throw no_room;
    }
  }
  reset();
}

Stacks::~Stacks() { munmap(memory_, size()); }

void Stacks::reset() {
  free_.clear();
  for (unsigned i = slots_; i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
}

stack_context Stacks::take() {
  const uint16_t slot = free_.back();
  free_.pop_back();
  stack_context stack;
  // Tops are staggered: with equal offsets all stacks would compete for the same cache sets.
  stack.sp = memory_ + (slot + 1) * stride_ - slot % 61 * 192;
  stack.size = stride_ - guard_ - slot % 61 * 192;
  return stack;
}

void Stacks::give_back(const stack_context& stack) {
  free_.push_back(static_cast<uint16_t>((static_cast<char*>(stack.sp) - memory_ - 1) / stride_));
}

bool Stacks::is_guard(uintptr_t address) const {
  const uintptr_t offset = address - base();
  return offset < size() && offset % stride_ < guard_;
}

}  // namespace sim
