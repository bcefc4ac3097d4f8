#include "common/counts/format.h"
#include "common/harness/report.h"

#include <sstream>

#include "tests/test.h"

namespace {

/// Each rank has these rows, and figures of about `size`.
fa::RunReport report_of(const std::vector<std::vector<fa::Rows>>& rows, uint64_t size) {
  fa::RunReport r;
  r.step = "98_example";
  r.device = {"gpu", "NVIDIA H100", "sm_90"};
  r.check.tensors.emplace_back().ok = true;
  r.forward.predicts = false;
  r.on_ranks.emplace().carrier = "none";
  for (const auto& of_rank : rows) {
    fa::RankReport& rank = r.on_ranks->ranks.emplace_back();
    rank.rows = of_rank;
    rank.predicted = {size, 2 * size, {3 * size, size}};
    rank.seen.forward.sent = size, rank.seen.backward.sent = 2 * size;
  }
  return r;
}

std::vector<std::string> table_of(const fa::RunReport& r) {
  std::istringstream all(fa::text(r));
  std::vector<std::string> table;
  for (std::string line; std::getline(all, line) && table.size() <= r.on_ranks->ranks.size();) {
    if (!table.empty() || line.rfind("rank  ", 0) == 0) table.push_back(line);
  }
  REQUIRE(table.size() == r.on_ranks->ranks.size() + 1);
  return table;
}

/// Where a separate word begins, and where it ends.
std::pair<size_t, size_t> place_of(const std::string& word, const std::string& line) {
  const size_t at = (" " + line + " ").find(" " + word + " ");
  CAPTURE(word, line);
  REQUIRE(at != std::string::npos);
  return {at, at + word.size()};
}

fa::Problem problem(fa::DType dtype, bool causal, int H, int Hkv) {
  fa::Problem p;
  p.dtype = dtype, p.causal = causal, p.H = H, p.Hkv = Hkv;
  return p;
}

}  // namespace

TEST_CASE("the table of ranks stays straight, however long its rows are", "[ranks_report]") {
  const auto [rows, number, size] =
      GENERATE(std::tuple(std::vector<fa::Rows>{{0, 8}, {24, 32}}, "0-7, 24-31", uint64_t{1000}),
               std::tuple(std::vector<fa::Rows>{{0, 65536}, {983040, 1048576}},
                          "0-65535, 983040-1048575", uint64_t{1000}),
               std::tuple(std::vector<fa::Rows>{{1000000000, 1100000000}, {2000000000, 2100000000}},
                          "1000000000-1099999999, 2000000000-2099999999", uint64_t{1000000000000}));
  const auto table = table_of(report_of({{{1, 3}}, rows, {{4, 5}}}, size));
  CHECK(place_of("1-2", table[1]).first == table[0].find("rows"));
  CHECK(place_of(number, table[2]).first == table[0].find("rows"));
  for (size_t i = 1; i < table.size(); ++i) {
    const auto ends = [&](const std::string& column) {
      return table[0].find(column) + column.size();
    };
    CHECK(place_of(fa::grouped(4 * size), table[i]).second == ends("scores"));
    CHECK(place_of(fa::grouped(size), table[i]).second == ends("sent forward"));
    CHECK(place_of(fa::grouped(2 * size), table[i]).second == ends("backward"));
    CHECK(table[i].size() == table[1].size());
  }
}

TEST_CASE("a rank that sent other bytes than predicted is shown and wrong", "[ranks_report]") {
  fa::RunReport r = report_of({{{0, 8}}, {{8, 16}}}, 1000);
  CHECK(table_of(r) ==
        std::vector<std::string>{
            "rank  rows                         scores  sent forward            backward",
            "  0   0-7                           4,000         1,000     =         2,000   =",
            "  1   8-15                          4,000         1,000     =         2,000   ="});
  CHECK(r.ok());
  const bool forward = GENERATE(true, false);
  (forward ? r.on_ranks->ranks[1].seen.forward : r.on_ranks->ranks[1].seen.backward).sent =
      123456789;
  const auto table = table_of(r);
  CHECK_THAT(table[1], !ContainsSubstring("123,456,789"));
  CHECK_THAT(table[2], ContainsSubstring(" 123,456,789"));
  CHECK(table[1].size() == table[2].size());
  CHECK_FALSE(r.ok());
}

