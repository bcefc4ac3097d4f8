/// \file
/// What accesses become on the hardware: requests, sectors, bank wavefronts, L2 and DRAM traffic.
#pragma once

#include "common/sim/observer.h"

namespace sim {

Watcher& request_watcher();

}  // namespace sim
