/// \file
/// PTX's instructions for inline PTX (scripts/flash_steps/inline_ptx.py), under PTX's names. T is
/// the instruction's type; for f16x2 and bf16x2 each function works on both halves.
#pragma once

#include <cmath>
#include <limits>
#include <utility>

#include "common/dialect/fp8_vocabulary.h"
#include "common/sim/any/functions.h"
#include "common/sim/half.h"
#include "common/sim/warp_product.h"

namespace sim::ptx {

// --- registers -----------------------------------------------------------------------------------

struct Half {
  uint16_t bits;
  Half() = default;
  explicit Half(float f) : bits(half_of(f)) {}
  operator float() const { return float_of_half(bits); }
};
using Bf16 = __nv_bfloat16;
template <class H>
struct alignas(4) Pair {
  using Element = H;
  H x, y;
};
template <class T>
constexpr bool kIsPair = false;
template <class H>
constexpr bool kIsPair<Pair<H>> = true;
template <class T>
constexpr bool kIsSmall = std::is_same_v<T, Half> || std::is_same_v<T, Bf16>;

/// The bits of an operand as the instruction's type.
template <class T, class U>
__forceinline__ T as(U x) {
  if constexpr (std::is_same_v<T, U>) {
    return x;
  } else if constexpr (std::is_pointer_v<U>) {
    return as<T>(reinterpret_cast<uintptr_t>(x));
  } else if constexpr (sizeof(T) == sizeof(U)) {
    return std::bit_cast<T>(x);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(x);
  } else {  // a number for a small float
    return std::bit_cast<T>(static_cast<std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>(x));
  }
}
/// An address with what follows it in the same PTX operand.
template <class A>
auto offset(A a, long bytes) {
  if constexpr (std::is_pointer_v<A>) {
    return reinterpret_cast<uintptr_t>(a) + bytes;
  } else {
    return static_cast<A>(a + bytes);
  }
}
template <class T, class A>
T* global_pointer(A a) {
  if constexpr (std::is_pointer_v<A>) {
    return (T*)a;
  } else {
    return (T*)(uintptr_t)a;
  }
}
/// From an address in shared memory, or a generic pointer to it, of which a GPU uses the low bits.
template <class T, class A>
T* shared_pointer(A a) {
  if constexpr (sizeof a == 8) {
    const auto* p = global_pointer<const char>(a);
    if (reinterpret_cast<uintptr_t>(p) >> 32) return (T*)p;
  }
  return static_cast<T*>(any::shared_pointer(as<uint32_t>(a)));
}
/// mapa.u32: the address in another block.
inline uint32_t mapa(uint32_t address, uint32_t rank) {
  return any::shared_address(static_cast<int>(address << 8) >> 8, rank, rank / 2 + 1);
}

// --- arithmetic ----------------------------------------------------------------------------------

template <class T, class F, class... A>
__forceinline__ T each(F f, A... a) {
  if constexpr (kIsPair<T>) {
    using H = typename T::Element;
    return {H(f(a.x...)), H(f(a.y...))};
  } else {
    return T(f(a...));
  }
}
template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
constexpr int kBits = 8 * sizeof(T);
/// Integers wrap around.
#define SIM_PTX_OPERATION(name, op)                                  \
  template <class T>                                                 \
  __forceinline__ T name(T p, T q) {                                 \
    return each<T>(                                                  \
        [](auto a, auto b) {                                         \
          if constexpr (std::is_integral_v<T>) {                     \
            using U = std::common_type_t<Unsigned<T>, int>;          \
            return static_cast<T>(Unsigned<U>(a) op Unsigned<U>(b)); \
          } else {                                                   \
            return a op b;                                           \
          }                                                          \
        },                                                           \
        p, q);                                                       \
  }
SIM_PTX_OPERATION(add, +)
SIM_PTX_OPERATION(sub, -)
SIM_PTX_OPERATION(mul, *)
#undef SIM_PTX_OPERATION
template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;
template <class T>
Wide<T> mul_wide(T a, T b) {
  return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b);
}
template <class T>
T mul_hi(T a, T b) {
  return static_cast<T>(mul_wide(a, b) >> kBits<T>);
}
template <class T>
T mul24(T a, T b) {
  const int unused = kBits<T> - 24;
  return mul(static_cast<T>(static_cast<T>(Unsigned<T>(a) << unused) >> unused),
             static_cast<T>(static_cast<T>(Unsigned<T>(b) << unused) >> unused));
}
template <class T>
T div(T a, T b) {
  return each<T>([](auto a, auto b) { return a / b; }, a, b);
}
template <class T>
T rem(T a, T b) {
  return a % b;
}
template <class T>
T fma(T a, T b, T c) {
  return each<T>(
      [](auto a, auto b, auto c) {
        if constexpr (std::is_same_v<decltype(a), Half>) {
          return as<Half>(half_fma(a, b, c));
        } else if constexpr (kIsSmall<decltype(a)>) {
          return std::fma(float{a}, float{b}, float{c});
        } else {
          return std::fma(a, b, c);
        }
      },
      a, b, c);
}
/// Of a NaN and a number it returns the number.
template <class T>
T max(T a, T b) {
  return each<T>([](auto a, auto b) { return a < b || a != a ? b : a; }, a, b);
}
template <class T>
T min(T a, T b) {
  return each<T>([](auto a, auto b) { return b < a || a != a ? b : a; }, a, b);
}
/// The redval of tcgen05.ld.red. `nan`: a NaN among them is the result.
template <class T, bool least, bool absolute, bool nan>
T extreme(T x, auto... more) {
  if constexpr (absolute) x = std::fabs(x);
  if constexpr (sizeof...(more) == 0) {
    return x;
  } else {
    const T y = extreme<T, least, absolute, nan>(more...);
    if (nan && (x != x || y != y)) return std::bit_cast<T>(0x7fffffffu);
    return least ? min(x, y) : max(x, y);
  }
}
template <class T>
T neg(T a) {
  return each<T>(
      [](auto a) {
        if constexpr (std::is_integral_v<T>) {
          return static_cast<T>(0 - Unsigned<T>(a));
        } else {
          return -a;
        }
      },
      a);
}
template <class T>
T abs(T a) {
  return each<T>([](auto a) { return std::signbit(static_cast<double>(a)) ? neg(a) : a; }, a);
}
#define SIM_PTX_FUNCTION(name, result)   \
  template <class T>                     \
  T name(T p) {                          \
    return each<T>(                      \
        [](auto a) {                     \
          if constexpr (sizeof a == 8) { \
            const double x = a;          \
            return result;               \
          } else {                       \
            const float x = a;           \
            return result;               \
          }                              \
        },                               \
        p);                              \
  }