TEST_CASE("from so many rows on a hop computes for as long as its messages take",
          "[ranks_report]") {
  // 2 * 2 * n^2 * d * H FLOP, half with a mask, beside 2 * n * d * Hkv elements.
  using enum fa::DType;
  CHECK(fa::tokens_to_hide(problem(bf16, false, 4, 4), 450e12, 450e9) == Approx(1000));
  CHECK(fa::tokens_to_hide(problem(bf16, true, 4, 4), 450e12, 450e9) == Approx(2000));
  CHECK(fa::tokens_to_hide(problem(bf16, false, 4, 1), 450e12, 450e9) == Approx(250));
  CHECK(fa::tokens_to_hide(problem(f32, true, 8, 2), 500e12, 50e9) == Approx(10000));
}

TEST_CASE("every link of the table has a line, the fastest ones of all GPUs first",
          "[ranks_report]") {
  fa::RunReport r = report_of({{{0, 8}}, {{8, 16}}}, 1000);
  const auto links = [&r](fa::DType dtype) {
    r.problem = problem(dtype, false, 4, 4);
    std::istringstream all(fa::text(r, {.details = true}));
    std::vector<std::string> links;
    for (std::string line; std::getline(all, line);) {
      if (line.ends_with(" rows per rank"))
        links.push_back(line.substr(2, 28) + line.substr(48, 8));
    }
    return links;
  };
  using Links = std::vector<std::string>;
  CHECK(links(fa::DType::bf16) ==
        Links{"A100-80GB, NVLink 3 300 GB/s    1120", "H100, NVLink 4 450 GB/s         2368",
              "H200, NVLink 4 450 GB/s         2368", "H100, InfiniBand NDR 50 GB/s   21311"});
  CHECK_THAT(fa::text(r, {.details = true}), ContainsSubstring(" tensor cores' and 65% of the "));
  CHECK(links(fa::DType::f32) ==
        Links{"A100-80GB, NVLink 3 300 GB/s     140", "H100, NVLink 4 450 GB/s          321",
              "H200, NVLink 4 450 GB/s          321", "H100, InfiniBand NDR 50 GB/s    2882"});
  CHECK_THAT(fa::text(r, {.details = true}), ContainsSubstring(" fp32 and 65% of the "));
}

TEST_CASE("lanes: how much of the messages passes beside compute", "[ranks_report]") {
  const auto of = [](const std::vector<fa::Span>& spans) {
    const fa::Overlap o = fa::overlap_of(spans);
    return std::vector<double>{o.compute_ms, o.messages_ms, o.both_ms, o.total_ms};
  };
  using Times = std::vector<double>;
  CHECK(of({}) == Times{0, 0, 0, 0});
  CHECK(of({{"compute", "a", 2, 5}}) == Times{3, 0, 0, 3});
  CHECK(of({{"messages", "m", 2, 5}}) == Times{0, 3, 0, 3});
  CHECK(of({{"compute", "a", 1, 3}, {"messages", "m", 4, 8}}) == Times{2, 4, 0, 7});
  CHECK(of({{"compute", "a", 1, 3}, {"messages", "m", 3, 8}}) == Times{2, 5, 0, 7});
  // Half in parallel; inside; around. The messages' lane may be the first.
  CHECK(of({{"compute", "a", 1, 4}, {"messages", "m", 2, 8}}) == Times{3, 6, 2, 7});
  CHECK(of({{"compute", "a", 1, 8}, {"messages", "m", 2, 4}}) == Times{7, 2, 2, 7});
  CHECK(of({{"messages", "m", 1, 8}, {"compute", "a", 2, 4}}) == Times{2, 7, 2, 7});
  // A message during two kernels, and the gap between them; a second one during the last.
  CHECK(of({{"compute", "a", 0, 4},
            {"compute", "b", 6, 10},
            {"messages", "m", 1, 8},
            {"messages", "n", 8, 12}}) == Times{8, 11, 3 + 2 + 2, 12});
}

