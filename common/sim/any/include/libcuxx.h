/// \file
/// Stands in for libcu++: barriers, pipelines, atomics, and the C++ library as cuda::std. Barriers
/// are mbarriers in shared memory. A memcpy_async() is a thread's cp.async, performed at its
/// registration: at the arrival, or at the pipeline's commit.
#pragma once

#include <atomic>

#include "cuda_runtime.h"

namespace cuda {

namespace std {
using namespace ::std;
}
#define _CUDA_VSTD ::cuda::std

enum thread_scope {
  thread_scope_system,
  thread_scope_device,
  thread_scope_block,
  thread_scope_thread
};
using ::std::memory_order;
using ::std::memory_order_acq_rel;
using ::std::memory_order_acquire;
using ::std::memory_order_consume;
using ::std::memory_order_relaxed;
using ::std::memory_order_release;
using ::std::memory_order_seq_cst;

template <size_t n>
struct aligned_size_t {
  static constexpr size_t align = n;
  size_t value;
  explicit aligned_size_t(size_t bytes) : value(bytes) {}
  operator size_t() const { return value; }
};

namespace details {

inline bool is_shared(const void* p) {
  return p >= sim::dynamic_smem - (1 << 24) && p < sim::dynamic_smem + (1 << 24);
}
/// The part of a copy that one of `size` threads performs.
inline void copy(unsigned rank, unsigned size, void* to, const void* from, size_t bytes,
                 sim::Where where) {
  const auto places = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  const int each = places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : places % 4 == 0 ? 4 : 1;
  const bool async = each > 1 && is_shared(to) && !is_shared(from);
  for (size_t at = rank * each; at < bytes; at += size * each) {
    char* p = static_cast<char*>(to) + at;
    const char* q = static_cast<const char*>(from) + at;
    if (async) {
      sim::cp_async(p, q, each, each, where);
    } else if (each == 16) {
      *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(q);
    } else {
      for (int i = 0; i < each; ++i) p[i] = q[i];
    }
  }
}
void copy(const auto& group, void* to, const void* from, size_t bytes, sim::Where where) {
  copy(group.thread_rank(), static_cast<unsigned>(group.size()), to, from, bytes, where);
}

}  // namespace details

// --- barriers ------------------------------------------------------------------------------------

template <thread_scope scope, class Completion = void>
class barrier {
 public:
  using arrival_token = uint64_t;
  constexpr barrier() : word_() {}
  explicit barrier(ptrdiff_t expected, SIM_HERE) { init(expected, where); }
  void init(ptrdiff_t expected, sim::Where where) {
    sim::mbarrier_init(&word_, static_cast<int>(expected), where);
  }
  arrival_token arrive(ptrdiff_t n = 1, SIM_HERE) { return arrive_tx(n, 0, where); }
  arrival_token arrive_tx(ptrdiff_t n, ptrdiff_t bytes, sim::Where where) {
    sim::cp_async_wait_all();
    return sim::arrive(&word_, true, false, static_cast<int>(bytes), static_cast<int>(n), where);
  }
  void wait(arrival_token&& token, SIM_HERE) { wait_parity(token >> 63, where); }
  void wait_parity(bool parity, SIM_HERE) { sim::mbarrier_wait(&word_, parity, where); }
  bool try_wait_parity(bool parity, SIM_HERE) {
    return sim::mbarrier_try_wait(&word_, parity, where);
  }
  void arrive_and_wait(SIM_HERE) { wait(arrive(1, where), where); }
  uint64_t* native() { return &word_; }

 private:
  uint64_t word_;
};
template <thread_scope scope>
void init(barrier<scope>* b, ptrdiff_t expected, SIM_HERE) {
  b->init(expected, where);
}

namespace device {

using Block = barrier<thread_scope_block>;
inline uint64_t* barrier_native_handle(Block& b) { return b.native(); }
inline Block::arrival_token barrier_arrive_tx(Block& b, ptrdiff_t n, ptrdiff_t bytes, SIM_HERE) {
  return b.arrive_tx(n, bytes, where);
}
inline void barrier_expect_tx(Block& b, ptrdiff_t bytes, SIM_HERE) {
  sim::mbarrier_expect(b.native(), static_cast<int>(bytes), where);
}

namespace experimental {

#define SIM_BOX(rank, coordinates, ...)                                                            \
  inline void cp_async_bulk_tensor_##rank##d_global_to_shared(void* to, const sim::TensorMap* map, \
                                                              __VA_ARGS__, Block& b, SIM_HERE) {   \
    const int at[] = {SIM_EACH coordinates};                                                       \
    sim::tma_load(to, map, at, rank, b.native(), 0, where);                                        \
  }                                                                                                \
  inline void cp_async_bulk_tensor_##rank##d_shared_to_global(                                     \
      const sim::TensorMap* map, __VA_ARGS__, const void* from, SIM_HERE) {                        \
    const int at[] = {SIM_EACH coordinates};                                                       \
    sim::tma_store(map, at, rank, from, where);                                                    \
  }
#define SIM_EACH(...) __VA_ARGS__
SIM_BOX(1, (a), int a)
SIM_BOX(2, (a, b_), int a, int b_)
SIM_BOX(3, (a, b_, c), int a, int b_, int c)
SIM_BOX(4, (a, b_, c, d), int a, int b_, int c, int d)
SIM_BOX(5, (a, b_, c, d, e), int a, int b_, int c, int d, int e)
#undef SIM_EACH
#undef SIM_BOX
inline void cp_async_bulk_global_to_shared(void* to, const void* from, uint32_t bytes, Block& b,
                                           SIM_HERE) {
  sim::bulk_load(to, from, static_cast<int>(bytes), b.native(), where);
}
inline void cp_async_bulk_shared_to_global(void* to, const void* from, uint32_t bytes, SIM_HERE) {
  sim::bulk_store(to, from, static_cast<int>(bytes), where);
}
inline void cp_async_bulk_commit_group() { sim::bulk_commit(); }
template <int pending>
void cp_async_bulk_wait_group_read() {
  sim::bulk_wait(pending, true);
}
inline void fence_proxy_async_shared_cta() { sim::proxy_fence(sim::ProxyFence::shared); }

}  // namespace experimental
}  // namespace device

