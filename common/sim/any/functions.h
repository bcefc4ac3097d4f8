/// \file
/// CUDA's device functions that cuda_vocabulary.h lacks: arithmetic, loads with a cache hint, votes
/// of a block, reductions of a warp, atomics. The fast intrinsics compute the accurate function
/// here; those that round down or up are off by one unit where the nearest result is exact.
#pragma once

#include <cfenv>
#include <ctime>

#include "common/sim/any/program.h"
#include "common/sim/any/vectors.h"

// --- minimum and maximum, also of different types ------------------------------------------------

template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B> &&
         !std::is_same_v<A, B>) __forceinline__ std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return max(static_cast<C>(a), static_cast<C>(b));
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B> &&
         !std::is_same_v<A, B>) __forceinline__ std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return min(static_cast<C>(a), static_cast<C>(b));
}
#ifdef __CUDACC__  // CUDA's, which take precedence over those of `using namespace std`
#define SIM_OF_TWO(T)                                                 \
  __forceinline__ T max(T a, T b) { return a < b || a != a ? b : a; } \
  __forceinline__ T min(T a, T b) { return b < a || a != a ? b : a; }
SIM_OF_TWO(int)
SIM_OF_TWO(unsigned)
SIM_OF_TWO(long)
SIM_OF_TWO(unsigned long)
SIM_OF_TWO(long long)
SIM_OF_TWO(unsigned long long)
SIM_OF_TWO(float)
SIM_OF_TWO(double)
#undef SIM_OF_TWO
#endif
__forceinline__ unsigned umin(unsigned a, unsigned b) { return min(a, b); }
__forceinline__ unsigned umax(unsigned a, unsigned b) { return max(a, b); }

// --- floating point ------------------------------------------------------------------------------

#define SIM_FUNCTION(T, name, result) \
  __forceinline__ T name(T x) { return result; }
SIM_FUNCTION(float, __sinf, std::sin(x))
SIM_FUNCTION(float, __cosf, std::cos(x))
SIM_FUNCTION(float, __tanf, std::tan(x))
SIM_FUNCTION(float, __log10f, std::log10(x))
SIM_FUNCTION(float, __exp10f, std::pow(10.f, x))
SIM_FUNCTION(float, __fsqrt_rn, std::sqrt(x))
SIM_FUNCTION(float, __frsqrt_rn, 1 / std::sqrt(x))
SIM_FUNCTION(float, __saturatef, x > 0 ? x < 1 ? x : 1 : 0)
SIM_FUNCTION(float, rcbrtf, 1 / std::cbrt(x))
SIM_FUNCTION(float, normcdff, 0.5f * std::erfc(x * -0.707106781f))
SIM_FUNCTION(float, sinpif, static_cast<float>(std::sin(M_PI* x)))
SIM_FUNCTION(float, cospif, static_cast<float>(std::cos(M_PI* x)))
SIM_FUNCTION(double, sinpi, std::sin(M_PI* x))
SIM_FUNCTION(double, cospi, std::cos(M_PI* x))
SIM_FUNCTION(double, normcdf, 0.5 * std::erfc(x * -0.70710678118654752440))
SIM_FUNCTION(double, rsqrt, 1 / std::sqrt(x))
SIM_FUNCTION(float, rsqrt, 1 / std::sqrt(x))
SIM_FUNCTION(double, __dsqrt_rn, std::sqrt(x))
SIM_FUNCTION(double, __drcp_rn, 1 / x)
#undef SIM_FUNCTION
__forceinline__ void __sincosf(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }
__forceinline__ float __powf(float a, float b) { return std::pow(a, b); }
__forceinline__ float fdividef(float a, float b) { return a / b; }
__forceinline__ float __tanhf(float x) { return std::tanh(x); }

namespace sim {
/// compute() with the rounding `mode`, such as FE_DOWNWARD.
auto rounded(int mode, auto&& compute) {
  const int before = std::fegetround();
  std::fesetround(mode);
  const auto result = compute();
  std::fesetround(before);
  return result;
}
}  // namespace sim
// volatile: the compiler rounds constants to nearest.
#define SIM_ROUNDED(T, name, mode, ...)     \
  inline T name(T a_, T b_ = 1, T c_ = 1) { \
    volatile T a = a_, b = b_, c = c_;      \
    (void)b, (void)c;                       \
    return sim::rounded(mode, [&] {         \
      volatile T result = __VA_ARGS__;      \
      return T{result};                     \
    });                                     \
  }
