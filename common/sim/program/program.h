/// \file
/// How anybody's program launches its kernels: what `../../../scripts/sim` makes of <<< >>>, and
/// the few services of the simulator that such a program has and a step has not.
#pragma once

#include <csetjmp>
#include <tuple>

#include "common/dialect/cuda_vocabulary.h"

namespace sim {

/// The atomics that CUDA has for 2 and 4 bytes of another type: `next(old)` replaces the old value.
template <class T, class F>
T atomic_with(T* p, F&& next) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  using U = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  count_atomic(p, sizeof(T));
  U* cell = reinterpret_cast<U*>(p);
  U old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &old, std::bit_cast<U>(next(std::bit_cast<T>(old))),
                                      true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(old);
}

}  // namespace sim

struct CUstream_st;
typedef CUstream_st* cudaStream_t;

namespace sim::program {

/// What stands between <<< and >>>.
struct Shape {
  dim3 grid, block;
  size_t smem = 0;
  cudaStream_t stream = nullptr;
  Where where;  ///< the launch's line
  Shape(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr, Where here = Where::here())
      : grid(g), block(b), smem(bytes), stream(s), where(here) {}
};

/// Runs a launch, notes what it moved and prints what is wrong with it. A kernel that had to be
/// stopped ends the program.
/// \return false where CUDA refuses the launch: then nothing ran, and the last error says why.
bool run(const Launch&, Where);

/// An argument whose class does not copy byte by byte. As on a GPU the host copies it, once; each
/// thread gets the bytes of that copy, and runs no constructor or destructor.
template <class T>
struct Bytes {
  alignas(T) unsigned char bytes[sizeof(T)];
  Bytes(const T& v) { std::memcpy(bytes, &v, sizeof bytes); }
  Bytes(const Bytes& b) { std::memcpy(bytes, b.bytes, sizeof bytes); }
  [[gnu::noipa]] static Bytes copy(const Bytes& b) { return b; }
};
template <class T>
constexpr bool kCopiesBytes = std::is_trivially_copy_constructible_v<T> ||
                              (std::is_trivially_move_constructible_v<T> &&
                               !std::is_copy_constructible_v<T>);
template <class T>
struct ArgumentOf : std::conditional<kCopiesBytes<T>, T, Bytes<T>> {};
template <class T>
struct ArgumentOf<Bytes<T>> : std::type_identity<Bytes<T>> {};
template <class T>
using Argument = typename ArgumentOf<T>::type;

/// What a kernel is called with.
template <class T>
__attribute__((no_sanitize_thread)) inline T& passed(T& a) {
  return a;
}
template <class T>
__attribute__((no_sanitize_thread)) inline T passed(Bytes<T>& a) {
  // Both functions return by way of a pointer to the place of the result.
  return reinterpret_cast<T (*)(const Bytes<T>&)>(&Bytes<T>::copy)(a);
}
/// Called behind the kernel: leaves in front of the destructors of its arguments.
struct Leave {
  std::jmp_buf* to;
  __attribute__((no_sanitize_thread)) void operator()() const {
    if (to) std::longjmp(*to, 1);
  }
};

/// `kernel(leave, a...)` calls the kernel with `passed(a)...`, and then leave().
template <class F, class... A>
bool launch(const char* name, const Shape& shape, bool together, F kernel, A... args) {
  struct Closure {
    F kernel;
    std::tuple<Argument<A>...> args;
  } closure{kernel, {args...}};
  const auto call = [](void* p) {
    auto& c = *static_cast<Closure*>(p);
    if constexpr ((kCopiesBytes<A> && ...)) {
      std::apply([&](auto&... a) { c.kernel(Leave{nullptr}, a...); }, c.args);
    } else {
      std::jmp_buf end;
      if (_setjmp(end) == 0) {
        std::apply([&](auto&... a) { c.kernel(Leave{&end}, a...); }, c.args);
      }
    }
  };
  return run({nullptr,
              {shape.grid, shape.block, shape.smem, 1, together},
              call,
              &closure,
              sizeof closure,
              name},
             shape.where);
}

// --- for inline PTX ---

/// What a 32-bit shared address of inline PTX points to.
inline void* shared_pointer(unsigned address) { return dynamic_smem + static_cast<int>(address); }
/// mov: the bits as they are, also between a float and an integer.
template <class To, class From>
void move(To& to, From from) {
  if constexpr (sizeof(To) == sizeof(From)) {
    to = std::bit_cast<To>(from);
  } else {
    to = (To)from;
  }
}
inline unsigned lane() {
  return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) % 32;
}

/// Registers that are neighbours in an array are loaded at once.
template <class... R>
void tcgen05_ld(Where where, uint32_t from, R&... r) {
  static_assert(((sizeof(R) == 4) && ...));
  constexpr int n = sizeof...(R);
  void* const registers[] = {&r...};
  const auto follows = [&](int i) {
    return registers[i] == static_cast<uint32_t*>(registers[i - 1]) + 1;
  };
  for (int i = 0, end = 0; i < n; i = end) {
    for (end = i + 1; end < n && follows(end); ++end) {
    }
    sim::tcgen05_ld(registers[i], end - i, from + i, where);
  }
}
template <class... R>
void tcgen05_st(Where where, uint32_t to, R... r) {
  const uint32_t registers[] = {std::bit_cast<uint32_t>(r)...};
  sim::tcgen05_st(to, registers, sizeof...(R), where);
}

/// The program asks for what the simulator does not have: it ends with one sentence.
[[noreturn]] void unsupported(const char* what, Where = Where::here());
/// tcgen05's cta_group::2 is not simulated.
inline void need_one_cta(int group, Where where) {
  if (group != 1) unsupported("the PTX cta_group::2", where);
}
/// A kernel gives up.
[[noreturn]] void trap(Where);
/// What clock64() gives: the model knows no clock of a running thread, so it only grows.
long long ticks();

}  // namespace sim::program