template <class T, class Size, thread_scope scope>
void memcpy_async(T* to, const T* from, Size bytes, barrier<scope>&, SIM_HERE) {
  details::copy(0, 1, to, from, bytes, where);
}
template <class Group, class T, class Size, thread_scope scope>
void memcpy_async(const Group& group, T* to, const T* from, Size bytes, barrier<scope>&, SIM_HERE) {
  details::copy(group, to, from, bytes, where);
}

// --- pipelines -----------------------------------------------------------------------------------

enum class pipeline_role { producer, consumer };
template <thread_scope scope, size_t stages>
struct pipeline_shared_state {
  static constexpr size_t kStages = stages;
  uint64_t full[stages], empty[stages];
};

/// Of a thread: groups of cp.async. Of a group: two mbarriers per stage.
template <thread_scope scope>
class pipeline {
 public:
  pipeline() = default;
  pipeline(uint64_t* full, uint64_t* empty, unsigned stages, bool produces, bool consumes)
      : full_(full), empty_(empty), stages_(stages), produces_(produces), consumes_(consumes) {}
  void producer_acquire(SIM_HERE) {
    if (full_ && produces_)
      sim::mbarrier_wait(&empty_[head_ % stages_], head_ / stages_ + 1, where);
  }
  void producer_commit(SIM_HERE) {
    sim::cp_async_commit();
    if (full_ && produces_) {
      sim::cp_async_wait_all();
      sim::mbarrier_arrive(&full_[head_ % stages_], 0, where);
    }
    ++head_;
  }
  void consumer_wait(SIM_HERE) {
    if (!full_) {
      sim::cp_async_wait(static_cast<int>(head_ - tail_ - 1));
    } else if (consumes_) {
      sim::mbarrier_wait(&full_[tail_ % stages_], tail_ / stages_, where);
    }
  }
  bool consumer_wait_for(const auto&, SIM_HERE) {
    consumer_wait(where);
    return true;
  }
  void consumer_release(SIM_HERE) {
    if (full_ && consumes_) sim::mbarrier_arrive(&empty_[tail_ % stages_], 0, where);
    ++tail_;
  }
  bool quit() { return true; }
  unsigned committed() const { return head_; }

 private:
  uint64_t *full_ = nullptr, *empty_ = nullptr;
  unsigned stages_ = 0, head_ = 0, tail_ = 0;
  bool produces_ = true, consumes_ = true;
};
inline pipeline<thread_scope_thread> make_pipeline() { return {}; }
/// `producers` threads of the group copy; `mine`: does this one? Without roles all do.
template <class Group, thread_scope scope, size_t stages>
pipeline<scope> make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state,
                              size_t producers, bool mine, bool roles, sim::Where where) {
  const auto all = static_cast<int>(group.size()), p = static_cast<int>(producers);
  if (group.thread_rank() == 0) {
    for (size_t i = 0; i < stages; ++i) {
      sim::mbarrier_init(&state->full[i], roles ? p : all, where);
      sim::mbarrier_init(&state->empty[i], roles ? all - p : all, where);
    }
  }
  group.sync(where);
  return {state->full, state->empty, stages, !roles || mine, !roles || !mine};
}
template <class Group, thread_scope scope, size_t stages>
auto make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state, SIM_HERE) {
  return make_pipeline(group, state, 0, true, false, where);
}
template <class Group, thread_scope scope, size_t stages>
auto make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state,
                   pipeline_role role, SIM_HERE) {
  const bool produces = role == pipeline_role::producer;
  return make_pipeline(group, state, __syncthreads_count(produces), produces, true, where);
}
template <class Group, thread_scope scope, size_t stages>
auto make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state,
                   size_t producers, SIM_HERE) {
  return make_pipeline(group, state, producers, group.thread_rank() < producers, true, where);
}
template <int prior, thread_scope scope>
void pipeline_consumer_wait_prior(pipeline<scope>&) {
  sim::cp_async_wait(prior);
}
template <class T, class Size, thread_scope scope>
void memcpy_async(T* to, const T* from, Size bytes, pipeline<scope>&, SIM_HERE) {
  details::copy(0, 1, to, from, bytes, where);
}
template <class Group, class T, class Size, thread_scope scope>
void memcpy_async(const Group& group, T* to, const T* from, Size bytes, pipeline<scope>&,
                  SIM_HERE) {
  details::copy(group, to, from, bytes, where);
}

