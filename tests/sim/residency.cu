// How many blocks of a kernel the modelled GPU holds, and that the L2 model goes by it.
#include "common/counts/files.h"
#include "common/sim/scheduler/residency.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/dialect/errors.h"
#include "common/harness/inputs.h"
#include "tests/sim/diagnosis.h"

using sim::blocks_per_sm;
using sim::Resources;
using sim::test::Buffer;
using sim::test::WithOptions;

namespace step04 {

// Each warp reads its range twice. By its name the simulator takes it for step 04's kernel.
template <int d, int Bc>
__global__ void flash_fwd_kernel(const float4* x, float4* y, int per_warp) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float4* mine = x + (size_t{blockIdx.x} * (blockDim.x / 32) + warp) * per_warp;
  float4 v = {};
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = lane; i < per_warp; i += 32) v.x += mine[i].x;
  }
  if (v.x != 0) y[lane] = v;  // never: x is zero
}

}  // namespace step04

namespace {

sim::ResourceTable read(const std::string& words) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("flash_steps_registers_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << words;
  struct Remove {
    ~Remove() { std::filesystem::remove(path); }
    std::filesystem::path path;
  } remove{path};
  return sim::read_resource_table(path);
}

}  // namespace

// Expected figures: cuda_occupancy.h of CUDA 13.0.
TEST_CASE("an SM holds as many blocks as NVIDIA's occupancy calculation says", "[sim][residency]") {
  struct Case {
    const char* gpu;
    unsigned threads;
    size_t dynamic_bytes;
    Resources resources;
    unsigned blocks;
  };
  const auto c = GENERATE(values<Case>({
      {"H200", 256, 0, {32, 0}, 8},          // threads
      {"H200", 1024, 0, {16, 0}, 2},         //
      {"H200", 128, 32768, {32, 0}, 6},      // 7 without the KB that each block takes
      {"H200", 128, 0, {32, 32768}, 6},      //
      {"H200", 33, 0, {16, 0}, 32},          // blocks
      {"H200", 256, 0, {126, 0}, 2},         // registers
      {"H200", 256, 0, {128, 0}, 2},         //
      {"H200", 256, 0, {129, 0}, 1},         // rounded up to 136: 3 warps in a quarter
      {"H200", 128, 0, {168, 0}, 3},         //
      {"H200", 32, 0, {255, 0}, 8},          //
      {"H200", 96, 0, {168, 0}, 4},          // 12 warps, 3 in each quarter
      {"H200", 64, 0, {73, 0}, 12},          // 6 warps of 80 registers in each quarter
      {"H200", 256, 74000, {32, 0}, 3},      // shared memory
      {"H200", 256, 74000, {32, 18432}, 2},  // with a static part
      {"H200", 256, 232448, {32, 0}, 1},     // all of it
      {"H200", 128, 37 * 1024, {32, 0}, 6},  // the reserved KB decides
      {"A100", 256, 65536, {64, 0}, 2},      //
      {"A10", 32, 0, {32, 0}, 16},           //
      {"RTX 4090", 32, 0, {32, 0}, 24},      //
      {"T4", 256, 0, {32, 0}, 4},            //
      {"T4", 256, 32768, {32, 0}, 2},        // nothing is reserved
      {"V100", 256, 32768, {32, 0}, 3},      //
      {"H200", 256, 0, {}, 8},               // an unknown kernel: threads
      {"H200", 256, 74000, {}, 3},           // and dynamic shared memory
      {"T4", 256, 200 * 1024, {}, 1},        // too large for any GPU
      {"H200", 1024, 0, {200, 0}, 1},        //
  }));
  CAPTURE(c.gpu, c.threads, c.dynamic_bytes, c.resources.registers, c.resources.shared_bytes);
  CHECK(blocks_per_sm(fa::find_gpu(c.gpu).sm, c.threads, c.dynamic_bytes, c.resources) == c.blocks);
}

TEST_CASE("the shipped file knows the steps' kernels by the simulator's names",
          "[sim][residency]") {
  const auto table = sim::read_resource_table(fa::data_file("registers.json"));
  CHECK(table.size() > 50);
  for (const auto& [kernel, resources] : table) {
    CAPTURE(kernel);
    CHECK(resources.registers >= 8);
    CHECK(resources.registers <= 255);
    CHECK(resources.shared_bytes <= 48 * 1024);  // the limit of static arrays
  }
  CHECK(table.count("step01::softmax_kernel") == 1);
  CHECK(sim::resources_of("step02::scores_kernel<64>").shared_bytes > 0);
  CHECK(sim::resources_of("step04::flash_fwd_kernel<64, 64>").registers > 64);
  CHECK(sim::resources_of("mine::flash_fwd_kernel<64>").registers == 0);
}

TEST_CASE("without the file no kernel is known; a damaged one is a sentence", "[sim][residency]") {
  CHECK(sim::read_resource_table("no/such/registers.json").empty());
  const auto table = read(R"({"kernels":{"k":{"<1>":[40, 512]}}})");
  REQUIRE(table.size() == 1);
  CHECK(table.at("k<1>").registers == 40);
  CHECK(table.at("k<1>").shared_bytes == 512);
  const std::string words = GENERATE(as<std::string>{}, R"({"kernels":{"k":{"":[40)", "{}",
                                     R"({"kernels":{"k":{"":[40]}}})", "");
  CAPTURE(words);
  CHECK_THROWS_AS(read(words), fa::UsageError);
  CHECK_THROWS_WITH(read(words), ContainsSubstring("registers.json") ||
                                     ContainsSubstring("flash_steps_registers_"));
}

// 8 unknown blocks of 8 warps have twice the L2 in flight (l2.cu); 2 or 3 of step 04's at most 3/4.
TEST_CASE("the L2 model holds fewer blocks of a kernel with many registers", "[sim][residency]") {
  constexpr size_t kL2 = 1 << 20, kRange = kL2 / 32;  // bytes; a warp's range
  constexpr unsigned kBlocks = 32, kThreads = 256;
  constexpr size_t kBytes = kBlocks * kThreads / 32 * kRange;
  Buffer<float4> x("x", kBytes / sizeof(float4)), y("y", 32);
  const WithOptions with({.workers = 1, .l2_bytes = kL2, .resident_sms = 1});
  const auto counts = sim::test::counted(step04::flash_fwd_kernel<64, 64>, {kBlocks, kThreads}, x,
                                         y, static_cast<int>(kRange / sizeof(float4)));
  REQUIRE(counts.hbm);
  CHECK(static_cast<double>(counts.hbm->read) == Approx(1. * kBytes).epsilon(0.1));
}

TEST_CASE("a block that needs more registers than an SM has is refused", "[sim][residency]") {
  Buffer<float4> x("x", 1), y("y", 32);
  const unsigned registers = sim::resources_of("step04::flash_fwd_kernel<64, 64>").registers;
  const auto found = [&](unsigned threads, unsigned of_sm) {
    const WithOptions with({.workers = 1, .sm = {.registers = of_sm}});
    return sim::test::finding(step04::flash_fwd_kernel<64, 64>, {1, threads}, x, y, 0);
  };
  for (const unsigned threads : {96u, 65u}) {  // three warps
    const unsigned needed = 3 * ((registers * 32 + 255) / 256 * 256);
    CAPTURE(threads, needed);
    CHECK(found(threads, needed) == "");
    CHECK_THAT(found(threads, needed - 1),
               ContainsSubstring("a block of " + std::to_string(threads) + " threads with " +
                                 std::to_string(registers) + " registers each; an SM has " +
                                 std::to_string(needed - 1)));
  }
}
