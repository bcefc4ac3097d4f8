/// \file
/// What was done to a place. shared_history.h and device_history.h keep the latest uses of each
/// word and, from an access to a part of a word on, of each of its bytes. A word that is not split,
/// or a byte of one that is, is a cell.
#pragma once

#include <unordered_map>

#include "common/sim/memory/memory.h"
#include "common/sim/observers/races/stamps.h"

namespace sim::races {

/// Code addresses are kept by their low half: a program's code lies within 2 GiB.
inline uint32_t low(const void* pc) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pc));
}

/// Calls f(number, its bytes) for the words of an access.
void for_each_word(const Access& a, auto&& f) {
  const uint64_t at = a.at, size = a.size, last = (at + size - 1) / kWord;
  const bool whole = at % kWord == 0 && size % kWord == 0;
  for (uint64_t word = at / kWord; word <= last; ++word) {
    f(word, whole ? kAllBytes : bytes_of_word(at, size, word));
  }
}

/// A thread's use of a place.
struct Past {
  Kind kind = Kind::load;
  uint64_t block = 0;
  unsigned entry = 0;  ///< in the clocks of the block's cluster
  Stamp stamp = 0;
  uint32_t pc = 0;
};

/// The last plain store to a cell that atomics have changed since.
using PlainStores = std::unordered_map<uint64_t, Past>;  // by the cell's first byte

/// Reads of a word that no thread had written. A later store to one of the same bytes, in no order
/// with the read, is a race that explains it.
struct UnwrittenRead {
  size_t finding;
  Past past;
  uint8_t bytes;  ///< of the word
};
using UnwrittenReads = std::unordered_multimap<uint64_t, UnwrittenRead>;  // by word

}  // namespace sim::races
