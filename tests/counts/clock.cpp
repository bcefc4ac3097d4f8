// From synthetic counts to the time that the model must give for them.
#include "common/counts/estimate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "common/counts/files.h"
#include "common/counts/json.h"
#include "tests/test.h"

using fa::BlockWork;
using fa::Part;

namespace {

const fa::ClockFigures figures = fa::clock_figures("H200");

const double kFixed = figures.launch_seconds + figures.timing_seconds;  // of a run of one kernel

fa::GpuSpec h200() { return fa::find_gpu("H200"); }
double clock_of_h200() { return h200().fp32_flops / (h200().sms * 128 * 2); }

fa::Counts counts_of(const BlockWork& work, size_t blocks, uint64_t resident = 1,
                     uint64_t threads = 256) {
  fa::KernelCount k;
  k.name = "unknown::kernel<64>";
  k.blocks = blocks;
  k.threads = blocks * threads;
  k.resident = resident;
  k.work.assign(blocks, work);
  fa::Counts counts;
  counts.source = "counted";
  counts.kernels = {k};
  return counts;
}

fa::Counts memset_of(uint64_t bytes) {
  fa::Counts counts;
  fa::KernelCount& k = counts.kernels.emplace_back();
  k.name = "memset", k.buffer = "S", k.bytes.write = bytes;
  return counts;
}

double seconds(const fa::Counts& counts, const fa::GpuSpec& gpu = h200(), double times = 1) {
  const auto e = fa::estimate(counts, gpu, times);
  REQUIRE(e);
  return e->seconds - figures.timing_seconds -
         figures.launch_seconds * static_cast<double>(counts.kernels.size());
}

double share_of(const fa::KernelEstimate& k, Part part) {
  for (const fa::PartShare& p : k.parts) {
    if (p.part == part) return p.share;
  }
  return 0;
}

BlockWork lines(uint64_t n) { return {.lines = n}; }

/// Some of everything, as in a typical attention kernel.
BlockWork mixed() {
  return {.lines = 20000,
          .atomic_lines = 300,
          .wavefronts = 30000,
          .instructions = 40000,
          .mma = 9000,
          .wgmma_columns = 10000,
          .l2_bytes = 1 << 20,
          .latency = 30000,
          .fetches = 20};
}
fa::Counts mixed_counts(size_t blocks) {
  fa::Counts counts = counts_of(mixed(), blocks, 2);
  counts.kernels[0].hbm = {40 << 20, 4 << 20, 0};
  return counts;
}

}  // namespace

TEST_CASE("a kernel that keeps one part busy takes that part's time", "[clock]") {
  struct Case {
    const char* name;
    uint64_t BlockWork::*work;
    double in_a_clock;
    Part part;
    bool tensor;  // lower the clock
  };
  const auto c = GENERATE(values<Case>({
      {"L1 lines", &BlockWork::lines, figures.data_pipe, Part::l1, false},
      {"shared memory", &BlockWork::wavefronts, figures.data_pipe, Part::shared, false},
      {"instructions", &BlockWork::instructions, figures.issue, Part::instructions, false},
      {"tensor cores", &BlockWork::mma, figures.mma, Part::tensor, true},
      {"tensor cores", &BlockWork::wgmma_columns, figures.wgmma_columns, Part::tensor, true},
      {"atomics", &BlockWork::atomic_lines, figures.reduction, Part::atomics, false},
  }));
  CAPTURE(c.name, c.in_a_clock);
  constexpr uint64_t kWork = 1000000;
  constexpr unsigned kPerSm = 8;
  BlockWork w;
  w.*c.work = kWork;
  const fa::Counts counts = counts_of(w, 132 * kPerSm, 4);
  const auto e = fa::estimate(counts, h200());
  REQUIRE(e);
  const double clock = c.tensor ? figures.loaded_clock : clock_of_h200();
  CHECK(e->seconds == Approx(kPerSm * kWork / c.in_a_clock / clock + kFixed).epsilon(0.01));
  CHECK(e->limit() == c.part);
  CHECK(fa::name_of(c.part) == std::string(c.name));
  REQUIRE(e->kernels.size() == 1);
  CHECK(share_of(e->kernels[0], c.part) == Approx(1).epsilon(0.02));
  CHECK(e->kernels[0].blocks == 132 * kPerSm);
  CHECK(e->kernels[0].sms == 132);
}

