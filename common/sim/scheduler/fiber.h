/// \file
/// A CUDA thread's fiber: a function with its own stack that can be left and continued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#ifdef FA_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sim {

struct stack_context {
  size_t size = 0;
  void* sp = nullptr;  ///< the upper end
};

/// AddressSanitizer must know the stack of a thread.
namespace sanitizer {
#ifdef FA_ADDRESS_SANITIZER
struct Stack {
  const void* bottom = nullptr;
  size_t size = 0;
};
inline Stack renewed(const stack_context& s) {  // it may be an abandoned fiber's
  const void* bottom = static_cast<char*>(s.sp) - s.size;
  __asan_unpoison_memory_region(bottom, s.size);
  return {bottom, s.size};
}
inline void leave(void** here, const Stack& there) {
  __sanitizer_start_switch_fiber(here, there.bottom, there.size);
}
inline Stack arrive(void* here) {  // the one that was left
  Stack from;
  __sanitizer_finish_switch_fiber(here, &from.bottom, &from.size);
  return from;
}
#else
struct Stack {};
inline Stack renewed(const stack_context&) { return {}; }
inline void leave(void**, const Stack&) {}
inline Stack arrive(void*) { return {}; }
#endif
}  // namespace sanitizer

/// A continuation: resume() leaves the caller and returns when it is resumed, with the continuation
/// of the fiber that resumed it, or an empty one when that fiber ended. A fiber ends by naming the
/// next one; its stack is freed. A fiber destroyed while it waits is not unwound.
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
    const sanitizer::Stack known = sanitizer::renewed(stack);
    using New = Fresh<Allocator>;
    const uintptr_t top = (reinterpret_cast<uintptr_t>(stack.sp) - sizeof(New)) / 64 * 64;
    New* fresh = ::new (reinterpret_cast<void*>(top)) New{{.bounds = known}, allocator, stack, run};
    // What sim_switch_fiber() pops from a stack: zeros as registers, the entry function, then a
    // return address of 0, the stack's end for debuggers and exceptions.
    uintptr_t* words = reinterpret_cast<uintptr_t*>(top) - kWords;
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    words[kBegin] = reinterpret_cast<uintptr_t>(&begin<Allocator>);
    fresh->sp = words;
    place_ = fresh;
  }

  inline fiber resume() &&;

 private:
  /// A suspended fiber, on its own stack.
  struct Place {
    void* sp = nullptr;     ///< its registers are there; sim_switch_fiber() relies on this position
    Place* from = nullptr;  ///< set by the resuming fiber
    [[no_unique_address]] sanitizer::Stack bounds = {};
  };
  template <class Allocator>
  struct Fresh : Place {  // at the top of its stack
    Allocator allocator;
    stack_context stack;
    fiber (*run)(fiber&&);
  };

  explicit fiber(Place* place) : place_(place) {}

  template <class Allocator>
  static void begin(Place* place);

#if defined(__x86_64__)
  // At a function's entry the stack is 8 bytes off a multiple of 16.
  static constexpr int kWords = 12, kBegin = 6;
#elif defined(__aarch64__)
  static constexpr int kWords = 24, kBegin = 19;
#else
#error "the simulator runs on x86-64 and aarch64"
#endif

  Place* place_ = nullptr;
};

/// Leaves the caller, stores its stack pointer in the first word of `here`, and continues at
/// `there`, the argument of a function that begins there. All fibers share the rounding mode.
extern "C" void sim_switch_fiber(void* here, void* there);

// One copy per program, as of an inline function. Its return is predicted to lead to the last call,
// on another stack: mostly the same one, because most threads wait at the same line.
#if defined(__x86_64__)
asm(R"(
  .pushsection .text.sim_switch_fiber,"axG",@progbits,sim_switch_fiber,comdat
  .weak sim_switch_fiber
  .hidden sim_switch_fiber
  .type sim_switch_fiber,@function
sim_switch_fiber:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov (%rsi), %rsp
  mov %rsi, %rdi
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size sim_switch_fiber,.-sim_switch_fiber
  .popsection
)");
#else
asm(R"(
  .pushsection .text.sim_switch_fiber,"axG",@progbits,sim_switch_fiber,comdat
  .weak sim_switch_fiber
  .hidden sim_switch_fiber
  .type sim_switch_fiber,%function
sim_switch_fiber:
  sub sp, sp, #160
  stp d8, d9, [sp]
  stp d10, d11, [sp, #16]
  stp d12, d13, [sp, #32]
  stp d14, d15, [sp, #48]
  stp x19, x20, [sp, #64]
  stp x21, x22, [sp, #80]
  stp x23, x24, [sp, #96]
  stp x25, x26, [sp, #112]
  stp x27, x28, [sp, #128]
  stp x29, x30, [sp, #144]
  mov x9, sp
  str x9, [x0]
  ldr x9, [x1]
  mov sp, x9
  mov x0, x1
  ldp d8, d9, [sp]
  ldp d10, d11, [sp, #16]
  ldp d12, d13, [sp, #32]
  ldp d14, d15, [sp, #48]
  ldp x19, x20, [sp, #64]
  ldp x21, x22, [sp, #80]
  ldp x23, x24, [sp, #96]
  ldp x25, x26, [sp, #112]
  ldp x27, x28, [sp, #128]
  ldp x29, x30, [sp, #144]
  add sp, sp, #160
  ret
  .size sim_switch_fiber,.-sim_switch_fiber
  .popsection
)");
#endif

inline fiber fiber::resume() && {
  Place here;
  place_->from = &here;
  void* left = nullptr;
  sanitizer::leave(&left, place_->bounds);
  sim_switch_fiber(&here, std::exchange(place_, nullptr));
  const sanitizer::Stack from = sanitizer::arrive(left);
  if (here.from) here.from->bounds = from;
  return fiber(here.from);
}

template <class Allocator>
void fiber::begin(Place* place) {
  auto* me = static_cast<Fresh<Allocator>*>(place);
  me->from->bounds = sanitizer::arrive(nullptr);
  fiber next = me->run(fiber(me->from));
  next.place_->from = nullptr;
  me->allocator.deallocate(me->stack);  // no fiber takes it before the switch
  sanitizer::leave(nullptr, next.place_->bounds);
  sim_switch_fiber(me, next.place_);
}

}  // namespace sim
