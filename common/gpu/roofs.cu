#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/counts/backend.h"
#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "common/gpu/matmul.h"
#include "common/gpu/under_tool.h"

namespace fa {

namespace {

constexpr int kThreads = 256;
constexpr int kRuns = 20;  // timed runs per roof

// --- the yardsticks -----------------------------------------------------------------------------

__global__ void copy_kernel(const float4* from,  // [n]
                            float4* to,          // [n]
                            size_t n) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) to[i] = from[i];
}

constexpr int kChains = 8;  // independent sums per thread, which hide the latency of an FMA
constexpr int kFmaRounds = 8192;

__global__ void __launch_bounds__(kThreads) fma_kernel(float factor, float* sink) {  // [1]
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = threadIdx.x + i;
#pragma unroll 16
  for (int round = 0; round < kFmaRounds; ++round) {
    UNROLL
    for (int i = 0; i < kChains; ++i) sums[i] = fmaf(sums[i], factor, factor);
  }
  float total = 0;
  for (int i = 0; i < kChains; ++i) total += sums[i];
  if (total == -1.f) *sink = total;  // never, but the compiler cannot know
}

/// Bytes read and written per second by a plain copy, far larger than the L2. 0: no room.
double copy_roof(size_t l2_bytes) {
  size_t bytes = 512u << 20;
  while (bytes < 4 * l2_bytes) bytes *= 2;
  const size_t n = bytes / sizeof(float4);
  DeviceMemory<float4> from("copy from", n), to("copy to", n);
  if (!from || !to) return 0;
  from.fill(1);
  const dim3 grid(static_cast<unsigned>((n + kThreads - 1) / kThreads));
  const auto timing = time_gpu(
      [&] {
        launch(copy_kernel, {grid, kThreads}, from.get(), to.get(), n);
      },
      kRuns);
  return 2.0 * bytes / (timing->median_ms * 1e-3);
}

double fma_roof(int sms) {
  const unsigned blocks = 16 * static_cast<unsigned>(sms);
  const DeviceMemory<float> sink("sink", 1);
  if (!sink) return 0;
  const auto timing = time_gpu(
      [&] {
        launch(fma_kernel, {blocks, kThreads}, 0.5f, sink.get());
      },
      kRuns);
  return 2.0 * blocks * kThreads * kChains * kFmaRounds / (timing->median_ms * 1e-3);
}

/// 0 when cuBLAS cannot be loaded.
double matmul_roof(gpu::MatmulType type) {
  const gpu::Matmul matmul(type, 8192);
  if (!matmul) return 0;
  const auto timing = time_gpu([&] { matmul(); }, kRuns);
  return matmul.flops() / (timing->median_ms * 1e-3);
}

bool has_bf16(const cudaDeviceProp& device) { return device.major >= 8; }

Roofs measure(const cudaDeviceProp& device) {
  Roofs roofs;
  roofs.copy_bytes_per_s = copy_roof(device.l2CacheSize);
  roofs.fp32_flops = fma_roof(device.multiProcessorCount);
  roofs.bf16_flops = has_bf16(device) ? matmul_roof(gpu::MatmulType::bf16) : 0;
  roofs.fp32_matmul_flops = matmul_roof(gpu::MatmulType::fp32);
  return roofs;
}

// --- kept between runs --------------------------------------------------------------------------

/// "roofs-<uuid>.json" in the user's cache folder; empty where there is none.
std::filesystem::path cache_file(const cudaDeviceProp& device) {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (xdg && *xdg) {
    folder = xdg;
  } else if (home && *home) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  std::string uuid;
  for (const char byte : device.uuid.bytes) {
    constexpr char digits[] = "0123456789abcdef";
    uuid += {digits[static_cast<unsigned char>(byte) >> 4], digits[byte & 15]};
  }
  return folder / "flash-steps" / ("roofs-" + uuid + ".json");
}

/// Nothing when the file is missing, damaged, or from a run that could not measure everything.
std::optional<Roofs> load(const std::filesystem::path& path, bool has_bf16) {
  std::ifstream file(path);
  const auto tree = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto figure = [&](const char* name) {
    const auto it = tree.is_object() ? tree.find(name) : tree.end();
    return it != tree.end() && it->is_number() ? it->get<double>() : 0.0;
  };
  const Roofs roofs{figure("copy_bytes_per_s"), figure("fp32_flops"), figure("bf16_flops"),
                    figure("fp32_matmul_flops")};
  for (double x : {roofs.copy_bytes_per_s, roofs.fp32_flops, roofs.fp32_matmul_flops}) {
    if (!std::isfinite(x) || x <= 0) return std::nullopt;
  }
  if (has_bf16 && !(std::isfinite(roofs.bf16_flops) && roofs.bf16_flops > 0)) return std::nullopt;
  return roofs;
}

/// A cache that cannot be written only costs the next run a second.
void save(const std::filesystem::path& path, const Roofs& roofs, const std::string& device) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path unfinished = path.string() + "." + std::to_string(getpid());
  {
    std::ofstream file(unfinished);
    file << nlohmann::json{{"device", device},
                           {"copy_bytes_per_s", roofs.copy_bytes_per_s},
                           {"fp32_flops", roofs.fp32_flops},
                           {"bf16_flops", roofs.bf16_flops},
                           {"fp32_matmul_flops", roofs.fp32_matmul_flops}}
                .dump(2)
         << "\n";
  }
  std::filesystem::rename(unfinished, path, error);  // complete or not at all
  if (error) std::filesystem::remove(unfinished, error);
}

}  // namespace

std::optional<Roofs> measured_roofs() {
  int current = 0;
  cudaDeviceProp device;
  if (gpu::under_tool() || cudaGetDevice(&current) != cudaSuccess ||
      cudaGetDeviceProperties(&device, current) != cudaSuccess) {
    return std::nullopt;
  }
  const std::filesystem::path path = cache_file(device);
  if (!path.empty()) {
    if (const auto kept = load(path, has_bf16(device))) return kept;
  }
  try {
    const Roofs roofs = measure(device);
    if (!path.empty()) save(path, roofs, device.name);
    return roofs;
  } catch (const ResourceError&) {  // the problem at hand leaves no room to measure
    return std::nullopt;
  }
}

}  // namespace fa