TEST_CASE("L1 and shared memory share a pipe; other parts hide half of each other", "[clock]") {
  BlockWork w = lines(1000000);
  const double one = seconds(counts_of(w, 132));
  w.wavefronts = w.lines;
  CHECK(seconds(counts_of(w, 132)) == Approx(2 * one).epsilon(0.01));
  w.wavefronts = 0;
  w.atomic_lines = static_cast<uint64_t>(figures.reduction * static_cast<double>(w.lines));
  CHECK(seconds(counts_of(w, 132)) == Approx(std::sqrt(2.) * one).epsilon(0.01));
}

TEST_CASE("a kernel that streams, or stays in the L2, takes its bytes at that rate", "[clock]") {
  fa::Counts streams = counts_of({}, 132), stays = counts_of({}, 132);
  streams.kernels[0].hbm = {3000000000, 1800000000, 0};
  for (BlockWork& w : stays.kernels[0].work) w.l2_bytes = 100000000;
  CHECK(seconds(streams) == Approx(1e-3 / figures.hbm_share).epsilon(0.01));
  CHECK(seconds(stays) == Approx(132 * 1e8 / figures.l2_bytes_per_second).epsilon(0.01));
  CHECK(seconds(stays, h200(), 3) == Approx(3 * seconds(stays)).epsilon(0.01));
  fa::Counts both = streams;
  both.kernels[0].work = stays.kernels[0].work;
  CHECK(seconds(both) == std::max(seconds(streams), seconds(stays)));
  CHECK(fa::estimate(streams, h200())->limit() == Part::hbm);
  CHECK(fa::estimate(stays, h200())->limit() == Part::l2);
}

TEST_CASE("a full GPU takes twice as long for twice the work", "[clock]") {
  for (const fa::Counts& counts : {counts_of(lines(100000), 132 * 4, 4), mixed_counts(132 * 4)}) {
    const double one = seconds(counts);
    CHECK(seconds(counts, h200(), 2) == Approx(2 * one).epsilon(0.01));
    CHECK(seconds(counts, h200(), 16) == Approx(16 * one).epsilon(0.01));
  }
}

TEST_CASE("an SM starts one block after the other, however many it holds", "[clock]") {
  fa::Counts counts = counts_of({}, 13200);
  counts.kernels[0].resident = 16;
  CHECK(seconds(counts) == Approx(100 * figures.block_start / clock_of_h200()).epsilon(0.01));
}

TEST_CASE("blocks that share all work do so on all SMs, however many heads there are", "[clock]") {
  fa::Counts counts = counts_of(lines(100000), 1);
  counts.kernels[0].persistent = true;
  const double one = seconds(counts);
  CHECK(seconds(counts, h200(), 133) == Approx(one * 133 / 132).epsilon(0.01));
  CHECK(seconds(counts, h200(), 264) == Approx(one * 2).epsilon(0.01));
  const auto sms_of = [&](double times) {
    const fa::KernelEstimate k = fa::estimate(counts, h200(), times)->kernels.at(0);
    return std::pair<uint64_t, unsigned>{k.blocks, k.sms};
  };
  CHECK(sms_of(1) == std::pair{uint64_t{1}, 1u});
  CHECK(sms_of(5) == std::pair{uint64_t{132}, 132u});
  counts.kernels[0].persistent = false;
  CHECK(seconds(counts, h200(), 133) == Approx(one * 2).epsilon(0.01));
  CHECK(sms_of(5) == std::pair{uint64_t{5}, 5u});
  CHECK(sms_of(2.5) == std::pair{uint64_t{3}, 3u});
  CHECK(sms_of(2.25) == std::pair{uint64_t{2}, 3u});
}

TEST_CASE("more blocks take no longer until all SMs have one", "[clock]") {
  const fa::Counts counts = counts_of(lines(100000), 4, 4);
  const auto one = fa::estimate(counts, h200());
  REQUIRE(one);
  CHECK(one->seconds == Approx(100000 / clock_of_h200() + kFixed).epsilon(0.01));
  for (const unsigned times : {1, 2, 33}) {
    CAPTURE(times);
    const auto e = fa::estimate(counts, h200(), times);
    REQUIRE(e);
    CHECK(e->seconds == one->seconds);
    CHECK(e->kernels[0].blocks == 4 * times);
    CHECK(e->kernels[0].sms == 4 * times);
    CHECK(share_of(e->kernels[0], Part::l1) == Approx(share_of(one->kernels[0], Part::l1)));
  }
  const auto more = fa::estimate(counts, h200(), 34);
  REQUIRE(more);
  CHECK(more->seconds > 1.5 * one->seconds);
  CHECK(more->kernels[0].sms == 132);
}

