#include "common/counts/gpus.h"

#include "common/counts/files.h"
#include "common/harness/problem.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using Catch::Matchers::StartsWith;
using fa::test::TemporaryFile;

TEST_CASE("the table of GPUs holds plausible rows", "[gpus]") {
  const auto table = fa::gpu_table();
  REQUIRE(table.size() >= 10);
  for (const fa::GpuSpec& gpu : table) {
    CAPTURE(gpu.name);
    CHECK(gpu.arch.substr(0, 3) == "sm_");
    CHECK(gpu.sms >= 10);
    CHECK(gpu.sm.threads % 512 == 0);
    CHECK(gpu.sm.threads / 32 / gpu.sm.blocks >= 2);  // full SMs need blocks of 2 warps or more
    CHECK(gpu.sm.registers == 65536);
    CHECK(gpu.sm.shared_bytes >= 64 * 1024);
    CHECK(gpu.sm.shared_bytes <= 228 * 1024);
    CHECK(gpu.sm.l1_bytes > gpu.sm.shared_bytes);
    for (size_t i = 0; i < gpu.links.size(); ++i) {
      CHECK(gpu.links[i].bytes_per_s > 1e10);
      if (i > 0) CHECK(gpu.links[i].bytes_per_s < gpu.links[i - 1].bytes_per_s);
    }
    CHECK(gpu.sm.block_reserved_bytes == (fa::runs_on(gpu.arch, "sm_80") ? 1024u : 0u));
    CHECK(gpu.hbm_bytes_per_s > 1e11);
    CHECK(gpu.memory_bytes > 4e9);
    CHECK(gpu.l2_bytes > 1e6);
    CHECK(gpu.l2_bytes < gpu.memory_bytes);
    CHECK(gpu.fp32_flops > 1e12);
    // Tensor cores are faster than the CUDA cores, and fp8 at most about twice bf16.
    if (gpu.bf16_flops != 0) CHECK(gpu.bf16_flops > gpu.fp32_flops);
    if (gpu.fp8_flops != 0) CHECK(gpu.fp8_flops == Approx(2 * gpu.bf16_flops).epsilon(0.01));
  }
}

TEST_CASE("every name is found, in upper and lower case, and is there once", "[gpus]") {
  for (const fa::GpuSpec& gpu : fa::gpu_table()) {
    CHECK(fa::find_gpu(gpu.name).memory_bytes == gpu.memory_bytes);
  }
  CHECK(fa::find_gpu("h200").name == "H200");
  CHECK(fa::find_gpu("H200").l2_bytes == 50 * 1024 * 1024);
}

TEST_CASE("a GPU runs code for older architectures, but for sm_90a only as sm_90", "[gpus]") {
  CHECK(fa::runs_on("sm_100", "sm_100a"));
  CHECK_FALSE(fa::runs_on("sm_90", "sm_100a"));
  CHECK_FALSE(fa::runs_on("sm_103", "sm_100a"));
  CHECK(fa::runs_on("sm_75", ""));
  CHECK_FALSE(fa::runs_on("sm_75", "sm_80"));
  CHECK(fa::runs_on("sm_80", "sm_80"));
  CHECK(fa::runs_on("sm_120", "sm_80"));
  CHECK(fa::runs_on("sm_90", "sm_90a"));
  CHECK_FALSE(fa::runs_on("sm_89", "sm_90a"));
  CHECK_FALSE(fa::runs_on("sm_100", "sm_90a"));
}

TEST_CASE("a block's shared memory is the SM's without what each block reserves", "[gpus]") {
  CHECK(fa::find_gpu("T4").block_shared_bytes() == 65536);
  CHECK(fa::find_gpu("RTX 3090").block_shared_bytes() == 101376);
  CHECK(fa::find_gpu("RTX 4090").block_shared_bytes() == 101376);
  CHECK(fa::find_gpu("A100").block_shared_bytes() == 166912);
  CHECK(fa::find_gpu("H200").block_shared_bytes() == 232448);
}

TEST_CASE("each figure of a row is the one of its name", "[gpus]") {
  const auto row_of = [](const std::string& more) {
    const fa::test::TemporaryFile file(R"({"gpus": [{"name": "A", "arch": "sm_77", "sms": 3,
      "hbm_bytes_per_s": 4e9, "memory_bytes": 5e9, "l2_bytes": 6e6, "fp32_flops": 7e12)" +
                                       more + "}]}");
    return fa::read_gpu_table(file.path).at(0);
  };
  const fa::GpuSpec all = row_of(R"(, "sm_threads": 11, "sm_blocks": 12, "sm_registers": 13,
      "sm_shared_bytes": 14, "l1_bytes": 15, "block_reserved_bytes": 16, "bf16_flops": 17,
      "fp8_flops": 18, "links": [{"name": "a", "bytes_per_s": 19}, {"name": "b", "bytes_per_s": 20}])");
  CHECK(all.name == "A");
  CHECK(all.arch == "sm_77");
  CHECK(all.sms == 3);
  const auto figures = [](const fa::SmSpec& sm) {
    return std::vector<uint64_t>{sm.threads,      sm.blocks,   sm.registers,
                                 sm.shared_bytes, sm.l1_bytes, sm.block_reserved_bytes};
  };
  CHECK(figures(all.sm) == std::vector<uint64_t>{11, 12, 13, 14, 15, 16});
  CHECK(all.hbm_bytes_per_s == 4e9);
  CHECK(all.memory_bytes == 5e9);
  CHECK(all.l2_bytes == 6e6);
  CHECK(all.fp32_flops == 7e12);
  CHECK(all.bf16_flops == 17);
  CHECK(all.fp8_flops == 18);
  REQUIRE(all.links.size() == 2);
  CHECK(all.links[1].name == "b");
  CHECK(all.links[1].bytes_per_s == 20);
  const fa::GpuSpec least = row_of("");
  CHECK(figures(least.sm) == figures(fa::find_gpu("H200").sm));
  CHECK(least.bf16_flops == 0);
  CHECK(least.fp8_flops == 0);
  CHECK(least.links.empty());
  for (const char* wrong :
       {R"(, "sm_blocks": -1)", R"(, "l1_bytes": 2147483648)", R"(, "sm_threads": 1e300)"}) {
    CHECK_THROWS_WITH(row_of(wrong), ContainsSubstring("is not from 0 to 2^31 - 1"));
  }
  CHECK(row_of(R"(, "l1_bytes": 2147483647)").sm.l1_bytes == 2147483647);
}

