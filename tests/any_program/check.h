// Shared by the programs of this folder: counts what is wrong, and prints the first failures.
#pragma once

#include <stdio.h>

static int wrong = 0;

#define EXPECT(condition)                                            \
  do {                                                               \
    if (!(condition) && wrong++ == 0) {                              \
      printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                \
  } while (0)
#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudaError_t status = call;                                                        \
    if (status != cudaSuccess && wrong++ == 0) {                                            \
      printf("%s:%d: %s says %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
    }                                                                                       \
  } while (0)

#ifdef __CUDACC__
template <class T>
static T* room(int n) {
  T* p = nullptr;
  CHECK(cudaMallocManaged(&p, n * sizeof(T)));
  CHECK(cudaMemset((void*)p, 0, n * sizeof(T)));
  CHECK(cudaDeviceSynchronize());
  return p;
}
// Checks that the last launch succeeded and has ended, so that the host may read its results.
static inline void done() {
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
}
#endif

static inline int verdict(void) {
  if (wrong == 0) puts("ok");
  return wrong != 0;
}
