#include "common/harness/report.h"

#include <iterator>
#include <map>
#include <sstream>

#include "common/counts/format.h"
#include "common/counts/screen.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using Catch::Matchers::StartsWith;
using fa::test::fitting, fa::test::TemporaryFile;

namespace {

/// A small forward as from the simulator; the figures are synthetic but consistent.
fa::RunReport simulated_run() {
  fa::RunReport r;
  r.step = "98_example";
  r.idea = "An idea in one line.";
  r.variant = "kernel";
  r.variant_idea = "the only way";
  r.device = {"sim", "simulator (x86-64, 2 cores)", "sim"};
  r.problem.N = r.problem.Nk = 256;
  r.input = "normal";
  r.seed = 7;
  r.model = fa::find_gpu("H200");
  r.memory = {1000, 2000, 3000};

  fa::TensorCheck o;
  o.tensor = "O";
  o.max_abs_err = 1e-7;
  o.rmse = 1e-8;
  o.baseline_err = 2e-7;
  o.bound = 4e-7;
  o.rows_checked = 1024;
  o.ok = true;
  r.check.tensors = {o};

  fa::Pass& f = r.forward;
  f.name = "forward";
  f.predicted["Q"].read = 68719476736;
  f.predicted["S"] = {4096, 8192, 0};
  f.predicted["O"].write = 1234567;
  f.predicted.hbm = {1000000, 2000000, 0};
  f.predicted.flops = 67108864;
  f.seen.source = "counted";
  f.seen.buffers["Q"] = {{68719476736, 0, 0}, {100, 0, 0}, {1650, 0, 0}};
  f.seen.buffers["S"] = {{4096, 8192, 0}, {32, 64, 0}, {128, 256, 0}};
  f.seen.buffers["O"] = {{0, 1234567, 0}, {0, 10, 0}, {0, 40, 0}};
  f.seen.requested = fa::Bytes{68719480832, 1242759, 0};
  f.seen.requests = fa::Ops{132, 74, 0};
  f.seen.sectors = fa::Ops{1778, 296, 0};
  f.seen.hbm = fa::Bytes{900000, 1900000, 0};
  fa::KernelCount kernel;
  kernel.name = "example_kernel";
  kernel.blocks = 8;
  f.seen.kernels = {kernel};
  f.flops = 67108864;
  f.bound = fa::roofline(2800000, 67108864, r.model.hbm_bytes_per_s, r.model.fp32_flops);
  f.host_ms = 12.5;
  f.parent = fa::ParentTraffic{"97_before", {137438953472, 4096, 0}};
  return r;
}

/// The same step on a GPU: no buffers, but times and measured roofs.
fa::RunReport gpu_run() {
  fa::RunReport r = simulated_run();
  r.device = {"gpu", "NVIDIA H200", "sm_90"};
  fa::Pass& f = r.forward;
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

fa::KernelEstimate kernel_estimate(const char* name, double seconds,
                                   std::vector<fa::PartShare> parts) {
  fa::KernelEstimate k;
  k.name = name;
  k.seconds = seconds;
  k.parts = std::move(parts);
  k.blocks = 1000;
  k.sms = 132;
  return k;
}

fa::Estimate some_estimate() {
  using fa::Part;
  fa::Estimate e;
  e.gpu = "H200";
  e.verified = true;
  e.seconds = 0.6e-3;
  e.kernels = {
      kernel_estimate("short_kernel", 0.1e-3, {{Part::hbm, 0.09}, {Part::l1, 0.05}}),
      kernel_estimate(
          "long_kernel", 0.49e-3,
          {{Part::l1, 0.614}, {Part::waiting, 0.3}, {Part::l2, 0.2}, {Part::start, 0.15}})};
  return e;
}

fa::RunReport estimated_run() {
  fa::RunReport r = simulated_run();
  r.estimate_heads = r.problem.heads();
  r.forward.estimate = some_estimate();
  return r;
}

fa::RunReport with_backward(fa::RunReport r) {
  r.backward = r.forward;
  r.backward->name = "backward";
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The first line that starts with `start` after its indentation.
std::string line_with(const std::string& text, const std::string& start) {
  for (const std::string& line : lines_of(text)) {
    const size_t at = line.find_first_not_of(' ');
    if (at != std::string::npos && line.compare(at, start.size(), start) == 0) return line;
  }
  return "";
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Sentences before they were broken into lines.
std::string joined(const std::string& text) {
  std::string out;
  for (const std::string& word : words_of(text)) out += word + " ";
  return out;
}

/// The column after the first `word` of a line.
size_t end_of(const std::string& line, const std::string& word) {
  const size_t at = line.find(word);
  REQUIRE(at != std::string::npos);
  return at + word.size();
}

/// The printed text, which must fit a screen.
std::string printed(const fa::RunReport& r, const fa::Screen& screen = {}) {
  const std::string text = fitting(fa::text(r, screen));
  CHECK(text.find(" \n") == std::string::npos);
  return text;
}
std::string details(const fa::RunReport& r) { return printed(r, {.details = true}); }

/// How often words occur in a text, across line breaks.
size_t times_in(const std::string& text, const std::string& words) {
  const std::string all = joined(text);
  size_t times = 0;
  for (size_t at = 0; (at = all.find(words, at)) != std::string::npos; ++at) ++times;
  return times;
}

}  // namespace

TEST_CASE("figures for people", "[report]") {
  const std::map<double, std::string> bytes = {
      {0, "0 B"},         {999, "999 B"},      {1000, "1.00 kB"},       {12345, "12.3 kB"},
      {999499, "999 kB"}, {999500, "1.00 MB"}, {68719476736, "68.7 GB"}};
  for (const auto& [number, words] : bytes) CHECK(fa::human_bytes(number) == words);
  const std::map<uint64_t, std::string> counts = {
      {0, "0"}, {999, "999"}, {1000, "1,000"}, {68719476736, "68,719,476,736"}};
  for (const auto& [number, words] : counts) CHECK(fa::grouped(number) == words);
}

TEST_CASE("a time has three digits, and the unit that leaves 1 to 999 before the point",
          "[report]") {
  const std::map<double, std::string> all = {
      {1e-4, "0.1 us"},    {0.00734, "7.34 us"}, {0.0999, "99.9 us"}, {0.1416, "142 us"},
      {0.99949, "999 us"}, {0.9995, "1.00 ms"},  {31.44, "31.4 ms"},  {999.4, "999 ms"},
      {999.5, "1.00 s"},   {68123, "68.1 s"},    {4000000, "4000 s"}};
  for (const auto& [ms, words] : all) CHECK(fa::human_time(ms) == words);
}

TEST_CASE("the first line is the answer: verdict, HBM, time and limiter", "[report]") {
  fa::RunReport r = simulated_run();
  r.step = "08_tensor_core_backward", r.variant = "deterministic";
  r.forward.estimate = some_estimate();
  const auto answer = [&r] { return lines_of(printed(r)).at(0); };
  CHECK(answer() == "08 deterministic: right, HBM 2.80 MB, 600 us estimated, limited by L1 lines");
  r.forward.estimate->kernels[1].parts[0].part = fa::Part::shared;
  CHECK(answer() ==
        "08 deterministic: right, HBM 2.80 MB, 600 us estimated, limited by shared memory");
  SECTION("all passes together, and what limits the longest kernel of them") {
    r.backward = r.forward;
    r.backward->estimate->seconds = 5e-3;
    r.backward->estimate->kernels = {kernel_estimate("b", 4e-3, {{fa::Part::atomics, 1}})};
    CHECK(answer() ==
          "08 deterministic: right, HBM 5.60 MB, 5.60 ms estimated, limited by atomics");
  }
  SECTION("a GPU that nothing is estimated for has a bound") {
    r.forward.estimate.reset();
    CHECK(answer() == "08 deterministic: right, HBM 2.80 MB, at least 1.00 us");
  }
  SECTION("measured; beside it an estimate says what limits it") {
    r = gpu_run();
    CHECK(answer() == "98 kernel: right, HBM 2.95 MB, 500 us measured");
    r.forward.estimate = some_estimate();
    CHECK(answer() == "98 kernel: right, HBM 2.95 MB, 500 us measured, limited by L1 lines");
    r.forward.seen = {};
    CHECK_THAT(answer(), ContainsSubstring(": right, predicted HBM 3.00 MB, 500 us measured"));
  }
  SECTION("wrong, not checkable, not run, stopped") {
    r.check.tensors[0].ok = false;
    CHECK_THAT(answer(), StartsWith("08 deterministic: WRONG, HBM 2.80 MB, 600 us"));
    r.check.tensors[0].lost = true;
    CHECK_THAT(answer(), StartsWith("08 deterministic: not checkable, HBM"));
    r.findings = {"race on sK"};
    CHECK(answer() == "08 deterministic: WRONG");
    r = simulated_run();
    r.predicted_only = true, r.forward.seen = {}, r.forward.bound.reset();
    CHECK(answer() == "98 kernel: not run, predicted HBM 3.00 MB");
  }
  SECTION("a step of one's own") {
    r.step = "mine";
    CHECK_THAT(answer(), StartsWith("mine deterministic: right, "));
  }
}

TEST_CASE("without --details a report is one screen, whatever is wrong", "[report]") {
  fa::RunReport r = with_backward(simulated_run());
  r.idea = std::string(75, 'i') + " two lines";
  r.variant_idea = std::string(65, 'v') + " two lines";
  for (fa::Pass* pass : {&r.forward, &*r.backward}) {
    pass->estimate = some_estimate();
    pass->parent->id = "05 recompute";
    for (int i = 0; i < 9; ++i) pass->seen.buffers["b" + std::to_string(i)].bytes.read = i;
    pass->predicted.buffers.clear();
    for (const auto& [name, count] : pass->seen.buffers) pass->predicted[name] = count.bytes;
  }
  r.estimate_heads = 128;
  const auto line_count = [](const std::string& text) { return lines_of(text).size(); };
  const std::string text = printed(r);
  CAPTURE(text);
  CHECK(line_count(text) <= 24);
  CHECK_THAT(joined(text), ContainsSubstring("time of 128 heads, which fill it; bytes of the 4 "
                                             "that ran"));
  CHECK(line_with(text, "check") == "check     O 0% of the allowed error");
  CHECK(words_of(line_with(text, "backward ")) ==
        words_of("backward 68.7 GB 1.24 MB 900 kB 1.90 MB 600 us L1 lines 61%"));
  r.forward.seen.hbm->atomic = 500000;  // it writes
  CHECK(words_of(line_with(printed(r), "forward ")).at(7) == "2.40");
  CHECK(line_with(text, "buffers") ==
        "buffers   forward: Q 68.7 GB, O 1.23 MB, S 12.3 kB, b8 8 B, b7 7 B, b6 6 B, ...");
  CHECK(line_with(text, "change") ==
        "change    forward since 05 recompute: requested 137 GB -> 68.7 GB: 2.00x fewer");
  CHECK_THAT(text, !ContainsSubstring("max error") && !ContainsSubstring("long_kernel"));
  r.estimate_heads = r.problem.heads(), r.memory.inputs = size_t(r.model.l2_bytes);
  CHECK_THAT(printed(r), ContainsSubstring("\nnote "));
  CHECK(line_count(printed(r)) <= 24);

  r.check.tensors[0].ok = false;
  r.check.tensors[0].message = "O[0, 1, 2, 3] was never written";
  CHECK(line_count(printed(r)) <= 30);
  CHECK_THAT(printed(r), ContainsSubstring("max error") && ContainsSubstring("never written"));
  r.check.tensors[0].ok = true;
  CHECK(r.ok());
  r.forward.seen.buffers["S"].bytes.write += 1;
  CHECK_FALSE(r.ok());
  CHECK(fa::to_json(r)["traffic"]["prediction_ok"] == false);
  CHECK_THAT(printed(r), ContainsSubstring("\nforward, bytes requested") &&
                             !ContainsSubstring("\nbackward, bytes requested") &&
                             ContainsSubstring("prediction differs from the count in: S\n"));
}

TEST_CASE("a terminal's answer is bold, and its verdict green or red", "[report]") {
  fa::RunReport r = simulated_run();
  const auto coloured = [&r] { return fa::text(r, {.colour = true}); };
  CHECK_THAT(coloured(), StartsWith("\033[1m98 kernel: \033[32mright\033[39m, HBM 2.80 MB, at "
                                    "least 1.00 us\033[0m\nright     all"));
  CHECK_THAT(coloured().substr(coloured().find('\n')), !ContainsSubstring("\033"));
  CHECK_THAT(printed(r), !ContainsSubstring("\033"));
  r.check.tensors[0].ok = false;
  CHECK_THAT(coloured(), StartsWith("\033[1m98 kernel: \033[31mWRONG\033[39m, "));
}

TEST_CASE("the roofline is the slower of bytes and arithmetic", "[report]") {
  const auto bound = fa::roofline(4e9, 1e12, 1e12, 1e15);
  REQUIRE(bound);
  CHECK(bound->memory_ms == Approx(4));
  CHECK(bound->arithmetic_ms == Approx(1));
  CHECK(bound->ms() == Approx(4));
  CHECK(fa::roofline(1, 1e15, 1e12, 1e15)->ms() == Approx(1000));
  CHECK_FALSE(fa::roofline(1, 1, 1e12, 0));  // a T4 has no bf16 roof
  REQUIRE(fa::roofline(4e9, 0, 1e12, 0));    // a pass without products does not need it
  CHECK(fa::roofline(4e9, 0, 1e12, 0)->ms() == Approx(4));
}

TEST_CASE("a change too small for a factor is given in bytes", "[report]") {
  fa::RunReport r = simulated_run();
  r.forward.parent->requested = r.forward.predicted.total();
  r.forward.parent->requested.read += 100;
  CHECK_THAT(line_with(details(r), "change"), ContainsSubstring(", -100 B"));
  r.forward.parent->requested.read += r.forward.predicted.total().total() / 50;
  CHECK_THAT(line_with(details(r), "change"), ContainsSubstring(": 1.02x fewer"));
  r.forward.parent->requested = r.forward.predicted.total();
  CHECK_THAT(line_with(details(r), "change"), ContainsSubstring(", unchanged"));
}

TEST_CASE("the simulator's details say what it knows", "[report]") {
  const std::string text = details(simulated_run());
  CHECK_THAT(line_with(text, "modelled"), ContainsSubstring("900 kB") &&
                                              ContainsSubstring("1.90 MB") &&
                                              ContainsSubstring("H200's L2 52.4 MB"));
  CHECK_THAT(line_with(text, "bound"),
             ContainsSubstring("at least 1.00 us on H200, a lower bound"));
  CHECK_THAT(line_with(text, "host"), ContainsSubstring("12.5 ms"));
  CHECK_THAT(line_with(text, "memory"),
             ContainsSubstring("workspace 3.00 kB (naive step: 2.10 MB);"));
  CHECK_THAT(line_with(text, "right"), ContainsSubstring("predicted and counted bytes agree"));
  CHECK(line_with(text, "time").empty());  // never a pretended GPU time
}

TEST_CASE("a count that is the predicted one is =, each of another stands below", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(words_of(line_with(details(r), "Q")) ==
        std::vector<std::string>{"Q", "68,719,476,736", "=", "16.5"});
  CHECK(words_of(line_with(details(r), "S")) ==
        std::vector<std::string>{"S", "4,096", "=", "8,192", "=", "4.0", "4.0"});

  r.forward.predicted["Q"].read = 999999999999999;  // the longest that the column is made for
  r.forward.seen.buffers["S"].bytes.write = 8191;
  const std::string text = details(r);
  const auto lines = lines_of(text);
  const auto row = [&](const std::string& start) {
    return std::find_if(lines.begin(), lines.end(),
                        [&](const std::string& line) { return line.starts_with(start); });
  };
  REQUIRE(row("  Q ") != lines.end());
  CHECK(words_of(*row("  Q ")) ==
        std::vector<std::string>{"Q", "999,999,999,999,999", "!=", "16.5"});
  CHECK(words_of(*std::next(row("  Q "))) == std::vector<std::string>{"counted", "68,719,476,736"});
  const std::string S = *row("  S "), below = *std::next(row("  S "));
  CHECK(words_of(S) == std::vector<std::string>{"S", "4,096", "=", "8,192", "!=", "4.0", "4.0"});
  CHECK(words_of(below) == std::vector<std::string>{"counted", "8,191"});
  CHECK(end_of(below, "8,191") == end_of(S, "8,192"));
}

TEST_CASE("the columns of sectors/request are named load and store", "[report]") {
  fa::RunReport r = simulated_run();
  r.forward.seen.buffers["S"].sectors.store = 320;
  const auto lines = lines_of(details(r));
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].find("read predicted") == std::string::npos) continue;
    CHECK_THAT(lines[i - 1], ContainsSubstring("sectors/request"));
    const std::string S = line_with(details(r), "S");
    CHECK(end_of(lines[i], "load") == end_of(S, "4.0"));
    CHECK(end_of(lines[i], "store") == end_of(S, "5.0"));
    CHECK(end_of(lines[i], "read predicted") == end_of(S, "4,096"));
    CHECK(end_of(lines[i], "write predicted") == end_of(S, "8,192"));
    return;
  }
  FAIL("no heading");
}

