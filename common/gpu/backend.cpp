// common/counts/backend.h for a GPU: the device. The stream is in stream.cpp, count() in
// counters.cpp, time_gpu() in timer.cpp, measured_roofs() in roofs.cu.
#include "common/counts/backend.h"

#include "common/counts/format.h"
#include "common/dialect/cuda.h"
#include "common/dialect/errors.h"
#include "common/gpu/l2_flush.h"

namespace fa {

Device open_device(const std::string& step_id, const std::string& needs, int number) {
  const std::string instead = ": run build/sim/steps/" + step_id + " in the simulator instead";
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver != 0) {
      throw ResourceError(fmt::format(
          "the NVIDIA driver knows CUDA {}.{}, this program was built with {}.{}: update the "
          "driver, or build with an older toolkit",
          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
    }
  }
  if (status != cudaSuccess || devices == 0) throw ResourceError("no GPU found" + instead);

  cudaDeviceProp properties;
  if (cudaSetDevice(number) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, number) != cudaSuccess) {
    throw ResourceError(fmt::format("the GPU does not answer ({}){}",
                                    cudaGetErrorString(cudaGetLastError()), instead));
  }
  const std::string arch = fmt::format("sm_{}", 10 * properties.major + properties.minor);
  if (!runs_on(arch, needs)) {
    throw ResourceError(
        fmt::format("needs {}; this is {}{}{}", needs, arch, given_up_by(arch, needs), instead));
  }
  if (!gpu::built_for_this_gpu()) {
    throw ResourceError(fmt::format(
        "built for other GPUs than this {}: configure again (cmake --preset gpu --fresh)", arch));
  }
  return {"gpu", properties.name, arch, properties.multiProcessorCount, free_device_bytes()};
}

bool simulated() { return false; }

void configure(const SimOptions&) {}

size_t free_device_bytes() {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  return free;
}

void name_device_memory(const void*, const std::string&) {}
void shape_device_memory(const void*, const Layout&) {}

void poison_device_memory(void* p, size_t bytes) { cuda_check(cudaMemset(p, 0xff, bytes)); }

}  // namespace fa
