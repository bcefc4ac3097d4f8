#include "common/ranks/mpi_world.h"
#ifdef FA_NCCL
#include "common/ranks/nccl_world.h"
#endif

namespace fa {

const bool kHasMpi = true;

std::unique_ptr<World> World::join(const std::string& who) {
#ifdef FA_NCCL
  return std::make_unique<NcclWorld>(who);
#else
  return std::make_unique<MpiWorld>(who);
#endif
}

}  // namespace fa