TEST_CASE("more resident blocks hide more of the waiting", "[clock]") {
  constexpr unsigned kPerSm = 32;
  constexpr double kBusy = 1000, kLatency = 5000;
  BlockWork w = lines(static_cast<uint64_t>(kBusy));
  w.latency = kLatency;
  const double alone = kPerSm * (kBusy + kLatency + figures.block_start) / clock_of_h200();
  const double least = kPerSm * kBusy / clock_of_h200();
  double before = seconds(counts_of(w, 132 * kPerSm, 1));
  CHECK(before == Approx(alone).epsilon(1e-6));
  for (const unsigned resident : {2, 4, 8, 16, 32}) {
    CAPTURE(resident);
    const double now = seconds(counts_of(w, 132 * kPerSm, resident));
    CHECK(now < before);
    CHECK(now > least);
    if (resident == 2) {  // half of the time the other block works, or as long as it waits
      const double waiting = kLatency + figures.block_start;
      const double stay = kBusy * (1 + kBusy / (kBusy + waiting)) + waiting;
      CHECK(now == Approx(kPerSm / 2 * stay / clock_of_h200()));
    }
    before = now;
  }
  CHECK(before < 1.25 * least);
  // A place that no block takes has no effect.
  CHECK(seconds(counts_of(w, 132 * kPerSm, 64)) == before);
}

TEST_CASE("what is not in the L2 is farther away", "[clock]") {
  BlockWork w;
  w.fetches = 1000;
  w.latency = 1000 * figures.l2_latency;
  w.l2_bytes = 1000;
  fa::Counts counts = counts_of(w, 132);
  const double near = seconds(counts);
  CHECK(near == Approx(1000 * figures.l2_latency / clock_of_h200()).epsilon(0.01));
  counts.kernels[0].hbm = {132 * 300, 132 * 200, 0};
  const double halfway = (figures.l2_latency + figures.hbm_latency) / 2;
  CHECK(seconds(counts) == Approx(1000 * halfway / clock_of_h200()).epsilon(0.01));
  counts.kernels[0].hbm.read = 132 * 5000;
  CHECK(seconds(counts) == Approx(1000 * figures.hbm_latency / clock_of_h200()).epsilon(0.01));
}

TEST_CASE("a lone warp waits for its own arithmetic, eight warps hide it", "[clock]") {
  BlockWork w;
  w.instructions = 800000;
  const double per_instruction = figures.dependent_latency / figures.independent_chains;
  const double busy = 800000 / figures.issue;
  const double lone = seconds(counts_of(w, 132, 1, 32)) * clock_of_h200();
  CHECK(lone == Approx(busy + 800000 * (per_instruction - 1 / figures.issue)).epsilon(0.01));
  const double eight = seconds(counts_of(w, 132, 1, 256)) * clock_of_h200();
  CHECK(eight == Approx(busy).epsilon(0.01));
  CHECK(seconds(counts_of(w, 132, 1, 1024)) == seconds(counts_of(w, 132, 1, 256)));
  const double two = seconds(counts_of(w, 132, 1, 64)) * clock_of_h200();
  CHECK(two == Approx(busy + 400000 * (per_instruction - 2 / figures.issue)).epsilon(0.01));
}

TEST_CASE("the last block decides, and the order in which blocks come", "[clock]") {
  constexpr double kShort = 100000, kLong = 1000000;
  fa::Counts counts = counts_of(lines(static_cast<uint64_t>(kShort)), 133);
  std::vector<BlockWork>& work = counts.kernels[0].work;
  work.back().lines = static_cast<uint64_t>(kLong);
  CHECK(seconds(counts) == Approx((kShort + kLong) / clock_of_h200()).epsilon(0.01));
  std::reverse(work.begin(), work.end());  // the others pass it on another SM
  CHECK(seconds(counts) == Approx(kLong / clock_of_h200()).epsilon(0.01));
}

