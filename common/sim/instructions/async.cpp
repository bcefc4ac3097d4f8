#include "common/sim/instructions/async.h"

#include <algorithm>

namespace sim {

AsyncState& make_async(Block& b) {
  b.async = std::make_shared<AsyncState>();
  b.async->copies.resize(b.nthreads);
  b.async->stores.resize(b.nthreads);
  b.async->cluster_phase.resize(b.nthreads);
  return *b.async;
}

Block* home_of(const void* p) {
  for (unsigned rank = 0; rank < cluster_size(); ++rank) {
    Block& b = block_of_rank(rank);
    if (reinterpret_cast<uintptr_t>(p) - b.shared_base < b.shared_size) return &b;
  }
  return nullptr;
}

void need_own_shared(const char* what, const void* p, size_t bytes, size_t alignment,
                     const Where& where) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - self->shared_base;
  if (offset >= self->shared_size || bytes > self->shared_size - offset) {
    fail(FaultKind::out_of_bounds, here() + ": the operand of " + what + " at " + at(where) +
                                       " is not in the block's shared memory");
  }
  if (!in_shared(*self, offset, bytes)) {
    fail(FaultKind::out_of_bounds, here() + ": the operand of " + what + " at " + at(where) + ", " +
                                       std::to_string(bytes) + " bytes, lies " +
                                       shared_bounds(*self, offset));
  }
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    fail(FaultKind::misaligned, here() + ": the shared-memory operand of " + what + " at " +
                                    at(where) + " (" + shared_name(*self, offset) +
                                    ") is not aligned to " + std::to_string(alignment) + " bytes");
  }
}

void need_set(const char* what, unsigned thread, const void* registers, size_t words,
              const Where& where) {
  if (!self->tell_operands) return;
  const auto* first = static_cast<const uint32_t*>(registers);
  const auto* unset = std::find(first, first + words, kUnset);
  if (unset == first + words) return;
  fail(FaultKind::uninitialised, block_name(*self) + ", " + thread_name(*self, thread) + ": " +
                                     what + " at " + at(where) +
                                     " adds to accumulators whose element " +
                                     std::to_string(unset - first) + " was never set");
}

void need_pair(const char* what, const Where& where) {
  if (cluster_size() % 2 == 0) return;
  refuse(what, where,
         " with cta_group::2 in a cluster of " + std::to_string(cluster_size()) +
             ": only the blocks of a cluster of 2, 4, ... have another one to work with");
}

Access async_operand(Block& home, const void* p, size_t bytes, Kind kind, const void* pc) {
  return engine_access(home, reinterpret_cast<uintptr_t>(p) - home.shared_base, bytes, kind, pc);
}

}  // namespace sim
