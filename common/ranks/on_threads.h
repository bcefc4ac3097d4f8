/// \file
/// Ranks without MPI: threads of one process and one device, of which one runs at a time.
#pragma once

#include <functional>

#include "common/harness/ranks.h"

namespace fa {

/// Calls f(ranks) on `size` ranks. \throws what the first rank that failed threw.
/// \param busy_sms  SMs that messages pretend to occupy
void on_threads(int size, const std::function<void(Ranks&)>& f, int busy_sms = 0);

}  // namespace fa