TEST_CASE("a huge grid takes as long as one that is walked block by block", "[clock]") {
  const fa::Counts counts = counts_of(lines(1000), 132 * 20);
  const double walked = seconds(counts, h200(), 100), huge = seconds(counts, h200(), 200);
  CHECK(huge == Approx(2 * walked).epsilon(0.01));
  // On average half of the longest block remains when the others have ended.
  fa::Counts uneven = counts_of(lines(1000), 300000);
  uneven.kernels[0].work[0].lines = 1e7;
  const double even = seconds(counts_of(lines(1000), 300001));
  const double share = 1e7 / 132 / clock_of_h200();
  uneven.kernels[0].work.push_back(uneven.kernels[0].work[1]);
  CHECK(seconds(uneven) == Approx(even + share + 0.5e7 / clock_of_h200()).epsilon(0.01));
}

TEST_CASE("tensor cores lower the clock by the share of the SMs that use them", "[clock]") {
  BlockWork w;
  w.mma = 1000000;
  CHECK(seconds(counts_of(w, 1)) == Approx(1e6 / figures.mma / clock_of_h200()).epsilon(0.01));
  const double half = (clock_of_h200() + figures.loaded_clock) / 2;
  CHECK(seconds(counts_of(w, 66)) == Approx(1e6 / figures.mma / half).epsilon(0.01));
  CHECK(seconds(counts_of(w, 132)) ==
        Approx(1e6 / figures.mma / figures.loaded_clock).epsilon(0.01));
  // An SM with a lower clock than that does not become faster by its tensor cores.
  fa::GpuSpec slow = h200();
  slow.fp32_flops /= 2, slow.bf16_flops /= 2;
  const double clock = clock_of_h200() / 2;
  CHECK(seconds(counts_of(w, 132), slow) == Approx(1e6 / figures.mma / clock).epsilon(0.01));
}

TEST_CASE("plain arithmetic is known of the steps' kernels, and said to be missing in others",
          "[clock]") {
  CHECK_FALSE(fa::instruction_mix("unknown::kernel<64>"));
  // In the second, integer arithmetic takes longer than issuing everything.
  const std::string name =
      GENERATE("step01::softmax_kernel", "step12::quantise_block_kernel<128, 128, false>");
  const auto mix = fa::instruction_mix(name);
  REQUIRE(mix);
  CHECK(mix->all > 1 + mix->fma + mix->alu);
  CHECK(mix->special > 0);

  BlockWork w;
  w.instructions = 1000000;
  fa::Counts counts = counts_of(w, 132);
  auto e = fa::estimate(counts, h200());
  REQUIRE(e);
  CHECK_FALSE(e->arithmetic());
  CHECK_FALSE(e->kernels[0].arithmetic);
  CHECK(e->kernels[0].name == "kernel");
  CHECK(share_of(e->kernels[0], Part::exponentials) == 0);
  const double without = e->kernels[0].seconds;

  counts.kernels[0].name = name;
  e = fa::estimate(counts, h200());
  REQUIRE(e);
  CHECK(e->arithmetic());
  CHECK(name.find("::" + e->kernels[0].name) != std::string::npos);
  const double issue =
      1e6 * std::max({mix->all / figures.issue, mix->fma / figures.fma, mix->alu / figures.alu});
  const double special = 1e6 * mix->special / figures.special;
  const fa::KernelEstimate& k = e->kernels[0];
  CHECK(k.seconds > without);
  CHECK(share_of(k, Part::instructions) * k.seconds == Approx(issue / clock_of_h200()));
  CHECK(share_of(k, Part::exponentials) * k.seconds == Approx(special / clock_of_h200()));

  // One unknown kernel is enough.
  counts.kernels.push_back(counts_of(w, 1).kernels[0]);
  e = fa::estimate(counts, h200());
  REQUIRE(e);
  CHECK_FALSE(e->arithmetic());
}

