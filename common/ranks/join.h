/// \file
/// How a program becomes one of several ranks.
#pragma once

#include <memory>
#include <string>

#include "common/harness/world.h"

namespace fa {

/// How many ranks the environment says there are (Open MPI's mpirun, Slurm's srun, PMI); 0:
/// the program was started alone.
int started_ranks();
/// Was this program built with MPI?
extern const bool kHasMpi;
/// Joins the ranks of this run; whoever destroys it leaves MPI in order, as all ranks must.
/// \param who the program, for sentences
/// \throws ResourceError where there is no MPI, or not the way of messages that was asked for.
std::unique_ptr<World> join_ranks(const std::string& who);

}  // namespace fa
