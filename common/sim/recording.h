/// \file
/// The recording in progress, if any: launches and copies add to it. Private to the simulator.
#pragma once

#include <cstdint>

#include "common/sim/sim.h"

namespace sim {

/// Null while nothing is recorded.
fa::Counts* recording();

void add_tensor_flops(fa::Counts&, uint64_t flops);
/// Each is said once.
void add_remark(fa::Counts&, const std::string& remark);

}  // namespace sim
