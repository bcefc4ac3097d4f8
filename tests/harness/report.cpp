#include "common/harness/report.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>

#include "common/counts/format.h"
#include "common/counts/screen.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using Catch::Matchers::EndsWith, Catch::Matchers::StartsWith;
using fa::Part;
using fa::test::fitting, fa::test::TemporaryFile;

namespace {

using Json = nlohmann::ordered_json;
using Report = fa::RunReport&;

/// A small forward as from the simulator; the figures are synthetic but consistent.
fa::RunReport simulated_run() {
  fa::RunReport r;
  r.step = "98_example", r.idea = "An idea in one line.";
  r.variant = "kernel", r.variant_idea = "the only way";
  r.device = {"sim", "simulator (x86-64, 2 cores)", "sim"};
  r.problem.N = r.problem.Nk = 256;
  r.input = "normal", r.seed = 7;
  r.model = fa::find_gpu("H200");
  r.memory = {1000, 2000, 3000};

  fa::TensorCheck& o = r.check.tensors.emplace_back();
  o.tensor = "O", o.ok = true, o.rows_checked = 1024;
  o.max_abs_err = 1e-7, o.rmse = 1e-8, o.baseline_err = 2e-7, o.bound = 4e-7, o.used = 0.25;

  fa::Pass& f = r.forward;
  f.name = "forward";
  f.predicted["Q"].read = 68719476736;
  f.predicted["S"] = {4096, 8192, 0};
  f.predicted["O"].write = 1234567;
  f.predicted.hbm = {1000000, 2000000, 0};
  f.predicted.flops = 67108864;
  f.predicted.per_element = {{"example_kernel", "score", 1000, 4, 3}};
  f.seen.source = "counted";
  f.seen.buffers["Q"] = {{68719476736, 0, 0}, {100, 0, 0}, {1650, 0, 0}};
  f.seen.buffers["S"] = {{4096, 8192, 0}, {32, 64, 0}, {128, 320, 0}};
  f.seen.buffers["O"] = {{0, 1234567, 0}, {0, 10, 0}, {0, 40, 0}};
  f.seen.requested = fa::Bytes{68719480832, 1242759, 0};
  f.seen.requests = fa::Ops{132, 74, 0};
  f.seen.sectors = fa::Ops{1778, 360, 0};
  f.seen.hbm = fa::Bytes{900000, 1900000, 0};
  fa::KernelCount& kernel = f.seen.kernels.emplace_back();
  kernel.name = "step98::example_kernel<64>", kernel.blocks = 8, kernel.bytes = {8000, 4000, 0};
  f.flops = 67108864;
  f.bound = fa::Bound{0.001, 0.0005};
  f.host_ms = 12.5;
  f.parent = fa::ParentTraffic{"97_before", {137438953472, 4096, 0}};
  return r;
}

/// The same step on a GPU: no buffers, but times and measured roofs.
fa::RunReport gpu_run() {
  fa::RunReport r = simulated_run();
  r.device = {"gpu", "NVIDIA H200", "sm_90"};
  fa::Pass& f = r.forward;
  f.predicted.per_element.clear();
  f.seen = {};
  f.seen.source = "measured";
  f.seen.requests = fa::Ops{132, 74, 0};
  f.seen.sectors = fa::Ops{1778, 296, 0};
  f.seen.hbm = fa::Bytes{950000, 2000000, 0};
  f.host_ms.reset();
  f.time = fa::Timing{0.5, 0.45, 0.6, 50};
  r.roofs = fa::Roofs{4.28e12, 60e12, 762e12, 51e12};
  return r;
}

/// The same on a GPU without counters.
fa::RunReport uncounted_run() {
  fa::RunReport r = gpu_run();
  r.forward.seen = {};
  return r;
}

fa::KernelEstimate kernel_estimate(const char* name, double seconds,
                                   std::vector<fa::PartShare> parts) {
  return {.name = name, .seconds = seconds, .parts = std::move(parts), .blocks = 1000, .sms = 132};
}

fa::Estimate some_estimate() {
  fa::Estimate e;
  e.gpu = "H200", e.verified = true, e.seconds = 0.6e-3;
  e.kernels = {kernel_estimate("short_kernel", 0.1e-3, {{Part::hbm, 0.0999}, {Part::l1, 0.05}}),
               kernel_estimate(
                   "long_kernel", 0.49e-3,
                   {{Part::l1, 0.614}, {Part::waiting, 0.3}, {Part::l2, 0.1}, {Part::start, 0.1}})};
  return e;
}

fa::RunReport estimated_run() {
  fa::RunReport r = simulated_run();
  r.estimate_heads = r.problem.heads();
  r.forward.estimate = some_estimate();
  return r;
}

/// What a GPU runs, beside the estimate of a simulator's report.
fa::RunReport compared_run() {
  fa::RunReport r = gpu_run();
  r.estimate_heads = r.problem.heads();
  r.forward.estimate = some_estimate();
  return r;
}

fa::Pass some_prepare() {
  fa::Pass p;
  p.name = "prepare";
  p.predicted["Q"].read = 2000000;
  p.predicted["Q_e4m3"].write = 1000000;
  p.predicted.hbm = {2000000, 1000000, 0};
  p.seen.source = "counted";
  p.seen.buffers["Q"] = {{2000000, 0, 0}, {100, 0, 0}, {1650, 0, 0}};
  p.seen.buffers["Q_e4m3"] = {{0, 1000000, 0}, {0, 64, 0}, {0, 256, 0}};
  p.seen.requested = fa::Bytes{2000000, 1000000, 0};
  p.seen.hbm = p.predicted.hbm;
  p.bound = fa::Bound{0.000625, 0};
  return p;
}

/// All three passes; the backward adds to dQ.
fa::RunReport with_all_passes(fa::RunReport r) {
  r.backward = r.forward;
  r.backward->name = "backward";
  r.prepare = some_prepare();
  if (r.device.kind == "gpu") {
    r.prepare->seen = {};
    r.prepare->seen.source = "measured";
    r.prepare->seen.hbm = fa::Bytes{2000000, 1000000, 0};
    r.prepare->time = fa::Timing{0.001, 0.0009, 0.0011, 50};
    return r;
  }
  r.backward->predicted["dQ"].atomic = 4096;
  r.backward->seen.buffers["dQ"] = {{0, 0, 4096}, {0, 0, 32}, {0, 0, 128}};
  r.backward->seen.requested->atomic = 4096;
  r.backward->seen.requests->atomic = 32, r.backward->seen.sectors->atomic = 128;
  r.backward->seen.hbm->atomic = 500000;
  return r;
}

/// Analysed, with more lines than are shown, and products of wgmma.
fa::RunReport analysed_run() {
  fa::RunReport r = estimated_run();
  r.analysed = true;
  r.forward.seen.analysed = 99;
  auto& sites = r.forward.seen.sites;
  sites = {
      {"kernel.cuh:7", "shared load32", 10, 10, 10, 900},
      {"kernel.cuh:8", "K load32", 10, 39, 40, 30},  // fewer than ideal is not worse
      {"kernel.cuh:9", "Q load64", 10, 80, 40, 40},
      {"kernel.cuh:8", "V load128", 10, 80, 80, 30},
      {"a_kernel_with_a_long_name.cuh:1234", "partial_sums atomic64", 123456789, 9876543210, 1, 0},
      {"kernel.cuh:2", "shared wgmma", 1, 32, 32, 0},
      {"kernel.cuh:3", "shared TMA load", 1, 16, 16, 0},
      {"kernel.cuh:4", "shared TMA store", 1, 4, 4, 0}};
  for (int i = 0; i < 8; ++i) {
    sites.push_back(
        {"kernel.cuh:" + std::to_string(100 + i), "Q load32", 10, 40 + uint64_t(i), 40});
  }
  r.forward.seen.remarks = {"one", "two", "three", "four", "five"};
  fa::KernelCount& k = r.forward.seen.kernels[0];
  k.work.resize(2);
  k.work[0].wgmma_columns = k.work[1].wgmma_columns = 64;
  k.work[0].instructions = 5, k.work[1].instructions = 6;
  k.wgmma_wavefronts = 32, k.shared_wavefronts = 5, k.shuffles = 3;
  r.forward.seen.kernels.push_back(k);
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

/// The first line that starts with `start` after its indentation.
std::string line_with(const std::string& text, const std::string& start) {
  for (const std::string& line : lines_of(text)) {
    const size_t at = line.find_first_not_of(' ');
    if (at != std::string::npos && line.compare(at, start.size(), start) == 0) return line;
  }
  return "";
}

/// The printed text, which must fit a screen.
std::string printed(const fa::RunReport& r, const fa::Screen& screen = {}) {
  const std::string text = fitting(fa::text(r, screen));
  CHECK(text.find(" \n") == std::string::npos);
  return text;
}
std::string details(const fa::RunReport& r) { return printed(r, {.details = true}); }

/// The lines of the details that a change adds, after the first words of those that it removes.
std::string difference(const fa::RunReport& before, const std::function<void(Report)>& change) {
  fa::RunReport after = before;
  change(after);
  std::vector<std::string> old = lines_of(details(before));
  std::string added, removed;
  for (const std::string& line : lines_of(details(after))) {
    const auto same = std::find(old.begin(), old.end(), line);
    if (same == old.end()) {
      added += line + "\n";
    } else {
      old.erase(same);
    }
  }
  for (const std::string& line : old) {
    removed += (removed.empty() ? "- " : " ") + (line.empty() ? "" : words_of(line).at(0));
  }
  return (removed.empty() ? "" : removed + "\n") + added;
}

/// A change of a report, and the difference that it makes to the details.
struct Change {
  const char* of;
  fa::RunReport before;
  std::function<void(Report)> change;
  std::string difference;
};

void check_all(const std::vector<Change>& all) {
  for (const Change& one : all) {
    CAPTURE(one.of);
    CHECK(difference(one.before, one.change) == one.difference);
  }
}

}  // namespace

TEST_CASE("figures have three digits, and the unit that leaves 1 to 999 before the point",
          "[report]") {
  const std::map<double, std::string> bytes = {
      {0, "0 B"},         {999.4, "999 B"},    {999.6, "1.00 kB"}, {9994, "9.99 kB"},
      {9996, "10.0 kB"},  {12345, "12.3 kB"},  {99940, "99.9 kB"}, {99960, "100 kB"},
      {999499, "999 kB"}, {999500, "1.00 MB"}, {1e9, "1.00 GB"},   {68719476736, "68.7 GB"},
      {1e12, "1.00 TB"},  {1e15, "1.00 PB"},   {1e18, "1.00 EB"},  {1e21, "1000 EB"}};
  for (const auto& [number, words] : bytes) CHECK(fa::human_bytes(number) == words);
  const std::map<uint64_t, std::string> counts = {{0, "0"},
                                                  {999, "999"},
                                                  {1000, "1,000"},
                                                  {999999, "999,999"},
                                                  {1000000, "1,000,000"},
                                                  {UINT64_MAX, "18,446,744,073,709,551,615"}};
  for (const auto& [number, words] : counts) CHECK(fa::grouped(number) == words);
  const std::map<double, std::string> times = {
      {0, "0 us"},         {1e-4, "0.1 us"},    {0.00734, "7.34 us"}, {0.00999, "9.99 us"},
      {0.01, "10.0 us"},   {0.0999, "99.9 us"}, {0.1416, "142 us"},   {0.99949, "999 us"},
      {0.9995, "1.00 ms"}, {9.994, "9.99 ms"},  {9.996, "10.0 ms"},   {99.94, "99.9 ms"},
      {99.96, "100 ms"},   {999.4, "999 ms"},   {999.5, "1.00 s"},    {9994, "9.99 s"},
      {9996, "10.0 s"},    {68123, "68.1 s"},   {4000000, "4000 s"}};
  for (const auto& [ms, words] : times) CHECK(fa::human_time(ms) == words);
  CHECK(fa::beside("left", "right", 10) == "left right");
  CHECK(fa::beside("left", "right", 9) == "left\n    right");
  CHECK(fa::beside("left", "", 4) == "left");
}

TEST_CASE("the first line is the answer: verdict, HBM, time and limiter", "[report]") {
  fa::RunReport r = simulated_run();
  r.step = "08_tensor_core_backward", r.variant = "deterministic";
  r.forward.estimate = some_estimate();
  const auto answer = [&r] { return lines_of(printed(r)).at(0); };
  const std::string right = "08 deterministic: right, HBM 2.80 MB, ";
  CHECK(answer() == right + "600 us estimated, limited by L1 lines");
  SECTION("all passes together, and what limits the longest kernel of them") {
    r.backward = r.forward;
    r.backward->estimate->seconds = 5e-3;
    r.backward->estimate->kernels = {kernel_estimate("b", 4e-3, {{Part::atomics, 1}})};
    CHECK(answer() ==
          "08 deterministic: right, HBM 5.60 MB, 5.60 ms estimated, limited by atomics");
    r.backward->estimate->kernels[0].seconds = 0.4e-3;
    CHECK_THAT(answer(), EndsWith("limited by L1 lines"));
  }
  SECTION("a GPU that nothing is estimated for has a bound") {
    r.forward.estimate.reset();
    CHECK(answer() == right + "at least 1.00 us");
  }
  SECTION("measured; beside it an estimate says what limits it") {
    r = gpu_run();
    CHECK(answer() == "98 kernel: right, HBM 2.95 MB, 500 us measured");
    r.forward.estimate = some_estimate();
    CHECK(answer() == "98 kernel: right, HBM 2.95 MB, 500 us measured, limited by L1 lines");
    r.forward.seen = {};
    CHECK_THAT(answer(), ContainsSubstring(": right, predicted HBM 3.00 MB, 500 us measured"));
  }
  SECTION("wrong, not checkable, not run, stopped; a terminal shows which in colour") {
    const auto coloured = [&r] { return fa::text(r, {.colour = true}); };
    CHECK_THAT(coloured(), StartsWith("\033[1m08 deterministic: \033[32mright\033[39m, HBM 2.80 "
                                      "MB, 600 us estimated, limited by L1 lines\033[0m\n"));
    CHECK_THAT(coloured().substr(coloured().find('\n')), !ContainsSubstring("\033"));
    CHECK_THAT(printed(r), !ContainsSubstring("\033"));
    r.check.tensors[0].ok = false;
    CHECK_THAT(answer(), StartsWith("08 deterministic: WRONG, HBM 2.80 MB, 600 us"));
    CHECK_THAT(coloured(), StartsWith("\033[1m08 deterministic: \033[31mWRONG\033[39m, "));
    r.check.tensors[0].lost = true;
    CHECK_THAT(answer(), StartsWith("08 deterministic: not checkable, HBM"));
    CHECK_THAT(coloured(), StartsWith("\033[1m08 deterministic: not checkable\033[39m, "));
    r.findings = {"race on sK"};
    CHECK(answer() == "08 deterministic: WRONG");
    r = simulated_run();
    r.predicted_only = true, r.forward.seen = {}, r.forward.bound.reset();
    CHECK(answer() == "98 kernel: not run, predicted HBM 3.00 MB");
    CHECK_THAT(coloured(), StartsWith("\033[1m98 kernel: not run\033[39m, "));
  }
  SECTION("a step of one's own") {
    r.step = "mine";
    CHECK_THAT(answer(), StartsWith("mine deterministic: right, "));
    r.step = "12";
    CHECK_THAT(answer(), StartsWith("12 deterministic: right, "));
  }
}

TEST_CASE("the whole report of a GPU, beside an estimate", "[report]") {
  fa::RunReport r = with_all_passes(compared_run());
  r.backward.reset();
  CHECK(details(r) == R"(98 kernel: right, HBM 5.95 MB, 501 us measured, limited by L1 lines
right     all errors are within tolerance.

98_example  An idea in one line.
variant   kernel: the only way
problem   B=1 H=4 N=256 d=64 fp32; normal input, seed 7
device    NVIDIA H200 (sm_90)
check     O 25% of the allowed error

        requested, predicted       HBM
              read  written      read  written   measured  rate, of an FMA loop
prepare    2.00 MB  1.00 MB   2.00 MB  1.00 MB    1.00 us  3.00 TB/s, 70%
forward    68.7 GB  1.24 MB    950 kB  2.00 MB     500 us  134 GFLOP/s, 0%
buffers   prepare, predicted: Q 2.00 MB, Q_e4m3 1.00 MB
          forward, predicted: Q 68.7 GB, O 1.23 MB, S 12.3 kB
estimated forward 600 us on H200, +20% from measured
change    forward since 97_before: requested 137 GB -> 68.7 GB: 2.00x fewer
memory    workspace 3.00 kB (naive step: 2.10 MB); inputs and outputs 3.00 kB

check       max error   allowed  worst row  baseline      rmse       rows
  O          1.00e-07  4.00e-07        25%  2.00e-07  1.00e-08      1,024  ok

prepare, bytes requested by the kernels' loads and stores
              read predicted            write predicted
  Q                2,000,000
  Q_e4m3                                      1,000,000
  all              2,000,000                  1,000,000
HBM             read     write      both
  predicted   2.00 MB   1.00 MB   3.00 MB  each kernel streams its operands once
  modelled         -         -         -  needs the simulator
  measured   2.00 MB   1.00 MB   3.00 MB
time      1.00 us median of 50 (p10 0.9 us, p90 1.10 us)
          3.00 TB/s of HBM traffic: 70.1% of this card's measured 4.28 TB/s
bound     at least 0.625 us on this card, a lower bound and not an estimate: HBM
          bytes 0.625 us

forward, bytes requested by the kernels' loads and stores
              read predicted            write predicted
  O                                           1,234,567
  Q           68,719,476,736
  S                    4,096                      8,192
  all         68,719,480,832                  1,242,759
requests  132 load requests, 1,778 sectors; 74 store requests, 296 sectors
HBM             read     write      both
  predicted   1.00 MB   2.00 MB   3.00 MB  each kernel streams its operands once
  modelled         -         -         -  needs the simulator
  measured    950 kB   2.00 MB   2.95 MB
time      500 us median of 50 (p10 450 us, p90 600 us)
          134 GFLOP/s (FlashAttention's convention): 0.2% of the 60.0 TFLOP/s of
          an FMA loop on this card
          5.90 GB/s of HBM traffic: 0.1% of this card's measured 4.28 TB/s
kernels   by the estimate:
  long_kernel 490 us: L1 lines 61%, waiting 30%, L2 10%
  short_kernel 100 us: HBM 10%
)");
}

TEST_CASE("an analysis lists the worst source lines first, and what they limit", "[report]") {
  const std::string text = details(analysed_run());
  CHECK(line_with(text, "analysis") == "analysis  no finding: no race, no uninitialised read.");
  CHECK(text.substr(text.find("\nforward, by source line")) == R"(
forward, by source line                 requests      transfers  ideal  /request
  a_kernel_with_a_long_name.cuh:1234 partial_sums atomic 8 B
                                     123,456,789  9,876,543,210      1      80.0
  kernel.cuh:9 Q load 8 B                     10             80     40       8.0
  kernel.cuh:107 Q load 4 B                   10             47     40       4.7
  kernel.cuh:106 Q load 4 B                   10             46     40       4.6
  kernel.cuh:105 Q load 4 B                   10             45     40       4.5
  kernel.cuh:104 Q load 4 B                   10             44     40       4.4
  kernel.cuh:103 Q load 4 B                   10             43     40       4.3
  kernel.cuh:102 Q load 4 B                   10             42     40       4.2
  kernel.cuh:101 Q load 4 B                   10             41     40       4.1
  kernel.cuh:8 V load 16 B                    10             80      =       8.0
  kernel.cuh:100 Q load 4 B                   10             40      =       4.0
  kernel.cuh:8 K load 4 B                     10             39      =       3.9
  kernel.cuh:2 shared wgmma                    1             32      =      32.0
  kernel.cuh:3 shared TMA load                 1             16      =      16.0
  kernel.cuh:7 shared load 4 B                10             10      =       1.0
  and 1 more; --json has all
limit     kernel.cuh:8 takes 60% of the clocks of the L1, which limits the pass
shared    100 wavefronts (products' operands 64, TMA 20, all else 16) beside 128
          clocks of the tensor cores: 78%
  load 4 B: each lane of the warp loads 4 bytes. Transfers: sectors of 32 bytes
  (global memory) or wavefronts of 32 banks (shared memory). Ideal: the fewest
  transfers that could move the same bytes; = where there are no more.
)");
}

TEST_CASE("without --details a report is one screen, whatever is wrong", "[report]") {
  fa::RunReport r = with_all_passes(estimated_run());
  r.prepare.reset();
  r.idea = std::string(75, 'i') + " two lines";
  r.variant_idea = std::string(65, 'v') + " two lines";
  r.backward->estimate = some_estimate();
  for (fa::Pass* pass : {&r.forward, &*r.backward}) {
    pass->predicted.buffers.clear();
    for (int i = 0; i < 9; ++i) pass->seen.buffers["b" + std::to_string(i)].bytes.read = i;
    for (const auto& [name, count] : pass->seen.buffers) pass->predicted[name] = count.bytes;
  }
  r.estimate_heads = 128;
  CHECK(lines_of(printed(r)).size() <= 24);
  CHECK(line_with(printed(r), "buffers") ==
        "buffers   forward: Q 68.7 GB, O 1.23 MB, S 12.3 kB, b8 8 B, b7 7 B, b6 6 B, ...");
  r.estimate_heads = r.problem.heads(), r.memory.inputs = size_t(r.model.l2_bytes);
  CHECK(lines_of(printed(r)).size() <= 24);
  r.check.tensors[0].ok = false;
  CHECK(lines_of(printed(r)).size() <= 30);
  CHECK_THAT(printed(r), ContainsSubstring("max error"));
  r.check.tensors[0].ok = true;
  r.forward.seen.buffers["S"].bytes.write += 1;
  CHECK_THAT(printed(r), ContainsSubstring("\nforward, bytes requested") &&
                             !ContainsSubstring("\nbackward, bytes requested"));
}

TEST_CASE("each remark stands where it applies, and nowhere else", "[report]") {
  const auto lost = [](Report r) {
    r.check.tensors[0].ok = false, r.check.tensors[0].lost = true;
    r.check.tensors[0].message = "lost";
  };
  const auto few = [](Report r) {
    fa::Estimate& e = *r.forward.estimate;
    e.kernels[1].blocks = e.kernels[1].sms = 4;
    e.kernels[0].blocks = e.kernels[0].sms = 1;
  };
  const auto wrong = [](Report r) {
    fa::TensorCheck& O = r.check.tensors[0];
    O.ok = false, O.max_abs_err = std::nan(""), O.message = "O[0, 1, 2, 3] was never written";
    r.check.damage = {"Q was written"};
    r.again = "O differs";
    r.forward.predicted["Q"].read = 999999999999999;  // the longest that the column is made for
    r.forward.seen.buffers["S"].bytes.write = 8191;
    r.forward.predicted.per_element[0].accesses = 4;
    r.backward->predicted["dQ"].atomic = 4092;
    CHECK(fa::to_json(r)["check"][0]["max_abs_err"].is_null());
    CHECK(fa::to_json(r)["traffic"]["prediction_ok"] == false);
  };
  check_all({
      {"everything is wrong", with_all_passes(simulated_run()), wrong,
       "- 98 right check change O Q S dQ all all score\n"
       "98 kernel: WRONG, HBM 9.10 MB, at least 2.62 us\n"
       "WRONG     an error is larger than allowed; see check below\n"
       "  O               nan  4.00e-07        25%  2.00e-07  1.00e-08      1,024  WRONG\n"
       "    O[0, 1, 2, 3] was never written\n"
       "  WRONG: Q was written\n"
       "  WRONG in a later run: O differs\n"
       "change    forward since 97_before: requested 137 GB -> 1.00 PB: 7275.96x more\n"
       "  Q      999,999,999,999,999       !=                               16.5\n"
       "    counted   68,719,476,736\n"
       "  S                    4,096        =             8,192       !=     4.0     5.0\n"
       "    counted                                       8,191\n"
       "  all  1,000,000,000,004,095       !=         1,242,759        =    13.5     4.9\n"
       "    counted   68,719,480,832\n"
       "score     example_kernel: 4 accesses per score predicted, 3 counted\n"
       "          prediction differs from the count in: Q, S, example_kernel\n"
       "  dQ                  atomic                      4,092       !=             4.0\n"
       "    counted                                       4,096\n"
       "  all                 atomic                      4,092       !=             4.0\n"
       "    counted                                       4,096\n"
       "          prediction differs from the count in: dQ\n"
       "\n"
       "forward\n"
       "\n"
       "backward\n"},
      {"a sample", simulated_run(), [](Report r) { r.check.complete = false; },
       "- check\n"
       "check     O 25% of the allowed error, in a sample of the rows\n"
       "          A seeded sample of the rows was checked.\n"},
      {"an input's note", simulated_run(), [](Report r) { r.input_note = "real input cut"; },
       "- problem\n"
       "problem   B=1 H=4 N=256 d=64 fp32; real input cut, seed 7\n"},
      {"advice", simulated_run(), [](Report r) { r.advice = "another is faster"; },
       "note      another is faster\n"},
      {"another's forward", simulated_run(), [](Report r) { r.forward_of = "04 fused"; },
       "forward   that of 04 fused; this variant changes the backward\n"},
      {"refused counters", uncounted_run(),
       [](Report r) { r.forward.seen.note = "counters refused"; }, "note      counters refused\n"},
      {"not checkable", simulated_run(), lost,
       "- 98 right check O\n"
       "98 kernel: not checkable, HBM 2.80 MB, at least 1.00 us\n"
       "not checkable: the scores lose their precision. With these inputs a right kernel\n"
       "  may be off by as much, so this run is neither right nor wrong; make Q or K\n"
       "  smaller.\n"
       "  O          1.00e-07  4.00e-07        25%  2.00e-07  1.00e-08      1,024  lost\n"
       "    lost\n"},
      {"wrong on a GPU that was not measured", gpu_run(),
       [](Report r) {
         r.check.tensors[0].ok = false;
         r.forward.seen = {}, r.forward.time.reset();
       },
       "- 98 right check requested, forward O forward, read O Q S all requests HBM predicted "
       "modelled measured time 134 an 5.90 bound MFLOP\n"
       "98 kernel: WRONG, predicted HBM 3.00 MB, at least 1.00 us\n"
       "WRONG     an error is larger than allowed; see check below\n"
       "  O          1.00e-07  4.00e-07        25%  2.00e-07  1.00e-08      1,024  WRONG\n"
       "        requested, predicted  HBM, predicted\n"
       "forward    68.7 GB  1.24 MB   1.00 MB  2.00 MB          -\n"},
      {"not run", simulated_run(),
       [](Report r) { r.check = {}, r.forward.seen = {}, r.predicted_only = true; },
       "- 98 right problem device check requested read forward buffers check O  forward, read O Q "
       "S all score HBM predicted modelled measured bound MFLOP host\n"
       "98 kernel: not run, predicted HBM 3.00 MB, at least 1.00 us\n"
       "problem   B=1 H=4 N=256 d=64 fp32\n"
       "        requested, predicted  HBM, predicted\n"
       "              read  written      read  written\n"
       "forward    68.7 GB  1.24 MB   1.00 MB  2.00 MB\n"
       "buffers   forward, predicted: Q 68.7 GB, O 1.23 MB, S 12.3 kB\n"
       "forward, bytes requested by the kernels' loads and stores\n"
       "              read predicted            write predicted\n"
       "  O                                           1,234,567\n"
       "  Q           68,719,476,736\n"
       "  S                    4,096                      8,192\n"
       "  all         68,719,480,832                  1,242,759\n"
       "score     example_kernel: 3 accesses per score predicted\n"},
      {"of no request", simulated_run(),
       [](Report r) {
         r.forward.seen.buffers["Q"].requests = r.forward.seen.buffers["Q"].sectors = {};
       },
       "- Q\n"
       "  Q           68,719,476,736        =                                  -\n"
       "          -: copied by TMA or set by a memset, which are no requests of a warp\n"},
      {"no formula", simulated_run(),
       [](Report r) { r.forward.predicts = false, r.forward.predicted = {}; },
       "- right change read O Q S all score predicted\n"
       "right     all errors are within tolerance; no bytes were predicted.\n"
       "change    since 97_before: requested 137 GB -> 0 B\n"
       "                read counted              write counted             load   store\n"
       "  O                                           1,234,567                      4.0\n"
       "  Q           68,719,476,736                                        16.5\n"
       "  S                    4,096                      8,192              4.0     5.0\n"
       "  all         68,719,480,832                  1,242,759             13.5     4.9\n"},
      {"no formula but a backward's", with_all_passes(simulated_run()),
       [](Report r) {
         for (fa::Pass* pass : {&*r.prepare, &r.forward}) {
           pass->predicts = false, pass->predicted = {};
         }
       },
       "- right change Q Q_e4m3 all predicted read read O Q S all score predicted\n"
       "right     all errors are within tolerance; predicted and counted bytes agree in\n"
       "          the backward, and not predicted in the prepare and the forward.\n"
       "change    forward since 97_before: requested 137 GB -> 0 B\n"
       "                read counted              write counted             load   store\n"
       "  Q                2,000,000                                        16.5\n"
       "  Q_e4m3                                      1,000,000                      4.0\n"
       "  all              2,000,000                  1,000,000                -       -\n"
       "                read counted              write counted             load   store\n"
       "  O                                           1,234,567                      4.0\n"
       "  Q           68,719,476,736                                        16.5\n"
       "  S                    4,096                      8,192              4.0     5.0\n"
       "  all         68,719,480,832                  1,242,759             13.5     4.9\n"},
      {"no remark", analysed_run(), [](Report r) { r.forward.seen.remarks.resize(4); }, "- and\n"},
      {"fifteen lines", analysed_run(), [](Report r) { r.forward.seen.sites.resize(15); },
       "- kernel.cuh:107 and\n"
       "  kernel.cuh:4 shared TMA store                1              4      =       4.0\n"},
      {"limited by shared memory", analysed_run(),
       [](Report r) { r.forward.estimate->kernels[1].parts[0].part = Part::shared; },
       "- 98 forward long_kernel limit\n"
       "98 kernel: right, HBM 2.80 MB, 600 us estimated, limited by shared memory\n"
       "forward    68.7 GB  1.24 MB    900 kB  1.90 MB     600 us  shared memory 61%\n"
       "  long_kernel 490 us: shared memory 61%, waiting 30%, L2 10%\n"
       "limit     kernel.cuh:7 takes 100% of the clocks of shared memory, which limits\n"
       "          the pass\n"},
      {"by no line", analysed_run(),
       [](Report r) { r.forward.estimate->kernels[1].parts[0].part = Part::hbm; },
       "- 98 forward long_kernel limit\n"
       "98 kernel: right, HBM 2.80 MB, 600 us estimated, limited by HBM\n"
       "forward    68.7 GB  1.24 MB    900 kB  1.90 MB     600 us  HBM 61%\n"
       "  long_kernel 490 us: HBM 61%, waiting 30%, L2 10%\n"},
      {"by a line that nothing counts", analysed_run(),
       [](Report r) {
         r.forward.estimate->kernels[1].parts[0].part = Part::shared;
         r.forward.seen.sites.erase(r.forward.seen.sites.begin());
       },
       "- 98 forward long_kernel kernel.cuh:7 and limit\n"
       "98 kernel: right, HBM 2.80 MB, 600 us estimated, limited by shared memory\n"
       "forward    68.7 GB  1.24 MB    900 kB  1.90 MB     600 us  shared memory 61%\n"
       "  long_kernel 490 us: shared memory 61%, waiting 30%, L2 10%\n"
       "  kernel.cuh:4 shared TMA store                1              4      =       4.0\n"},
      {"no wgmma", analysed_run(),
       [](Report r) {
         for (auto& k : r.forward.seen.kernels) k.work.clear();
       },
       "- shared clocks\n"},
      {"an unverified model", estimated_run(),
       [](Report r) { r.forward.estimate->verified = false; },
       "- device estimated\n"
       "device    simulator (x86-64, 2 cores), modelling H200 (unverified: never\n"
       "          measured there)\n"
       "estimated 600 us on H200 (unverified: never measured there)\n"},
      {"without arithmetic", estimated_run(),
       [](Report r) { r.forward.estimate->kernels[0].arithmetic = false; },
       "note      the estimate is without plain arithmetic, which is not known of every\n"
       "          kernel here: a GPU may take longer\n"},
      {"more heads", estimated_run(), [](Report r) { r.estimate_heads = 127; },
       "- device modelled estimated\n"
       "device    simulator (x86-64, 2 cores), modelling H200: time of 127 heads; bytes\n"
       "          of the 4 that ran\n"
       "  modelled    900 kB   1.90 MB   2.80 MB  H200's L2 52.4 MB, shared by 127 heads\n"
       "estimated 600 us on H200, for 127 heads\n"},
      {"heads that fill it", estimated_run(), [](Report r) { r.estimate_heads = 128; },
       "- device modelled estimated\n"
       "device    simulator (x86-64, 2 cores), modelling H200: time of 128 heads, which\n"
       "          fill it; bytes of the 4 that ran\n"
       "  modelled    900 kB   1.90 MB   2.80 MB  H200's L2 52.4 MB, shared by 128 heads\n"
       "estimated 600 us on H200, for 128 heads\n"},
      {"few blocks", estimated_run(), few,
       "- long_kernel short_kernel\n"
       "  long_kernel 490 us: L1 lines 61%, waiting 30%, L2 10%; 4 blocks for 132 SMs\n"
       "  short_kernel 100 us: HBM 10%; 1 block for 132 SMs\n"},
      {"of another GPU", compared_run(), [](Report r) { r.forward.estimate->gpu = "A100"; },
       "- estimated\n"
       "estimated 600 us on A100\n"},
      {"bytes that bind, not measured", uncounted_run(),
       [](Report r) {
         r.forward.predicted.hbm = {1000000000, 1000000000, 0};
         r.forward.bound = fa::Bound{0.467, 0.01};
       },
       "- 98 forward predicted 6.00 bound MFLOP\n"
       "98 kernel: right, predicted HBM 2.00 GB, 500 us measured\n"
       "forward    68.7 GB  1.24 MB   1.00 GB  1.00 GB     500 us  134 GFLOP/s, 0%\n"
       "  predicted   1.00 GB   1.00 GB   2.00 GB  each kernel streams its operands once\n"
       "          4.00 TB/s of the predicted HBM traffic: 93.5% of this card's measured\n"
       "bound     at least 467 us on this card, a lower bound and not an estimate: 67.1\n"
       "          MFLOP 10.0 us, HBM bytes 467 us\n"},
      {"products that bind", uncounted_run(),
       [](Report r) {
         r.forward.predicted.hbm = {1000000000, 1000000000, 0};
         r.forward.bound = fa::Bound{0.01, 0.467};
       },
       "- 98 forward predicted 6.00 4.28 bound MFLOP\n"
       "98 kernel: right, predicted HBM 2.00 GB, 500 us measured\n"
       "forward    68.7 GB  1.24 MB   1.00 GB  1.00 GB     500 us  134 GFLOP/s, 0%\n"
       "  predicted   1.00 GB   1.00 GB   2.00 GB  each kernel streams its operands once\n"
       "bound     at least 467 us on this card, a lower bound and not an estimate: 67.1\n"
       "          MFLOP 467 us, HBM bytes 10.0 us\n"},
      {"no such products were measured", gpu_run(), [](Report r) { r.problem.method.fp8 = true; },
       "- read forward 134 an\n"
       "              read  written      read  written   measured  rate, of a copy\n"
       "forward    68.7 GB  1.24 MB    950 kB  2.00 MB     500 us  134 GFLOP/s\n"
       "          134 GFLOP/s (FlashAttention's convention)\n"},
  });
}

TEST_CASE("a change is more, fewer, or of nothing", "[report]") {
  fa::RunReport r = simulated_run();
  const double now = double(r.forward.predicted.total().total());
  const auto change = [&r](double before, uint64_t read) {
    r.forward.parent->requested = {uint64_t(before), 0, 0};
    r.forward.predicted.buffers.clear();
    r.forward.predicted["Q"].read = read;
    return line_with(printed(r), "change");
  };
  const std::string since = "change    since 97_before: requested ";
  for (const auto& [before, after, words] : std::vector<std::tuple<double, double, std::string>>{
           {now / 2, now, "34.4 GB -> 68.7 GB: 2.00x more"},
           {now * 1.02, now, "70.1 GB -> 68.7 GB: 1.02x fewer"},
           {now + 100, now, "68.7 GB -> 68.7 GB, -100 B"},
           {now, now, "68.7 GB -> 68.7 GB, unchanged"},
           {0, now, "0 B -> 68.7 GB"},
           {0, 0, "0 B -> 0 B"},
           {1000, 0, "1.00 kB -> 0 B"},
           {1000, 1004, "1.00 kB -> 1.00 kB, +4 B"},
           {1000, 1005, "1.00 kB -> 1.00 kB: 1.00x more"}}) {
    CHECK(change(before, uint64_t(after)) == since + words);
  }
  r.forward.parent.reset();
  CHECK(line_with(printed(r), "change").empty());
}

TEST_CASE("from ten times what is allowed on the share is a factor", "[report]") {
  fa::RunReport r = simulated_run();
  for (const auto& [used, words] :
       std::vector<std::pair<double, std::string>>{{0.194, "19%"},
                                                   {9.99, "999%"},
                                                   {9.996, "10x"},
                                                   {24.2, "24.2x"},
                                                   {123456, "1.23e+05x"},
                                                   {std::nan(""), "nan"}}) {
    r.check.tensors[0].used = used;
    CHECK(words_of(line_with(printed(r), "check")).at(2) == words);
  }
}

TEST_CASE("near the size of the L2 a note says how exact modelled bytes are", "[report]") {
  fa::RunReport r = simulated_run();
  const auto note = [&](double footprint) {
    r.memory.inputs = static_cast<size_t>(footprint * r.model.l2_bytes);
    r.memory.outputs = r.memory.workspace = 0;
    return !line_with(printed(r), "note").empty();
  };
  for (const double footprint : {0.5, 0.6, 1., 2.9, 3.}) CHECK(note(footprint));
  for (const double footprint : {0.4, 3.1}) CHECK_FALSE(note(footprint));
  r.estimate_heads = 128;  // they fill the L2 together
  CHECK_FALSE(note(1));
  r.estimate_heads = r.problem.heads(), r.predicted_only = true;
  CHECK_FALSE(note(1));
  r = gpu_run();
  CHECK_FALSE(note(1));
}

TEST_CASE("the table's heads say which bytes are only predicted", "[report]") {
  const auto table = [](fa::RunReport r, bool predicts = true) {
    r.forward.predicts = predicts;
    const std::string text = printed(r);
    std::vector<std::string> all = words_of(line_with(text, "requested"));
    for (const std::string& word : words_of(line_with(text, "forward "))) {
      if (all.size() < 13) all.push_back(word);
    }
    std::string joined;
    for (const std::string& word : all) joined += word + " ";
    return joined;
  };
  const std::string known = "forward 68.7 GB 1.24 MB ";
  // A GPU measures HBM and counts no request; without counters it measures nothing.
  CHECK_THAT(table(simulated_run()), StartsWith("requested HBM " + known + "900 kB 1.90 MB "));
  CHECK_THAT(table(gpu_run()), StartsWith("requested, predicted HBM " + known + "950 kB 2.00 MB "));
  CHECK_THAT(table(uncounted_run()),
             StartsWith("requested, predicted HBM, predicted " + known + "1.00 MB 2.00 MB"));
  CHECK_THAT(table(uncounted_run(), false), StartsWith("requested HBM forward - - - - "));
  CHECK_THAT(line_with(printed(uncounted_run()), "buffers"),
             ContainsSubstring(" forward, predicted: Q "));
  // What was measured of one pass only is not mixed with predictions.
  fa::RunReport r = gpu_run();
  r.backward = r.forward;
  r.backward->seen = {};
  CHECK_THAT(table(r), StartsWith("requested, predicted HBM, predicted " + known + "1.00 MB"));
  CHECK_THAT(printed(r), StartsWith("98 kernel: right, predicted HBM 6.00 MB, "));
  r.backward->predicts = false;
  CHECK_THAT(table(r), StartsWith("requested, predicted HBM " + known + "950 kB"));
}

TEST_CASE("the roofline is the slower of bytes and arithmetic", "[report]") {
  const auto bound = fa::roofline(4e9, 1e12, 1e12, 1e15);
  REQUIRE(bound);
  CHECK(bound->memory_ms == Approx(4));
  CHECK(bound->arithmetic_ms == Approx(1));
  CHECK(bound->ms() == Approx(4));
  CHECK(fa::roofline(1, 1e15, 1e12, 1e15)->ms() == Approx(1000));
  CHECK_FALSE(fa::roofline(1, 0, 0, 1));
  CHECK_FALSE(fa::roofline(1, 1, 1e12, 0));  // a T4 has no bf16 roof
  REQUIRE(fa::roofline(4e9, 0, 1e12, 0));    // a pass without products does not need it
  CHECK(fa::roofline(4e9, 0, 1e12, 0)->ms() == Approx(4));
}

TEST_CASE("executed FLOPs are those that were seen, else predicted, else the convention's",
          "[report]") {
  fa::Pass p;
  p.predicted.flops = 20, p.flops = 30;
  CHECK(p.flops_executed() == 20);
  p.predicts = false;
  CHECK(p.flops_executed() == 30);
  p.seen.tensor_flops = 0;
  CHECK(p.flops_executed() == 30);
  p.seen.tensor_flops = 1;
  CHECK(p.flops_executed() == 1);
  p.predicts = true;
  CHECK(p.flops_executed() == 1);
  p.predicted.hbm = {3000, 1000, 0};
  CHECK_FALSE(p.bytes_per_s());
  p.time = fa::Timing{2, 1, 3, 9};
  CHECK(p.bytes_per_s() == Approx(2e6));
  p.time->median_ms = 0;
  CHECK_FALSE(p.bytes_per_s());
  fa::RunReport r = simulated_run();
  CHECK(r.naive_workspace_bytes() == 2 * 4 * 256 * 256 * 4);
  r.problem.dtype = fa::DType::bf16;
  CHECK(r.naive_workspace_bytes() == 2 * 4 * 256 * 256 * 2);
}

TEST_CASE("a run is right where nothing is wrong", "[report]") {
  using Wrong = void (*)(Report);
  const fa::RunReport good = with_all_passes(simulated_run());
  CHECK((good.ok() && !good.not_checkable()));
  const Wrong all[] = {
      [](Report r) { r.prepare->predicted["Q_e4m3"].write = 1000001; },
      [](Report r) { r.forward.seen.buffers["S"].bytes.write += 1; },
      [](Report r) { r.forward.predicted.per_element[0].accesses = 4; },
      [](Report r) { r.backward->predicted["dQ"].atomic = 4092; },
      [](Report r) { r.again = "O differs"; },
      [](Report r) { r.findings = {"race"}; },
  };
  for (const Wrong change : all) {
    fa::RunReport r = good;
    change(r);
    CHECK_FALSE(r.ok());
    CHECK(fa::to_json(r)["ok"] == false);
    r.check.tensors[0].ok = false, r.check.tensors[0].lost = true;
    CHECK((!r.not_checkable() && fa::to_json(r)["checkable"] == true));
  }
  fa::RunReport r = good;
  r.check.tensors[0].ok = false;
  CHECK_FALSE(r.ok());
  r.check.tensors[0].lost = true;
  CHECK((!r.ok() && r.not_checkable()));
  CHECK((fa::to_json(r)["ok"] == false && fa::to_json(r)["checkable"] == false));
  r.predicted_only = true;
  CHECK(fa::to_json(r)["ok"].is_null());
}

TEST_CASE("each finding is a paragraph", "[report]") {
  fa::RunReport r = simulated_run();
  r.forward.seen = {};
  r.check = {};
  const fa::KernelStopped stopped({{fa::FaultKind::race, "race on sK"},
                                   {fa::FaultKind::deadlock, "deadlock in f:\n  3 threads"}},
                                  3);
  CHECK(stopped.what() ==
        std::string("race on sK\nalso: deadlock in f:\n  3 threads\nalso: 3 more, at other lines"));
  r.findings = stopped.sentences();
  r.forward.estimate = some_estimate(), r.forward.estimate->verified = false;
  r.estimate_heads = 128;  // of what did not end nothing is told
  CHECK(details(r) == R"(98 kernel: WRONG
finding: race on sK
finding: deadlock in f: 3 threads
finding: 3 more, at other lines

98_example  An idea in one line.
variant   kernel: the only way
problem   B=1 H=4 N=256 d=64 fp32; normal input, seed 7
device    simulator (x86-64, 2 cores), modelling H200 (unverified: never
          measured there)
)");
  CHECK(fa::to_json(r)["finding"] == "race on sK");
  CHECK(fa::to_json(r)["findings"] == stopped.sentences());
  for (int i = 0; i < 60; ++i) r.findings[0] += " thread (" + std::to_string(i) + ",0,0)";
  details(r);  // is broken into lines that fit
}

TEST_CASE("a pass over a cache is told in bytes per second", "[report]") {
  fa::RunReport r = gpu_run();
  r.problem.dtype = fa::DType::bf16;
  const auto rate = [&r] { return line_with(printed(r), "forward ").substr(58); };
  CHECK(fa::to_json(r)["rate_of"] == "cuBLAS");
  r.problem.N = 1, r.problem.Nk = 32768;
  r.memory.inputs = 2000000000;
  r.forward.seen.hbm = fa::Bytes{2000000000, 0, 0};
  CHECK(fa::to_json(r)["rate_of"] == "a copy");
  CHECK_THAT(line_with(printed(r), "read "), ContainsSubstring("rate, of a copy"));
  CHECK(rate() == " 4.00 TB/s, 93%");
  CHECK_THAT(details(r), ContainsSubstring("4.00 TB/s of HBM traffic: 93.5%") &&
                             !ContainsSubstring("FlashAttention's convention"));
  r.forward.seen.hbm.reset();  // without counters, as predicted
  r.forward.predicted.hbm = {1000000000, 0, 0};
  CHECK(rate() == " 2.00 TB/s, 47%");
  r.memory.inputs = 1000;  // its products take longer
  CHECK(fa::to_json(r)["rate_of"] == "cuBLAS");
  r.problem.N = 4096, r.problem.Nk = 4096;
  r.forward.flops = 1.1 * 762e12 * 0.5e-3;
  CHECK(rate() == " 838 TFLOP/s, 110%");
  CHECK_THAT(printed(r), ContainsSubstring("above 100%: "));
  r.forward.flops /= 2;
  CHECK_THAT(printed(r), !ContainsSubstring("above 100%"));
  r.problem.method.fp8 = true;
  CHECK(fa::to_json(r)["rate_of"].is_null());
}

TEST_CASE("an estimate survives JSON, with all its parts", "[report]") {
  fa::Estimate e = some_estimate();
  e.verified = false;
  e.kernels[0].arithmetic = false, e.kernels[0].sms = 5;
  const char* const names[] = {"L1 lines",     "shared memory", "instructions", "exponentials",
                               "tensor cores", "atomics",       "L2",           "HBM",
                               "waiting",      "start"};
  e.kernels[0].parts.clear();
  for (int i = 9; i >= 0; --i) {
    CHECK(std::string(fa::name_of(static_cast<Part>(i))) == names[i]);
    e.kernels[0].parts.push_back({static_cast<Part>(i), 0.125 * i});
  }
  const fa::Estimate back = fa::estimate_of(fa::to_json(e));
  CHECK(fa::to_json(back) == fa::to_json(e));
  CHECK((back.gpu == "H200" && !back.verified && back.seconds == Approx(0.6e-3)));
  CHECK_FALSE(back.arithmetic());
  REQUIRE(back.kernels[0].parts.size() == 10);
  for (int i = 0; i < 10; ++i) {
    CHECK(back.kernels[0].parts[i].part == static_cast<Part>(9 - i));
    CHECK(back.kernels[0].parts[i].share == 0.125 * (9 - i));
  }
  CHECK((back.kernels[0].sms == 5 && back.kernels[0].blocks == 1000));
  CHECK(back.kernels[0].seconds == Approx(0.1e-3));
  CHECK((back.longest()->name == "long_kernel" && back.limit() == Part::l1));
  auto unknown = fa::to_json(e);
  unknown["kernels"][0]["parts"]["L3"] = 0.5;
  CHECK_THROWS_AS(fa::estimate_of(unknown), nlohmann::json::exception);
  const fa::Estimate none;
  CHECK((none.longest() == nullptr && none.limit() == Part::start && none.arithmetic()));
}

/// What read_estimates() says of a report's text; "accepted" where it has read it into `gpu`.
std::string reading(const std::string& text, fa::RunReport& gpu) {
  const TemporaryFile file(text);
  const std::string said = fa::test::refusal_of([&] { fa::read_estimates(file.path, gpu); });
  const std::string start = "--estimate " + file.path + ": ";
  CHECK(said.find('\n') == std::string::npos);
  return said.starts_with(start) ? said.substr(start.size()) : said;
}

TEST_CASE("the estimates of all passes are read, and older reports have no prepare", "[report]") {
  fa::RunReport r = estimated_run(), gpu = gpu_run();
  r.backward = r.forward, r.backward->estimate->seconds = 2e-3;
  gpu.backward = gpu.forward;
  auto older = fa::to_json(r);
  older.erase("prepare");
  CHECK(reading(older.dump(), gpu) == "accepted");
  CHECK(gpu.estimate_heads == gpu.problem.heads());
  CHECK(gpu.forward.estimate->seconds == Approx(0.6e-3));
  CHECK(gpu.backward->estimate->seconds == Approx(2e-3));
  gpu.prepare = some_prepare();
  CHECK_THAT(reading(older.dump(), gpu), ContainsSubstring("prepare"));
  r.prepare = some_prepare();
  r.prepare->estimate = some_estimate(), r.prepare->estimate->seconds = 2e-6;
  CHECK(reading(fa::to_json(r).dump(), gpu) == "accepted");
  CHECK(gpu.prepare->estimate->seconds == Approx(2e-6));
}

TEST_CASE("a report that does not fit is refused in one sentence", "[report]") {
  const auto good = fa::to_json(estimated_run());
  const std::string other = "is of another step, variant or problem: ";
  const std::string strange = "is not a report of the simulator: ";
  const auto changed = [&good](const char* key, const Json& value) {
    auto j = good;
    (j["problem"].contains(key) || !j.contains(key) ? j["problem"][key] : j[key]) = value;
    return j.dump();
  };
  fa::RunReport gpu = gpu_run();
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"n", 7},
                                                 {"nk", 7},
                                                 {"d", 7},
                                                 {"causal", true},
                                                 {"hkv", 1},
                                                 {"smem", 4096},
                                                 {"page", 16},
                                                 {"lengths", {256}},
                                                 {"step", "97_before"},
                                                 {"variant", "other"},
                                                 {"estimate_heads", 128},
                                                 {"window", {3, 4}},
                                                 {"mask", "strided:64"},
                                                 {"row_starts", {0, 256}},
                                                 {"key_starts", {0, 256}},
                                                 {"cap", 2.5},
                                                 {"alibi", true},
                                                 {"sinks", true}}) {
    CAPTURE(key);
    CHECK_THAT(reading(changed(key, value), gpu), StartsWith(other));
  }
  for (const std::string& text : {changed("estimate_heads", nullptr), fa::to_json(gpu).dump()}) {
    CHECK(reading(text, gpu) == "holds no estimated time");
  }
  for (const std::string& text :
       {std::string(), std::string("not JSON"), std::string("[1, 2]"), std::string("{}"),
        good.dump().substr(0, 400), changed("estimate", nullptr),
        changed("estimate_heads", "many")}) {
    CHECK_THAT(reading(text, gpu), StartsWith(strange));
  }
  gpu.backward = gpu.forward;
  CHECK_THAT(reading(good.dump(), gpu), StartsWith(strange));  // has no backward
  gpu = gpu_run();
  CHECK_THROWS_WITH(fa::read_estimates("no/such.json", gpu), "no/such.json: cannot be opened");
  CHECK_FALSE(gpu.forward.estimate);

