// What the programs of this folder share: they count what is wrong, and say the first of it.
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

static inline int verdict(void) {
  if (wrong == 0) puts("ok");
  return wrong != 0;
}
