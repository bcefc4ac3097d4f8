// The rest of common/counts/backend.h on a GPU: the device, the clock, the yardsticks.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"
#include "common/harness/problem.h"
#include "tests/test.h"

namespace {

/// Spins for `cycles` of the SM's clock.
__global__ void spin_kernel(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("gpu: more shared memory than a block can have is no memory, in one sentence", "[gpu]") {
  const size_t megabyte = 1 << 20;
  CHECK_THROWS_AS(fa::launch(spin_kernel, {dim3(1), dim3(1), megabyte}, 0), fa::ResourceError);
  CHECK_NOTHROW(fa::launch(spin_kernel, {dim3(1), dim3(1), 60 * 1024}, 0));
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("gpu: the device and what it is too old or too new for", "[gpu]") {
  const fa::Device device = fa::open_device("01_naive", "");
  CHECK(device.kind == "gpu");
  CHECK(device.arch.substr(0, 3) == "sm_");
  CHECK_FALSE(device.name.empty());
  CHECK(fa::free_device_bytes() > 0);

  CHECK_NOTHROW(fa::open_device("x", device.arch));        // this one or newer
  CHECK_NOTHROW(fa::open_device("x", device.arch + "a"));  // exactly this one
  CHECK_NOTHROW(fa::open_device("x", "sm_50"));
  CHECK_THROWS_AS(fa::open_device("x", "sm_50a"), fa::ResourceError);
  CHECK_THROWS_WITH(fa::open_device("99_future", "sm_999a"),
                    "needs sm_999a; this is " + device.arch +
                        ": run build/sim/steps/99_future in the simulator instead");
}

TEST_CASE("gpu: twice the work takes twice the time", "[gpu]") {
  const auto time = [](long long cycles) {
    return *fa::time_gpu([=] { fa::launch(spin_kernel, {1, 1}, cycles); }, 20);
  };
  const fa::Timing once = time(1'000'000), twice = time(2'000'000);
  CHECK(once.iters == 20);
  CHECK(once.p10_ms <= once.median_ms);
  CHECK(once.median_ms <= once.p90_ms);
  CHECK(twice.median_ms / once.median_ms == Approx(2).epsilon(0.1));
  CHECK_THROWS_AS(fa::time_gpu([] {}, -1), fa::UsageError);
}

TEST_CASE("gpu: roofs are measured once, kept, and measured again when damaged", "[gpu]") {
  char folder[] = "/tmp/flash-steps-test-XXXXXX";
  REQUIRE(mkdtemp(folder));
  setenv("XDG_CACHE_HOME", folder, 1);
  const auto roofs = fa::measured_roofs();
  REQUIRE(roofs);
  CHECK(roofs->copy_bytes_per_s > 1e10);
  CHECK(roofs->fp32_flops > 1e11);
  if (roofs->fp32_matmul_flops > 0) CHECK(roofs->fp32_matmul_flops < 1.2 * roofs->fp32_flops);

  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  REQUIRE(files.size() == 1);
  if (roofs->fp32_matmul_flops > 0 && roofs->bf16_flops > 0) {  // a whole set is read back
    const std::string kept = text_of(files[0]);
    CHECK(fa::measured_roofs()->copy_bytes_per_s == roofs->copy_bytes_per_s);
    CHECK(text_of(files[0]) == kept);
  }
  for (const char* damage : {"", "no JSON", "[]", R"({"copy_bytes_per_s": "fast"})",
                             R"({"copy_bytes_per_s": -1, "fp32_flops": 1})"}) {
    CAPTURE(damage);
    std::ofstream(files[0]) << damage;
    const auto again = fa::measured_roofs();
    REQUIRE(again);
    CHECK(again->copy_bytes_per_s == Approx(roofs->copy_bytes_per_s).epsilon(0.2));
  }
  std::filesystem::remove_all(folder);
}
