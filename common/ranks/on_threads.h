/// \file
/// Ranks without MPI: threads of one process and one device, of which one runs at a time.
#pragma once

#include <functional>

#include "common/harness/ranks.h"

namespace fa {

/// f(ranks) on each of so many ranks. \throws what the first one threw that failed.
/// \param busy_sms  that messages pretend to take
void on_threads(int size, const std::function<void(Ranks&)>& f, int busy_sms = 0);

}  // namespace fa
