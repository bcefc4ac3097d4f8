/// \file
/// cp.async (sm_80): asynchronous copies from device memory to shared memory without registers.
///
/// Copies are collected in groups: copy, copy, ..., commit; and later wait<n>. Scalar meaning of a
/// copy: memcpy(to, from, bytes), at some time between the call and the wait that covers it. A
/// thread waits for the copies that it issued; __syncthreads() after the wait shows them to the
/// others. Accessing `to` earlier is undefined (the simulator copies at the wait).
#pragma once

#include "common/dialect/ptx/wrapper.h"

namespace fa {

#if defined(__CUDACC__)

/// 16 bytes, both addresses 16-byte aligned, bypassing L1 (.cg).
FA_PTX void cp_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
/// 16 bytes, of which the first `from_bytes` (0..16) are copied and the rest are zero, for the tail
/// of a ragged tile. With 0 nothing is read, but `from` must still be a device address.
FA_PTX void cp_async_16(void* to, const void* from, int from_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(from_bytes)
               : "memory");
}
/// 4 bytes, 4-byte aligned, through L1 (.ca, the only mode for less than 16).
FA_PTX void cp_async_4(void* to, const void* from, int from_bytes = 4) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(from_bytes)
               : "memory");
}
/// Closes the group of the copies issued since the last commit (an empty group counts too).
FA_PTX void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the `pending` newest groups are in flight.
template <int pending>
FA_PTX void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
/// Waits for all copies, committed or not.
FA_PTX void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#elif !FA_BACKEND_GPU

FA_PTX void cp_async_16(void* to, const void* from, FA_WHERE) {
  sim::cp_async(to, from, 16, 16, where);
}
FA_PTX void cp_async_16(void* to, const void* from, int from_bytes, FA_WHERE) {
  sim::cp_async(to, from, 16, from_bytes, where);
}
FA_PTX void cp_async_4(void* to, const void* from, int from_bytes = 4, FA_WHERE) {
  sim::cp_async(to, from, 4, from_bytes, where);
}
FA_PTX void cp_async_commit() { sim::cp_async_commit(); }
template <int pending>
FA_PTX void cp_async_wait() {
  sim::cp_async_wait(pending);
}
FA_PTX void cp_async_wait_all() { sim::cp_async_wait_all(); }

#endif

}  // namespace fa
