/// \file
/// A memory request of one warp: where its lanes point, and loads and stores of each width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/dialect/ptx/wrapper.h"

namespace fa::microbenchmarks {

// --- where the lanes of a warp point ------------------------------------------------------------

/// Lane l points at (l % group) * step + (l / group) * group_step bytes.
struct Pattern {
  std::string name;
  int group, step, group_step;
};

/// The same for a kernel.
struct Lanes {
  int group, step, group_step;
  explicit Lanes(const Pattern& p) : group(p.group), step(p.step), group_step(p.group_step) {}
  __device__ int offset() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    return lane % group * step + lane / group * group_step;
  }
};

/// Those that are measured for `width` bytes per lane; s8 .. s256 are strides in bytes.
inline std::vector<Pattern> patterns_of(int width) {
  std::vector<Pattern> all{{"broadcast", 32, 0, 0}, {"dense", 32, width, 0}};
  for (int stride : {8, 16, 32, 64, 128, 256}) {
    if (stride > width) all.push_back({"s" + std::to_string(stride), 32, stride, 0});
  }
  all.push_back({"rows", 16, 0, 256});           // two rows, 16 lanes read the same of each
  all.push_back({"half_rows", 16, width, 256});  // two rows, 16 lanes read neighbours
  all.push_back({"pairs", 2, 0, width});         // 2, 4, 8 lanes read the same; dense
  all.push_back({"fours", 4, 0, width});
  all.push_back({"eights", 8, 0, width});
  all.push_back({"eights_s256", 8, 0, 256});  // 4 rows
  all.push_back({"every_4th", 4, width, 0});  // lanes 0, 4, 8, ... read the same
  all.push_back({"every_8th", 8, width, 0});
  return all;
}

/// Bytes that the requests of a round point into: 31 * 256 + 7 * kRequestStep + 16 at most.
constexpr int kHotBytes = 16384;
/// The requests of a round are so many bytes apart, and none can be merged.
constexpr int kRequestStep = 1024;

// --- loads and stores ---------------------------------------------------------------------------

/// Which path a request takes. A store past L1 is the same as one to global memory.
enum class Space { global, global_past_l1, shared };

// One instruction for each width. `kind` is the constraint of the address.
#define FA_LOAD(INSTRUCTION, kind, at)                                                       \
  if constexpr (words == 1) asm volatile(INSTRUCTION ".b32 %0, [%1];" : "=r"(x) : kind(at)); \
  if constexpr (words == 2)                                                                  \
    asm volatile(INSTRUCTION ".v2.b32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : kind(at));        \
  if constexpr (words == 4)                                                                  \
    asm volatile(INSTRUCTION ".v4.b32 {%0,%1,%2,%3}, [%4];"                                  \
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)                                        \
                 : kind(at));
#define FA_STORE(INSTRUCTION, kind, at)                                                            \
  if constexpr (words == 1) asm volatile(INSTRUCTION ".b32 [%0], %1;" ::kind(at), "r"(x));         \
  if constexpr (words == 2) asm volatile(INSTRUCTION ".v2.b32 [%0], {%1,%1};" ::kind(at), "r"(x)); \
  if constexpr (words == 4)                                                                        \
    asm volatile(INSTRUCTION ".v4.b32 [%0], {%1,%1,%1,%1};" ::kind(at), "r"(x));

/// Loads `words` words from the address of its space and returns their xor, which uses all of them.
template <Space space, int words>
FA_PTX uint32_t load(const char* global, uint32_t shared) {
  uint32_t x = 0, y = 0, z = 0, w = 0;
  if constexpr (space == Space::global) {
    FA_LOAD("ld.global", "l", global)
  }
  if constexpr (space == Space::global_past_l1) {
    FA_LOAD("ld.global.cg", "l", global)
  }
  if constexpr (space == Space::shared) {
    FA_LOAD("ld.shared", "r", shared)
  }
  return x ^ y ^ z ^ w;
}

/// Stores `words` words x.
template <Space space, int words>
FA_PTX void store(char* global, uint32_t shared, uint32_t x) {
  if constexpr (space == Space::shared) {
    FA_STORE("st.shared", "r", shared)
  } else {
    FA_STORE("st.global", "l", global)
  }
}

#undef FA_LOAD
#undef FA_STORE

}  // namespace fa::microbenchmarks