TEST_CASE("bytes that no warp requested have no sectors, and the report says why", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK_THAT(details(r), !ContainsSubstring("TMA"));
  r.forward.seen.buffers["Q"].requests = r.forward.seen.buffers["Q"].sectors = {};
  const std::string text = details(r);
  CHECK(words_of(line_with(text, "Q")) ==
        std::vector<std::string>{"Q", "68,719,476,736", "=", "-"});
  CHECK_THAT(line_with(text, "-: "), ContainsSubstring("TMA"));
}

TEST_CASE("a long name takes a line of its own", "[report]") {
  CHECK(fa::beside("left", "right", 10) == "left right");
  CHECK(fa::beside("left", "right", 9) == "left\n    right");
  CHECK(fa::beside("left", "", 4) == "left");
  fa::RunReport r = simulated_run();
  r.forward.predicted["partial_sums_of_dQ"].read = 123456789012;
  const auto text = details(r);
  CHECK_THAT(text, ContainsSubstring("  partial_sums_of_dQ\n"));
}

TEST_CASE("from ten times what is allowed on the share is a factor", "[report]") {
  fa::RunReport r = simulated_run();
  const auto printed = [&r](double used) {
    r.check.tensors[0].used = used;
    return words_of(line_with(details(r), "O")).at(3);
  };
  CHECK(printed(0.194) == "19%");
  CHECK(printed(9.99) == "999%");
  CHECK(printed(9.996) == "10x");
  CHECK(printed(24.2) == "24.2x");
  CHECK(printed(123456) == "1.23e+05x");
  CHECK(printed(std::nan("")) == "nan");
}

