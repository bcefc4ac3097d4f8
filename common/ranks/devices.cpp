// Which GPU a rank opens.
#include <cstdlib>
#include <set>

#include "common/counts/format.h"
#include "common/dialect/cuda.h"
#include "common/ranks/mpi_world.h"

namespace fa {

namespace {

int gpus() {
#if FA_BACKEND_GPU
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
#else
  const char* pretended = std::getenv("FLASH_STEPS_SIM_GPUS");
  return pretended ? std::atoi(pretended) : 1 << 20;
#endif
}

/// The only GPU that this process sees, as under launchers that give each rank one; else "".
std::string only_gpu() {
#if FA_BACKEND_GPU
  cudaDeviceProp gpu;
  if (gpus() == 1 && cudaGetDeviceProperties(&gpu, 0) == cudaSuccess) {
    return std::string(gpu.uuid.bytes, sizeof gpu.uuid.bytes);
  }
#endif
  return "";
}

}  // namespace

void MpiWorld::look_for_gpus() {
  const std::vector<std::string> gpus = all(only_gpu());
  own_gpu_ = !gpus[0].empty() && std::set(gpus.begin(), gpus.end()).size() == gpus.size();
}

// The simulator has one device per rank, or as many as FLASH_STEPS_SIM_GPUS says.
Device MpiWorld::open(const Step& step, const Variant& v) {
  const int n = gpus(), ranks = own_gpu_ ? 1 : local_size_;
  if (n > 0 && ranks > n) {
    throw ResourceError(
        fmt::format("{} ranks on this machine, which has {} GPU{}: start at most {} here, or run "
                    "build/sim/steps/{} in the simulator instead",
                    ranks, n, n == 1 ? "" : "s", n, step.id));
  }
  return open_device(step.id, needs_of(step, v), simulated() || own_gpu_ ? 0 : local_rank_);
}

}  // namespace fa
