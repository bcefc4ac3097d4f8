// Loads and stores per second of the simulator, on one worker:
//   build/sim/tests/test_simulator '[speed]'
#include <chrono>
#include <cstdio>

#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

constexpr int kThreads = 256, kBlocks = 16, kRow = 1024;

// A warp loads 32 consecutive floats.
__global__ void consecutive(const float* x, float* y, int n) {
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[k % 64 * kThreads + threadIdx.x];
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}
__global__ void scattered(const float* x, float* y, int n) {
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[threadIdx.x * kRow + k % kRow];
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}
// Each thread loads and stores its own word of shared memory.
__global__ void shared(const float* x, float* y, int n) {
  __shared__ float own[kThreads];
  own[threadIdx.x] = x[threadIdx.x];
  for (int k = 0; k < n / 2; ++k) own[threadIdx.x] += 1;
  y[blockIdx.x * kThreads + threadIdx.x] = own[threadIdx.x];
}
// A tile that all threads store and load between barriers, as in a matrix product.
__global__ void tiled(const float* x, float* y, int n) {
  __shared__ float tile[kThreads];
  float sum = 0;
  for (int k = 0; k < n / 18; ++k) {
    tile[threadIdx.x] = x[k % 64 * kThreads + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 16; ++j) sum += tile[threadIdx.x / 16 * 16 + j];
    __syncthreads();
  }
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}
// Half of the accesses end at a barrier.
__global__ void barriers(const float* x, float* y, int n) {
  __shared__ float tile[kThreads];
  float sum = x[threadIdx.x];
  for (int k = 0; k < n / 2; ++k) {
    tile[threadIdx.x] = sum;
    __syncthreads();
    sum += tile[(threadIdx.x + 1) % kThreads];
    __syncthreads();
  }
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}

using Kernel = void(const float*, float*, int);
constexpr std::pair<const char*, Kernel*> kKernels[] = {{"consecutive", consecutive},
                                                        {"scattered", scattered},
                                                        {"shared", shared},
                                                        {"tiled", tiled},
                                                        {"barriers", barriers}};

const sim::Options kPlain{.workers = 1};
const sim::Options kRequests{.workers = 1, .requests = true, .l2_bytes = 50e6};
const sim::Options kAnalyse{.workers = 1, .requests = true, .l2_bytes = 50e6, .analyse = true};

struct Run {
  double accesses = 0, seconds = 1e9;
  uint64_t requests = 0, analysed = 0;
};
Run run(Kernel* kernel, const sim::Options& o, int n) {
  WithOptions with(o);
  const Buffer<float> x("x", kThreads * kRow), y("y", kBlocks * kThreads);
  Run r;
  sim::Recording recording;
  const auto start = std::chrono::steady_clock::now();
  fa::launch(kernel, {dim3(kBlocks), dim3(kThreads)}, x, y, n);
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const fa::Counts counts = recording.finish();
  const fa::KernelCount& k = counts.kernels.at(0);
  const uint64_t bytes = k.bytes.read + k.bytes.write + k.shared_read + k.shared_write;
  r.accesses = static_cast<double>(bytes / sizeof(float));
  r.requests = k.requests.load + k.requests.store + k.shared_requests;
  r.analysed = counts.analysed;
  return r;
}

}  // namespace

TEST_CASE("each way to look at a kernel sees the same accesses", "[sim][speed_kernels]") {
  for (const auto& [name, kernel] : kKernels) {
    INFO(name);
    constexpr int kLoops = 180;
    const double accesses = run(kernel, kPlain, kLoops).accesses;
    CHECK(accesses >= kBlocks * kThreads * kLoops);
    const Run grouped = run(kernel, kRequests, kLoops), searched = run(kernel, kAnalyse, kLoops);
    CHECK(grouped.accesses == accesses);
    CHECK(static_cast<double>(grouped.requests) == accesses / 32);
    CHECK(searched.requests == grouped.requests);
    CHECK(static_cast<double>(searched.analysed) == accesses);
  }
}

TEST_CASE("accesses a second", "[.][speed]") {
  std::printf("million accesses a second, one worker, the best of three runs\n");
  std::printf("%-12s %8s %8s %8s\n", "", "bytes", "requests", "analyse");
  for (const auto& [name, kernel] : kKernels) {
    std::printf("%-12s", name);
    for (const sim::Options& o : {kPlain, kRequests, kAnalyse}) {
      Run best;
      for (int i = 0; i < 3; ++i) {
        const Run r = run(kernel, o, 3600);
        if (r.seconds < best.seconds) best = r;
      }
      std::printf(" %8.0f", best.accesses / best.seconds / 1e6);
    }
    std::printf("\n");
  }
}
