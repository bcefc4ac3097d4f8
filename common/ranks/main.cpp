// main() of a step that several ranks can share, or run alone; the step's main.cu names the step.
#include <cstdlib>
#include <vector>

#include "common/program/program.h"
#include "common/ranks/join.h"

namespace {

/// The number of ranks by the environment (Open MPI's mpirun, Slurm's srun, PMI); 0: started alone.
int started_ranks() {
  std::vector<const char*> names = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
  if (std::getenv("PMIX_RANK")) names.push_back("SLURM_STEP_NUM_TASKS");  // srun --mpi=pmix
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value && std::atoi(value) > 0) return std::atoi(value);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const fa::Step& step = fa::linked_steps().at(0);
  const int ranks = started_ranks();
  if (ranks == 0 || (ranks == 1 && !fa::kHasMpi)) return fa::step_main(argc, argv, step);
  try {
    const std::unique_ptr<fa::World> world = fa::join_ranks(step.id);
    return fa::run_program(argc, argv, step, *world);
  } catch (const fa::ResourceError& e) {  // on all ranks: one of them says so
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank && std::string(rank) != "0") return fa::kNoResource;
    return fa::complain(step, {fa::kNoResource, e.what()});
  }
}