TEST_CASE("a kernel's instructions are its own row's, or those of other tiles of the same d",
          "[clock]") {
  std::ifstream file(fa::data_file("instructions.json"));
  const auto rows = nlohmann::ordered_json::parse(file).at("kernels");  // in the table's order
  const auto same = [](const std::optional<fa::InstructionMix>& mix, const auto& row) {
    return mix && mix->all == row.at("all") && mix->fma == row.at("fma") &&
           mix->alu == row.at("alu") && mix->special == row.at("special");
  };
  std::map<std::string, std::string> first;  // by the text before the tiles
  for (const auto& [kernel, row] : rows.items()) {
    const size_t comma = kernel.find(',');
    if (comma == kernel.npos) continue;
    std::string& name = first[kernel.substr(0, comma)];
    if (name.empty() || kernel < name) name = kernel;
  }
  for (const auto& [kernel, row] : rows.items()) {
    CAPTURE(kernel);
    CHECK(same(fa::instruction_mix(kernel), row));
    const size_t comma = kernel.find(',');
    if (comma == kernel.npos) {
      CHECK_FALSE(fa::instruction_mix(kernel + "x"));
      continue;
    }
    const std::string name = kernel.substr(0, comma);
    CHECK(same(fa::instruction_mix(name + ", 7777>"), rows.at(first.at(name))));
    // No other d, and no neighbour in the table.
    for (const char* tail : {"0, 7777>", "!, 7777>", "~, 7777>"}) {
      CHECK_FALSE(fa::instruction_mix(name + tail));
    }
  }
  for (const char* name : {"", "!<1, 2>", "~<1, 2>", ","}) CHECK_FALSE(fa::instruction_mix(name));
  CHECK(first.size() >= 10);
}

TEST_CASE("a memset writes at the HBM's rate, with no block and no arithmetic to miss", "[clock]") {
  const fa::Counts counts = memset_of(4800000000);
  const auto e = fa::estimate(counts, h200());
  REQUIRE(e);
  CHECK(e->arithmetic());
  CHECK(e->limit() == Part::hbm);
  CHECK(e->kernels[0].blocks == 0);
  CHECK(seconds(counts) == Approx(1e-3 / figures.hbm_share));
  CHECK(seconds(counts, h200(), 3) == Approx(3e-3 / figures.hbm_share));
  fa::Counts copied = counts;  // reading takes as long
  std::swap(copied.kernels[0].bytes.read, copied.kernels[0].bytes.write);
  CHECK(seconds(copied) == seconds(counts));
}

TEST_CASE("kernels follow each other, and each costs a launch", "[clock]") {
  fa::Counts counts = counts_of(lines(100000), 132);
  fa::Counts both = counts;
  both.kernels.push_back(counts_of(lines(300000), 132).kernels[0]);
  both.kernels.push_back(memset_of(1).kernels[0]);
  const auto one = fa::estimate(counts, h200()), all = fa::estimate(both, h200());
  REQUIRE(one);
  REQUIRE(all);
  REQUIRE(all->kernels.size() == 3);
  CHECK(all->kernels[0].seconds == one->kernels[0].seconds);
  double sum = figures.timing_seconds;
  for (const fa::KernelEstimate& k : all->kernels) sum += k.seconds;
  CHECK(all->seconds == Approx(sum));
  CHECK(all->longest() == &all->kernels[1]);
  CHECK(all->kernels[2].seconds == Approx(figures.launch_seconds));
  CHECK(all->kernels[2].parts.at(0).part == Part::start);
}

TEST_CASE("parts are ranked, the largest first, and none is empty", "[clock]") {
  const auto e = fa::estimate(mixed_counts(132 * 4), h200());
  REQUIRE(e);
  const auto& parts = e->kernels[0].parts;
  CHECK(parts.size() >= 8);
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK(parts[i].share > 0);
    if (i > 0) CHECK(parts[i - 1].share >= parts[i].share);
  }
  CHECK(e->limit() == parts[0].part);

  BlockWork wait = lines(100);
  wait.latency = 1e6;
  CHECK(fa::estimate(counts_of(wait, 132), h200())->limit() == Part::waiting);
  CHECK(fa::estimate(counts_of({}, 1), h200())->limit() == Part::start);
  const fa::Estimate none;
  CHECK((none.longest() == nullptr && none.limit() == Part::start && none.arithmetic()));
}

TEST_CASE("nothing is estimated where no work was counted", "[clock]") {
  CHECK_FALSE(fa::estimate({}, h200()));
  fa::Counts counts = counts_of(lines(1), 4);
  counts.kernels[0].work.clear();
  CHECK_FALSE(fa::estimate(counts, h200()));
  counts.kernels.push_back(memset_of(4).kernels[0]);
  CHECK_FALSE(fa::estimate(counts, h200()));
}

