// For builds without MPI: the program runs on one rank, and refuses more.
#include "common/dialect/errors.h"
#include "common/ranks/join.h"

namespace fa {

const bool kHasMpi = false;

std::unique_ptr<World> join_ranks(const std::string&) {
  throw ResourceError(
      "built without MPI, for one rank: install libopenmpi-dev and openmpi-bin "
      "(./scripts/setup.sh mpi) and configure again");
}

}  // namespace fa