#define SIM_ROUNDINGS(T, name, ...)                     \
  SIM_ROUNDED(T, name##_rz, FE_TOWARDZERO, __VA_ARGS__) \
  SIM_ROUNDED(T, name##_rd, FE_DOWNWARD, __VA_ARGS__)   \
  SIM_ROUNDED(T, name##_ru, FE_UPWARD, __VA_ARGS__)
#define SIM_OPERATION(T, name, op)                         \
  __forceinline__ T name##_rn(T a, T b) { return a op b; } \
  SIM_ROUNDINGS(T, name, a op b)
SIM_OPERATION(float, __fadd, +)
SIM_OPERATION(float, __fsub, -)
SIM_OPERATION(float, __fmul, *)
SIM_OPERATION(float, __fdiv, /)
SIM_OPERATION(double, __dadd, +)
SIM_OPERATION(double, __dsub, -)
SIM_OPERATION(double, __dmul, *)
SIM_OPERATION(double, __ddiv, /)
SIM_ROUNDINGS(float, __frcp, 1 / a)
SIM_ROUNDINGS(float, __fsqrt, std::sqrt(+a))
SIM_ROUNDINGS(double, __drcp, 1 / a)
SIM_ROUNDINGS(double, __dsqrt, std::sqrt(+a))
SIM_ROUNDINGS(float, __fmaf, std::fma(+a, +b, +c))
SIM_ROUNDINGS(double, __fma, std::fma(+a, +b, +c))
#undef SIM_OPERATION
#undef SIM_ROUNDINGS
#undef SIM_ROUNDED
__forceinline__ double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
// Two at a time, as sm_100 does.
#define SIM_PAIRS(mode)                                                  \
  __forceinline__ float2 __fadd2_##mode(float2 a, float2 b) {            \
    return {__fadd_##mode(a.x, b.x), __fadd_##mode(a.y, b.y)};           \
  }                                                                      \
  __forceinline__ float2 __fmul2_##mode(float2 a, float2 b) {            \
    return {__fmul_##mode(a.x, b.x), __fmul_##mode(a.y, b.y)};           \
  }                                                                      \
  __forceinline__ float2 __ffma2_##mode(float2 a, float2 b, float2 c) {  \
    return {__fmaf_##mode(a.x, b.x, c.x), __fmaf_##mode(a.y, b.y, c.y)}; \
  }
SIM_PAIRS(rn)
SIM_PAIRS(rz)
SIM_PAIRS(rd)
SIM_PAIRS(ru)
#undef SIM_PAIRS

// --- integers ------------------------------------------------------------------------------------

__forceinline__ int __mul24(int a, int b) { return a * b; }
__forceinline__ unsigned __umul24(unsigned a, unsigned b) { return a * b; }
__forceinline__ int __hadd(int a, int b) { return static_cast<int>((1ll * a + b) >> 1); }
__forceinline__ int __rhadd(int a, int b) { return static_cast<int>((1ll * a + b + 1) >> 1); }
__forceinline__ unsigned __uhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((1ull * a + b) >> 1);
}
__forceinline__ unsigned __urhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((1ull * a + b + 1) >> 1);
}
__forceinline__ int __mulhi(int a, int b) { return static_cast<int>(1ll * a * b >> 32); }
__forceinline__ unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(1ull * a * b >> 32);
}
__forceinline__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
__forceinline__ long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
__forceinline__ int __popcll(unsigned long long x) { return std::popcount(x); }
__forceinline__ int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
__forceinline__ int __ffsll(long long x) {
  return x ? std::countr_zero(static_cast<unsigned long long>(x)) + 1 : 0;
}
__forceinline__ unsigned __brev(unsigned x) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (x >> i & 1) << (31 - i);
  return out;
}
__forceinline__ unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
__forceinline__ unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift < 32 ? __funnelshift_l(low, high, shift) : low;
}
__forceinline__ unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift < 32 ? __funnelshift_r(low, high, shift) : high;
}
__forceinline__ unsigned __sad(int a, int b, unsigned c) {
  return c + static_cast<unsigned>(a > b ? a - b : b - a);
}
__forceinline__ unsigned __usad(unsigned a, unsigned b, unsigned c) {
  return c + (a > b ? a - b : b - a);
}
__forceinline__ int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
__forceinline__ unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
  return c;
}