TEST_CASE("near the size of the L2 a note says how exact modelled bytes are", "[report]") {
  fa::RunReport r = simulated_run();
  const auto promise = [&](double footprint) {
    r.memory.inputs = static_cast<size_t>(footprint * r.model.l2_bytes);
    r.memory.outputs = r.memory.workspace = 0;
    const std::string note = line_with(printed(r), "note");
    CHECK(times_in(details(r), "are least accurate") == !note.empty());
    return note.empty();
  };
  CHECK(promise(0.4));
  CHECK_FALSE(promise(0.5));
  CHECK_FALSE(promise(0.6));
  CHECK_FALSE(promise(2.9));
  CHECK_FALSE(promise(3));
  CHECK(promise(3.1));
  CHECK_FALSE(promise(1));
  CHECK_THAT(line_with(printed(r), "note"),
             ContainsSubstring("modelled HBM bytes are least accurate"));
  r.estimate_heads = 128;  // they fill the L2 together
  CHECK(promise(1));
  r.estimate_heads = r.problem.heads(), r.predicted_only = true;
  CHECK(promise(1));
  r = gpu_run();
  CHECK(promise(1));
}

TEST_CASE("a GPU's report shows times and measured traffic, and counts no buffer", "[report]") {
  const std::string text = details(gpu_run());
  CHECK_THAT(line_with(text, "time"),
             ContainsSubstring("500 us median of 50 (p10 450 us, p90 600 us)"));
  const std::string prose = joined(text);
  CHECK_THAT(prose, ContainsSubstring("134 GFLOP/s (FlashAttention's convention): 0.2% of the "
                                      "60.0 TFLOP/s of an FMA loop on this card"));
  CHECK_THAT(prose, ContainsSubstring("5.90 GB/s of HBM traffic: 0.1% of this card's measured "
                                      "4.28 TB/s"));
  CHECK_THAT(line_with(text, "measured"), ContainsSubstring("950 kB"));
  CHECK_THAT(text, !ContainsSubstring("counted"));
  CHECK_THAT(text, !ContainsSubstring("simulation"));
  fa::RunReport fp8 = gpu_run();  // no rate was measured for its products
  fp8.problem.method.fp8 = true;
  CHECK_THAT(details(fp8), ContainsSubstring("134 GFLOP/s (FlashAttention's convention)\n"));
}

TEST_CASE("the table's heads say which bytes are only predicted", "[report]") {
  fa::RunReport r = simulated_run();
  const auto heads = [&r] { return joined(line_with(printed(r), "requested")); };
  const auto forward = [&r] { return joined(line_with(printed(r), "forward ")); };
  CHECK(heads() == "requested HBM ");
  CHECK_THAT(forward(), StartsWith("forward 68.7 GB 1.24 MB 900 kB 1.90 MB "));
  SECTION("a GPU measures HBM and counts no request") {
    r = gpu_run();
    CHECK(heads() == "requested, predicted HBM ");
    CHECK_THAT(forward(), StartsWith("forward 68.7 GB 1.24 MB 950 kB 2.00 MB "));
    CHECK(end_of(line_with(printed(r), "requested"), "predicted") <
          line_with(printed(r), "read ").find("read", 20));
  }
  SECTION("without counters it does not measure HBM either") {
    r = gpu_run();
    CHECK_THAT(line_with(printed(r), "read "), ContainsSubstring("rate, of an FMA loop"));
    r.problem.dtype = fa::DType::bf16;
    CHECK_THAT(line_with(printed(r), "read "), ContainsSubstring("rate, of cuBLAS"));
    r.forward.seen = {};
    CHECK(heads() == "requested, predicted HBM, predicted ");
    CHECK_THAT(forward(), StartsWith("forward 68.7 GB 1.24 MB 1.00 MB 2.00 MB "));
    CHECK_THAT(line_with(printed(r), "buffers"), ContainsSubstring(" forward, predicted: Q "));
    r.forward.predicts = false;
    CHECK(heads() == "requested HBM ");
    CHECK_THAT(forward(), StartsWith("forward - - - - "));
  }
  SECTION("what was measured of one pass only is not mixed with predictions") {
    r = gpu_run();
    r.backward = r.forward;
    r.backward->seen = {};
    CHECK(heads() == "requested, predicted HBM, predicted ");
    CHECK_THAT(forward(), StartsWith("forward 68.7 GB 1.24 MB 1.00 MB 2.00 MB "));
    CHECK_THAT(printed(r), StartsWith("98 kernel: right, predicted HBM 6.00 MB, "));
    r.backward->predicts = false;
    CHECK(heads() == "requested, predicted HBM ");
    CHECK_THAT(forward(), StartsWith("forward 68.7 GB 1.24 MB 950 kB 2.00 MB "));
  }
  SECTION("--predict runs nothing") {
    r.predicted_only = true, r.forward.seen = {};
    CHECK(heads() == "requested, predicted HBM, predicted ");
  }
}

TEST_CASE("what failed is named with the reason, and --details does not say it again", "[report]") {
  fa::RunReport r = simulated_run();
  const auto lines_from = [&r](const std::string& start) {
    const auto lines = lines_of(details(r));
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.starts_with(start); });
  };
  SECTION("a wrong result") {
    fa::TensorCheck& O = r.check.tensors[0];
    O.ok = false, O.max_abs_err = std::nan(""), O.message = "O[0, 1, 2, 3] was never written";
    CHECK(lines_from("check") == 1);
    CHECK(times_in(details(r), O.message) == 1);
    CHECK_THAT(line_with(details(r), "O"), ContainsSubstring("nan") && ContainsSubstring("WRONG"));
    CHECK_FALSE(line_with(details(r), "WRONG").empty());
    CHECK(line_with(details(r), "right").empty());
    CHECK(fa::to_json(r)["check"][0]["max_abs_err"].is_null());
    CHECK(fa::to_json(r)["ok"] == false);
  }
  SECTION("a wrong later run") {
    r.again = "O differs";
    CHECK(lines_from("check") == 1);
    CHECK(times_in(details(r), "WRONG in a later run: O differs") == 1);
  }
  SECTION("a wrong prediction") {
    r = with_backward(r);
    r.forward.seen.buffers["S"].bytes.write += 1;
    CHECK(lines_from("forward, bytes requested") == 1);
    CHECK(lines_from("backward, bytes requested") == 1);
    CHECK(times_in(details(r), "prediction differs from the count in: S") == 1);
    CHECK_THAT(details(r), ContainsSubstring("\nforward\nHBM "));  // the rest of its details
  }
  SECTION("refused counters") {
    r = gpu_run();
    r.forward.seen = {};
    r.forward.seen.note = "counters refused: ask the administrator";
    CHECK(times_in(details(r), "counters refused") == 1);
    CHECK(lines_from("note      counters refused") == 1);
    CHECK(lines_from("check") == 2);  // nothing is wrong: errors are a detail
    CHECK_THAT(details(r), ContainsSubstring("median"));
    CHECK(r.ok());
  }
}