// --- atomics -------------------------------------------------------------------------------------

inline void atomic_thread_fence(memory_order, thread_scope scope = thread_scope_system) {
  if (scope < thread_scope_block) sim::fence();
}

/// Atomics of 4 and 8 bytes. Self::p() is the address.
template <class Self, class T, thread_scope scope>
class atomic_operations {
  using Bits = ::std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  using Op = sim::AtomicOp;
  /// T as a type of PTX's instructions.
  using Number = ::std::conditional_t<
      ::std::is_integral_v<T>,
      ::std::conditional_t<::std::is_signed_v<T> && sizeof(T) == 4, int32_t, Bits>, T>;
  template <class U>
  T apply(memory_order o, Op op, U v, U compare = {}) const {
    if (scope < thread_scope_block && o >= memory_order_release) sim::fence();
    auto* p = reinterpret_cast<U*>(static_cast<const Self*>(this)->p());
    return ::std::bit_cast<T>(sim::ptx::atom(op, p, v, compare));
  }
  static constexpr memory_order kFirm = memory_order_seq_cst;

 public:
  T load(memory_order = kFirm) const { return apply(memory_order_relaxed, Op::or_, Bits{0}); }
  void store(T v, memory_order o = kFirm) const { exchange(v, o); }
  T exchange(T v, memory_order o = kFirm) const {
    return apply(o, Op::exch, ::std::bit_cast<Bits>(v));
  }
  bool compare_exchange_strong(T& expected, T v, memory_order o = kFirm,
                               memory_order = kFirm) const {
    const T was = expected;
    expected = apply(o, Op::cas, ::std::bit_cast<Bits>(v), ::std::bit_cast<Bits>(was));
    return ::std::bit_cast<Bits>(expected) == ::std::bit_cast<Bits>(was);
  }
  bool compare_exchange_weak(T& expected, T v, memory_order o = kFirm,
                             memory_order failed = kFirm) const {
    return compare_exchange_strong(expected, v, o, failed);
  }
#define SIM_FETCH(name, op, value)                              \
  T name(T v, memory_order o = kFirm) const {                   \
    return apply(o, Op::op, ::std::bit_cast<Number>(T(value))); \
  }
  SIM_FETCH(fetch_add, add, v)
  SIM_FETCH(fetch_sub, add, -v)
  SIM_FETCH(fetch_and, and_, v)
  SIM_FETCH(fetch_or, or_, v)
  SIM_FETCH(fetch_xor, xor_, v)
#undef SIM_FETCH
  T fetch_min(T v, memory_order o = kFirm) const { return extreme(Op::min, v, o); }
  T fetch_max(T v, memory_order o = kFirm) const { return extreme(Op::max, v, o); }
  T operator+=(T v) const { return fetch_add(v) + v; }
  T operator-=(T v) const { return fetch_sub(v) - v; }
  T operator++() const { return fetch_add(1) + 1; }
  T operator--() const { return fetch_sub(1) - 1; }
  T operator++(int) const { return fetch_add(1); }
  T operator--(int) const { return fetch_sub(1); }
  T operator=(T v) const { return store(v), v; }
  operator T() const { return load(); }

 private:
  T extreme(Op op, T v, memory_order o) const {  // 8 bytes with a sign have an instruction
    using U = ::std::conditional_t<::std::is_signed_v<T> && sizeof(T) == 8, int64_t, Number>;
    return apply(o, op, ::std::bit_cast<U>(v));
  }
};
template <class T, thread_scope scope = thread_scope_system>
class atomic_ref : public atomic_operations<atomic_ref<T, scope>, T, scope> {
 public:
  explicit atomic_ref(T& v) : p_(&v) {}
  using atomic_operations<atomic_ref, T, scope>::operator=;
  T* p() const { return p_; }

 private:
  T* p_;
};
template <class T, thread_scope scope = thread_scope_system>
class atomic : public atomic_operations<atomic<T, scope>, T, scope> {
 public:
  constexpr atomic() : value_() {}
  constexpr atomic(T v) : value_(v) {}
  atomic(const atomic&) = delete;
  using atomic_operations<atomic, T, scope>::operator=;
  T* p() const { return const_cast<T*>(&value_); }

 private:
  T value_;
};

}  // namespace cuda

// --- cuda_pipeline.h -----------------------------------------------------------------------------

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                    SIM_HERE) {
  sim::cp_async(to, from, static_cast<int>(bytes), static_cast<int>(bytes - zeros), where);
}
inline void __pipeline_commit() { sim::cp_async_commit(); }
inline void __pipeline_wait_prior(size_t prior) { sim::cp_async_wait(static_cast<int>(prior)); }
