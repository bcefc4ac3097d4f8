/// \file
/// What accesses become on the hardware: requests, sectors, bank wavefronts, traffic of L2 and DRAM.
#pragma once

#include "common/sim/observer.h"

namespace sim {

Watcher& request_watcher();

}  // namespace sim