TEST_CASE("what is not checkable is neither right nor wrong", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(fa::to_json(r)["checkable"] == true);
  r.check.tensors[0].ok = false;
  r.check.tensors[0].lost = true;
  r.check.tensors[0].rows_lost = 3;
  r.check.tensors[0].message = "not checkable: the scores lose their precision, in 3 of 9 rows";
  const std::string text = details(r);
  CHECK_FALSE(r.ok());
  CHECK(r.not_checkable());
  CHECK_THAT(line_with(text, "O"), ContainsSubstring("lost"));
  CHECK_THAT(text, ContainsSubstring("\nnot checkable: the scores lose their precision."));
  CHECK_THAT(text, !ContainsSubstring("WRONG"));
  CHECK(line_with(text, "right").empty());
  CHECK(fa::to_json(r)["ok"] == false);
  CHECK(fa::to_json(r)["checkable"] == false);
  CHECK(fa::to_json(r)["check"][0]["rows_lost"] == 3);
  r.forward.seen.buffers["S"].bytes.write += 1;  // a wrong count
  CHECK_FALSE(r.not_checkable());
  CHECK(fa::to_json(r)["checkable"] == true);
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
  const std::vector<std::string> all = r.findings = stopped.sentences();
  REQUIRE(all == std::vector<std::string>{"race on sK", "deadlock in f:\n  3 threads",
                                          "3 more, at other lines"});
  const std::string text = details(r);
  for (const char* line : {"\nfinding: race on sK\n", "\nfinding: deadlock in f: 3 threads\n",
                           "\nfinding: 3 more, at other lines\n"}) {
    CHECK_THAT(text, ContainsSubstring(line));
  }
  CHECK_FALSE(r.ok());
  CHECK(fa::to_json(r)["finding"] == all[0]);
  CHECK(fa::to_json(r)["findings"] == all);
  r.findings[0] += ":";
  for (int i = 0; i < 60; ++i) r.findings[0] += " thread (" + std::to_string(i) + ",0,0)";
  details(r);  // is broken into lines that fit
}

TEST_CASE("a backward is reported beside the forward, and judged too", "[report]") {
  fa::RunReport r = with_backward(simulated_run());
  r.backward->predicted["dQ"].atomic = 4096;
  r.backward->seen.buffers["dQ"].bytes.atomic = 4096;
  CHECK(r.ok());
  const std::string text = details(r);
  CHECK_THAT(line_with(text, "dQ"), ContainsSubstring("atomic") && ContainsSubstring("4,096"));
  const auto j = fa::to_json(r);
  CHECK(j["backward"]["traffic"]["requested"]["buffers"]["dQ"]["counted"]["atomic"] == 4096);
  CHECK(j["backward"]["flops"] == 67108864.0);

  r.backward->predicted["dQ"].atomic = 4092;
  CHECK_FALSE(r.ok());
}

fa::Pass some_prepare(const fa::GpuSpec& model) {
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
  p.bound = fa::roofline(3000000, 0, model.hbm_bytes_per_s, model.fp32_flops);
  return p;
}

TEST_CASE("a prepare is reported before the forward, and judged too", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(fa::to_json(r)["prepare"].is_null());
  r.prepare = some_prepare(r.model);
  CHECK(r.ok());
  const std::string text = details(r);
  CHECK(text.find("\nprepare, bytes requested") < text.find("\nforward, bytes requested"));
  CHECK(line_with(text, "Q_e4m3").find("1,000,000") != std::string::npos);
  CHECK_THAT(joined(text), ContainsSubstring("a lower bound and not an estimate: HBM bytes 0.625 "
                                             "us "));
  CHECK_THAT(joined(text), !ContainsSubstring(": 0 FLOP"));
  const auto j = fa::to_json(r);
  CHECK(j["prepare"]["traffic"]["requested"]["counted"]["write"] == 1000000);
  CHECK(j["prepare"]["traffic"]["prediction_ok"] == true);
  CHECK(j["prepare"]["flops"] == 0);
  CHECK(j["prepare"]["flops_executed"] == 0);
  CHECK(j["prepare"]["bound_ms"].get<double>() > 0);
  CHECK(j["traffic"]["requested"]["counted"]["write"] == 1242759);  // the forward's

  r.predicted_only = true;
  const std::string predicted = details(r);
  CHECK(predicted.find("\nprepare, ") < predicted.find("\nforward, "));
  r.predicted_only = false;
  r.prepare->predicted["Q_e4m3"].write = 1000001;
  CHECK_FALSE(r.ok());
  CHECK_THAT(details(r), ContainsSubstring("prediction differs from the count in: Q_e4m3\n"));
}

TEST_CASE("the verdict names the passes that nobody predicted", "[report]") {
  fa::RunReport r = with_backward(simulated_run());
  r.prepare = some_prepare(r.model);
  const auto words = [&r] { return joined(details(r)); };
  CHECK_THAT(words(), ContainsSubstring("; predicted and counted bytes agree. "));
  r.forward.predicts = false;
  CHECK_THAT(words(), ContainsSubstring("agree in the prepare and the backward, and not "
                                        "predicted in the forward. "));
  r.prepare->predicts = false;
  CHECK_THAT(words(), ContainsSubstring("agree in the backward, and not predicted in the "
                                        "prepare and the forward. "));
  r.backward->predicts = false;
  CHECK_THAT(words(), ContainsSubstring("; no bytes were predicted. "));
}

TEST_CASE("a prepare on a GPU has a time and no FLOP/s", "[report]") {
  fa::RunReport r = gpu_run();
  r.prepare = some_prepare(r.model);
  r.prepare->seen = {};
  r.prepare->seen.source = "measured";
  r.prepare->seen.hbm = fa::Bytes{2000000, 1000000, 0};
  r.prepare->time = fa::Timing{0.001, 0.0009, 0.0011, 50};
  const std::string all = details(r);
  CHECK_THAT(line_with(all, "prepare"), ContainsSubstring("1.00 us  3.00 TB/s, 70%"));
  const size_t begin = all.find("\nprepare, ");
  const std::string text = all.substr(begin, all.find("\nforward, ") - begin);
  CHECK_THAT(line_with(text, "time"), ContainsSubstring("1.00 us median of 50"));
  CHECK_THAT(joined(text), ContainsSubstring("3.00 TB/s of HBM traffic: 70.1% of this card's"));
  CHECK_THAT(text, !ContainsSubstring("FLOP"));
  CHECK(fa::to_json(r)["prepare"]["time"]["median_ms"] == 0.001);
}

TEST_CASE("--analyse lists the worst source lines first", "[report]") {
  fa::RunReport r = simulated_run();
  r.analysed = true;
  for (int i = 0; i < 40; ++i) {
    r.forward.seen.sites.push_back(
        {"kernel.cuh:" + std::to_string(100 + i), "Q load32", 10, 40 + uint64_t(i), 40});
  }
  const std::string name = "a_kernel_with_a_long_name.cuh:1234";
  r.forward.seen.sites.push_back({name, "partial_sums atomic64", 123456789, 9876543210, 1});
  r.forward.seen.sites.push_back({"kernel.cuh:9", "V load128", 10, 80, 80});
  const std::string text = details(r);
  CHECK_THAT(text, ContainsSubstring(name + " partial_sums atomic 8 B\n"));
  CHECK_THAT(line_with(text, "123,456,789"), ContainsSubstring("9,876,543,210"));
  CHECK_THAT(line_with(text, "kernel.cuh:139"), ContainsSubstring("kernel.cuh:139 Q load 4 B "));
  CHECK(text.find("kernel.cuh:139") < text.find("kernel.cuh:138"));
  CHECK(text.find("kernel.cuh:100") == std::string::npos);
  CHECK_THAT(line_with(text, "kernel.cuh:139"), ContainsSubstring("7.9"));
  CHECK_THAT(text, ContainsSubstring("and 27 more"));
  CHECK_THAT(text, ContainsSubstring("no finding"));
  CHECK(fa::to_json(r)["sites"].size() == 42);
  CHECK(fa::to_json(r)["sites"][0]["what"] == "Q load32");
}

