/// \file
/// Arithmetic that C++ leaves undefined and a GPU defines, as `cvt`, `shl` and `shr` do it.
/// scripts/sim turns casts and shifts in device code into it.
#pragma once

#include "common/sim/any/ptx.h"

namespace sim::any {

/// A cast. nvcc converts to the narrower integers through 32 bits.
template <class T, class From>
constexpr T to(From&& from) {
  using F = std::remove_cvref_t<From>;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && std::is_floating_point_v<F>) {
    using Wide = std::conditional_t<sizeof(T) == 8, T,
                                    std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>;
    using L = std::numeric_limits<Wide>;
    const F x = from;  // loaded once
    if (x != x) return 0;
    if (x <= static_cast<F>(L::min())) return static_cast<T>(L::min());
    if (x >= static_cast<F>(L::max())) return static_cast<T>(L::max());
    return static_cast<T>(static_cast<Wide>(x));
  } else {
    return (T)from;
  }
}
/// `(T)x` as `To<T>() ->* x`, which binds nearly as tightly.
struct Cast {};
template <class... T>
struct To : Cast {};
template <class... T, class... U>
constexpr To<T..., U...> operator->*(To<T...>, To<U...>) {
  return {};
}
template <class T, class... More, class From>
requires(!std::is_base_of_v<Cast, std::remove_cvref_t<From>>) constexpr T operator->*(
    To<T, More...>, From&& from) {
  if constexpr (sizeof...(More) == 0) {
    return to<T>(std::forward<From>(from));
  } else {
    return to<T>(To<More...>()->*std::forward<From>(from));
  }
}

/// `a << b` as `a << shift << b`, and `a >> b`.
constexpr struct Shift {
} shift;
template <class A, bool left>
struct Shifted {
  const A& a;
};
template <class A>
constexpr Shifted<A, true> operator<<(const A& a, Shift) {
  return {a};
}
template <class A>
constexpr Shifted<A, false> operator>>(const A& a, Shift) {
  return {a};
}
template <class A, bool left, class B>
constexpr auto shifted(const A& a, const B& by) {
  using T = decltype(+a);
  constexpr unsigned kMost = 8 * sizeof(T) - 1;
  const auto n = static_cast<uint32_t>(by);
  if (left) return n > kMost ? T{0} : static_cast<T>(a << n);
  return n > kMost && !std::is_signed_v<T> ? T{0} : static_cast<T>(a >> (n > kMost ? kMost : n));
}
template <class... A>
constexpr bool kIntegers = ((std::is_integral_v<A> || std::is_enum_v<A>)&&...);
template <class A, class B>
constexpr auto operator<<(const Shifted<A, true>& s, const B& by) {
  if constexpr (kIntegers<A, B>)
    return shifted<A, true>(s.a, by);
  else
    return s.a << by;
}
template <class A, class B>
constexpr auto operator>>(const Shifted<A, false>& s, const B& by) {
  if constexpr (kIntegers<A, B>)
    return shifted<A, false>(s.a, by);
  else
    return s.a >> by;
}

}  // namespace sim::any
