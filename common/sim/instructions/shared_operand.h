/// \file
/// Operands of tensor cores in shared memory, named by descriptors. Private to instructions/.
#pragma once

#include <cstring>
#include <vector>

#include "common/sim/block.h"
#include "common/sim/instructions/tensor_core.h"
#include "common/sim/messages/messages.h"

namespace sim {

constexpr int kChunk = 16;  ///< contiguous bytes, whatever the swizzle

/// The 1024-byte boundary below the block's shared memory, from which descriptors count.
inline uintptr_t operand_origin(const Block& b) { return b.shared_base & ~uintptr_t{1023}; }

/// The address of an 18-bit offset from the block's dynamic part, around which is the static part.
inline uintptr_t operand_address(const Block& b, uint64_t start) {
  constexpr uint64_t kWindow = 1 << 18;
  const uintptr_t tile = b.dynamic_base + start;
  if (start < b.launch->config.smem) return tile;
  for (const uintptr_t p : {tile, tile - kWindow, tile + kWindow}) {
    const uint64_t at = p - b.shared_base;
    if (at < b.shared_size && b.in_array[at] && p - b.dynamic_base >= kMaxDynamicSmem) return p;
  }
  return tile;
}

/// Calls f(r, k, p) for each 16-byte chunk of an operand [rows][k]: p is the address of its first
/// element (r, k); the others follow along k or, when it is MN-major, along r.
template <class T, class F>
void for_each_chunk(const fa::WgmmaOperand& o, fa::Major major, int rows, F&& f) {
  constexpr int kElements = kChunk / static_cast<int>(sizeof(typename T::Bits));
  const int row_step = major == fa::Major::mn ? kElements : 1;
  const int k_step = major == fa::Major::k ? kElements : 1;
  for (int r = 0; r < rows; r += row_step) {
    for (int k = 0; k < T::kSum.products; k += k_step) {
      f(r, k, fa::swizzled(o.start + T::offset(o, major, r, k), o.swizzle));
    }
  }
}

/// Finding unless the chunk at address `p` is the current block's.
inline void need_chunk(uint64_t p, const char* what, const Where& where) {
  const uint64_t offset = p - self->shared_base;
  if (in_shared(*self, offset, kChunk)) return;
  fail(FaultKind::out_of_bounds, here() + ": an operand of " + what + " at " + at(where) +
                                     " reaches beyond the block's shared memory, " +
                                     shared_bounds(*self, offset));
}

/// The 16 codes of 4 or 6 bits that begin a chunk become bytes, which have them `shift` bits up.
inline void expand(void* chunk, int bits, int shift) {
  unsigned __int128 codes;
  std::memcpy(&codes, chunk, kChunk);
  for (int i = 0; i < kChunk; ++i, codes >>= bits) {
    const auto code = static_cast<unsigned>(codes) & ((1u << bits) - 1);
    static_cast<uint8_t*>(chunk)[i] = static_cast<uint8_t>(code << shift);
  }
}

/// Copies element (r, k) of the chunk of for_each_chunk() to values[r * row_step + k * k_step].
template <class T>
void read_chunk(uint64_t p, fa::Major major, int r, int k, float* values, int row_step,
                int k_step) {
  using Bits = typename T::Bits;
  constexpr int kElements = kChunk / static_cast<int>(sizeof(Bits));
  Bits chunk[kElements];
  std::memcpy(chunk, reinterpret_cast<const void*>(p), kChunk);
  if constexpr (requires { T::kPacked; }) expand(chunk, T::kPacked, T::kShift);
  float* to = values + r * row_step + k * k_step;
  const int step = major == fa::Major::k ? k_step : row_step;
  for (int i = 0; i < kElements; ++i) to[i * step] = T::value(chunk[i]);
}

/// An operand of the current block, counted.
template <class T>
void read_operand(const fa::WgmmaOperand& o, fa::Major major, int rows, float* values, int row_step,
                  int k_step, const char* what, const Where& where) {
  for_each_chunk<T>(o, major, rows, [&](int r, int k, uint64_t p) {
    need_chunk(p, what, where);
    read_chunk<T>(p, major, r, k, values, row_step, k_step);
  });
  self->shared_bytes[static_cast<int>(Kind::load)] +=
      sizeof(typename T::Bits) * rows * T::kSum.products;
}

/// Offsets of the chunks that an operand of [rows][k] takes from shared memory.
template <class T>
void add_chunks(const Block& b, const fa::WgmmaOperand& o, fa::Major major, int rows,
                std::vector<uint32_t>& chunks) {
  for_each_chunk<T>(o, major, rows, [&](int, int, uint64_t p) {
    const uint64_t offset = p - b.shared_base;
    if (offset < b.shared_size) chunks.push_back(static_cast<uint32_t>(offset));
  });
}

}  // namespace sim
