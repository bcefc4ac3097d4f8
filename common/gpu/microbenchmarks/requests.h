/// \file
/// A memory request of one warp: where its lanes point, and loads and stores of each width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/dialect/ptx/wrapper.h"

namespace fa::microbenchmarks {

// --- where the lanes of a warp point ------------------------------------------------------------

/// Lane l points at l * step bytes.
struct Pattern {
  std::string name;
  int step;
};

/// This lane's offset; `step` is a Pattern's.
FA_PTX int lane_offset(int step) { return static_cast<int>(threadIdx.x) % kWarp * step; }

/// The patterns for `width` bytes per lane: the fewest 128-byte lines, and one line per lane.
inline std::vector<Pattern> patterns_of(int width) { return {{"dense", width}, {"s128", 128}}; }

/// The size of what a round's requests touch: 31 * 128 + 7 * kRequestStep + 16 bytes at most.
constexpr int kHotBytes = 16384;
/// Bytes between the requests of a round, so that none can be merged.
constexpr int kRequestStep = 1024;

// --- loads and stores ---------------------------------------------------------------------------

/// The path of a request. A store past L1 is the same as one to global memory.
enum class Space { global, global_past_l1, shared };

// One instruction per width. `kind` is the constraint of the address.
#define FA_LOAD(INSTRUCTION, kind, at)                                                       \
  if constexpr (words == 1) asm volatile(INSTRUCTION ".b32 %0, [%1];" : "=r"(x) : kind(at)); \
  if constexpr (words == 4)                                                                  \
    asm volatile(INSTRUCTION ".v4.b32 {%0,%1,%2,%3}, [%4];"                                  \
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)                                        \
                 : kind(at));
#define FA_STORE(INSTRUCTION, kind, at)                                                    \
  if constexpr (words == 1) asm volatile(INSTRUCTION ".b32 [%0], %1;" ::kind(at), "r"(x)); \
  if constexpr (words == 4)                                                                \
    asm volatile(INSTRUCTION ".v4.b32 [%0], {%1,%1,%1,%1};" ::kind(at), "r"(x));

/// Loads `words` words from an address of its space and returns their xor, which uses all of them.
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
