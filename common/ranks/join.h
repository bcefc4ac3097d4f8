/// \file
/// How a program becomes one of several ranks.
#pragma once

#include <memory>
#include <string>

#include "common/harness/world.h"

namespace fa {

/// Was this program built with MPI?
extern const bool kHasMpi;
/// Joins the ranks of this run. Destroying the result finalises MPI, as every rank must.
/// \param who the program's name, for messages
/// \throws ResourceError without MPI, or where the requested transport is missing.
std::unique_ptr<World> join_ranks(const std::string& who);

}  // namespace fa