TEST_CASE("an estimate survives JSON", "[clock]") {
  fa::Counts counts = mixed_counts(132 * 4);
  counts.kernels.push_back(memset_of(1000000).kernels[0]);
  counts.kernels.push_back(counts.kernels[0]);
  counts.kernels[2].name = "step01::softmax_kernel";
  auto e = fa::estimate(counts, fa::find_gpu("A100"));
  REQUIRE(e);
  const char* const names[] = {"L1 lines",     "shared memory", "instructions", "exponentials",
                               "tensor cores", "atomics",       "L2",           "HBM",
                               "waiting",      "start"};
  e->kernels[2].parts.clear();
  for (int i = 9; i >= 0; --i) {
    CHECK(std::string(fa::name_of(Part(i))) == names[i]);
    e->kernels[2].parts.push_back({Part(i), 0.125 * i});
  }
  const auto j = fa::to_json(*e);
  const auto read = nlohmann::ordered_json::parse(j.dump());
  const fa::Estimate back = fa::estimate_of(read);
  CHECK(fa::to_json(back) == read);
  CHECK(back.seconds == Approx(e->seconds));
  CHECK(back.gpu == "A100");
  CHECK_FALSE(back.verified);
  CHECK(back.limit() == e->limit());
  REQUIRE(back.kernels.size() == 3);
  for (size_t k = 0; k < 3; ++k) {
    const fa::KernelEstimate &was = e->kernels[k], &is = back.kernels[k];
    CHECK(is.name == was.name);
    CHECK(is.seconds == Approx(was.seconds));
    CHECK(std::pair(is.blocks, is.sms) == std::pair(was.blocks, was.sms));
    CHECK(is.arithmetic == was.arithmetic);
    REQUIRE(is.parts.size() == was.parts.size());
    for (size_t p = 0; p < is.parts.size(); ++p) {
      CHECK(is.parts[p].part == was.parts[p].part);
      CHECK(is.parts[p].share == Approx(was.parts[p].share));
    }
  }
  for (const char* key : {"gpu", "verified", "ms", "limit", "kernels"}) CHECK(j.contains(key));
  for (const char* key : {"gpu", "verified", "ms", "kernels"}) {
    CAPTURE(key);
    nlohmann::ordered_json cut = j;
    cut.erase(key);
    CHECK_THROWS_AS(fa::estimate_of(cut), nlohmann::json::exception);
  }
  nlohmann::ordered_json odd = j;
  odd["kernels"][0]["parts"]["luck"] = 0.5;
  CHECK_THROWS_AS(fa::estimate_of(odd), nlohmann::json::exception);
}

TEST_CASE("only the H200 and the H100 are verified; each row of the table gives a time",
          "[clock]") {
  for (const fa::GpuSpec& gpu : fa::gpu_table()) {
    CAPTURE(gpu.name);
    const auto e = fa::estimate(mixed_counts(1000), gpu);
    REQUIRE(e);
    CHECK(e->gpu == gpu.name);
    CHECK(e->verified == (gpu.name == "H200" || gpu.name == "H100"));
    CHECK(std::isfinite(e->seconds));
    CHECK(e->seconds > kFixed);
    CHECK(e->seconds < 1);
    for (const fa::PartShare& p : e->kernels[0].parts) CHECK(std::isfinite(p.share));
  }
}