TEST_CASE("shared memory stands beside the tensor cores", "[report]") {
  fa::RunReport r = simulated_run();
  r.analysed = true;
  CHECK(line_with(details(r), "shared").empty());  // no wgmma
  fa::KernelCount& k = r.forward.seen.kernels[0];
  k.work.resize(2);
  k.work[0].wgmma_columns = k.work[1].wgmma_columns = 64;
  k.wgmma_wavefronts = 32;
  k.shared_wavefronts = 5;
  k.shuffles = 3;
  r.forward.seen.kernels.push_back(k);
  r.forward.seen.sites = {{"kernel.cuh:1", "shared wgmma", 1, 32, 32},
                          {"kernel.cuh:2", "shared TMA load", 1, 16, 16},
                          {"kernel.cuh:3", "shared TMA store", 1, 4, 4},
                          {"kernel.cuh:4", "shared load32", 5, 5, 5}};
  const std::string text = details(r);
  CHECK_THAT(line_with(text, "kernel.cuh:1"), ContainsSubstring("kernel.cuh:1 shared wgmma "));
  CHECK_THAT(joined(text),
             ContainsSubstring("shared 100 wavefronts (products' operands 64, TMA 20, "
                               "all else 16) beside 128 clocks of the tensor cores: "
                               "78%"));
}

TEST_CASE("wavefronts of shared memory are null where nobody counted them", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(fa::to_json(r)["traffic"]["shared_wavefronts"].is_null());
  r.forward.seen.shared_wavefronts = fa::Ops{5, 7, 0};
  const auto j = fa::to_json(r)["traffic"]["shared_wavefronts"];
  CHECK(j.size() == 2);
  CHECK((j["load"] == 5 && j["store"] == 7));
}

TEST_CASE("remarks of the analysis make nothing wrong", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(fa::to_json(r)["remarks"].is_null());
  r.analysed = true;
  CHECK(line_with(details(r), "analysis") ==
        "analysis  no finding: no race, no uninitialised read.");
  CHECK_THAT(details(r), !ContainsSubstring("remark"));
  CHECK(fa::to_json(r)["remarks"].empty());
  for (const char* name : {"one", "two", "three", "four", "five"}) {
    r.forward.seen.remarks.push_back(std::string("read ") + name);
  }
  CHECK(r.ok());
  const std::string text = details(r);
  CHECK(line_with(text, "remark") == "remark    read one");
  CHECK_THAT(text, ContainsSubstring("read four") && !ContainsSubstring("read five"));
  CHECK(line_with(text, "and 1 more") == "          and 1 more; --json has all");
  CHECK(line_with(text, "analysis") == "analysis  no finding: no race, no uninitialised read.");
  CHECK(fa::to_json(r)["remarks"].size() == 5);
}

TEST_CASE("an estimate stands in the place of the bound, the longest kernel first", "[report]") {
  const fa::RunReport r = estimated_run();
  const std::string text = details(r);
  CHECK(line_with(text, "bound").empty());
  CHECK(line_with(text, "estimated") == "estimated 600 us on H200");
  CHECK(line_with(text, "long_kernel") ==
        "  long_kernel 490 us: L1 lines 61%, waiting 30%, L2 20%");
  CHECK(line_with(text, "short_kernel") == "  short_kernel 100 us: HBM 9%");
  CHECK(text.find("long_kernel") < text.find("short_kernel"));
  CHECK_THAT(joined(text), !ContainsSubstring("plain arithmetic"));
  const auto j = fa::to_json(r);
  CHECK(j["estimate_heads"] == r.problem.heads());
  CHECK(j["estimate"] == fa::to_json(some_estimate()));
  CHECK(j["estimate"]["limit"] == "L1 lines");
  CHECK(j["bound_ms"].get<double>() > 0);
}

TEST_CASE("an estimate says what it is not", "[report]") {
  fa::RunReport r = estimated_run();
  fa::Estimate& e = *r.forward.estimate;
  SECTION("of a GPU that nobody has measured") {
    e.verified = false;
    e.gpu = "A100";
    CHECK(line_with(details(r), "estimated") ==
          "estimated 600 us on A100 (unverified: never measured there)");
    CHECK(fa::to_json(r)["estimate"]["verified"] == false);
  }
  SECTION("without arithmetic, of one kernel") {
    e.kernels[0].arithmetic = false;
    CHECK(times_in(details(r), "without plain arithmetic") == 1);
  }
  SECTION("of more heads than ran") {
    r.estimate_heads = 128;
    CHECK(line_with(details(r), "estimated") == "estimated 600 us on H200, for 128 heads");
    CHECK(fa::to_json(r)["estimate_heads"] == 128);
  }
  SECTION("of a GPU that is not full") {
    e.kernels[1].blocks = e.kernels[1].sms = 4;
    e.kernels[0].blocks = e.kernels[0].sms = 1;
    const std::string text = details(r);
    CHECK_THAT(joined(text), ContainsSubstring("L2 20%; 4 blocks for 132 SMs"));
    CHECK_THAT(line_with(text, "short_kernel"), ContainsSubstring("HBM 9%; 1 block for 132 SMs"));
  }
  SECTION("there is none") {
    r.forward.estimate.reset();
    CHECK(line_with(details(r), "estimated").empty());
    CHECK(fa::to_json(r)["estimate"].is_null());
    CHECK(fa::to_json(r)["estimate_heads"].is_null());
  }
}

TEST_CASE("the source line that takes most of what limits the pass is named", "[report]") {
  fa::RunReport r = estimated_run();
  r.analysed = true;
  r.forward.seen.sites = {{"kernel.cuh:7", "shared load32", 1, 1, 1, 900},
                          {"kernel.cuh:8", "K load32", 1, 1, 1, 30},
                          {"kernel.cuh:9", "Q load32", 1, 1, 1, 40},
                          {"kernel.cuh:8", "V load32", 1, 1, 1, 30}};
  CHECK(joined(line_with(details(r), "limit")) ==
        joined("limit kernel.cuh:8 takes 60% of the clocks of the L1, which limits the pass"));
  CHECK(fa::to_json(r)["sites"][0]["clocks"] == 900);
  auto& part = r.forward.estimate->kernels[1].parts[0].part;
  part = fa::Part::shared;
  CHECK_THAT(joined(details(r)), ContainsSubstring("limit kernel.cuh:7 takes 100% of the clocks of "
                                                   "shared memory, which limits the pass"));
  r.forward.seen.sites.erase(r.forward.seen.sites.begin());  // leaves no line of shared memory
  CHECK(line_with(details(r), "limit").empty());
  part = fa::Part::hbm;  // no source line uses it
  CHECK(line_with(details(r), "limit").empty());
}

TEST_CASE("beside a measured time the estimate's difference stands", "[report]") {
  const TemporaryFile file(fa::to_json(estimated_run()).dump());
  fa::RunReport gpu = gpu_run();  // 0.5 ms
  fa::read_estimates(file.path, gpu);
  CHECK(gpu.estimate_heads == gpu.problem.heads());
  const std::string text = details(gpu);
  CHECK(line_with(text, "estimated") == "estimated 600 us on H200, +20% from measured");
  CHECK(times_in(text, "estimated") == 1);
  CHECK_FALSE(line_with(text, "time").empty());
  CHECK_FALSE(line_with(text, "long_kernel").empty());
  CHECK(fa::to_json(gpu)["estimate"]["ms"] == Approx(0.6));
  gpu.forward.time->median_ms = 1;
  CHECK(line_with(details(gpu), "estimated") == "estimated 600 us on H200, -40% from measured");
}

TEST_CASE("the estimates of all passes are read, and older reports have no prepare", "[report]") {
  fa::RunReport r = with_backward(estimated_run());
  r.backward->estimate->seconds = 2e-3;
  const auto read = [](const nlohmann::ordered_json& report, bool prepare) {
    const TemporaryFile file(report.dump());
    fa::RunReport gpu = gpu_run();
    gpu.backward = gpu.forward;
    if (prepare) gpu.prepare = some_prepare(gpu.model);
    fa::read_estimates(file.path, gpu);
    CHECK(gpu.forward.estimate->seconds == Approx(0.6e-3));
    CHECK(gpu.backward->estimate->seconds == Approx(2e-3));
    if (prepare) CHECK(gpu.prepare->estimate->seconds == Approx(2e-6));
  };
  auto older = fa::to_json(r);
  older.erase("prepare");
  read(older, false);
  CHECK_THROWS_WITH(read(older, true), ContainsSubstring("prepare"));
  r.prepare = some_prepare(r.model);
  r.prepare->estimate = some_estimate();
  r.prepare->estimate->seconds = 2e-6;
  read(fa::to_json(r), true);
}

