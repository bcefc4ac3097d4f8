/// \file
/// Stands in for cuRAND's device header: XORWOW and Philox4x32-10 give NVIDIA's numbers, except for
/// the rounding of log, sine and cosine in normal ones. Other generators are missing.
#pragma once

#include "cuda_runtime.h"

namespace sim::any {
/// XORWOW's five words after `steps` numbers, or `steps` * 2^67 numbers.
void skip_xorwow(uint32_t (&words)[5], uint64_t steps, bool subsequences);

/// Numbers of one generator; `G` defines next().
template <class G>
struct RandomState {
  bool has_normal = false, has_normal_double = false;
  float normal;
  double normal_double;
};
}  // namespace sim::any

struct curandStateXORWOW : sim::any::RandomState<curandStateXORWOW> {
  unsigned d, v[5];
  unsigned next() {
    const unsigned t = v[0] ^ (v[0] >> 2);
    v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = v[4];
    v[4] = (v[4] ^ (v[4] << 4)) ^ (t ^ (t << 1));
    return v[4] + (d += 362437);
  }
};
struct curandStatePhilox4_32_10 : sim::any::RandomState<curandStatePhilox4_32_10> {
  unsigned counter[4], output[4], key[2], used;
  void advance(uint64_t by) {
    const uint64_t low = counter[0] | uint64_t{counter[1]} << 32, sum = low + by;
    counter[0] = static_cast<unsigned>(sum), counter[1] = static_cast<unsigned>(sum >> 32);
    if (sum < low && ++counter[2] == 0) ++counter[3];
  }
  void mix() {
    unsigned c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int i = 0; i < 10; ++i) {
      const uint64_t p = uint64_t{0xD2511F53} * c[0], q = uint64_t{0xCD9E8D57} * c[2];
      c[0] = static_cast<unsigned>(q >> 32) ^ c[1] ^ k[0], c[1] = static_cast<unsigned>(q);
      c[2] = static_cast<unsigned>(p >> 32) ^ c[3] ^ k[1], c[3] = static_cast<unsigned>(p);
      k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 4; ++i) output[i] = c[i];
  }
  unsigned next() {
    const unsigned x = output[used];
    if (++used == 4) advance(1), mix(), used = 0;
    return x;
  }
};
typedef curandStateXORWOW curandStateXORWOW_t, curandState, curandState_t;
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;

inline void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStateXORWOW* state) {
  curandStateXORWOW s{};
  const unsigned low = static_cast<unsigned>(seed) ^ 0xaad26b49;
  const unsigned high = static_cast<unsigned>(seed >> 32) ^ 0xf7dcefdd;
  const unsigned t0 = 1099087573u * low, t1 = 2591861531u * high;
  s.d = 6615241u + t1 + t0 + static_cast<unsigned>(offset) * 362437;
  const uint32_t start[5] = {123456789u + t0, 362436069u ^ t0, 521288629u + t1, 88675123u ^ t1,
                             5783321u + t0};
  for (int i = 0; i < 5; ++i) s.v[i] = start[i];
  if (subsequence) sim::any::skip_xorwow(s.v, subsequence, true);
  if (offset) sim::any::skip_xorwow(s.v, offset, false);
  *state = s;
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence,
                        unsigned long long offset, curandStatePhilox4_32_10* state) {
  curandStatePhilox4_32_10 s{};
  s.key[0] = static_cast<unsigned>(seed), s.key[1] = static_cast<unsigned>(seed >> 32);
  s.counter[2] = static_cast<unsigned>(subsequence);
  s.counter[3] = static_cast<unsigned>(subsequence >> 32);
  s.advance(offset / 4);
  s.used = offset % 4;
  s.mix();
  *state = s;
}

template <class G>
unsigned curand(sim::any::RandomState<G>* s) {
  return static_cast<G*>(s)->next();
}
template <class G>
float curand_uniform(sim::any::RandomState<G>* s) {
  return curand(s) * 2.3283064e-10f + 2.3283064e-10f / 2;
}
template <class G>
double curand_uniform_double(sim::any::RandomState<G>* s) {
  const uint64_t x = curand(s);
  if constexpr (std::is_same_v<G, curandStatePhilox4_32_10>) return x * 0x1p-32 + 0x1p-32;
  return (x ^ uint64_t{curand(s)} << 21) * 0x1p-53 + 0x1p-54;
}
template <class G>
float2 curand_normal2(sim::any::RandomState<G>* s) {
  const float u = curand_uniform(s);
  const float v = curand(s) * 1.46291807e-09f + 1.46291807e-09f / 2;  // 2 pi / 2^32
  const float r = std::sqrt(-2 * std::log(u));
  return {r * std::sin(v), r * std::cos(v)};
}
template <class G>
double2 curand_normal2_double(sim::any::RandomState<G>* s) {
  const auto next = [s] {
    const uint64_t x = curand(s);
    return static_cast<double>(x ^ uint64_t{curand(s)} << 21);
  };
  const double u = next() * 0x1p-53 + 0x1p-54, v = M_PI * (next() * 0x1p-52 + 0x1p-53);
  const double r = std::sqrt(-2 * std::log(u));
  return {r * std::sin(v), r * std::cos(v)};
}
// Normal numbers are made in pairs: the second waits for the next call.
#define SIM_NORMAL(T, ending)                                                     \
  template <class G>                                                              \
  T curand_normal##ending(sim::any::RandomState<G>* s) {                          \
    s->has_normal##ending = !s->has_normal##ending;                               \
    if (!s->has_normal##ending) return s->normal##ending;                         \
    const auto pair = curand_normal2##ending(s);                                  \
    s->normal##ending = pair.y;                                                   \
    return pair.x;                                                                \
  }                                                                               \
  template <class G>                                                              \
  T curand_log_normal##ending(sim::any::RandomState<G>* s, T mean, T deviation) { \
    return std::exp(mean + deviation * curand_normal##ending(s));                 \
  }
SIM_NORMAL(float, )
SIM_NORMAL(double, _double)
#undef SIM_NORMAL
inline uint4 curand4(curandStatePhilox4_32_10* s) {
  return {s->next(), s->next(), s->next(), s->next()};
}
inline float4 curand_uniform4(curandStatePhilox4_32_10* s) {
  return {curand_uniform(s), curand_uniform(s), curand_uniform(s), curand_uniform(s)};
}
inline float4 curand_normal4(curandStatePhilox4_32_10* s) {
  const float2 a = curand_normal2(s), b = curand_normal2(s);
  return {a.x, a.y, b.x, b.y};
}
template <class G>
void skipahead(unsigned long long n, sim::any::RandomState<G>* s) {
  for (; n > 0; --n) curand(s);
}
