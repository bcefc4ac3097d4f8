// cp.async: a thread's copies from device to shared memory, performed at its wait or its end.
#include <cstring>

#include "common/sim/instructions/async.h"

namespace sim {

namespace {

Groups<AsyncCopy>& my_copies() { return async_of(*self).copies[self->current->id]; }

Access destination(const AsyncCopy& copy) {
  return {.at = reinterpret_cast<uintptr_t>(copy.to) - self->shared_base,
          .size = copy.bytes,
          .kind = Kind::store,
          .space = Space::shared,
          .buffer = 0,
          .pc = copy.pc,
          .home = self};
}

void perform(const AsyncCopy& copy) {
  for (auto& o : self->observers) o->end_copy(*self, destination(copy), copy.phase);
  access(copy.to, copy.bytes, Kind::store, copy.pc, By::copy);
  std::memcpy(copy.to, copy.from, copy.from_bytes);
  std::memset(static_cast<char*>(copy.to) + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}

}  // namespace

void cp_async(void* to, const void* from, int bytes, int from_bytes, Where where) {
  const void* pc = __builtin_return_address(0);
  need_own_shared("cp.async", to, bytes, bytes, where);
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    fail(FaultKind::misaligned, here() + ": the source of cp.async at " + at(where) +
                                    " is not aligned to " + std::to_string(bytes) + " bytes");
  }
  if (from_bytes < 0 || from_bytes > bytes) {
    refuse("cp.async", where,
           " takes " + std::to_string(from_bytes) + " of " + std::to_string(bytes) +
               " bytes from its source");
  }
  if (from_bytes > 0) access(from, from_bytes, Kind::load, pc, By::copy);
  const AsyncCopy copy{
      to, from, static_cast<uint32_t>(bytes), static_cast<uint32_t>(from_bytes), pc, self->phase};
  for (auto& o : self->observers) o->begin_copy(*self, destination(copy));
  my_copies().open.push_back(copy);
}

void cp_async_commit() { my_copies().commit(); }

void cp_async_wait(int pending_groups) { my_copies().wait(pending_groups, perform); }

void cp_async_wait_all() {
  my_copies().commit();
  my_copies().wait(0, perform);
}

void thread_returned() {
  cp_async_wait_all();
  if (self->tell_operands) tell_stores_left();
  if (self->live > 1) return;
  need_tensor_memory_freed();
  need_whole_warpgroups();
}

}  // namespace sim