TEST_CASE("a damaged table is a sentence", "[gpus]") {
  const std::string row =
      R"({"name":"A","arch":"sm_1","sms":1,"hbm_bytes_per_s":1,"memory_bytes":1,"l2_bytes":1,)";
  for (const auto& [rest, word] : std::vector<std::pair<std::string, std::string>>{
           {R"("fp8_flops":2}]})", "fp32_flops"},
           {R"("fp32_flops":0}]})", "fp32_flops"},
           {"", ""},
           {R"("fp32_flops":2,"links":[{"name":"x"}]}]})", "bytes_per_s"},
           {R"("fp32_flops":2,"sm_blocks":1.4e12}]})", "sm_blocks"}}) {
    const TemporaryFile bad(R"({"gpus":[)" + row + rest);
    CHECK_THROWS_AS(fa::read_gpu_table(bad.path), fa::UsageError);
    CHECK_THROWS_WITH(fa::read_gpu_table(bad.path), ContainsSubstring(word));
  }
}

TEST_CASE("a row that no GPU has is refused by its name", "[gpus]") {
  const auto said = [](const std::string& sms, const std::string& hbm, const std::string& flops) {
    const std::string good =
        R"({"name":"A","arch":"sm_1","sms":1,"hbm_bytes_per_s":1,"memory_bytes":1,"l2_bytes":1,)"
        R"("fp32_flops":1})";
    const TemporaryFile file(R"({"gpus":[)" + good + R"(,{"name":"B","arch":"sm_1","sms":)" + sms +
                             R"(,"hbm_bytes_per_s":)" + hbm +
                             R"(,"memory_bytes":1,"l2_bytes":1,"fp32_flops":)" + flops + "}]}");
    return fa::test::refusal_of([&] { fa::read_gpu_table(file.path); });
  };
  const std::string needs =
      "the row B of the table of GPUs needs sms, fp32_flops and hbm_bytes_per_s above 0";
  CHECK(said("1", "1", "1") == "accepted");
  CHECK(said("0", "1", "1") == needs);
  CHECK(said("1", "0", "1") == needs);
  CHECK(said("1", "1", "-1") == needs);
  CHECK_THAT(said("1", "\"fast\"", "1"), ContainsSubstring(", is invalid after 1 rows: "));
  CHECK_THROWS_WITH(fa::read_gpu_table("no/such.json"),
                    "the table of GPUs, no/such.json, cannot be read");
  std::string known;
  for (const fa::GpuSpec& gpu : fa::gpu_table()) known += (known.empty() ? "" : ", ") + gpu.name;
  CHECK_THROWS_WITH(fa::find_gpu("H201"),
                    "--gpu H201: not in common/data/gpus.json, which holds " + known);
}

TEST_CASE("what a newer GPU has given up, and how fast it multiplies", "[gpus]") {
  CHECK(fa::given_up_by("sm_100", "sm_90a") == ", which has no wgmma");
  CHECK(fa::given_up_by("sm_120", "sm_90a") == ", which has no wgmma");
  CHECK(fa::given_up_by("sm_103", "sm_100a") == ", which has no tcgen05");
  CHECK(fa::given_up_by("sm_80", "sm_90a").empty());
  CHECK(fa::given_up_by("sm_90", "sm_100a").empty());
  CHECK(fa::product_columns(fa::find_gpu("B200")) == 4);
  CHECK(fa::product_columns(fa::find_gpu("H200")) == fa::clock_figures("H200").wgmma_columns);
}

TEST_CASE("the clock's figures of a GPU lie in the file of its name, else in the H200's",
          "[gpus]") {
  const fa::test::Folder folder;
  setenv("FLASH_STEPS_DATA", folder.path().c_str(), 1);
  const auto said = [](const std::string& gpu) {
    return fa::test::refusal_of([&] { fa::clock_figures(gpu); });
  };
  CHECK(said("Any") ==
        "the figures of a GPU's clock, " + fa::data_file("clock_h200.json") + ", cannot be read");
  folder.file("clock_rtx_9090.json", "{}");
  CHECK_THAT(said("RTX 9090"),
             StartsWith("the figures of a GPU's clock, " + fa::data_file("clock_rtx_9090.json") +
                        ", are damaged: "));
  unsetenv("FLASH_STEPS_DATA");
}