TEST_CASE("a report that does not fit is refused in one sentence", "[report]") {
  const auto good = fa::to_json(estimated_run());
  const auto accepted = [](const nlohmann::ordered_json& report, int page = 0) {
    const TemporaryFile file(report.dump());
    fa::RunReport gpu = gpu_run();
    gpu.problem.cache.page = page;
    fa::read_estimates(file.path, gpu);
  };
  const auto refused = [](const std::string& words, const std::string& why, bool backward = false) {
    CAPTURE(why);
    const TemporaryFile file(words);
    fa::RunReport gpu = gpu_run();
    if (backward) gpu.backward = gpu.forward;
    CHECK_THROWS_AS(fa::read_estimates(file.path, gpu), fa::UsageError);
    CHECK_THROWS_WITH(
        fa::read_estimates(file.path, gpu),
        ContainsSubstring("--estimate " + file.path + ": " + why) && !ContainsSubstring("\n"));
  };
  const std::string other = "is of another step, variant or problem: ";
  const auto changed = [&good](const char* key, const nlohmann::ordered_json& value) {
    auto j = good;
    (j["problem"].contains(key) ? j["problem"][key] : j[key]) = value;
    return j.dump();
  };
  CHECK_NOTHROW(accepted(good));
  auto one_head = good;  // ran, for all
  one_head["problem"]["h"] = one_head["problem"]["hkv"] = 1;
  CHECK_NOTHROW(accepted(one_head));
  auto older = good;  // from before lengths existed
  for (const char* key : {"lengths", "page", "cache8"}) older["problem"].erase(key);
  CHECK_NOTHROW(accepted(older));
  CHECK_THROWS_WITH(accepted(older, /*page=*/16), ContainsSubstring(other));
  for (const char* key : {"n", "nk", "d"}) refused(changed(key, 7), other);
  refused(changed("causal", true), other);
  refused(changed("hkv", 1), other);
  refused(changed("smem", 4096), other);
  refused(changed("page", 16), other);
  refused(changed("lengths", {256}), other);
  refused(changed("step", "97_before"), other);
  refused(changed("variant", "other"), other);
  refused(changed("estimate_heads", 128), other);
  refused(changed("estimate_heads", nullptr), "holds no estimated time");
  refused(fa::to_json(gpu_run()).dump(), "holds no estimated time");
  const std::string strange = "is not a report of the simulator: ";
  refused("", strange);
  refused("not JSON", strange);
  refused("[1, 2]", strange);
  refused("{}", strange);
  refused(good.dump().substr(0, 400), strange);
  refused(changed("estimate", nullptr), strange);
  refused(changed("estimate_heads", "many"), strange);
  refused(good.dump(), strange, true);  // has no backward

  fa::RunReport gpu = gpu_run();
  CHECK_THROWS_WITH(fa::read_estimates("no/such.json", gpu), "no/such.json: cannot be opened");
  CHECK_FALSE(gpu.forward.estimate);
}

TEST_CASE("the JSON has the promised keys", "[report]") {
  const auto j = fa::to_json(simulated_run());
  CHECK(j["schema"] == fa::kReportSchema);
  CHECK(j["step"] == "98_example");
  CHECK(j["device"]["kind"] == "sim");
  CHECK(j["device"]["name"] == "simulator (x86-64, 2 cores)");
  CHECK(j["device"]["arch"] == "sim");
  for (const char* key : {"b", "h", "hkv", "n", "nk", "d", "causal", "dtype", "input", "seed"}) {
    CAPTURE(key);
    CHECK(j["problem"].contains(key));
  }
  CHECK(j["problem"]["n"] == 256);
  for (const char* key : {"tensor", "max_abs_err", "bound", "ok", "baseline_err", "rows_checked"}) {
    CAPTURE(key);
    CHECK(j["check"][0].contains(key));
  }
  const auto& traffic = j["traffic"];
  CHECK(traffic["requested"]["predicted"]["read"] == 68719480832);
  CHECK(traffic["requested"]["counted"]["write"] == 1242759);
  CHECK(traffic["requested"]["buffers"]["S"]["predicted"] ==
        traffic["requested"]["buffers"]["S"]["counted"]);
  CHECK(traffic["requests"]["load"] == 132);
  CHECK(traffic["sectors"]["store"] == 296);
  CHECK(traffic["hbm"]["predicted"]["read"] == 1000000);
  CHECK(traffic["hbm"]["model"]["write"] == 1900000);
  CHECK(traffic["hbm"]["measured"].is_null());
  CHECK(traffic["prediction_ok"] == true);
  CHECK(j["time"].is_null());
  CHECK(j["sites"].is_null());
  CHECK(j["bound_ms"].get<double>() > 0);
  CHECK(j["host_ms"] == 12.5);
  CHECK(j["flops"] == 67108864.0);
  CHECK(j["flops_executed"] == 67108864);
  CHECK(j["workspace_bytes"] == 3000);
  CHECK(j["parent"]["step"] == "97_before");
  CHECK((j.contains("prepare") && j["prepare"].is_null()));
  CHECK(j["backward"].is_null());
  CHECK(j["ok"] == true);
}

TEST_CASE("on a GPU 'counted' and 'model' are null, 'measured' and times are not", "[report]") {
  const auto j = fa::to_json(gpu_run());
  CHECK(j["traffic"]["requested"]["counted"].is_null());
  CHECK(j["traffic"]["requested"]["buffers"]["Q"]["counted"].is_null());
  CHECK(j["traffic"]["hbm"]["model"].is_null());
  CHECK(j["traffic"]["hbm"]["measured"]["read"] == 950000);
  CHECK(j["traffic"]["prediction_ok"].is_null());
  CHECK(j["time"]["median_ms"] == 0.5);
  CHECK(j["time"]["iters"] == 50);
  CHECK(j["time"]["bytes_per_s"] == Approx(3000000 / 0.5e-3));
  CHECK(j["host_ms"].is_null());
  CHECK(j["model_gpu"].is_null());
  CHECK(j["roofs"]["copy_bytes_per_s"] == 4.28e12);
}

TEST_CASE("JSON and text name a cache", "[report]") {
  fa::RunReport r = simulated_run();
  auto problem = fa::to_json(r)["problem"];
  CHECK((problem.contains("lengths") && problem["lengths"].is_null()));
  CHECK((problem.contains("page") && problem["page"].is_null()));
  CHECK(problem["cache8"] == false);
  r.problem.B = 3, r.problem.N = 1, r.problem.cache.lengths = {256, 0, 9};
  r.problem.cache.page = 64, r.problem.cache.fp8 = true;
  problem = fa::to_json(r)["problem"];
  CHECK(problem["lengths"] == std::vector<int>{256, 0, 9});
  CHECK(problem["page"] == 64);
  CHECK(problem["cache8"] == true);
  CHECK_THAT(details(r), ContainsSubstring("lengths=0..256 page=64 fp32 fp8 cache"));
}

TEST_CASE("an estimate is of the same lengths, cycled over the batch", "[report]") {
  fa::RunReport sim = simulated_run();
  sim.problem.B = 2, sim.problem.cache.lengths = {256, 9}, sim.problem.cache.page = 16;
  sim.forward.estimate = some_estimate();
  fa::RunReport gpu = gpu_run();
  gpu.problem.B = 4, gpu.problem.cache.lengths = {256, 9, 256, 9}, gpu.problem.cache.page = 16;
  sim.estimate_heads = gpu.problem.heads();
  const TemporaryFile file(fa::to_json(sim).dump());
  const auto same = [&] {
    const std::string refusal = fa::test::refusal_of([&] { fa::read_estimates(file.path, gpu); });
    if (refusal == "accepted") return true;
    CHECK_THAT(refusal, ContainsSubstring("is of another step, variant or problem"));
    return false;
  };
  CHECK(same());
  gpu.problem.cache.lengths[3] = 8;
  CHECK_FALSE(same());
  gpu.problem.cache.lengths = {};
  CHECK_FALSE(same());
  gpu.problem.cache.lengths = {256, 9, 256, 9}, gpu.problem.cache.page = 32;
  CHECK_FALSE(same());
}

TEST_CASE("a pass over a cache is told in bytes per second", "[report]") {
  fa::RunReport r = gpu_run();
  r.problem.dtype = fa::DType::bf16;
  CHECK(fa::to_json(r)["rate_of"] == "cuBLAS");
  r.problem.N = 1, r.problem.Nk = 32768;
  r.memory.inputs = 2000000000;
  r.forward.seen.hbm = fa::Bytes{2000000000, 0, 0};
  CHECK(fa::to_json(r)["rate_of"] == "a copy");
  CHECK_THAT(line_with(printed(r), "read "), ContainsSubstring("rate, of a copy"));
  CHECK_THAT(line_with(printed(r), "forward "), ContainsSubstring("4.00 TB/s, 93%"));
  CHECK_THAT(joined(details(r)), ContainsSubstring("4.00 TB/s of HBM traffic: 93.5%") &&
                                     !ContainsSubstring("FlashAttention's convention"));
  r.forward.seen.hbm.reset();  // without counters, as predicted
  r.forward.predicted.hbm = {1000000000, 0, 0};
  CHECK_THAT(line_with(printed(r), "forward "), ContainsSubstring("2.00 TB/s, 47%"));
  r.memory.inputs = 1000;  // its products take longer
  CHECK(fa::to_json(r)["rate_of"] == "cuBLAS");
  r.problem.N = 4096, r.problem.Nk = 4096;
  r.forward.flops = 1.1 * 762e12 * 0.5e-3;
  CHECK_THAT(line_with(printed(r), "forward "), ContainsSubstring("838 TFLOP/s, 110%"));
  CHECK_THAT(joined(printed(r)), ContainsSubstring("above 100%: cuBLAS multiplied 8192 x 8192"));
  r.forward.flops /= 2;
  CHECK_THAT(joined(printed(r)), !ContainsSubstring("above 100%"));
}

