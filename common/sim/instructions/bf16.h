/// \file
/// bf16 as the tensor-core instructions see it: 16 bits in a register. Private to instructions/.
#pragma once

#include <bit>
#include <cstdint>

namespace sim {

/// The value of the bf16 whose bits are the low half of `bits`; the high half is zero.
inline float bf16_value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

}  // namespace sim
