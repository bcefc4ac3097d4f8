/// \file
/// Stands in for cuRAND's host header. Every generator gives XORWOW's numbers in its order: number
/// i is the next one of subsequence i % 4096. They are computed on the host and not counted.
#pragma once

#include <vector>

#include "curand_kernel.h"

enum curandStatus {
  CURAND_STATUS_SUCCESS,
  CURAND_STATUS_VERSION_MISMATCH = 100,
  CURAND_STATUS_NOT_INITIALIZED,
  CURAND_STATUS_ALLOCATION_FAILED,
  CURAND_STATUS_TYPE_ERROR,
  CURAND_STATUS_OUT_OF_RANGE,
  CURAND_STATUS_LENGTH_NOT_MULTIPLE,
  CURAND_STATUS_DOUBLE_PRECISION_REQUIRED,
  CURAND_STATUS_LAUNCH_FAILURE = 201,
  CURAND_STATUS_PREEXISTING_FAILURE,
  CURAND_STATUS_INITIALIZATION_FAILED,
  CURAND_STATUS_ARCH_MISMATCH,
  CURAND_STATUS_INTERNAL_ERROR = 999
};
typedef curandStatus curandStatus_t;
enum curandRngType {
  CURAND_RNG_PSEUDO_DEFAULT = 100,
  CURAND_RNG_PSEUDO_XORWOW,
  CURAND_RNG_PSEUDO_MRG32K3A = 121,
  CURAND_RNG_PSEUDO_MTGP32 = 141,
  CURAND_RNG_PSEUDO_MT19937,
  CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161
};
typedef curandRngType curandRngType_t;
struct curandGenerator_st {
  unsigned long long seed = 0, offset = 0, made = 0;
  bool on_host = false;
  std::vector<curandState> states{};
};
typedef curandGenerator_st* curandGenerator_t;

inline curandStatus_t curandCreateGenerator(curandGenerator_t* g, curandRngType_t) {
  *g = new curandGenerator_st;
  return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandCreateGeneratorHost(curandGenerator_t* g, curandRngType_t type) {
  const curandStatus_t status = curandCreateGenerator(g, type);
  (*g)->on_host = true;
  return status;
}
inline curandStatus_t curandDestroyGenerator(curandGenerator_t g) {
  return delete g, CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetStream(curandGenerator_t, cudaStream_t) {
  return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t g,
                                                         unsigned long long seed) {
  *g = {seed, g->offset, 0, g->on_host};
  return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetGeneratorOffset(curandGenerator_t g, unsigned long long offset) {
  *g = {g->seed, offset, 0, g->on_host};
  return CURAND_STATUS_SUCCESS;
}

namespace sim::any {
curandStatus_t random_numbers(curandGenerator_t g, auto* out, size_t n, auto draw) {
  constexpr size_t kStates = 4096;
  const Library library("cuRAND");
  if (!g->on_host) Library::need_device(out);
  for (size_t k = g->states.size(); k < kStates && k < g->made + n; ++k) {
    curand_init(g->seed, k, g->offset / kStates, &g->states.emplace_back());
  }
  for (size_t i = 0; i < n; ++i) out[i] = draw(&g->states[g->made++ % kStates]);
  return CURAND_STATUS_SUCCESS;
}
}  // namespace sim::any
#define SIM_RANDOM(name, T, draw, ...)                                                            \
  inline curandStatus_t curandGenerate##name(curandGenerator_t g, T* out, size_t n __VA_ARGS__) { \
    return sim::any::random_numbers(g, out, n, [=](curandState* s) -> T { return draw; });        \
  }
SIM_RANDOM(, unsigned, curand(s))
SIM_RANDOM(Uniform, float, curand_uniform(s))
SIM_RANDOM(UniformDouble, double, curand_uniform_double(s))
SIM_RANDOM(Normal, float, mean + deviation * curand_normal(s), , float mean, float deviation)
SIM_RANDOM(NormalDouble, double, mean + deviation * curand_normal_double(s), , double mean,
           double deviation)
SIM_RANDOM(LogNormal, float, curand_log_normal(s, mean, deviation), , float mean, float deviation)
SIM_RANDOM(LogNormalDouble, double, curand_log_normal_double(s, mean, deviation), , double mean,
           double deviation)
#undef SIM_RANDOM