TEST_CASE("without counters the predicted bytes give the rate, where bytes bind", "[report]") {
  fa::RunReport r = gpu_run();
  CHECK_THAT(joined(details(r)), ContainsSubstring("5.90 GB/s of HBM traffic: "));
  r.forward.seen.hbm.reset();
  r.forward.predicted.hbm = {1000000000, 1000000000, 0};
  r.forward.bound = fa::Bound{0.467, 0.01};
  CHECK_THAT(joined(details(r)),
             ContainsSubstring("4.00 TB/s of the predicted HBM traffic: 93.5% of this card's "
                               "measured 4.28 TB/s"));
  r.forward.bound = fa::Bound{0.01, 0.467};
  CHECK_THAT(joined(details(r)), !ContainsSubstring("of the predicted HBM traffic"));
  r.forward.predicts = false;
  CHECK(fa::to_json(r)["time"]["bytes_per_s"].is_null());
}

TEST_CASE("a figure gets another unit, and fewer digits, where it is rounded to them", "[report]") {
  const std::map<double, std::string> bytes = {
      {999.4, "999 B"},   {999.6, "1.00 kB"}, {9994, "9.99 kB"}, {9996, "10.0 kB"},
      {99940, "99.9 kB"}, {99960, "100 kB"},  {1e9, "1.00 GB"},  {1e12, "1.00 TB"},
      {1e15, "1.00 PB"},  {1e18, "1.00 EB"},  {1e21, "1000 EB"}};
  for (const auto& [number, words] : bytes) CHECK(fa::human_bytes(number) == words);
  const std::map<double, std::string> times = {
      {0, "0 us"},         {0.00999, "9.99 us"}, {0.01, "10.0 us"},  {0.9994, "999 us"},
      {0.9996, "1.00 ms"}, {9.994, "9.99 ms"},   {9.996, "10.0 ms"}, {99.94, "99.9 ms"},
      {99.96, "100 ms"},   {999.6, "1.00 s"},    {9994, "9.99 s"},   {9996, "10.0 s"}};
  for (const auto& [ms, words] : times) CHECK(fa::human_time(ms) == words);
  CHECK(fa::grouped(999999) == "999,999");
  CHECK(fa::grouped(1000000) == "1,000,000");
  CHECK(fa::grouped(UINT64_MAX) == "18,446,744,073,709,551,615");
}

TEST_CASE("an estimate survives JSON, with all its parts", "[report]") {
  fa::Estimate e = some_estimate();
  e.verified = false;
  e.kernels[0].arithmetic = false, e.kernels[0].sms = 5;
  const char* const names[] = {"L1 lines",     "shared memory", "instructions", "exponentials",
                               "tensor cores", "atomics",       "L2",           "HBM",
                               "waiting",      "start"};
  for (int i = 9; i >= 0; --i) {
    CHECK(std::string(fa::name_of(static_cast<fa::Part>(i))) == names[i]);
    e.kernels[0].parts.push_back({static_cast<fa::Part>(i), 0.125 * i});
  }
  e.kernels[0].parts.erase(e.kernels[0].parts.begin(), e.kernels[0].parts.begin() + 2);
  const fa::Estimate back = fa::estimate_of(fa::to_json(e));
  CHECK(fa::to_json(back) == fa::to_json(e));
  CHECK((back.gpu == "H200" && !back.verified && back.seconds == Approx(0.6e-3)));
  CHECK_FALSE(back.arithmetic());
  REQUIRE(back.kernels[0].parts.size() == 10);
  for (int i = 0; i < 10; ++i) {
    CHECK(back.kernels[0].parts[i].part == static_cast<fa::Part>(9 - i));
    CHECK(back.kernels[0].parts[i].share == 0.125 * (9 - i));
  }
  CHECK((back.kernels[0].sms == 5 && back.kernels[0].blocks == 1000));
  CHECK(back.kernels[0].seconds == Approx(0.1e-3));
  CHECK(back.longest()->name == "long_kernel");
  CHECK(back.limit() == fa::Part::l1);
  auto unknown = fa::to_json(e);
  unknown["kernels"][0]["parts"]["L3"] = 0.5;
  CHECK_THROWS_AS(fa::estimate_of(unknown), nlohmann::json::exception);
  CHECK(fa::Estimate{}.longest() == nullptr);
  CHECK(fa::Estimate{}.limit() == fa::Part::start);
  CHECK(fa::Estimate{}.arithmetic());
}

TEST_CASE("each remark stands where it applies, and nowhere else", "[report]") {
  fa::RunReport r = simulated_run();
  CHECK(line_with(printed(r), "check") == "check     O 0% of the allowed error");
  CHECK_THAT(details(r), !ContainsSubstring("A seeded sample"));
  r.check.complete = false;
  CHECK(line_with(printed(r), "check") ==
        "check     O 0% of the allowed error, in a sample of the rows");
  CHECK_THAT(details(r), ContainsSubstring("A seeded sample of the rows was checked."));
  CHECK(fa::to_json(r)["check_complete"] == false);

  CHECK_THAT(line_with(printed(r), "problem"), ContainsSubstring("fp32; normal input, seed 7"));
  CHECK(fa::to_json(r)["problem"]["input_note"].is_null());
  r.input_note = "real input cut";
  CHECK_THAT(line_with(printed(r), "problem"), ContainsSubstring("fp32; real input cut, seed 7"));
  CHECK(fa::to_json(r)["problem"]["input_note"] == "real input cut");

  CHECK(line_with(printed(r), "note").empty());
  r.advice = "another variant is faster";
  CHECK(line_with(printed(r), "note") == "note      another variant is faster");
  CHECK_THAT(details(r), !ContainsSubstring("\nforward   that of"));
  r.forward_of = "04 fused";
  CHECK_THAT(details(r), ContainsSubstring(
                             "\nforward   that of 04 fused; this variant changes the backward\n"));
  CHECK(fa::to_json(r)["forward_of"] == "04 fused");

  const std::string more = "more      --details: errors, bytes, kernels";
  CHECK(line_with(printed(r), "more") == more + "; --analyse: races and source lines");
  CHECK(line_with(printed(r), "analysis").empty());
  r.analysed = true;
  CHECK(line_with(printed(r), "more") == more);
  CHECK(line_with(printed(gpu_run()), "more") == more);
  r.analysed = false, r.predicted_only = true;
  CHECK(line_with(printed(r), "more") == more);
  CHECK(line_with(details(r), "more").empty());
}

TEST_CASE("the device line says for how many heads the time is", "[report]") {
  fa::RunReport r = estimated_run();
  const auto device = [&r] {
    const std::string text = joined(printed(r));
    const size_t at = text.find("device "), end = text.find("check ");
    return text.substr(at, end - at);
  };
  const std::string model = "device simulator (x86-64, 2 cores), modelling H200";
  CHECK(device() == model + " ");
  r.estimate_heads = 127;
  CHECK(device() == model + ": time of 127 heads; bytes of the 4 that ran ");
  r.estimate_heads = 128;
  CHECK(device() == model + ": time of 128 heads, which fill it; bytes of the 4 that ran ");
  r.forward.estimate->verified = false;
  CHECK(device() == model +
                        " (unverified: never measured there): time of 128 heads, which fill "
                        "it; bytes of the 4 that ran ");
  r.findings = {"race"};
  CHECK_THAT(joined(printed(r)), ContainsSubstring("(unverified: never measured there) ") &&
                                     !ContainsSubstring("time of 128"));
  CHECK(line_with(printed(gpu_run()), "device") == "device    NVIDIA H200 (sm_90)");
}