  CHECK(reading(good.dump(), gpu) == "accepted");
  auto one_head = good;  // ran, for all
  one_head["problem"]["h"] = one_head["problem"]["hkv"] = 1;
  CHECK(reading(one_head.dump(), gpu) == "accepted");
  auto older = good;  // from before lengths existed
  for (const char* key : {"lengths", "page", "cache8"}) older["problem"].erase(key);
  CHECK(reading(older.dump(), gpu) == "accepted");
  gpu.problem.cache.page = 16;
  CHECK_THAT(reading(older.dump(), gpu), StartsWith(other));

  fa::RunReport sim = estimated_run();
  gpu = gpu_run();
  sim.problem.mask.left = gpu.problem.mask.left = 9;
  sim.problem.score_mod = gpu.problem.score_mod = {2.5f, true, true};
  CHECK(reading(fa::to_json(sim).dump(), gpu) == "accepted");
  gpu.problem.mask.right = 3;
  CHECK_THAT(reading(fa::to_json(sim).dump(), gpu), StartsWith(other));
}

TEST_CASE("an estimate is of the same lengths, cycled over the batch", "[report]") {
  fa::RunReport sim = estimated_run(), gpu = gpu_run();
  sim.problem.B = 2, sim.problem.cache.lengths = {256, 9}, sim.problem.cache.page = 16;
  gpu.problem.B = 4, gpu.problem.cache.page = 16;
  sim.estimate_heads = gpu.problem.heads();
  const auto same = [&](std::vector<int> lengths) {
    gpu.problem.cache.lengths = std::move(lengths);
    return reading(fa::to_json(sim).dump(), gpu) == "accepted";
  };
  CHECK(same({256, 9, 256, 9}));
  CHECK_FALSE(same({256, 9, 256, 8}));
  CHECK_FALSE(same({}));
  CHECK_FALSE(same({256, 9, 256}));
  gpu.problem.cache.page = 32;
  CHECK_FALSE(same({256, 9, 256, 9}));
}