SIM_PTX_FUNCTION(rcp, 1 / x)
SIM_PTX_FUNCTION(sqrt, std::sqrt(x))
SIM_PTX_FUNCTION(rsqrt, 1 / std::sqrt(x))
SIM_PTX_FUNCTION(sin, std::sin(x))
SIM_PTX_FUNCTION(cos, std::cos(x))
SIM_PTX_FUNCTION(lg2, std::log2(x))
SIM_PTX_FUNCTION(ex2, std::exp2(x))
SIM_PTX_FUNCTION(tanh, std::tanh(x))
#undef SIM_PTX_FUNCTION
template <class T>
T saturate(T a) {
  return each<T>([](auto a) { return a > 0 ? a < 1 ? float(a) : 1.f : 0.f; }, a);
}
template <class T>
T relu(T a) {
  return each<T>([](auto a) { return float(a) <= 0 ? 0.f : float(a); }, a);
}
template <class T>
T copysign(T a, T b) {  // the sign of a
  return std::copysign(b, a);
}

// --- bits ----------------------------------------------------------------------------------------

template <class T>
T shl(T a, uint32_t n) {
  return n < kBits<T> ? static_cast<T>(a << n) : T{0};
}
template <class T>
T shr(T a, uint32_t n) {
  const uint32_t most = kBits<T> - 1;
  return n > most && !std::is_signed_v<T> ? T{0} : static_cast<T>(a >> (n > most ? most : n));
}
template <class T>
uint32_t bfind(T a) {
  const Unsigned<T> x = std::is_signed_v<T> && a < 0 ? ~a : a;
  return x ? kBits<T> - 1 - std::countl_zero(x) : ~0u;
}
template <class T>
T brev(T a) {
  return static_cast<T>(sizeof a == 8 ? __brevll(a) : __brev(a));
}
template <class T>
T bfe(T a, uint32_t b, uint32_t c) {
  const uint32_t first = b & 255, n = c & 255, most = kBits<T> - 1;
  const bool sign =
      std::is_signed_v<T> && n && shr(a, first + n - 1 < most ? first + n - 1 : most) & 1;
  const Unsigned<T> mask = n > most ? ~Unsigned<T>{0} : (Unsigned<T>{1} << n) - 1;
  const Unsigned<T> field = shr(static_cast<Unsigned<T>>(a), first);
  const Unsigned<T> beyond = first > most ? ~Unsigned<T>{0} : ~shr(~Unsigned<T>{0}, first);
  return static_cast<T>(sign ? (field | beyond) | ~mask : field & mask);
}
template <class T>
T bfi(T a, T b, uint32_t c, uint32_t d) {
  const uint32_t first = c & 255, n = d & 255;
  const T field = n < kBits<T> ? (T{1} << n) - 1 : ~T{0};
  return (b & ~shl(field, first)) | (shl(a, first) & shl(field, first));
}
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t one = selector >> 4 * i & 15;
    const auto byte = static_cast<int8_t>((uint64_t{b} << 32 | a) >> 8 * (one & 7));
    out |= (one & 8 ? byte >> 7 & 255 : byte & 255) << 8 * i;
  }
  return out;
}
template <class T>
T lop3(T a, T b, T c, uint32_t table) {
  T out = 0;
  for (int i = 0; i < 8; ++i) {
    if (table >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return out;
}

/// add.cc, sub.cc, mad.cc and the instructions that use their carry.
template <class T>
T add_with(bool in, bool out, T a, T b) {
  using U = Unsigned<T>;
  const U sum = U(a) + U(b), all = sum + (in && any::carry());
  if (out) any::set_carry(sum < U(a) || all < sum);
  return static_cast<T>(all);
}
template <class T>
T sub_with(bool in, bool out, T a, T b) {
  using U = Unsigned<T>;
  const U borrow = in && any::carry();
  if (out) any::set_carry(U(a) < U(b) || U(a) - U(b) < borrow);
  return static_cast<T>(U(a) - U(b) - borrow);
}

// --- conversions ---------------------------------------------------------------------------------

/// `mode`: the letter after the r of .rn, .rz, .rm, .rp, .rni ...
template <class To, class From>
To cvt(char mode, bool whole, From x) {
  const int rounding = mode == 'z'   ? FE_TOWARDZERO
                       : mode == 'm' ? FE_DOWNWARD
                       : mode == 'p' ? FE_UPWARD
                                     : FE_TONEAREST;
  constexpr bool kFromInteger = std::is_integral_v<From>, kToInteger = std::is_integral_v<To>;
  if constexpr (kFromInteger && kToInteger) {
    return static_cast<To>(x);
  } else if constexpr (kToInteger || (!kFromInteger && !kIsSmall<To>)) {
    using F = std::conditional_t<sizeof(From) == 8, double, float>;
    volatile F y = static_cast<F>(x);
    if (whole || kToInteger) {
      y = mode == 'z'   ? std::trunc(+y)
          : mode == 'm' ? std::floor(+y)
          : mode == 'p' ? std::ceil(+y)
                        : std::nearbyint(+y);
    }
    if constexpr (kToInteger) {
      using L = std::numeric_limits<To>;
      if (y != y) return sizeof(From) == 8 || sizeof(To) == 8 ? To{1} << (kBits<To> - 1) : To{0};
      if (y <= static_cast<F>(L::min())) return L::min();
      if (y >= static_cast<F>(L::max())) return L::max();
      return static_cast<To>(+y);
    } else {
      return rounded(rounding, [&] {
        volatile To to = static_cast<To>(+y);
        return To{to};
      });
    }
  } else {
    using G = std::conditional_t<kIsSmall<From>, float, From>;
    using F = std::conditional_t<kIsSmall<To>, float, To>;
    volatile G y = x;
    return To(rounded(rounding, [&] {
      volatile F to = static_cast<F>(+y);
      return F{to};
    }));
  }
}
/// .sat for integers.
template <class To, class From>
To clamp(From x) {
  using L = std::numeric_limits<To>;
  return std::cmp_less(x, L::min())      ? L::min()
         : std::cmp_greater(x, L::max()) ? L::max()
                                         : static_cast<To>(x);
}
/// To the nearest tf32, ties away from 0.
inline uint32_t tf32(float x) {
  return x != x ? 0x7fffffff : (std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu;
}

// --- memory --------------------------------------------------------------------------------------

template <class T>
T atom(AtomicOp op, T* p, T v, T compare = {}) {
  if constexpr (std::is_same_v<T, float>) {
    return atomic_f32(op, p, v);
  } else if constexpr (std::is_same_v<T, double>) {
    return atomic_f64(op, p, v);
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return atomic_s32(op, p, v, compare);
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    return atomic_u32(op, p, v, compare);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return atomic_s64(op, reinterpret_cast<long long*>(p), v);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return atomic_u64(op, p, v, compare);
  } else if constexpr (std::is_integral_v<T>) {  // 16 bits: cas or exch
    return atomic_with(p, [=](T old) { return op != AtomicOp::cas || old == compare ? v : old; });
  } else {
    return atomic_with(p, [=](T old) { return add(old, v); });
  }
}

// --- threads together ----------------------------------------------------------------------------

/// shfl.sync: `c` has the segment's lanes and the last one; `valid`: is the source in it?
inline uint32_t shfl(Shuffle kind, bool& valid, uint32_t v, uint32_t b, uint32_t c, uint32_t mask,
                     Where where) {
  const unsigned width = 32 - (c >> 8 & 31), lane = any::lane() % width, n = b & 31;
  valid = kind == Shuffle::up     ? n <= lane
          : kind == Shuffle::down ? lane + n < width
          : kind == Shuffle::xor_ ? (lane ^ n) < width
                                  : true;
  return static_cast<uint32_t>(
      shuffle(kind, mask, v, 4, static_cast<int>(b), static_cast<int>(width), where));
}
/// st.async, red.async.
template <class A, class B, class... V>
void send(Where where, A to, B bar, Reduction reduction, V... values) {
  struct {
    std::common_type_t<V...> all[sizeof...(V)];
  } copy{{values...}};
  send_registers(shared_pointer<void>(to), &copy, sizeof copy, shared_pointer<uint64_t>(bar), where,
                 reduction);
}
/// Four registers that are neighbours in an array, or copies of them, which no finding is about.
template <class... A>
__attribute__((no_sanitize_thread)) const uint32_t* registers_of(uint32_t (&copy)[4], A&&... a) {
  if constexpr (((std::is_lvalue_reference_v<A> && sizeof a == 4) && ...)) {
    const void* const at[] = {&a...};
    const auto first = static_cast<const uint32_t*>(at[0]);
    if (at[1] == first + 1 && at[2] == first + 2 && at[3] == first + 3) return first;
  }
  int i = 0;
  ((copy[i++] = as<uint32_t>(a)), ...);
  return copy;
}
/// Accumulators that are consecutive in an array.
template <class... D>
void wgmma(Where where, const Wgmma& product, D&... d) {
  void* const registers[] = {&d...};
  for (size_t i = 1; i < sizeof...(d); ++i) {
    if (registers[i] != static_cast<uint32_t*>(registers[i - 1]) + 1) {
      any::unsupported("a wgmma whose accumulators are not neighbours in an array", where);
    }
  }
  sim::wgmma(static_cast<float*>(registers[0]), product, where);
}

}  // namespace sim::ptx
