// Atomics on device and shared memory, as atomic operations of the host: workers run in parallel.
#include <atomic>

#include "common/sim/block.h"
#include "common/sim/memory/memory.h"

namespace sim {

namespace {

constexpr auto kOrder = std::memory_order_relaxed;

template <class T, class F>
T update(T* p, F&& next) {
  std::atomic_ref<T> cell(*p);
  T old = cell.load(kOrder);
  while (!cell.compare_exchange_weak(old, next(old), kOrder)) {
  }
  return old;
}

template <class T>
T atomic_integer(AtomicOp op, T* p, T v, T compare) {
  std::atomic_ref<T> cell(*p);
  switch (op) {
    case AtomicOp::add:
      return cell.fetch_add(v, kOrder);
    case AtomicOp::min:
      return update(p, [v](T old) { return std::min(old, v); });
    case AtomicOp::max:
      return update(p, [v](T old) { return std::max(old, v); });
    case AtomicOp::exch:
      return cell.exchange(v, kOrder);
    case AtomicOp::and_:
      return cell.fetch_and(v, kOrder);
    case AtomicOp::or_:
      return cell.fetch_or(v, kOrder);
    case AtomicOp::xor_:
      return cell.fetch_xor(v, kOrder);
    case AtomicOp::inc:
      return update(p, [v](T old) { return old >= v ? T{0} : static_cast<T>(old + 1); });
    case AtomicOp::dec:
      return update(p, [v](T old) { return old == 0 || old > v ? v : static_cast<T>(old - 1); });
    case AtomicOp::cas:
      cell.compare_exchange_strong(compare, v, kOrder);
      return compare;
  }
  __builtin_unreachable();
}

// For floating point CUDA has only add and exch.
template <class T>
T atomic_floating(AtomicOp op, T* p, T v) {
  std::atomic_ref<T> cell(*p);
  return op == AtomicOp::add ? cell.fetch_add(v, kOrder) : cell.exchange(v, kOrder);
}

}  // namespace

#define SIM_COUNTED access(p, sizeof *p, Kind::atomic, __builtin_return_address(0))

float atomic_f32(AtomicOp op, float* p, float v) {
  SIM_COUNTED;
  return atomic_floating(op, p, v);
}
void atomic_add_v4(float* p, float a, float b, float c, float d) {
  access(p, 4 * sizeof *p, Kind::atomic, __builtin_return_address(0));
  const float v[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) atomic_floating(AtomicOp::add, p + i, v[i]);
}
double atomic_f64(AtomicOp op, double* p, double v) {
  SIM_COUNTED;
  return atomic_floating(op, p, v);
}
int32_t atomic_s32(AtomicOp op, int32_t* p, int32_t v, int32_t compare) {
  SIM_COUNTED;
  return atomic_integer(op, p, v, compare);
}
uint32_t atomic_u32(AtomicOp op, uint32_t* p, uint32_t v, uint32_t compare) {
  SIM_COUNTED;
  return atomic_integer(op, p, v, compare);
}
int64_t atomic_s64(AtomicOp op, long long* p, long long v) {
  SIM_COUNTED;
  return atomic_integer(op, p, v, 0ll);
}
uint64_t atomic_u64(AtomicOp op, uint64_t* p, uint64_t v, uint64_t compare) {
  SIM_COUNTED;
  return atomic_integer(op, p, v, compare);
}

void count_atomic(const void* p, unsigned bytes) {
  access(p, bytes, Kind::atomic, __builtin_return_address(0));
}

#undef SIM_COUNTED

}  // namespace sim