TEST_CASE("what only some runs have in JSON is null in the others", "[report]") {
  auto j = fa::to_json(simulated_run());
  for (const char* key : {"time", "prepare", "backward", "sites", "remarks", "roofs", "estimate",
                          "estimate_heads", "forward_of", "finding", "check_again"}) {
    CAPTURE(key);
    CHECK((j.contains(key) && j[key].is_null()));
  }
  CHECK((j["ok"] == true && j["checkable"] == true && j["model_gpu"] == "H200"));
  CHECK((j["host_ms"] == 12.5 && j["bound_ms"] == 0.001 && j["flops_executed"] == 67108864));
  CHECK(j["traffic"]["requested"]["predicted"]["read"] == 68719480832);
  CHECK((j["traffic"]["hbm"]["model"]["write"] == 1900000 && j["workspace_bytes"] == 3000));
  CHECK(j["traffic"]["hbm"]["measured"].is_null());
  CHECK(j["traffic"]["shared_wavefronts"].is_null());

  fa::RunReport r = with_all_passes(analysed_run());
  r.forward.seen.shared_wavefronts = fa::Ops{5, 7, 0};
  r.forward.seen.buffers["other"].bytes.read = 9;
  r.again = "O differs";
  j = fa::to_json(r);
  CHECK((j["sites"].size() == 16 && j["sites"][0]["clocks"] == 900));
  CHECK((j["remarks"].size() == 5 && j["prepare"]["flops"] == 0));
  CHECK(j["traffic"]["shared_wavefronts"] == Json{{"load", 5}, {"store", 7}});
  CHECK((j["kernels"].size() == 2 && j["kernels"][0]["instructions"] == 11));
  CHECK(j["estimate"] == fa::to_json(some_estimate()));
  const auto& buffers = j["traffic"]["requested"]["buffers"];
  CHECK(buffers["S"]["sectors"] == Json{{"load", 128}, {"store", 320}, {"atomic", 0}});
  CHECK(buffers["S"]["requests"] == Json{{"load", 32}, {"store", 64}, {"atomic", 0}});
  CHECK((buffers["S"]["predicted"]["read"] == 4096 && buffers["other"]["predicted"]["read"] == 0));
  CHECK(j["check_again"] == Json{{"ok", false}, {"message", "O differs"}});
  CHECK(j["backward"]["traffic"]["requested"]["buffers"]["dQ"]["counted"]["atomic"] == 4096);
  CHECK(j["prepare"]["traffic"]["requested"]["counted"]["write"] == 1000000);
}