TEST_CASE("what a rank tells survives the way to the others", "[ranks_report]") {
  fa::RankCount c;
  c.forward = {1ull << 40, 2, 0.75, "L2"}, c.backward = {3, 4ull << 50, 1e-3, "HBM"};
  c.memory = 5ull << 33, c.workspace = 6;
  fa::World alone;
  const std::vector<fa::RankCount> counts = alone.all(c);
  REQUIRE(counts.size() == 1);
  CHECK(nlohmann::json(counts[0]) == nlohmann::json(c));
  const auto spans = alone.all(std::vector<fa::Span>{{"compute", "forward, hop 0", 0.5, 1.25},
                                                     {"messages", "K of \xff", 1e-05, 1234.0625}});
  REQUIRE(spans.at(0).size() == 2);
  CHECK(spans[0][1].name == "K of \xff");  // a file's name may be invalid UTF-8
  CHECK(spans[0][1].begin_ms == 1e-05);
  CHECK(spans[0][1].end_ms == 1234.0625);
}

TEST_CASE("an estimate is the slowest rank's", "[ranks_report]") {
  fa::RunReport r = report_of({{{0, 4}}, {{4, 8}}}, 1000);
  r.variant = "kernel", r.model.name = "H200";
  const auto answer = [&r] { return fa::text(r).substr(0, fa::text(r).find('\n')); };
  CHECK(answer() == "98 kernel x 2: right, sent 3.00 kB");
  CHECK(fa::text(r).find("estimated") == std::string::npos);
  r.on_ranks->ranks[0].seen.forward.estimated_ms = 0.5;
  r.on_ranks->ranks[0].seen.forward.limited_by = "L2";
  r.on_ranks->ranks[1].seen.forward.estimated_ms = 0.25;
  CHECK(fa::text(r).find("\nestimated 500 us on H200") != std::string::npos);
  CHECK(answer() == "98 kernel x 2: right, sent 3.00 kB, 500 us estimated, limited by L2");
  r.on_ranks->ranks[0].seen.backward.estimated_ms = 1,
  r.on_ranks->ranks[1].seen.backward.estimated_ms = 1.5;
  r.on_ranks->ranks[1].seen.backward.limited_by = "HBM";
  CHECK(fa::text(r).find("\nestimated 500 us, backward 1.50 ms, on H200") != std::string::npos);
  CHECK(answer() == "98 kernel x 2: right, sent 3.00 kB, 2.00 ms estimated, limited by HBM");
  CHECK(fa::to_json(r)["ranks"][1]["estimated_ms"]["backward"] == 1.5);
}

TEST_CASE("the balance is of the busiest rank, and of the slowest in each hop", "[ranks_report]") {
  fa::RunReport r = report_of({{{0, 8}}, {{8, 16}}, {{16, 24}}}, 1000);
  CHECK_THAT(fa::text(r), ContainsSubstring("computes 1.00x the mean;") &&
                              ContainsSubstring("slowest: 100% of the ideal\n"));
  r.on_ranks->ranks[0].predicted.scores = {300, 0};
  r.on_ranks->ranks[1].predicted.scores = {100, 500};
  r.on_ranks->ranks[2].predicted.scores = {200, 100};
  // 600 of a mean of 400; 300 and 500 where 400 would do
  CHECK_THAT(fa::text(r), ContainsSubstring("computes 1.50x the mean;") &&
                              ContainsSubstring("slowest: 50% of the ideal\n"));
}