TEST_CASE("a change is more, fewer, or of nothing", "[report]") {
  fa::RunReport r = simulated_run();
  const auto change = [&r] { return line_with(printed(r), "change"); };
  const std::string since = "change    since 97_before: requested ";
  r.forward.parent->requested = {r.forward.predicted.total().total() / 2, 0, 0};
  CHECK(change() == since + "34.4 GB -> 68.7 GB: 2.00x more");
  r.forward.parent->requested = {};
  CHECK(change() == since + "0 B -> 68.7 GB");
  r.forward.predicted.buffers.clear();
  CHECK(change() == since + "0 B -> 0 B");
  r.forward.parent->requested = {1000, 0, 0};
  CHECK(change() == since + "1.00 kB -> 0 B");
  r.forward.predicted["Q"].read = 1004;
  CHECK(change() == since + "1.00 kB -> 1.00 kB, +4 B");
  r.forward.predicted["Q"].read = 1005;
  CHECK(change() == since + "1.00 kB -> 1.00 kB: 1.00x more");
  r.forward.parent.reset();
  CHECK(change().empty());
}

TEST_CASE("of a wrong result on a GPU nothing is told that was not measured", "[report]") {
  fa::RunReport r = gpu_run();
  CHECK_THAT(details(r),
             ContainsSubstring("\nforward, bytes requested") && ContainsSubstring("\nHBM "));
  r.check.tensors[0].ok = false;
  CHECK_THAT(details(r), ContainsSubstring("\nforward, bytes requested"));  // it was measured
  r.forward.seen = {}, r.forward.time.reset();
  CHECK_THAT(details(r),
             !ContainsSubstring("\nforward, bytes requested") && !ContainsSubstring("\nHBM "));
  CHECK_THAT(line_with(details(r), "forward"), !ContainsSubstring("FLOP/s"));
  r.check = {}, r.predicted_only = true;
  CHECK_THAT(details(r),
             ContainsSubstring("\nforward, bytes requested") && !ContainsSubstring("\nHBM "));
}

TEST_CASE("source lines and remarks that all fit leave no more", "[report]") {
  fa::RunReport r = simulated_run();
  r.analysed = true;
  const auto site = [](int i) {
    return fa::SiteCount{"kernel.cuh:" + std::to_string(100 + i), "Q load64", 10, 40, 40};
  };
  for (int i = 0; i < 15; ++i) r.forward.seen.sites.push_back(site(i));
  r.forward.seen.remarks = {"one", "two", "three", "four"};
  std::string text = details(r);
  CHECK_THAT(text, !ContainsSubstring("--json has all"));
  CHECK(words_of(line_with(text, "kernel.cuh:114")) ==
        words_of("kernel.cuh:114 Q load 8 B 10 40 = 4.0"));
  r.forward.seen.sites.push_back(site(15));
  r.forward.seen.sites[15].transfers = 41;
  r.forward.seen.sites[3].transfers = 39;  // fewer than ideal is not worse
  text = details(r);
  CHECK(line_with(text, "and 1 more") == "  and 1 more; --json has all");
  CHECK(words_of(line_with(text, "kernel.cuh:115")) ==
        words_of("kernel.cuh:115 Q load 8 B 10 41 40 4.1"));
  CHECK(text.find("kernel.cuh:115") < text.find("kernel.cuh:100"));
  CHECK(text.find("kernel.cuh:103") == std::string::npos);
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
  p.seen.tensor_flops = 10;
  CHECK(p.flops_executed() == 10);
  p.predicts = true;
  CHECK(p.flops_executed() == 10);
  p.predicted.hbm = {3000, 1000, 0};
  CHECK_FALSE(p.bytes_per_s());
  p.time = fa::Timing{2, 1, 3, 9};
  CHECK(p.bytes_per_s() == Approx(2e6));
  p.time->median_ms = 0;
  CHECK_FALSE(p.bytes_per_s());
  CHECK_FALSE(fa::roofline(1, 0, 0, 1));
  fa::RunReport r = simulated_run();
  CHECK(r.naive_workspace_bytes() == 2 * 4 * 256 * 256 * 4);
  r.problem.dtype = fa::DType::bf16;
  CHECK(r.naive_workspace_bytes() == 2 * 4 * 256 * 256 * 2);
}

TEST_CASE("an estimate beside a measured time is compared where it is of that GPU", "[report]") {
  fa::RunReport r = gpu_run();
  r.estimate_heads = r.problem.heads();
  r.forward.estimate = some_estimate();
  CHECK(line_with(printed(r), "estimated") == "estimated 600 us on H200, +20% from measured");
  r.forward.estimate->gpu = "A100";
  CHECK(line_with(printed(r), "estimated") == "estimated 600 us on A100");
  r.device.sms = 132, r.device.free_bytes = 5000;
  const auto device = fa::to_json(r)["device"];
  CHECK((device["sms"] == 132 && device["free_bytes"] == 5000));
  CHECK_FALSE(fa::to_json(simulated_run())["device"].contains("sms"));
  CHECK(fa::to_json(simulated_run())["model_gpu"] == "H200");
  CHECK(fa::to_json(simulated_run())["roofs"].is_null());
  r.problem.method.fp8 = true;  // no such products were measured on this card
  CHECK(fa::to_json(r)["rate_of"].is_null());
  CHECK(words_of(line_with(printed(r), "forward ")).back() == "GFLOP/s");  // of nothing
  CHECK_THAT(line_with(details(r), "measured"), ContainsSubstring("950 kB"));
  CHECK_THAT(line_with(details(r), "modelled"), ContainsSubstring("needs the simulator"));
  CHECK_THAT(line_with(details(simulated_run()), "measured"), ContainsSubstring("needs a GPU"));
  r = estimated_run();
  r.forward.estimate->kernels = {kernel_estimate(
      "k", 1e-3, {{fa::Part::l1, 0.5}, {fa::Part::l2, 0.1}, {fa::Part::hbm, 0.0999}})};
  CHECK(line_with(details(r), "k ") == "  k 1.00 ms: L1 lines 50%, L2 10%");
}

TEST_CASE("an estimate is of the same mask and the same change of scores", "[report]") {
  const auto good = fa::to_json(estimated_run());
  const auto accepted = [](const nlohmann::ordered_json& report, const fa::RunReport& on_gpu) {
    const TemporaryFile file(report.dump());
    fa::RunReport gpu = on_gpu;
    const std::string said = fa::test::refusal_of([&] { fa::read_estimates(file.path, gpu); });
    if (said != "accepted") CHECK_THAT(said, ContainsSubstring("another step, variant or problem"));
    return said == "accepted";
  };
  for (const auto& [key, value] : {std::pair("window", nlohmann::ordered_json{3, 4}),
                                   std::pair("mask", nlohmann::ordered_json("strided:64")),
                                   std::pair("row_starts", nlohmann::ordered_json{0, 256}),
                                   std::pair("key_starts", nlohmann::ordered_json{0, 256}),
                                   std::pair("cap", nlohmann::ordered_json(2.5)),
                                   std::pair("alibi", nlohmann::ordered_json(true)),
                                   std::pair("sinks", nlohmann::ordered_json(true))}) {
    CAPTURE(key);
    auto other = good;
    other["problem"][key] = value;
    CHECK_FALSE(accepted(other, gpu_run()));
  }
  fa::RunReport sim = estimated_run(), gpu = gpu_run();
  sim.problem.mask.left = gpu.problem.mask.left = 9;
  sim.problem.score_mod = gpu.problem.score_mod = {2.5f, true, true};
  CHECK(accepted(fa::to_json(sim), gpu));
  CHECK_FALSE(accepted(fa::to_json(sim), gpu_run()));
  gpu.problem.mask.right = 3;
  CHECK_FALSE(accepted(fa::to_json(sim), gpu));
}

TEST_CASE("each buffer has one row, and what is not there has none", "[report]") {
  fa::RunReport r = simulated_run();
  const auto rows = [&r](const std::string& start) {
    const auto lines = lines_of(details(r));
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.starts_with(start); });
  };
  for (const char* name : {"  Q ", "  S ", "  O  ", "  all "})
    CHECK(rows(name) == 1 + (name == std::string("  O  ")));
  CHECK_THAT(
      line_with(details(r), "predicted"),
      ContainsSubstring("1.00 MB   2.00 MB   3.00 MB  each kernel streams its operands once"));
  r.forward.predicts = false;
  CHECK(rows("  predicted ") == 0);
  CHECK(rows("check ") == 2);
  r.forward.predicts = true, r.predicted_only = true, r.forward.seen = {};
  CHECK(rows("check ") == 0);
  r = simulated_run();
  r.findings = {"race on sK"};
  for (const char* start : {"check ", "memory ", "forward", "buffers", "more "}) {
    CHECK(rows(start) == 0);
  }
  CHECK(rows("device ") == 1);
}