TEST_CASE("the JSON of a GPU: 'counted' and 'model' are null, 'measured' and times are not",
          "[report]") {
  fa::RunReport r = gpu_run();
  r.backward = r.forward;
  r.backward->predicts = false, r.backward->predicted = {};
  r.device.sms = 132, r.device.free_bytes = 5000;
  r.forward_of = "04 fused", r.input_note = "real input cut";
  r.check.complete = false;
  r.problem.cache.lengths = {256, 0, 9}, r.problem.cache.page = 64, r.problem.cache.fp8 = true;
  r.problem.mask.left = 9;
  CHECK(fa::to_json(r) ==
        Json::parse(R"({"schema": 1, "step": "98_example", "idea": "An idea in one line.",
 "variant": "kernel", "variant_index": 0, "variant_idea": "the only way",
 "forward_of": "04 fused", "fp8": false,
 "device": {"kind": "gpu", "name": "NVIDIA H200", "arch": "sm_90", "sms": 132,
  "free_bytes": 5000},
 "model_gpu": null,
 "problem": {"b": 1, "h": 4, "hkv": 4, "n": 256, "nk": 256, "d": 64, "causal": false,
  "dtype": "fp32", "smem": null, "lengths": [256, 0, 9], "page": 64, "cache8": true,
  "window": [9, -1], "input": "normal", "input_note": "real input cut", "seed": 7},
 "estimate_heads": null,
 "check": [{"tensor": "O", "max_abs_err": 1e-07, "bound": 4e-07, "used": 0.25,
   "baseline_err": 2e-07, "rmse": 1e-08, "rows_checked": 1024, "rows_lost": 0,
   "ok": true, "message": null}],
 "check_complete": false, "checkable": true, "check_again": null, "damage": [],
 "finding": null, "findings": [],
 "traffic": {"per_element": [],
  "requested": {"predicted": {"read": 68719480832, "write": 1242759, "atomic": 0}, "counted": null,
   "buffers": {"O": {"predicted": {"read": 0, "write": 1234567, "atomic": 0}, "counted": null},
    "Q": {"predicted": {"read": 68719476736, "write": 0, "atomic": 0}, "counted": null},
    "S": {"predicted": {"read": 4096, "write": 8192, "atomic": 0}, "counted": null}}},
  "requests": {"load": 132, "store": 74, "atomic": 0},
  "sectors": {"load": 1778, "store": 296, "atomic": 0}, "lines": null,
  "shared_wavefronts": null,
  "hbm": {"predicted": {"read": 1000000, "write": 2000000}, "model": null,
   "measured": {"read": 950000, "write": 2000000}},
  "prediction_ok": null, "note": null},
 "kernels": [], "sites": null, "remarks": null,
 "time": {"median_ms": 0.5, "p10_ms": 0.45, "p90_ms": 0.6, "iters": 50,
  "bytes_per_s": 6000000000.0},
 "estimate": null, "bound_ms": 0.001, "host_ms": null, "flops": 67108864.0,
 "flops_executed": 67108864,
 "parent": {"step": "97_before",
  "requested": {"predicted": {"read": 137438953472, "write": 4096, "atomic": 0}}},
 "prepare": null,
 "backward": {"traffic": {"per_element": [],
   "requested": {"predicted": null, "counted": null, "buffers": {}},
   "requests": {"load": 132, "store": 74, "atomic": 0},
   "sectors": {"load": 1778, "store": 296, "atomic": 0}, "lines": null,
   "shared_wavefronts": null,
   "hbm": {"predicted": null, "model": null, "measured": {"read": 950000, "write": 2000000}},
   "prediction_ok": null, "note": null},
  "kernels": [], "sites": null, "remarks": null,
  "time": {"median_ms": 0.5, "p10_ms": 0.45, "p90_ms": 0.6, "iters": 50, "bytes_per_s": null},
  "estimate": null, "bound_ms": 0.001, "host_ms": null, "flops": 67108864.0,
  "flops_executed": 67108864,
  "parent": {"step": "97_before",
   "requested": {"predicted": {"read": 137438953472, "write": 4096, "atomic": 0}}}},
 "workspace_bytes": 3000, "naive_workspace_bytes": 2097152,
 "roofs": {"copy_bytes_per_s": 4280000000000.0, "fp32_flops": 60000000000000.0,
  "bf16_flops": 762000000000000.0, "fp32_matmul_flops": 51000000000000.0},
 "rate_of": "an FMA loop", "ok": true})"));
}