// For each GPU: the times by its figures (gpus.json) and the model of blocks with one thing to do,
// and of blocks with some of everything. A change of either changes these.
TEST_CASE("the times of the modelled GPUs are these", "[clock]") {
  BlockWork columns, instructions, bytes;
  columns.wgmma_columns = 500000, instructions.instructions = 500000, bytes.l2_bytes = 50000000;
  BlockWork mma;
  mma.mma = 500000;
  fa::Counts known = counts_of(instructions, 1000, 2, 96);
  known.kernels[0].name = "step01::softmax_kernel";
  fa::Counts mixed = mixed_counts(90);
  mixed.kernels[0].threads = 90 * 80;  // two warps and a half
  mixed.kernels.push_back(memset_of(1 << 30).kernels[0]);
  const std::map<std::string, std::vector<double>> want = {
      {"B200", {2.9245929, 0.47208731, 10.525647, 5.0688, 0.47526707}},
      {"H200", {3.5343626, 1.1403168, 10.524371, 5.6825112, 0.74968295}},
      {"H100", {3.5343626, 1.1403168, 10.524371, 5.6825112, 1.0413207}},
      {"A100-80GB", {7.0903438, 1.7734207, 18.897492, 9.7476923, 1.7788753}},
      {"A100", {7.0903438, 1.7734207, 18.897492, 9.7476923, 2.2725712}},
      {"L4", {17.671732, 2.2065333, 22.972922, 12.546535, 11.243767}},
      {"A10", {16.516371, 2.0689908, 21.540923, 12.184615, 5.6218834}},
      {"RTX 5090", {9.9715606, 0.62329195, 6.4892911, 3.6274809, 1.8889442}},
      {"RTX 4090", {12.695123, 0.79391231, 8.2656741, 4.6024213, 3.3463592}},
      {"RTX 3090", {30.750049, 1.917608, 21.500584, 10.678652, 3.6946374}},
      {"T4", {252.84199, 3.9530983, 43.809001, 23.466667, 11.248643}},
      {"V100", {135.66503, 2.1210764, 24.340719, 12.107006, 4.3790147}},
  };
  for (const fa::GpuSpec& gpu : fa::gpu_table()) {
    CAPTURE(gpu.name);
    const std::vector<double> got = {
        1e3 * seconds(counts_of(mma, 1000), gpu), 1e3 * seconds(counts_of(columns, 1000), gpu),
        1e3 * seconds(known, gpu), 1e3 * seconds(counts_of(bytes, 1000), gpu),
        1e3 * seconds(mixed, gpu, 2.5)};
    REQUIRE(want.count(gpu.name) == 1);
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(got[i] == Approx(want.at(gpu.name).at(i)).epsilon(1e-5));
    }
  }
  const fa::KernelEstimate k = fa::estimate(mixed, h200(), 2.5)->kernels.at(0);
  std::map<std::string, double> parts;
  for (const fa::PartShare& p : k.parts) parts[fa::name_of(p.part)] = p.share;
  const std::map<std::string, double> want_parts = {
      {"HBM", 0.37526839},      {"L1 lines", 0.25178519},     {"L2", 0.34755333},
      {"atomics", 0.018883889}, {"instructions", 0.1258926},  {"shared memory", 0.37767779},
      {"start", 0.016202377},   {"tensor cores", 0.23861038}, {"waiting", 0.2986961}};
  CHECK(parts.size() == want_parts.size());
  for (const auto& [name, share] : want_parts) {
    CAPTURE(name);
    CHECK(parts[name] == Approx(share).epsilon(1e-5));
  }
}

TEST_CASE("a smaller or slower GPU never takes less time", "[clock]") {
  using Change = std::function<void(fa::GpuSpec&, double)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"SMs",
       [](fa::GpuSpec& g, double x) {
         const double before = g.sms;
         g.sms = std::max(1, static_cast<int>(g.sms * x));
         g.fp32_flops *= g.sms / before;  // of the same clock
         g.bf16_flops *= g.sms / before;
       }},
      {"clock",
       [](fa::GpuSpec& g, double x) {
         g.fp32_flops *= x;
         g.bf16_flops *= x;
       }},
      {"tensor cores", [](fa::GpuSpec& g, double x) { g.bf16_flops *= x; }},
      {"HBM", [](fa::GpuSpec& g, double x) { g.hbm_bytes_per_s *= x; }}};
  BlockWork no_tensor = mixed();
  no_tensor.mma = no_tensor.wgmma_columns = 0;
  for (const fa::GpuSpec& gpu : fa::gpu_table()) {
    for (const size_t blocks : {3, 132, 1000}) {
      double before = 0;
      for (const auto& [what, change] : changes) {
        before = 0;
        for (const double x : {1., 0.9, 0.7, 0.5, 0.1, 0.01}) {
          CAPTURE(gpu.name, blocks, what, x);
          fa::GpuSpec less = gpu;
          change(less, x);
          const double now = seconds(mixed_counts(blocks), less);
          CHECK(now >= before * (1 - 1e-9));
          before = now;
          CHECK(now >= seconds(counts_of(no_tensor, blocks, 2), less));
        }
        if (blocks != 1000) continue;
        const bool tensor = what == std::string("tensor cores");
        if (!tensor) CHECK(before > 2 * seconds(mixed_counts(blocks), gpu));
        // Other GPUs multiply in their CUDA cores when these are faster.
        if (tensor && gpu.arch == "sm_90") CHECK(before > 1.5 * seconds(mixed_counts(blocks), gpu));
      }
    }
  }
}