TEST_CASE("what ranks measured, requested and hold is told of each, where it is known",
          "[ranks_report]") {
  fa::RunReport r = report_of({{{0, 8}}, {{8, 16}}}, 1000);
  r.variant = "kernel", r.problem = problem(fa::DType::bf16, false, 4, 4);
  r.problem.N = r.problem.Nk = 4096;
  const auto text = [&r] { return fa::text(r, {.details = true}); };
  const auto answer = [&r] { return fa::text(r).substr(0, fa::text(r).find('\n')); };
  CHECK_THAT(text(), !ContainsSubstring("\nforward  ") && !ContainsSubstring("and back"));
  r.forward.time = fa::Timing{2, 1.5, 2.5, 50};
  CHECK(answer() == "98 kernel x 2: right, sent 3.00 kB, 2.00 ms measured");
  CHECK_THAT(text(), ContainsSubstring("\nforward   2.00 ms median of 50 batches (p10 1.50 ms, p90 "
                                       "2.50 ms), 4 TFLOP/s per\n"));
  r.on_ranks->both = fa::Timing{8, 7, 9, 50};
  CHECK(answer() == "98 kernel x 2: right, sent 3.00 kB, 8.00 ms measured");
  CHECK_THAT(text(), ContainsSubstring("\nand back  8.00 ms median"));
  CHECK(fa::to_json(r)["forward_and_backward"]["median_ms"] == 8);
  CHECK_THAT(text(), !ContainsSubstring("\nlanes") && !ContainsSubstring("\nrequested"));
  r.on_ranks->ranks[1].lanes = {{"compute", "a", 1, 4}, {"messages", "m", 2, 8}};
  CHECK_THAT(text(),
             ContainsSubstring("\nlanes     rank 1: compute 3.00 ms, messages 6.00 ms, 2.00 "
                               "ms of them beside\n"));
  CHECK(fa::to_json(r)["ranks"][0]["overlap"].is_null());
  CHECK(fa::to_json(r)["ranks"][1]["overlap"]["both_ms"] == 2);
  CHECK(fa::to_json(r)["ranks"][1]["lanes"][1]["begin_ms"] == 2);
  r.device.kind = "sim";
  r.on_ranks->ranks[0].seen.forward.requested = 5000;
  r.on_ranks->ranks[1].seen.forward.requested = 7000;
  CHECK_THAT(text(), ContainsSubstring(
                         "\nrequested by the forward's kernels, counted: 5.00 kB, 7.00 kB\n"));
  CHECK(fa::to_json(r)["ranks"][1]["requested"]["forward"] == 7000);
  r.on_ranks->ranks[0].seen.memory = 2000, r.on_ranks->ranks[0].seen.workspace = 3000;
  r.on_ranks->ranks[1].seen.memory = 9000;
  CHECK_THAT(text(), ContainsSubstring("of rank 0: inputs and outputs 2.00 kB, workspace 3.00 kB"));
  CHECK_THAT(text(), ContainsSubstring("\nranks     2; messages by none\n") &&
                         !ContainsSubstring("were not checked"));
  r.on_ranks->gradients_checked = false;
  CHECK_THAT(text(), ContainsSubstring("The gradients were not checked: a head has too many"));
  CHECK(fa::to_json(r)["gradients_checked"] == false);

  r.on_ranks->ranks[0].predicted.backward_bytes = 9000;  // the most that any rank sends
  CHECK_FALSE(r.ok());
  r.predicted_only = true, r.forward.time.reset(), r.on_ranks->both.reset();
  CHECK(answer() == "98 kernel x 2: not run, predicted to send 10.0 kB");
  CHECK_THAT(text(), !ContainsSubstring("\nmemory") && !ContainsSubstring("\nrequested"));
  CHECK(fa::to_json(r)["ranks"][0]["sent"]["forward"]["counted"].is_null());
  CHECK(fa::to_json(r)["ranks"][0]["sent"]["backward"]["predicted"] == 9000);
}
