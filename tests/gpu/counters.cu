// The measurements of count() on a GPU, against kernels whose traffic is known by construction.
// Where the counters are refused, the figures must be absent and the note must say why.
#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "tests/test.h"

namespace {

constexpr int kThreads = 256;

__global__ void copy_kernel(const float* from, float* to) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  to[i] = from[i];
}

__global__ void strided_read_kernel(const float* from, float* to) {  // one sector per lane
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const float x = from[8 * i];
  if (x == 1.f) to[i] = x;  // never: the buffer holds zeros
}

__global__ void add_kernel(float* to) {
  atomicAdd(to + static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x, 1.f);
}

// Stores without conflicts, then loads in which two lanes share each bank.
__global__ void shared_kernel(float* to) {
  __shared__ float s[2 * kThreads];
  s[threadIdx.x] = s[threadIdx.x + kThreads] = to[threadIdx.x];
  __syncthreads();
  to[blockIdx.x * kThreads + threadIdx.x] = s[2 * threadIdx.x];
}

struct DeviceFloats : fa::DeviceMemory<float> {
  explicit DeviceFloats(size_t n) : DeviceMemory("floats", n) { fill(0); }
};

fa::LaunchConfig grid_for(size_t n) {
  return {dim3(static_cast<unsigned>(n / kThreads)), kThreads};
}

/// False, with a printed reason, when this machine does not allow reading its counters.
bool measured(const fa::Counts& counts) {
  CHECK(counts.source == "measured");
  CHECK_FALSE(counts.requested);  // hardware does not count the threads' requests
  if (counts.requests && counts.sectors) return true;
  CHECK_FALSE(counts.note.empty());
  CHECK_FALSE(counts.hbm);
  WARN(counts.note);
  return false;
}

}  // namespace

TEST_CASE("gpu: requests and sectors are exact", "[gpu]") {
  const size_t n = 1 << 16;
  DeviceFloats from(8 * n), to(n);
  SECTION("coalesced copy") {
    const auto c =
        fa::count([&] { fa::launch(copy_kernel, grid_for(n), from.get(), to.get()); }, {});
    if (!measured(c)) return;
    CHECK(*c.requests == fa::Ops{n / 32, n / 32, 0});
    CHECK(*c.sectors == fa::Ops{n / 8, n / 8, 0});
  }
  SECTION("a sector for each lane") {
    const auto c =
        fa::count([&] { fa::launch(strided_read_kernel, grid_for(n), from.get(), to.get()); }, {});
    if (!measured(c)) return;
    CHECK(*c.requests == fa::Ops{n / 32, 0, 0});
    CHECK(*c.sectors == fa::Ops{n, 0, 0});
  }
  SECTION("atomics") {
    const auto c = fa::count([&] { fa::launch(add_kernel, grid_for(n), to.get()); }, {});
    if (!measured(c)) return;
    CHECK(*c.requests == fa::Ops{0, 0, n / 32});
    CHECK(*c.sectors == fa::Ops{0, 0, n / 8});
  }
}

TEST_CASE("gpu: wavefronts of shared memory are exact", "[gpu]") {
  const size_t n = 1 << 12;
  DeviceFloats to(n);
  const auto c = fa::count([&] { fa::launch(shared_kernel, grid_for(n), to.get()); }, {});
  if (!measured(c)) return;
  REQUIRE(c.shared_wavefronts);
  CHECK(*c.shared_wavefronts == fa::Ops{2 * n / 32, 2 * n / 32, 0});
}

TEST_CASE("gpu: HBM bytes of a copy far larger than the L2, and far smaller", "[gpu]") {
  const size_t n = GENERATE(size_t{1} << 28, size_t{1} << 20);
  const double bytes = n * sizeof(float);
  CAPTURE(bytes);
  DeviceFloats from(n), to(n);
  const auto c = fa::count([&] { fa::launch(copy_kernel, grid_for(n), from.get(), to.get()); }, {});
  if (!measured(c) || !c.hbm) return;
  CHECK(c.hbm->read == Approx(bytes).epsilon(0.05).margin(1e6));
  CHECK(c.hbm->write == Approx(bytes).epsilon(0.05).margin(1e6));
}

TEST_CASE("gpu: what runs inside count() has run, and its errors come out", "[gpu]") {
  const size_t n = 1 << 12;
  DeviceFloats to(n);
  fa::count(
      [&] {
        fa::cuda_check(cudaMemset(to.get(), 0, n * 4));
        fa::launch(add_kernel, grid_for(n), to.get());
      },
      {});
  float last = 0;
  fa::cuda_check(cudaMemcpy(&last, to.get() + n - 1, sizeof last, cudaMemcpyDeviceToHost));
  CHECK(last == 1.f);
  CHECK_THROWS_AS(fa::count([] { throw std::logic_error("the step's own"); }, {}),
                  std::logic_error);
  // A failed range leaves the profiler usable.
  const auto c = fa::count([&] { fa::launch(add_kernel, grid_for(n), to.get()); }, {});
  if (measured(c)) CHECK(c.requests->atomic == n / 32);
}
