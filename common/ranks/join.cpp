#include <cstdlib>

#include "common/dialect/cuda.h"
#include "common/ranks/join.h"
#include "common/ranks/mpi_world.h"
#if FA_BACKEND_GPU
#include "common/ranks/copy_world.h"
#endif
#ifdef FA_NCCL
#include "common/ranks/nccl_world.h"
#endif

namespace fa {

const bool kHasMpi = true;

// The first transport that is possible, or the one that the environment names.
std::unique_ptr<World> join_ranks(const std::string& who) {
#if FA_BACKEND_GPU
  const char* named = std::getenv("FLASH_STEPS_MESSAGES");
  const std::string way = named ? named : "";
  const bool possible = (way == "copies" || way.empty()) && CopyWorld::possible();
  if (possible) return std::make_unique<CopyWorld>(who);
  if (way == "copies") {
    throw ResourceError("FLASH_STEPS_MESSAGES=copies: the ranks' GPUs do not reach each other's " +
                        std::string("memory: try nccl or mpi"));
  }
#ifdef FA_NCCL
  if (way == "nccl" || way.empty()) return std::make_unique<NcclWorld>(who);
#endif
  if (!way.empty() && way != "mpi") {
    throw ResourceError("FLASH_STEPS_MESSAGES=" + way + ": choose from copies, nccl, where " +
                        "the program was built with NCCL, and mpi");
  }
#endif
  return std::make_unique<MpiWorld>(who);
}

}  // namespace fa
