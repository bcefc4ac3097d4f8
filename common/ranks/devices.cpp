#include <cstdlib>

#include "common/dialect/cuda.h"
#include "common/harness/format.h"
#include "common/ranks/world.h"

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

}  // namespace

std::string only_gpu() {
#if FA_BACKEND_GPU
  cudaDeviceProp gpu;
  if (gpus() == 1 && cudaGetDeviceProperties(&gpu, 0) == cudaSuccess) {
    return std::string(gpu.uuid.bytes, sizeof gpu.uuid.bytes);
  }
#endif
  return "";
}

Device open_device_of(int rank, int ranks, const Step& step, const Variant& v) {
  const int n = gpus();
  if (n > 0 && ranks > n) {
    throw ResourceError(
        fmt::format("{} ranks on this machine, which has {} GPU{}: start at most {} here, or run "
                    "build/sim/steps/{} in the simulator instead",
                    ranks, n, n == 1 ? "" : "s", n, step.id));
  }
  return open_device(step.id, needs_of(step, v), simulated() ? 0 : rank);
}

}  // namespace fa
