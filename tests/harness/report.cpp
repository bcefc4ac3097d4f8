#include "common/harness/report.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "common/counts/format.h"
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

/// The first line that starts with `start` after its indentation, with one blank between words.
std::string row(const std::string& text, const std::string& start) {
  for (const std::string& line : lines_of(text)) {
    std::istringstream in(line);
    std::string words;
    for (std::string word; in >> word;) words += (words.empty() ? "" : " ") + word;
    if (words.starts_with(start)) return words;
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
  const auto coloured = [&r] { return fa::text(r, {.colour = true}); };
  const std::string right = "08 deterministic: right, HBM 2.80 MB, ";
  CHECK(answer() == right + "600 us estimated, limited by L1 lines");
  SECTION("all passes together, and what limits the longest kernel of them") {
    r.backward = r.forward;
    r.backward->estimate->seconds = 5e-3;
    r.backward->estimate->kernels = {kernel_estimate("b", 4e-3, {{Part::atomics, 1}})};
    CHECK_THAT(answer(), EndsWith("HBM 5.60 MB, 5.60 ms estimated, limited by atomics"));
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
    CHECK_THAT(answer(), EndsWith("500 us measured, limited by L1 lines"));
    r.forward.seen = {};
    CHECK_THAT(answer(), ContainsSubstring(": right, predicted HBM 3.00 MB, 500 us measured"));
  }
  SECTION("wrong, not checkable, stopped, not run; a terminal shows which in colour") {
    const auto is = [&](const std::string& verdict, const std::string& paint) {
      CHECK_THAT(coloured(), StartsWith("\033[1m" + answer().substr(0, answer().find(':') + 2) +
                                        paint + verdict + "\033[39m"));
      CHECK_THAT(coloured().substr(coloured().find("\033[0m\n") + 4), !ContainsSubstring("\033"));
      CHECK_THAT(coloured(), !ContainsSubstring("\n\033[0m"));
      CHECK_THAT(printed(r), !ContainsSubstring("\033"));
    };
    is("right", "\033[32m");
    r.check.tensors[0].ok = false;
    is("WRONG", "\033[31m");
    r.check.tensors[0].lost = true;
    is("not checkable", "");
    r.findings = {"race on sK"};
    CHECK(answer() == "08 deterministic: WRONG");
    r = simulated_run();
    r.predicted_only = true, r.forward.seen = {}, r.forward.bound.reset();
    is("not run", "");
    CHECK(answer() == "98 kernel: not run, predicted HBM 3.00 MB");
  }
  for (const char* own : {"mine", "12"}) {
    r.step = own;
    CHECK_THAT(answer(), StartsWith(std::string(own) + " "));
  }
}

// Of the simulator's reports tests/programs/figures.txt holds every word.
TEST_CASE("a GPU's report: rates, measured times and bytes, beside an estimate", "[report]") {
  fa::RunReport r = with_all_passes(compared_run());
  r.backward.reset();
  const std::string text = details(r);
  for (const char* line :
       {"prepare 2.00 MB 1.00 MB 2.00 MB 1.00 MB 1.00 us 3.00 TB/s, 70%",
        "forward 68.7 GB 1.24 MB 950 kB 2.00 MB 500 us 134 GFLOP/s, 0%",
        "buffers prepare, predicted: Q 2.00 MB, Q_e4m3 1.00 MB",
        "forward, predicted: Q 68.7 GB, O 1.23 MB, S 12.3 kB",
        "estimated forward 600 us on H200, +20% from measured",
        "O 1.00e-07 4.00e-07 25% 2.00e-07 1.00e-08 1,024 ok", "Q_e4m3 1,000,000",
        "all 2,000,000 1,000,000", "predicted 2.00 MB 1.00 MB 3.00 MB", "modelled - - - needs",
        "measured 950 kB 2.00 MB 2.95 MB", "time 500 us median of 50 (p10 450 us, p90 600 us)",
        "3.00 TB/s of HBM traffic: 70.1% of this card's measured 4.28 TB/s",
        "134 GFLOP/s (FlashAttention's convention): 0.2% of the 60.0 TFLOP/s of",
        "requests 132 load requests, 1,778 sectors; 74 store requests, 296 sectors",
        "bound at least 0.625 us on this card", "variant kernel: the only way",
        "long_kernel 490 us: L1 lines 61%, waiting 30%", "short_kernel 100 us: HBM 10%"}) {
    CAPTURE(line);
    CHECK(!row(text, line).empty());
  }
  CHECK_THAT(row(text, "read"), EndsWith("measured rate, of an FMA loop"));
  CHECK_THAT(text, ContainsSubstring("not an estimate: HBM\n          bytes 0.625 us\n"));
  const std::string sim = details(simulated_run());
  CHECK(!row(sim, "measured - - - needs a GPU").empty());
  CHECK_THAT(sim, !ContainsSubstring("\n    counted"));
}

TEST_CASE("an analysis lists the worst source lines first, and what they limit", "[report]") {
  const std::string text = details(analysed_run());
  const auto table = lines_of(text.substr(text.find("\nforward, by source line") + 1));
  CHECK(table[1] == "  a_kernel_with_a_long_name.cuh:1234 partial_sums atomic 8 B");
  CHECK(table[2] == std::string(37, ' ') + "123,456,789  9,876,543,210      1      80.0");
  const char* const order[] = {"9 Q load 8 B 10 80 40 8.0",
                               "107 Q load 4 B 10 47 40 4.7",
                               "106 ",
                               "105 ",
                               "104 ",
                               "103 ",
                               "102 ",
                               "101 ",
                               "8 V load 16 B 10 80 = 8.0",
                               "100 Q load 4 B 10 40 = ",
                               "8 K load 4 B 10 39 = 3.9",
                               "2 shared wgmma 1 32 = ",
                               "3 shared TMA load 1 16 = ",
                               "7 shared load 4 B 10 10 = "};
  for (size_t i = 0; i < std::size(order); ++i) {
    CHECK_THAT(row(table[3 + i], ""), StartsWith("kernel.cuh:" + std::string(order[i])));
  }
  CHECK_THAT(table[17], ContainsSubstring("1 more"));
  CHECK_THAT(row(text, "analysis"), StartsWith("analysis no finding: "));
  CHECK_THAT(row(text, "limit "), StartsWith("limit kernel.cuh:8 takes 60% of the clocks"));
  CHECK_THAT(row(text, "shared 100"), ContainsSubstring("operands 64, TMA 20, all else 16"));
  CHECK_THAT(text, ContainsSubstring("128\n          clocks of the tensor cores: 78%"));
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
  CHECK_THAT(row(printed(r), "buffers"), EndsWith("b8 8 B, b7 7 B, b6 6 B, ..."));
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

/// A change of a report, and words that only the details after it or, after "!", before it have.
struct Change {
  fa::RunReport before;
  std::function<void(Report)> change;
  std::vector<std::string> words;
};

TEST_CASE("what a report says of each thing that may be so", "[report]") {
  const fa::RunReport sim = simulated_run(), all = with_all_passes(sim),
                      estimated = estimated_run();
  const fa::RunReport analysed = analysed_run(), gpu = gpu_run(), uncounted = uncounted_run();
  const auto limited_by = [](Part part) {
    return [part](Report r) { r.forward.estimate->kernels[1].parts[0].part = part; };
  };
  const std::vector<Change> changes = {
      {all,
       [](Report r) {
         fa::TensorCheck& O = r.check.tensors[0];
         O.ok = false, O.max_abs_err = std::nan(""), O.message = "never written";
         r.check.damage = {"Q was written"}, r.again = "O differs";
         r.forward.predicted["Q"].read = 999999999999999;  // the longest that fits the column
         r.forward.seen.buffers["S"].bytes.write = 8191;
         r.forward.predicted.per_element[0].accesses = 4;
         r.backward->predicted["dQ"].atomic = 4092;
         CHECK(fa::to_json(r)["check"][0]["max_abs_err"].is_null());
         CHECK(fa::to_json(r)["traffic"]["prediction_ok"] == false);
       },
       {"98 kernel: WRONG, HBM 9.10 MB", "larger than allowed", "    never written\n",
        "  O               nan", "1,024  WRONG\n", "WRONG: Q was", "later run: O differs",
        ": 7275.96x more", "  Q      999,999,999,999,999       !=  ",
        "\n    counted   68,719,476,736\n", "  8,191\n", "8,192       !=     4.0     5.0\n",
        "4 accesses per score predicted, 3 counted", "count in: Q, S, example_kernel\n",
        "  dQ                  atomic                      4,092       !=             4.0\n",
        "                  4,096\n", "count in: dQ\n"}},
      {sim, [](Report r) { r.check.complete = false; }, {", in a sample of", "A seeded sample"}},
      {sim, [](Report r) { r.input_note = "real input cut"; }, {"; real input cut, seed 7"}},
      {sim, [](Report r) { r.advice = "another is faster"; }, {"note      another is faster\n"}},
      {sim, [](Report r) { r.forward_of = "04 fused"; }, {"forward   that of 04 fused"}},
      {sim, [](Report r) { r.cache = "of 8 bits"; }, {"cache     of 8 bits\n"}},
      {uncounted, [](Report r) { r.forward.seen.note = "refused"; }, {"note      refused\n"}},
      {sim,
       [](Report r) {
         r.check.tensors[0].ok = false, r.check.tensors[0].lost = true;
         r.check.tensors[0].message = "no digits";
       },
       {"98 kernel: not checkable", "not checkable: the scores", "1,024  lost\n    no digits\n"}},
      {gpu,  // wrong, and not measured
       [](Report r) { r.check.tensors[0].ok = false, r.forward.seen = {}, r.forward.time.reset(); },
       {"predicted HBM 3.00 MB, at least 1.00 us", "1.00 MB  2.00 MB          -\n", "!\nrequests ",
        "!\nHBM ", "!\nforward, bytes requested", "!\nbound "}},
      {sim,
       [](Report r) { r.check = {}, r.forward.seen = {}, r.predicted_only = true; },
       {"98 kernel: not run, predicted HBM 3.00 MB", "forward, predicted: Q 68.7 GB, O 1.23 MB",
        "  Q           68,719,476,736\n", "3 accesses per score predicted\n", "!\ndevice", "!seed",
        "!\ncheck", "!\nHBM ", "!\nhost", "!\nbound"}},
      {sim,  // a copy by TMA
       [](Report r) {
         r.forward.seen.buffers["Q"].requests = r.forward.seen.buffers["Q"].sectors = {};
       },
       {"=                                  -\n", "-: copied by TMA or set by a memset"}},
      {sim,
       [](Report r) { r.forward.predicts = false, r.forward.predicted = {}; },
       {"; no bytes were predicted.", "137 GB -> 0 B\n", "  read counted ",
        "  Q           68,719,476,736                                        16.5\n",
        "!\n  predicted "}},
      {all,  // only a backward has a formula
       [](Report r) {
         for (fa::Pass* pass : {&*r.prepare, &r.forward}) {
           pass->predicts = false, pass->predicted = {};
         }
       },
       {"the backward, and not predicted in the prepare and the forward.",
        "  all              2,000,000                  1,000,000                -       -\n"}},
      {analysed, [](Report r) { r.forward.seen.remarks.resize(4); }, {"!          and 1 more"}},
      {analysed,
       [](Report r) { r.forward.seen.sites.resize(15); },
       {"kernel.cuh:4 shared TMA store", "!\n  and 1 more", "!kernel.cuh:107"}},
      {analysed,
       limited_by(Part::shared),
       {"limited by shared memory\n", "600 us  shared memory 61%\n",
        "limit     kernel.cuh:7 takes 100% of the clocks of shared memory"}},
      {analysed, limited_by(Part::hbm), {"limited by HBM\n", "!\nlimit "}},
      {analysed,  // by what no line counts
       [&](Report r) {
         limited_by(Part::shared)(r), r.forward.seen.sites.erase(r.forward.seen.sites.begin());
       },
       {"!\nlimit "}},
      {analysed,  // no wgmma
       [](Report r) {
         for (auto& k : r.forward.seen.kernels) k.work.clear();
       },
       {"!\nshared "}},
      {estimated,
       [](Report r) { r.forward.estimate->verified = false; },
       {"modelling H200 (unverified", "600 us on H200 (unverified"}},
      {estimated,
       [](Report r) { r.forward.estimate->kernels[0].arithmetic = false; },
       {"note      the estimate is without plain arithmetic"}},
      {estimated,
       [](Report r) { r.estimate_heads = 127; },
       {": time of 127 heads; bytes\n          of the 4 that ran\n", "shared by 127 heads\n",
        ", for 127 heads\n", "!, footprint "}},
      {estimated, [](Report r) { r.estimate_heads = 128; }, {"time of 128 heads, which\n"}},
      {estimated,
       [](Report r) {
         fa::Estimate& e = *r.forward.estimate;
         e.kernels[1].blocks = e.kernels[1].sms = 4, e.kernels[0].blocks = e.kernels[0].sms = 1;
       },
       {"L2 10%; 4 blocks for 132 SMs\n", "HBM 10%; 1 block for 132 SMs\n"}},
      {compared_run(),
       [](Report r) { r.forward.estimate->gpu = "A100"; },
       {"600 us on A100\n", "!from measured"}},
      {uncounted,  // bytes that bind
       [](Report r) {
         r.forward.predicted.hbm = {1000000000, 1000000000, 0};
         r.forward.bound = fa::Bound{0.467, 0.01};
       },
       {"4.00 TB/s of the predicted HBM traffic: 93.5% of", "at least 467 us on this card",
        ": 67.1\n          MFLOP 10.0 us, HBM bytes 467 us\n"}},
      {uncounted,  // products that bind
       [](Report r) {
         r.forward.predicted.hbm = {1000000000, 1000000000, 0};
         r.forward.bound = fa::Bound{0.01, 0.467};
       },
       {"MFLOP 467 us, HBM bytes 10.0 us\n", "!of the predicted HBM traffic"}},
      {gpu,
       [](Report r) { r.problem.method.fp8 = true; },
       {"rate, of a copy\n", " 134 GFLOP/s\n", "FlashAttention's convention)\n"}},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    fa::RunReport after = changes[i].before;
    changes[i].change(after);
    const std::string texts[] = {details(changes[i].before), details(after)};
    for (const std::string& word : changes[i].words) {
      CAPTURE(i, word);
      const bool gone = word[0] == '!';
      CHECK_THAT(texts[gone], !ContainsSubstring(word.substr(gone)));
      CHECK_THAT(texts[!gone], ContainsSubstring(word.substr(gone)));
    }
  }
}

TEST_CASE("a change is more, fewer, or of nothing", "[report]") {
  fa::RunReport r = simulated_run();
  const double now = double(r.forward.predicted.total().total());
  const auto change = [&r](double before, uint64_t read) {
    r.forward.parent->requested = {uint64_t(before), 0, 0};
    r.forward.predicted.buffers.clear();
    r.forward.predicted["Q"].read = read;
    return row(printed(r), "change");
  };
  const std::string since = "change since 97_before: requested ";
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
  CHECK(row(printed(r), "change").empty());
}

TEST_CASE("from ten times what is allowed on the share is a factor", "[report]") {
  fa::RunReport r = simulated_run();
  const auto nan = std::nan("");
  for (const auto& [used, words] : std::vector<std::pair<double, std::string>>{
           {0.194, "19%"}, {9.99, "999%"}, {9.996, "10x"}, {123456, "1.23e+05x"}, {nan, "nan"}}) {
    r.check.tensors[0].used = used;
    CHECK_THAT(row(printed(r), "check O"), StartsWith("check O " + words + " "));
  }
}

TEST_CASE("near the size of the L2 a note says how exact modelled bytes are", "[report]") {
  fa::RunReport r = simulated_run();
  const auto note = [&](double footprint) {
    r.memory.inputs = static_cast<size_t>(footprint * r.model.l2_bytes);
    r.memory.outputs = r.memory.workspace = 0;
    return !row(printed(r), "note").empty();
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
    return row(printed(r), "requested") + " | " + row(printed(r), "forward ");
  };
  const std::string known = " | forward 68.7 GB 1.24 MB ";
  // A GPU measures HBM and counts no request; without counters it measures nothing.
  CHECK_THAT(table(simulated_run()), StartsWith("requested HBM" + known + "900 kB 1.90 MB "));
  CHECK_THAT(table(gpu_run()), StartsWith("requested, predicted HBM" + known + "950 kB 2.00 MB "));
  CHECK_THAT(table(uncounted_run()),
             StartsWith("requested, predicted HBM, predicted" + known + "1.00 MB 2.00 MB"));
  CHECK_THAT(table(uncounted_run(), false), StartsWith("requested HBM | forward - - - - "));
  // What was measured of one pass only is not mixed with predictions.
  fa::RunReport r = gpu_run();
  r.backward = r.forward;
  r.backward->seen = {};
  CHECK_THAT(table(r), StartsWith("requested, predicted HBM, predicted" + known + "1.00 MB"));
  CHECK_THAT(printed(r), StartsWith("98 kernel: right, predicted HBM 6.00 MB, "));
  r.backward->predicts = false;
  CHECK_THAT(table(r), StartsWith("requested, predicted HBM" + known + "950 kB"));
}

TEST_CASE("the roofline is the slower of bytes and arithmetic", "[report]") {
  const auto bound = fa::roofline(4e9, 1e12, 1e12, 1e15);
  REQUIRE(bound);
  CHECK((bound->memory_ms == Approx(4) && bound->arithmetic_ms == Approx(1)));
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
  const fa::RunReport good = with_all_passes(simulated_run());
  CHECK((good.ok() && !good.not_checkable()));
  using Wrong = void (*)(Report);
  for (const Wrong change : {
           Wrong([](Report r) { r.prepare->predicted["Q_e4m3"].write = 1000001; }),
           Wrong([](Report r) { r.forward.seen.buffers["S"].bytes.write += 1; }),
           Wrong([](Report r) { r.forward.predicted.per_element[0].accesses = 4; }),
           Wrong([](Report r) { r.backward->predicted["dQ"].atomic = 4092; }),
           Wrong([](Report r) { r.again = "O differs"; }),
           Wrong([](Report r) { r.findings = {"race"}; }),
       }) {
    fa::RunReport r = good;
    change(r);
    CHECK((!r.ok() && fa::to_json(r)["ok"] == false));
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
  r.forward.seen = {}, r.check = {};
  const fa::KernelStopped stopped({{fa::FaultKind::race, "race on sK"},
                                   {fa::FaultKind::deadlock, "deadlock in f:\n  3 threads"}},
                                  3);
  CHECK(stopped.what() ==
        std::string("race on sK\nalso: deadlock in f:\n  3 threads\nalso: 3 more, at other lines"));
  r.findings = stopped.sentences();
  r.forward.estimate = some_estimate(), r.forward.estimate->verified = false;
  r.estimate_heads = 128;  // of what did not end nothing is told
  CHECK_THAT(details(r), StartsWith("98 kernel: WRONG\nfinding: race on sK\n"
                                    "finding: deadlock in f: 3 threads\n"
                                    "finding: 3 more, at other lines\n\n98_example  An idea"));
  CHECK_THAT(details(r), EndsWith("(unverified: never\n          measured there)\n"));
  CHECK(fa::to_json(r)["finding"] == "race on sK");
  CHECK(fa::to_json(r)["findings"] == stopped.sentences());
  for (int i = 0; i < 60; ++i) r.findings[0] += " thread (" + std::to_string(i) + ",0,0)";
  details(r);  // is broken into lines that fit
}

TEST_CASE("a pass over a cache is told in bytes per second", "[report]") {
  fa::RunReport r = gpu_run();
  r.problem.dtype = fa::DType::bf16;
  const auto is = [&r](const Json& of, const std::string& rate) {
    CHECK(fa::to_json(r)["rate_of"] == of);
    CHECK_THAT(row(printed(r), "forward "), EndsWith(" us " + rate));
  };
  is("cuBLAS", "134 GFLOP/s, 0%");
  r.problem.N = 1, r.problem.Nk = 32768, r.memory.inputs = 2000000000;
  r.forward.seen.hbm = fa::Bytes{2000000000, 0, 0};
  is("a copy", "4.00 TB/s, 93%");
  CHECK_THAT(row(printed(r), "read "), EndsWith("rate, of a copy"));
  CHECK_THAT(details(r), ContainsSubstring("4.00 TB/s of HBM traffic: 93.5%") &&
                             !ContainsSubstring("FlashAttention's convention"));
  r.forward.seen.hbm.reset();  // without counters, as predicted
  r.forward.predicted.hbm = {1000000000, 0, 0};
  is("a copy", "2.00 TB/s, 47%");
  r.memory.inputs = 1000;  // its products take longer
  is("cuBLAS", "134 GFLOP/s, 0%");
  r.problem.N = 4096, r.problem.Nk = 4096;
  r.forward.flops = 1.1 * 762e12 * 0.5e-3;
  is("cuBLAS", "838 TFLOP/s, 110%");
  CHECK_THAT(printed(r), ContainsSubstring("above 100%: "));
  r.forward.flops /= 2;
  CHECK_THAT(printed(r), !ContainsSubstring("above 100%"));
  r.problem.method.fp8 = true;
  CHECK(fa::to_json(r)["rate_of"].is_null());
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
  fa::RunReport gpu = gpu_run();
  const auto is = [&](const std::string& start, const Json& j) {
    CAPTURE(start);
    CHECK_THAT(reading(j.is_string() ? j.get<std::string>() : j.dump(), gpu), StartsWith(start));
  };
  const auto changed = [&good](const char* key, const Json& value) {
    auto j = good;
    (j["problem"].contains(key) || !j.contains(key) ? j["problem"][key] : j[key]) = value;
    return j;
  };
  const std::string other = "is of another step, variant or problem: ";
  const std::string strange = "is not a report of the simulator: ",
                    none = "holds no estimated time";
  const Json others = Json::parse(R"({"n": 7, "nk": 7, "d": 7, "causal": true, "hkv": 1,
    "smem": 4096, "page": 16, "lengths": [256], "step": "97_before", "variant": "other",
    "estimate_heads": 128, "window": [3, 4], "mask": "strided:64", "row_starts": [0, 256],
    "key_starts": [0, 256], "cap": 2.5, "alibi": true, "sinks": true})");
  for (const auto& [key, value] : others.items()) is(other, changed(key.c_str(), value));
  is(none, changed("estimate_heads", nullptr)), is(none, fa::to_json(gpu));
  for (const Json& j :
       {Json(""), Json("not JSON"), Json("[1, 2]"), Json("{}"), Json(good.dump().substr(0, 400)),
        Json(changed("estimate", nullptr)), Json(changed("estimate_heads", "many"))}) {
    is(strange, j);
  }
  gpu.backward = gpu.forward;
  is(strange, good);  // has no backward
  gpu = gpu_run();
  CHECK_THROWS_WITH(fa::read_estimates("no/such.json", gpu), "no/such.json: cannot be opened");
  CHECK_FALSE(gpu.forward.estimate);

  is("accepted", good);
  auto one_head = good;  // ran, for all
  one_head["problem"]["h"] = one_head["problem"]["hkv"] = 1;
  is("accepted", one_head);
  auto older = good;  // from before lengths existed
  for (const char* key : {"lengths", "page", "cache8"}) older["problem"].erase(key);
  is("accepted", older);
  gpu.problem.cache.page = 16;
  is(other, older);
  fa::RunReport sim = estimated_run();
  gpu = gpu_run();
  sim.problem.mask.left = gpu.problem.mask.left = 9;
  sim.problem.score_mod = gpu.problem.score_mod = {2.5f, true, true};
  is("accepted", fa::to_json(sim));
  gpu.problem.mask.right = 3;
  is(other, fa::to_json(sim));

  // Lengths are cycled over the batch.
  sim = estimated_run(), gpu = gpu_run();
  sim.problem.B = 2, sim.problem.cache.lengths = {256, 9}, sim.problem.cache.page = 16;
  gpu.problem.B = 4, gpu.problem.cache.page = 16;
  sim.estimate_heads = gpu.problem.heads();
  for (const auto& lengths : std::vector<std::vector<int>>{
           {256, 9, 256, 9}, {256, 9, 256, 8}, {}, {256, 9, 256}, {256, 9, 256, 9}}) {
    gpu.problem.cache.lengths = lengths;
    const bool same = lengths == std::vector{256, 9, 256, 9} && gpu.problem.cache.page == 16;
    is(same ? "accepted" : other, fa::to_json(sim));
    if (lengths.size() == 3) gpu.problem.cache.page = 32;
  }
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
  const Json hbm = Json::parse(R"({"predicted": {"read": 1000000, "write": 2000000},
    "model": {"read": 900000, "write": 1900000}, "measured": null})");
  CHECK(j["traffic"]["hbm"] == hbm);
  CHECK(j["traffic"]["shared_wavefronts"].is_null());

  fa::RunReport r = with_all_passes(analysed_run());
  r.forward.seen.shared_wavefronts = fa::Ops{5, 7, 0};
  r.forward.seen.buffers["other"].bytes.read = 9;
  r.again = "O differs";
  j = fa::to_json(r);
  CHECK((j["sites"].size() == 16 && j["sites"][0]["clocks"] == 900 && j["remarks"].size() == 5));
  CHECK(j["traffic"]["shared_wavefronts"] == Json{{"load", 5}, {"store", 7}});
  CHECK((j["kernels"].size() == 2 && j["kernels"][0]["instructions"] == 11));
  CHECK((j["estimate"] == fa::to_json(some_estimate()) && j["prepare"]["flops"] == 0));
  const auto& buffers = j["traffic"]["requested"]["buffers"];
  CHECK(buffers["S"] == Json::parse(R"({"predicted": {"read": 4096, "write": 8192, "atomic": 0},
    "counted": {"read": 4096, "write": 8192, "atomic": 0},
    "requests": {"load": 32, "store": 64, "atomic": 0},
    "sectors": {"load": 128, "store": 320, "atomic": 0}})"));
  CHECK(buffers["other"]["predicted"]["read"] == 0);
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
  r.forward_of = "04 fused", r.input_note = "real input cut", r.check.complete = false;
  r.problem.cache.lengths = {256, 0, 9}, r.problem.cache.page = 64, r.problem.cache.fp8 = true;
  r.problem.mask.left = 9;
  // Of the simulator's, which other cases and tests/programs/figures.txt hold, all but this stays.
  Json before = fa::to_json(simulated_run()), after = fa::to_json(r);
  const Json forward = {{"traffic", after["traffic"]}, {"kernels", after["kernels"]}};
  for (Json* j : {&before, &after}) j->erase("traffic"), j->erase("kernels");
  Json changed;
  for (const auto& [key, value] : after.items()) {
    if (before[key] != value) changed[key] = value;
  }
  const Json backward = changed["backward"];
  changed.erase("backward");
  CHECK(nlohmann::json(changed) ==
        nlohmann::json::parse(R"({"forward_of": "04 fused", "model_gpu": null,
 "device": {"kind": "gpu", "name": "NVIDIA H200", "arch": "sm_90", "sms": 132, "free_bytes": 5000},
 "problem": {"b": 1, "h": 4, "hkv": 4, "n": 256, "nk": 256, "d": 64, "causal": false,
  "dtype": "fp32", "smem": null, "lengths": [256, 0, 9], "page": 64, "cache8": true,
  "window": [9, -1], "input": "normal", "input_note": "real input cut", "seed": 7},
 "check_complete": false, "host_ms": null, "rate_of": "an FMA loop",
 "time": {"median_ms": 0.5, "p10_ms": 0.45, "p90_ms": 0.6, "iters": 50, "bytes_per_s": 6e9},
 "roofs": {"copy_bytes_per_s": 4.28e12, "fp32_flops": 6e13, "bf16_flops": 7.62e14,
  "fp32_matmul_flops": 5.1e13}})"));
  CHECK(nlohmann::json(forward) == nlohmann::json::parse(R"({"traffic": {"per_element": [],
  "requested": {"predicted": {"read": 68719480832, "write": 1242759, "atomic": 0}, "counted": null,
   "buffers": {"O": {"predicted": {"read": 0, "write": 1234567, "atomic": 0}, "counted": null},
    "Q": {"predicted": {"read": 68719476736, "write": 0, "atomic": 0}, "counted": null},
    "S": {"predicted": {"read": 4096, "write": 8192, "atomic": 0}, "counted": null}}},
  "requests": {"load": 132, "store": 74, "atomic": 0},
  "sectors": {"load": 1778, "store": 296, "atomic": 0}, "lines": null, "shared_wavefronts": null,
  "hbm": {"predicted": {"read": 1000000, "write": 2000000}, "model": null,
   "measured": {"read": 950000, "write": 2000000}}, "prediction_ok": null, "note": null},
 "kernels": []})"));
  for (const auto& [key, value] : backward.items()) {
    if (key == "traffic") continue;
    CHECK(value == (key == "time" ? Json::parse(R"({"median_ms": 0.5, "p10_ms": 0.45,
      "p90_ms": 0.6, "iters": 50, "bytes_per_s": null})")
                                  : fa::to_json(r)[key]));
  }
  const Json& traffic = backward["traffic"];
  CHECK((traffic["hbm"]["predicted"].is_null() && traffic["requested"]["predicted"].is_null()));
  CHECK((traffic["requested"]["buffers"].empty() && traffic["hbm"]["measured"]["read"] == 950000));
}
