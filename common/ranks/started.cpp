#include <cstdlib>
#include <vector>

#include "common/ranks/join.h"

namespace fa {

int started_ranks() {
  std::vector<const char*> names = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
  if (std::getenv("PMIX_RANK")) names.push_back("SLURM_STEP_NUM_TASKS");  // srun --mpi=pmix
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value && std::atoi(value) > 0) return std::atoi(value);
  }
  return 0;
}

}  // namespace fa