__forceinline__ int __dp4a(char4 a, char4 b, int c) {
  return __dp4a(std::bit_cast<int>(a), std::bit_cast<int>(b), c);
}
__forceinline__ unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return __dp4a(std::bit_cast<unsigned>(a), std::bit_cast<unsigned>(b), c);
}

// --- conversions ---------------------------------------------------------------------------------

#define SIM_CONVERT(to, name, from, rounded)                    \
  __forceinline__ to name(from x) {                             \
    const from y = rounded;                                     \
    if (y != y) return 0;                                       \
    if (y <= static_cast<from>(std::numeric_limits<to>::min())) \
      return std::numeric_limits<to>::min();                    \
    if (y >= static_cast<from>(std::numeric_limits<to>::max())) \
      return std::numeric_limits<to>::max();                    \
    return static_cast<to>(y);                                  \
  }
#define SIM_CONVERTS(to, name, from)              \
  SIM_CONVERT(to, name##_rz, from, std::trunc(x)) \
  SIM_CONVERT(to, name##_rd, from, std::floor(x)) \
  SIM_CONVERT(to, name##_ru, from, std::ceil(x))
SIM_CONVERTS(int, __float2int, float)
SIM_CONVERTS(unsigned, __float2uint, float)
SIM_CONVERTS(long long, __float2ll, float)
SIM_CONVERTS(int, __double2int, double)
SIM_CONVERTS(unsigned, __double2uint, double)
SIM_CONVERTS(long long, __double2ll, double)
SIM_CONVERTS(unsigned long long, __float2ull, float)
SIM_CONVERTS(unsigned long long, __double2ull, double)
SIM_CONVERT(unsigned, __float2uint_rn, float, std::nearbyint(x))
SIM_CONVERT(long long, __float2ll_rn, float, std::nearbyint(x))
SIM_CONVERT(int, __double2int_rn, double, std::nearbyint(x))
SIM_CONVERT(unsigned, __double2uint_rn, double, std::nearbyint(x))
SIM_CONVERT(long long, __double2ll_rn, double, std::nearbyint(x))
SIM_CONVERT(unsigned long long, __float2ull_rn, float, std::nearbyint(x))
SIM_CONVERT(unsigned long long, __double2ull_rn, double, std::nearbyint(x))
#undef SIM_CONVERTS
#undef SIM_CONVERT
__forceinline__ float __int2float_rn(int x) { return static_cast<float>(x); }
__forceinline__ float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
__forceinline__ float __ll2float_rn(long long x) { return static_cast<float>(x); }
__forceinline__ float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
__forceinline__ double __int2double_rn(int x) { return x; }
__forceinline__ double __uint2double_rn(unsigned x) { return x; }
__forceinline__ double __ll2double_rn(long long x) { return static_cast<double>(x); }
__forceinline__ double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
__forceinline__ float __double2float_rn(double x) { return static_cast<float>(x); }
#define SIM_CONVERT(to, name, from, mode)       \
  inline to name(from x) {                      \
    volatile from y = x;                        \
    return sim::rounded(mode, [&] {             \
      volatile to result = static_cast<to>(+y); \
      return to{result};                        \
    });                                         \
  }
#define SIM_CONVERTS(to, name, from)              \
  SIM_CONVERT(to, name##_rz, from, FE_TOWARDZERO) \
  SIM_CONVERT(to, name##_rd, from, FE_DOWNWARD)   \
  SIM_CONVERT(to, name##_ru, from, FE_UPWARD)
SIM_CONVERTS(float, __int2float, int)
SIM_CONVERTS(float, __uint2float, unsigned)
SIM_CONVERTS(float, __ll2float, long long)
SIM_CONVERTS(float, __ull2float, unsigned long long)
SIM_CONVERTS(double, __ll2double, long long)
SIM_CONVERTS(double, __ull2double, unsigned long long)
SIM_CONVERTS(float, __double2float, double)
#undef SIM_CONVERTS
#undef SIM_CONVERT
__forceinline__ double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
__forceinline__ long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
__forceinline__ int __double2hiint(double x) {
  return static_cast<int>(std::bit_cast<uint64_t>(x) >> 32);
}
__forceinline__ int __double2loint(double x) {
  return static_cast<int>(std::bit_cast<uint64_t>(x));
}
__forceinline__ double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<uint64_t>(static_cast<unsigned>(high)) << 32 |
                               static_cast<unsigned>(low));
}

// --- loads and stores with a hint for the caches -------------------------------------------------

#define SIM_LOAD_HINT(name)            \
  template <class T>                   \
  __forceinline__ T name(const T* p) { \
    return *p;                         \
  }
SIM_LOAD_HINT(__ldcg)
SIM_LOAD_HINT(__ldca)
SIM_LOAD_HINT(__ldcs)
SIM_LOAD_HINT(__ldlu)
SIM_LOAD_HINT(__ldcv)
#undef SIM_LOAD_HINT
#define SIM_STORE_HINT(name)                                   \
  template <class T>                                           \
  __forceinline__ void name(T* p, std::type_identity_t<T> v) { \
    *p = v;                                                    \
  }
SIM_STORE_HINT(__stcg)
SIM_STORE_HINT(__stcs)
SIM_STORE_HINT(__stwb)
SIM_STORE_HINT(__stwt)
#undef SIM_STORE_HINT

// --- threads together ----------------------------------------------------------------------------

inline void __threadfence_system() { sim::fence(); }
inline unsigned __activemask(SIM_HERE) { return sim::converged_lanes(where); }

namespace sim {
/// A shuffle of any type: of 4 or 8 bytes as one, else word by word.
template <class T>
T shuffle_any(Shuffle kind, uint32_t mask, T v, int lane, int width, Where where) {
  if constexpr (std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8)) {
    return shuffle_as(kind, mask, v, lane, width, where);
  } else {
    uint32_t words[(sizeof(T) + 3) / 4] = {};
    __builtin_memcpy(words, &v, sizeof v);
    for (uint32_t& w : words) w = shuffle_as(kind, mask, w, lane, width, where);
    __builtin_memcpy(&v, words, sizeof v);
    return v;
  }
}
/// f(a, b) over the values of the lanes of `mask`, in order.
template <class T, class F>
T reduce_lanes(uint32_t mask, T v, F&& f, Where where) {
  mask = ballot(mask, true, where);
  T sum = v;
  bool first = true;
  for (uint32_t left = mask; left; left &= left - 1) {
    const T other = shuffle_as(Shuffle::idx, mask, v, std::countr_zero(left), 32, where);
    sum = first ? other : f(sum, other);
    first = false;
  }
  return sum;
}
/// The lanes of `mask` with the same value.
uint32_t equal_lanes(uint32_t mask, auto v, Where where) {
  mask = ballot(mask, true, where);
  uint32_t equal = 0;
  for (uint32_t left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (shuffle_as(Shuffle::idx, mask, v, lane, 32, where) == v) equal |= 1u << lane;
  }
  return equal;
}
}  // namespace sim
#define SIM_REDUCE(name, ...)                                                \
  inline int name(unsigned mask, int v, SIM_HERE) {                          \
    return sim::reduce_lanes(                                                \
        mask, v, [](int a, int b) { return __VA_ARGS__; }, where);           \
  }                                                                          \
  inline unsigned name(unsigned mask, unsigned v, SIM_HERE) {                \
    return sim::reduce_lanes(                                                \
        mask, v, [](unsigned a, unsigned b) { return __VA_ARGS__; }, where); \
  }
SIM_REDUCE(__reduce_add_sync, a + b)
SIM_REDUCE(__reduce_min_sync, a < b ? a : b)
SIM_REDUCE(__reduce_max_sync, a < b ? b : a)
SIM_REDUCE(__reduce_and_sync, a& b)
SIM_REDUCE(__reduce_or_sync, a | b)
SIM_REDUCE(__reduce_xor_sync, a ^ b)
#undef SIM_REDUCE
uint32_t __match_any_sync(uint32_t mask, auto v, SIM_HERE) {
  return sim::equal_lanes(mask, v, where);
}
uint32_t __match_all_sync(uint32_t mask, auto v, int* all, SIM_HERE) {
  *all = sim::equal_lanes(mask, v, where) == sim::ballot(mask, true, where);
  return *all ? mask : 0;
}

// Without _sync, as before sm_70.
#define SIM_WITHOUT_SYNC(name, arg)                                              \
  template <class T>                                                             \
  T name(T v, arg a, int width = 32, SIM_HERE) {                                 \
    return name##_sync(sim::any::lanes_without_sync(where), v, a, width, where); \
  }
SIM_WITHOUT_SYNC(__shfl, int)
SIM_WITHOUT_SYNC(__shfl_xor, int)
SIM_WITHOUT_SYNC(__shfl_down, unsigned)
SIM_WITHOUT_SYNC(__shfl_up, unsigned)
#undef SIM_WITHOUT_SYNC
inline unsigned __ballot(int p, SIM_HERE) {
  return __ballot_sync(sim::any::lanes_without_sync(where), p, where);
}
inline int __any(int p, SIM_HERE) { return __ballot(p, where) != 0; }
inline int __all(int p, SIM_HERE) { return __ballot(!p, where) == 0; }

// A launch ends before the next one begins; the analysis reports what would start too early.
namespace sim {
void griddep_wait();
}
inline void cudaGridDependencySynchronize() { sim::griddep_wait(); }
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __nanosleep(unsigned) {}
inline long long clock64() { return sim::any::ticks(); }
[[noreturn]] inline void __trap(SIM_HERE) { sim::any::trap(where); }
inline void __brkpt(SIM_HERE) { sim::any::trap(where); }
inline unsigned __cvta_generic_to_shared(const void* p) {
  const auto bytes = static_cast<const unsigned char*>(p) - sim::dynamic_smem;
  return sim::any::shared_address(static_cast<int>(bytes), sim::cluster_rank(), 0);
}

// --- atomics -------------------------------------------------------------------------------------

__forceinline__ int atomicSub(int* p, int v) { return atomicAdd(p, -v); }
__forceinline__ unsigned atomicSub(unsigned* p, unsigned v) { return atomicAdd(p, 0u - v); }
__forceinline__ unsigned long long atomicCAS(unsigned long long* p, unsigned long long compare,
                                             unsigned long long v) {
  return sim::atomic_u64(sim::AtomicOp::cas, reinterpret_cast<uint64_t*>(p), v, compare);
}
inline unsigned short atomicCAS(unsigned short* p, unsigned short compare, unsigned short v) {
  return sim::atomic_with(p, [=](unsigned short old) { return old == compare ? v : old; });
}
__forceinline__ unsigned atomicDec(unsigned* p, unsigned limit) {
  return sim::atomic_u32(sim::AtomicOp::dec, p, limit);
}
__forceinline__ long long atomicMin(long long* p, long long v) {
  return sim::atomic_s64(sim::AtomicOp::min, p, v);
}
__forceinline__ long long atomicMax(long long* p, long long v) {
  return sim::atomic_s64(sim::AtomicOp::max, p, v);
}
// One request of 8 or 16 bytes, which the simulator lacks: refused by name.
float2 atomicAdd(float2*, float2) = delete;
float4 atomicAdd(float4*, float4) = delete;
#define SIM_SCOPES(name)                       \
  template <class... A>                        \
  __forceinline__ auto name##_block(A... a) {  \
    return name(a...);                         \
  }                                            \
  template <class... A>                        \
  __forceinline__ auto name##_system(A... a) { \
    return name(a...);                         \
  }
SIM_SCOPES(atomicAdd)
SIM_SCOPES(atomicSub)
SIM_SCOPES(atomicMin)
SIM_SCOPES(atomicMax)
SIM_SCOPES(atomicInc)
SIM_SCOPES(atomicDec)
SIM_SCOPES(atomicExch)
SIM_SCOPES(atomicCAS)
SIM_SCOPES(atomicAnd)
SIM_SCOPES(atomicOr)
SIM_SCOPES(atomicXor)
#undef SIM_SCOPES
