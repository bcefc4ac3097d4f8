/// \file
/// What a CUDA thread runs on: Boost.Context's fiber, or, where Boost is missing (FA_UCONTEXT), the
/// same few functions on the C library's context switch, which is slower.
#pragma once

#ifndef FA_UCONTEXT

#include <boost/context/fiber.hpp>

namespace sim {
using boost::context::fiber;
using boost::context::stack_context;
}  // namespace sim

#else

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace sim {

struct stack_context {
  size_t size = 0;
  void* sp = nullptr;  ///< the upper end
};

/// A continuation, as boost::context::fiber is: resume() leaves the caller and returns when
/// somebody resumes it, with the continuation of whoever did, or with an empty one when that fiber
/// ended. A fiber ends by naming the next one; its stack is given back. Unlike Boost's, one that is
/// dropped while it waits is not unwound.
class fiber {
 public:
  fiber() = default;
  fiber(fiber&& other) noexcept : place_(std::exchange(other.place_, nullptr)) {}
  fiber& operator=(fiber&& other) noexcept {
    place_ = std::exchange(other.place_, nullptr);
    return *this;
  }

  template <class Allocator>
  fiber(std::allocator_arg_t, Allocator allocator, fiber (*run)(fiber&&)) {
    const stack_context stack = allocator.allocate();
    using New = Fresh<Allocator>;
    const uintptr_t top = reinterpret_cast<uintptr_t>(stack.sp) - sizeof(New);
    New* fresh = ::new (reinterpret_cast<void*>(top / alignof(New) * alignof(New)))
        New{{}, allocator, stack, run};
    getcontext(&fresh->context);
    fresh->context.uc_stack.ss_sp = static_cast<char*>(stack.sp) - stack.size;
    fresh->context.uc_stack.ss_size = reinterpret_cast<uintptr_t>(fresh) -
                                      reinterpret_cast<uintptr_t>(fresh->context.uc_stack.ss_sp);
    const uint64_t address = reinterpret_cast<uintptr_t>(fresh);  // the arguments must be ints
    makecontext(&fresh->context, reinterpret_cast<void (*)()>(&begin<Allocator>), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
    place_ = fresh;
  }

  fiber resume() && {
    Place here;
    place_->from = &here;
    swapcontext(&here.context, &std::exchange(place_, nullptr)->context);
    return fiber(here.from);
  }

 private:
  /// Where somebody waits, on his own stack.
  struct Place {
    ucontext_t context;
    Place* from = nullptr;  ///< set by whoever resumes it
  };
  template <class Allocator>
  struct Fresh : Place {  // at the top of its stack
    Allocator allocator;
    stack_context stack;
    fiber (*run)(fiber&&);
  };

  explicit fiber(Place* place) : place_(place) {}

  template <class Allocator>
  static void begin(unsigned high, unsigned low) {
    auto* me = reinterpret_cast<Fresh<Allocator>*>(uint64_t{high} << 32 | low);
    fiber next = me->run(fiber(me->from));
    next.place_->from = nullptr;
    me->allocator.deallocate(me->stack);  // nobody takes it before the switch
    setcontext(&next.place_->context);
  }

  Place* place_ = nullptr;
};

}  // namespace sim

#endif
