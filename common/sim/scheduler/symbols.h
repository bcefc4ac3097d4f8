/// \file
/// Names from the program's own symbol table and line table; see also the words in block.h.
#pragma once

#include <cstdint>
#include <vector>

namespace sim {

/// Looks up many program counters with one call of addr2line, for source_of().
void resolve_sources(const std::vector<const void*>& pcs);

/// Do both ends of [offset, offset + size) of a block's shared memory lie in a shared array? Arrays
/// start at multiples of 128 bytes, so an overrun often lands in the gap behind one.
bool in_shared_array(uint64_t offset, unsigned size);

}  // namespace sim
