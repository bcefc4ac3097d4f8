#include "common/harness/cli.h"
#include "common/counts/files.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/counts/backend.h"
#include "common/harness/step_options.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using fa::test::bytes_of, fa::test::fitting, fa::test::Folder, fa::test::header_of,
    fa::test::npy_file, fa::test::refusal_of;

namespace {

void forward(const fa::Problem&, const fa::Tensors<float>&) {}
void forward_bf16(const fa::Problem&, const fa::Tensors<fa::bf16>&) {}

fa::Step some_step() {
  fa::Step step;
  step.id = "99_step";
  step.idea = "An idea.";
  step.variants.resize(2);
  step.variants[0].name = "first";
  step.variants[0].idea = "the first way";
  step.variants[0].forward = forward;
  step.variants[1].name = "second";
  step.variants[1].idea = "the second way";
  step.variants[1].forward = forward_bf16;
  return step;
}

fa::Step decoding_step() {
  fa::Step step = some_step();
  step.support.gqa = step.support.cross = step.support.lengths = step.support.pages = true;
  step.support.most_n = 16;
  step.options = fa::cache_options();
  step.variants[1].extras.cache8 = true;
  return step;
}

/// Arguments: one by one, or in one string separated by blanks.
struct Words : std::vector<std::string> {
  using vector::vector;
  Words(const char* line) {  // NOLINT: parse("--n 3")
    std::istringstream words(line);
    for (std::string word; words >> word;) push_back(word);
  }
};

fa::Options parse(const Words& arguments, const fa::Step& step = some_step()) {
  std::vector<const char*> argv = {"99_step"};
  for (const std::string& word : arguments) argv.push_back(word.c_str());
  return fa::parse(static_cast<int>(argv.size()), argv.data(), step);
}

}  // namespace

TEST_CASE("a step that the H200 does not run models a GPU that does", "[cli]") {
  fa::Step step = some_step();
  step.needs = "sm_100a";
  CHECK(parse({}, step).model_gpu == "B200");
  CHECK_FALSE(parse({}, step).model_chosen);
  CHECK(parse("--gpu A100", step).model_gpu == "A100");
  step.needs = "sm_999a";
  CHECK(parse({}, step).model_gpu == "H200");
}

TEST_CASE("an early rung may support less than its step", "[cli]") {
  fa::Step step = some_step();
  step.support.gqa = step.support.cross = true;
  step.variants[0].support = fa::Support{.d = {64}};
  CHECK(parse("--hkv 2", step).problem.Hkv == 2);
  CHECK(parse("--variant first --d 64", step).variant == 0);
  CHECK_THROWS_WITH(parse("--variant first --hkv 2", step),
                    ContainsSubstring("--hkv 2: variant first supports"));
  CHECK_THROWS_WITH(parse("--variant first --nk 7", step),
                    ContainsSubstring("--nk 7: variant first supports"));
  CHECK_THROWS_WITH(
      parse("--variant first --d 128", step),
      ContainsSubstring("--d 128: variant first supports --d 64; accepted by second"));
  // The default is the last one that supports the problem.
  step.variants[1].support = fa::Support{.d = {128}};
  CHECK(parse("--d 128", step).variant == 1);
  CHECK(parse("--d 64", step).variant == 0);
  CHECK_THROWS_WITH(parse("--d 32", step), ContainsSubstring("--d 32: variant second supports"));
}

TEST_CASE("help, version and description are words, not errors", "[cli]") {
  fa::Step step = some_step();
  step.variants[1].idea = "a way whose idea takes " + std::string(40, 'x') + " more words than fit";
  step.idea = "An idea that is " + std::string(40, 'y') + " longer than a line of the screen.";
  CHECK_THAT(fitting(parse("--help", step).text), ContainsSubstring("a way whose idea"));
  step.newer = "sm_90a";
  step.variants[0].support = fa::Support{.d = {128}};
  step.variants[1].newer = true;
  step.support.most_n = 16;  // its buffers are those of one query
  step.variants[1].traffic = [](const fa::Problem& p) {
    fa::Prediction t;
    t[p.N == 1 ? "one" : "many"].read = 1;
    return t;
  };
  const auto variant = [&step](int i) {
    return nlohmann::json::parse(parse("--describe", step).text)["variants"][i];
  };
  CHECK(variant(0)["supports"]["d"] == std::vector<int>{128});
  CHECK((variant(0)["parent"].is_null() && variant(0)["buffers"]["forward"].is_null()));
  CHECK(variant(1)["needs"] == "sm_90a");
  CHECK(variant(1)["buffers"]["forward"] == nlohmann::json{"one"});
  step.support.most_n = 0;
  CHECK(variant(1)["buffers"]["forward"] == nlohmann::json{"many"});
}

TEST_CASE("an empty value is bad use, of each option", "[cli]") {
  const fa::Step step = decoding_step();
  std::istringstream help(parse("--help", step).text);
  size_t found = 0;
  for (std::string line; std::getline(help, line);) {
    std::istringstream words(line);
    std::string name, type;
    if (!(words >> name >> type) || !name.starts_with("--") || !std::isupper(type[0])) continue;
    name = name.substr(0, name.find(','));
    CAPTURE(name);
    ++found;
    const std::string refusal = name + ": its value is empty";
    CHECK_THROWS_WITH(parse({name, ""}, step), refusal);
    CHECK_THROWS_WITH(parse({name + "=", "7"}, step), refusal);
  }
  CHECK(found > 15);
}

TEST_CASE("where files give all input, what would make it is refused", "[cli]") {
  const Folder folder;
  const std::string f = folder.zeros("x.npy", {1, 1, 8, 64});
  const fa::Step plain = some_step();
  CHECK(parse({"--q", f, "--k", f, "--input", "normal"}).input == "normal");  // of V
  CHECK_THROWS_WITH(parse({"--q", f, "--k", f, "--v", f, "--input", "normal"}),
                    "--input normal: Q, K and V come from files; leave it out");
  CHECK_THROWS_WITH(parse({"--q", f, "--k", f, "--v", f, "--seed", "7"}),
                    "--seed 7: all input comes from files; leave it out");
  fa::Step step = some_step();
  step.variants[1].backward = forward_bf16;
  CHECK(parse({"--do", f}, step).files.dO == f);
  CHECK_THROWS_WITH(parse({"--do", f, "--variant", "first"}, step),
                    ContainsSubstring("99_step first has no backward"));
  CHECK(parse({"--q", f, "--k", f, "--v", f, "--seed", "7"}, step).seed == 7);  // of dO
  CHECK_THROWS_AS(parse({"--q", f, "--k", f, "--v", f, "--do", f, "--seed", "7"}, step),
                  fa::UsageError);
  // Of the page table.
  CHECK(
      parse({"--q", f, "--k", f, "--v", f, "--page", "16", "--seed", "7"}, decoding_step()).seed ==
      7);
  step.support.score_mod = true, step.options = fa::mask_options({});
  step.variants[1].backward = {};
  CHECK(parse({"--q", f, "--k", f, "--v", f, "--sinks", "--seed", "7"}, step).seed == 7);
  CHECK_THROWS_AS(parse({"--q", f, "--k", f, "--v", f, "--seed", "7"}, step), fa::UsageError);
}

TEST_CASE("times are estimated for a multiple of the heads that run", "[cli]") {
  const bool sim = fa::simulated();  // whose default fills a GPU
  CHECK(parse("--h 2").estimate_heads == (sim ? 128 : 2));
  CHECK(parse("--b 3 --h 2").estimate_heads == (sim ? 132 : 6));
  CHECK(parse("--b 100 --h 2").estimate_heads == 200);
  CHECK(parse("--h 2 --estimate-heads 0").estimate_heads == 2);
  CHECK(parse("--h 2 --estimate-heads 128").estimate_heads == 128);
  CHECK(parse("--estimate run.json").estimate == "run.json");
  CHECK_THROWS_WITH(parse("--h 2 --estimate-heads 3"),
                    "--estimate-heads 3: must be a multiple of the 2 heads that run");
  CHECK_THROWS_WITH(parse("--b 2 --h 2 --estimate-heads 2"),
                    "--estimate-heads 2: must be a multiple of the 4 heads that run");
  CHECK_THROWS_WITH(parse("--h 2 --estimate-heads -2"), ContainsSubstring("--estimate-heads -2: "));
  CHECK_THROWS_AS(parse("--estimate-heads many"), fa::UsageError);
  const std::string help = parse("--help").text;
  CHECK((help.find("--estimate-heads") != std::string::npos) == fa::simulated());
  CHECK((help.find("--estimate F.json") != std::string::npos) != fa::simulated());
}

TEST_CASE("a decoding step has one query and many keys, and what its cache needs", "[cli]") {
  const fa::Step step = decoding_step();
  fa::Options o = parse({}, step);
  CHECK(fa::describe(o.problem) == "B=1 H=4 N=1 Nk=1024 d=64 bf16 fp8 cache");
  CHECK(o.estimate_heads == 4);  // their splits have the GPU alone
  CHECK_FALSE(parse("--variant first", step).problem.cache.fp8);
  CHECK(parse("--n 4", step).problem.Nk == 1024);
  CHECK(parse("--nk 77", step).problem.Nk == 77);

  o = parse("--b 5 --lengths 3,0 --page 32 --variant first", step);
  CHECK(o.problem.cache.lengths == std::vector<int>{3, 0, 3, 0, 3});
  CHECK(o.problem.Nk == 3);
  CHECK(o.problem.cache.page == 32);
  CHECK(o.table.empty());
  CHECK(parse("--lengths 0", step).problem.Nk == 1);
  CHECK(parse("--lengths 7 --nk 9", step).problem.Nk == 9);
  CHECK(parse("--lengths=7", step).problem.cache.lengths == std::vector<int>{7});
  CHECK(parse("--b 2 --lengths 7,9", step).problem.cache.lengths == std::vector<int>{7, 9});
  CHECK(parse("--b 2 --lengths 7,9", step).problem.Nk == 9);
}

TEST_CASE("bad lengths, pages and tables are refused with one sentence", "[cli]") {
  const Folder folder;
  const fa::Step step = decoding_step();
  const auto refused = [&](const Words& arguments, const std::string& words) {
    CAPTURE(words);
    CHECK_THROWS_AS(parse(arguments, step), fa::UsageError);
    CHECK_THROWS_WITH(parse(arguments, step), ContainsSubstring(words) && !ContainsSubstring("\n"));
  };
  for (const char* bad : {",", "3,", ",3", "3,,4", "3 4", "x", "3.5", "99999999999", "3;4"}) {
    refused({"--lengths", bad, "--b", "3"},
            std::string("--lengths ") + bad + ": must be whole numbers with commas between them");
  }
  refused("--lengths 1,2", "--lengths 1,2: 2 lengths for 1 batch entries; give --b 2");
  refused("--lengths 9 --nk 8", "--lengths 9: each must be 0 to 8");
  refused("--lengths 9 --b 0", "--lengths 9: 1 lengths for 0 batch entries");
  refused("--lengths 9 --b 2147483647", "their product must be at most 65535");
  refused("--page 48", "--page 48: this step supports pages of 16, 32, 64, 128 or 256 keys");

  const std::string table =
      folder.file("t.npy", npy_file(1, header_of("<i4", "(2, 2)"), bytes_of<int>({3, 0, 2, -1})));
  const fa::Options o =
      parse({"--table", table, "--page", "16", "--b", "2", "--lengths", "17,16"}, step);
  CHECK(o.table == std::vector<int>{3, 0, 2, -1});
  refused({"--table", table}, "--table " + table + ": needs --page");
  refused({"--table", table, "--page", "16", "--b", "2", "--lengths", "17"},
          "--table " + table + ": entry [1, 1] is -1, but the pool has the pages 0 to 3");
  refused({"--table", table, "--page", "16", "--b", "2", "--lengths", "33"},
          "--table " + table + ": its shape is [2, 2], but 2 batch entries of up to 33 keys");
  refused("--table missing.npy --page 16", "missing.npy: cannot be opened");
}

TEST_CASE("every option arrives, and the last of two counts", "[cli]") {
  fa::Step step = some_step();
  step.support.gqa = step.support.cross = step.support.smem = step.support.pages = true;
  step.support.score_mod = true;
  step.options = fa::rank_options();
  const fa::Options none = parse({}, step);
  CHECK(fa::describe(none.problem) == "B=1 H=4 N=1024 d=64 bf16");
  CHECK((none.input == "real" && none.variant == 1 && none.model_gpu == "H200"));
  CHECK((none.iters == 0 && none.workers == 0 && none.limit_s == 300 && none.text.empty()));
  CHECK((none.counters && !none.analyse && !none.details && !none.predict));
  CHECK_FALSE((none.no_predict || none.only_hbm || none.model_chosen));
  CHECK(fa::describe(parse("--h 3 --n=77").problem) == "B=1 H=3 N=77 d=64 bf16");

  fa::Options o = parse(
      "--b 2 --h 6 --hkv 3 --n 5 --n 100 --nk 200 --d 32 --smem 512 --out O.npy --out-dir dir "
      "--causal --seed 18446744073709551615 --iters 7 --variant first --json r.json --gpu A100 "
      "--input outliers --analyse --workers 3",
      step);
  CHECK(fa::describe(o.problem) == "B=2 H=6 Hkv=3 N=100 Nk=200 d=32 causal smem=512 fp32");
  CHECK((o.input == "outliers" && o.out == "O.npy" && o.out_dir == "dir" && o.seed == UINT64_MAX));
  CHECK((o.iters == 7 && o.variant == 0 && o.json == "r.json" && o.model_gpu == "A100"));
  CHECK((o.model_chosen && o.analyse && o.workers == 3));
  o = parse(
      "--trace t.json --details --no-predict --no-counters --only-hbm --limit 9 "
      "--estimate e.json --gpu a100",
      step);
  CHECK((o.trace == "t.json" && o.estimate == "e.json" && o.limit_s == 9 && o.model_gpu == "a100"));
  CHECK((o.details && o.no_predict && o.only_hbm));
  CHECK_FALSE((o.counters || o.predict || o.analyse));
  CHECK(parse("--predict", step).predict);
  const auto problem = [&](const Words& arguments) {
    return fa::describe(parse(arguments, step).problem);
  };
  step.options = fa::mask_options({});
  CHECK(problem("--cap 2.5 --cap 1.5 --sinks") == "B=1 H=4 N=1024 d=64 cap=1.5 sinks bf16");
  CHECK(problem("--alibi") == "B=1 H=4 N=1024 d=64 alibi bf16");
  step.options = fa::cache_options();
  CHECK(problem("--page 16 --page 64") == "B=1 H=4 N=1024 d=64 page=64 bf16");
}

TEST_CASE("what is unknown, contradicts itself or is out of range is refused", "[cli]") {
  fa::Step step = decoding_step();
  step.support.smem = true;
  step.options = fa::rank_options();
  const std::string most = std::to_string(fa::kMaxWorkers);
  const std::string more = std::to_string(fa::kMaxWorkers + 1);
  using Refusals = std::vector<std::pair<std::string, std::string>>;
  const auto require = [&](const Refusals& all) {
    for (const auto& [arguments, said] : all) {
      CAPTURE(arguments);
      const std::string found = refusal_of([&] { parse(arguments.c_str(), step); });
      CHECK_THAT(found, Catch::Matchers::StartsWith(said) && !ContainsSubstring("\n"));
    }
  };
  const std::string number = ": must be a whole number, and not too large; see 99_step --help";
  for (const char* output : {"--analyse", "--out a", "--out-dir a", "--trace a"}) {
    require({{std::string("--predict ") + output, "--predict runs nothing"}});
  }
  require({{"--nn 3", "this step has no option --nn; see 99_step --help"},
           {"stray", "unknown argument stray; see 99_step --help"},
           {"--n", "--n"},
           {"--n many", "--n many" + number},
           {"--n 64.5", "--n 64.5" + number},
           {"--n 5000000000", "--n 5000000000" + number},
           {"--n 0", "--n 0: must be at least 1"},
           {"--d 48", "--d 48: this step supports --d 32, 64, 96, 128"},
           {"--input fake", "--input: fake not in"},
           {"--iters 0", "--iters 0: must be at least 1"},
           {"--iters -3", "--iters -3: must be at least 1"},
           {"--limit 0", "--limit 0: must be at least 1"},
           {"--limit x", "--limit x" + number},
           {"--workers -1", "--workers -1: must be 0 to " + most},
           {"--workers " + more, "--workers " + more + ": must be 0 to " + most},
           {"--estimate-heads -1", "--estimate-heads -1: must be 0"},
           {"--variant third", "--variant third: 99_step has first, second"},
           {"--q missing.npy", "missing.npy: cannot be opened"},
           {"--predict --no-predict", "--predict prints the formulas' predictions"},
           {"--predict --json a --details", "accepted"},
           {"--iters 1", "accepted"},
           {"--limit 1", "accepted"},
           {"--smem 0", "accepted"},
           {"--smem -1", "--smem -1: bytes cannot be negative"},
           {"--workers " + most, "accepted"}});
  CHECK(refusal_of([&] { parse({""}, step); }) == "an argument is empty");
  step.options = fa::mask_options({});
  require({{"--cap x", "--cap x: must be a number, and not too large; see 99_step --help"},
           {"--limit 9", "this step has no option --limit; see 99_step --help"}});
}

TEST_CASE("each output is kept apart from each file that is read", "[cli]") {
  const Folder folder;
  const std::string f = folder.zeros("O.npy", {1, 1, 8, 64}), dir = folder.path();
  const std::string same = dir + "/./O.npy", hard = dir + "/hard.npy", soft = dir + "/soft.npy";
  std::filesystem::create_hard_link(f, hard);
  std::filesystem::create_symlink(f, soft);
  fa::Step step = some_step();
  step.support.pages = true;
  step.options = fa::cache_options();
  step.variants[1].backward = forward_bf16;
  const auto refused = [&](const Words& arguments) {
    return refusal_of([&] { parse(arguments, step); });
  };
  for (const std::string input : {"--q", "--k", "--v", "--do", "--table", "--estimate"}) {
    const std::string reads = ": " + input + " reads this file; give it another name";
    for (const std::string output : {"--out", "--json", "--trace"}) {
      for (const std::string& path : {f, same, hard, soft}) {
        CHECK(refused({input, f, output, path, "--page", "16"}) == output + " " + path + reads);
      }
    }
    CHECK(refused({input, f, "--out-dir", dir, "--page", "16"}) ==
          "--out-dir " + dir + "/O.npy" + reads);
  }
  step.options = fa::mask_options({}), step.support.documents = step.support.predicate = true;
  const std::string lengths =
      folder.file("lengths.npy", npy_file(1, header_of("<i4", "(1,)"), bytes_of<int>({1})));
  const std::string tiles = folder.file("tiles", npy_file(1, header_of("|b1", "(1, 1)"), "\1"));
  for (const auto& [input, path] : {std::pair("--lengths", lengths), std::pair("--tiles", tiles)}) {
    CHECK(refused({input, path, "--n", "1", "--out", path}) ==
          "--out " + path + ": " + input + " reads this file; give it another name");
  }
  for (const char* name : {"q.npy", "k.npy", "v.npy", "gpus.json"}) {
    const std::string shipped = fa::data_file(name);
    CHECK(refused({"--json", shipped}) ==
          "--json " + shipped + ": the program reads this file; give it another name");
  }
  const std::string writes = " writes the same file; give each its own";
  CHECK(refused("--out a --trace ./a") == "--out a: --trace" + writes);
  CHECK(refused("--json a --trace b/../a") == "--json a: --trace" + writes);
  CHECK(refused("--out a --json a") == "--out a: --json" + writes);
  CHECK(refused("--out /dev/null --json /dev/null") == "accepted");
  CHECK(refused("--trace new/O.npy --out-dir new") == "--trace new/O.npy: --out-dir" + writes);
  CHECK(refused("--trace new/dV.npy --out-dir new") == "--trace new/dV.npy: --out-dir" + writes);
  CHECK(refused("--json new/LSE.npy --out-dir new") == "accepted");  // which it does not write
  step.variants[1].writes_lse = true;
  CHECK(refused("--json new/LSE.npy --out-dir new") == "--json new/LSE.npy: --out-dir" + writes);
}

TEST_CASE("of each size some files decide, and others leave it to its flag", "[cli]") {
  const Folder folder;
  const std::string f = folder.zeros("f.npy", {2, 3, 50, 32});
  fa::Step step = some_step();
  step.support.cross = step.support.gqa = true;
  step.variants[1].backward = forward_bf16;
  const auto said = [&](const Words& arguments) {
    std::string words;
    const std::string refusal =
        refusal_of([&] { words = fa::describe(parse(arguments, step).problem); });
    return refusal == "accepted" ? words : refusal;
  };
  const std::string own = "B=2 H=3 N=50 d=32 bf16";
  for (const std::string file : {"--q", "--k", "--v", "--do"}) {
    CAPTURE(file);
    CHECK(said({file, f}) == own);
    CHECK(said({file, f, "--b", "2", "--h", "3", "--hkv", "3", "--n", "50", "--nk", "50", "--d",
                "32"}) == own);
    CHECK(said({file, f, "--b", "1"}) == "--b 1 contradicts the .npy files, which say 2");
    CHECK(said({file, f, "--d", "64"}) == "--d 64 contradicts the .npy files, which say 32");
    const bool queries = file == "--q" || file == "--do";
    CHECK(said({file, f, "--h", "6"}) == (queries ? "--h 6 contradicts the .npy files, which say 3"
                                                  : "B=2 H=6 Hkv=3 N=50 d=32 bf16"));
    CHECK(said({file, f, "--n", "7"}) == (queries ? "--n 7 contradicts the .npy files, which say 50"
                                                  : "B=2 H=3 N=7 Nk=50 d=32 bf16"));
    CHECK(said({file, f, "--hkv", "1"}) ==
          (queries ? "B=2 H=3 Hkv=1 N=50 d=32 bf16"
                   : "--hkv 1 contradicts the .npy files, which say 3"));
    CHECK(said({file, f, "--nk", "7"}) ==
          (queries ? "B=2 H=3 N=50 Nk=7 d=32 bf16"
                   : "--nk 7 contradicts the .npy files, which say 50"));
  }
  CHECK_THAT(said({"--q", folder.zeros("odd.npy", {1, 1, 5, 48})}), ContainsSubstring("--d 48: "));
  // As many key heads as query heads by default, where a file has more.
  REQUIRE(fa::Problem().H == 4);
  const std::string more = folder.zeros("more.npy", {1, 8, 50, 32});
  CHECK(said({"--q", more, "--hkv", "4"}) == "B=1 H=8 Hkv=4 N=50 d=32 bf16");
  const std::string k = folder.zeros("k.npy", {1, 1, 8, 64});
  for (const std::string file : {"--k", "--v"}) {  // --lengths does not change a file's size
    CHECK(parse({file, k, "--lengths", "3"}, decoding_step()).problem.Nk == 8);
  }
}

TEST_CASE("masks of the command line, and documents from files", "[cli]") {
  const Folder folder;
  fa::Step step = some_step();
  step.support.window = step.support.documents = step.support.predicate = true;
  step.support.cross = step.support.score_mod = true;
  step.options = fa::mask_options({{"strided", 64, [](const fa::Problem& p, int, int c) {
                                      return c % p.mask.predicate.n == 0;
                                    }}});
  const auto mask = [&](const Words& arguments) { return parse(arguments, step).problem; };
  const fa::Problem window = mask("--window 256,-1"), pack = mask("--lengths 5,0,7:9");
  CHECK((window.mask.left == 256 && window.mask.right == -1));
  CHECK((pack.N == 12 && pack.Nk == 14));
  CHECK(mask("--mask strided").mask.predicate.n == 64);
  CHECK(mask("--mask strided:3").sees(0, 6));
  CHECK_FALSE(mask("--mask strided:3").sees(0, 7));

  const auto file = [&](const char* type, const char* shape, const std::string& bytes) {
    return folder.file("l.npy", npy_file(1, header_of(type, shape), bytes));
  };
  using Starts = std::vector<int>;
  const auto starts = [&](const std::string& lengths, const Starts& rows, const Starts& keys) {
    const fa::Mask found = mask({"--lengths", lengths}).mask;
    CHECK((found.row_starts == rows && found.key_starts == keys));
  };
  starts("5,0,7:9", {0, 5, 5, 12}, {0, 5, 5, 14});
  starts(file("<i4", "(3,)", bytes_of<int>({5, 0, 7})), {0, 5, 5, 12}, {0, 5, 5, 12});
  starts(file("<i8", "(2, 1)", bytes_of<int64_t>({5, 7})), {0, 5, 12}, {0, 5, 12});
  starts(file("<i4", "(2, 2)", bytes_of<int>({5, 9, 7, 4})), {0, 5, 12}, {0, 9, 13});

  // Of 2 heads, 2 x 3 tiles each; the same tiles as a list of keys for each tile of rows.
  const std::string tiles = std::string("\1\0\0\1\0\1\0\0\0\1\1\0", 12);
  const auto with_tiles = [&](const std::string& path) {
    return Words{"--h", "2", "--n", "200", "--nk", "300", "--tiles", path};
  };
  const fa::Problem tiled = mask(with_tiles(file("|b1", "(2, 2, 3)", tiles)));
  CHECK(std::string(tiled.mask.tiles.kept->begin(), tiled.mask.tiles.kept->end()) == tiles);
  CHECK((tiled.sees(127, 127, 0, 0) && !tiled.sees(127, 128, 0, 0) && tiled.sees(128, 299, 0, 0)));
  CHECK((!tiled.sees(127, 127, 0, 1) && tiled.sees(199, 255, 0, 1)));
  const auto listed = bytes_of<int>({0, -1, 2, 0, -1, -1, 0, 1});
  CHECK(mask(with_tiles(file("<i4", "(1, 2, 2, 2)", listed))).mask == tiled.mask);
  CHECK(mask(with_tiles(file("|b1", "(2, 3)", tiles.substr(0, 6)))).mask.tiles.heads == 1);

  const auto refused = [&](const Words& arguments, const std::string& said) {
    CHECK_THAT(refusal_of([&] { parse(arguments, step); }), ContainsSubstring(said));
  };
  for (const auto& [shape, size, said] : std::vector<std::tuple<const char*, size_t, const char*>>{
           {"()", 1, "its shape [] must"},
           {"(12,)", 12, "its shape [12] must be [2, 3], [2, 2, 3] or [1, 2, 2, 3]: tiles of 128"},
           {"(0, 2, 3)", 0, "its shape [0, 2, 3] must"},
           {"(2, 3, 2)", 12, "its shape [2, 3, 2] must"},
           {"(2, 1, 2, 3)", 12, "its shape [2, 1, 2, 3] must"},
           {"(3, 2, 3)", 18, "its shape [3, 2, 3] must"}}) {
    refused(with_tiles(file("|b1", shape, std::string(size, '\1'))), said);
  }
  refused(with_tiles(file("<i4", "(1, 1)", bytes_of<int>({0}))),
          "its shape [1, 1] must be [2, n], [2, 2, n] or [1, 2, 2, n]: tiles of 128 rows and keys");
  for (const int key : {3, -2}) {
    refused(
        with_tiles(file("<i4", "(2, 1)", bytes_of<int>({2, key}))),
        ": " + std::to_string(key) + " is no tile of keys; those of --nk 300 are 0 to 2, and -1");
  }
  refused(with_tiles(file("<f4", "(1, 1)", bytes_of<float>({1}))), "supported are bool, int32 and");
  step.support.gqa = true;
  Words shared = with_tiles(file("|b1", "(2, 2, 3)", tiles));
  shared.insert(shared.end(), {"--hkv", "1"});
  refused(shared, "--tiles: heads 0 and 1 share keys by --hkv 1, but have different tiles");
  const std::string sum = ": each must be at least 0, and their sum an int";
  for (const char* shape : {"()", "(1, 1, 1)", "(1, 3)", "(2, 0)"}) {
    const size_t n = shape == std::string("(1, 3)") ? 3 : shape == std::string("(2, 0)") ? 0 : 1;
    const std::string path = file("<i4", shape, bytes_of(std::vector<int>(n, 5)));
    refused({"--lengths", path},
            "--lengths " + path + ": its shape must be [documents], or [docum");
  }
  refused({"--lengths", file("<i8", "(2,)", bytes_of<int64_t>({5, INT64_MAX}))}, sum);
  for (const std::string bad :
       {"2147483647,1", "1:2147483647,1:1", "2147483647:1,1", "5:-1,7", "5,-1"}) {
    refused({"--lengths", bad}, "--lengths " + bad + sum);
  }
  for (const std::string bad : {"-1", "18446744073709551616", "0x10", "1.5"}) {
    refused({"--seed", bad}, "--seed " + bad + ": must be a whole number");
  }
  for (const auto& [arguments, said] : std::vector<std::pair<const char*, const char*>>{
           {"--lengths 5,x", "--lengths x: must be whole numbers"},
           {"--lengths 5,", "--lengths : must be whole numbers"},
           {"--lengths 5:9:3", "--lengths 9:3: must be whole numbers"},
           {"--lengths 5,6 --n 10", "--n 10: the documents of --lengths have 11; leave it out"},
           {"--lengths 5,7:9 --nk 10", "--nk 10: the documents of --lengths have 14; leave it"},
           {"--lengths 5,7:9 --n 12 --nk 14", "accepted"},
           {"--window 5", "--window 5: must be two numbers"},
           {"--window 1,2,3", "--window 1,2,3: must be two numbers, such as 256,0"},
           {"--window 1,x", "--window 1,x: must be whole numbers with commas"},
           {"--window 5,-2", "--window 5,-2: each must be 0 to"},
           {"--mask round", "--mask round: this step has strided:64"},
           {"--mask strided:0", "--mask strided:0: the number must be"}}) {
    refused(arguments, said);
  }
  CHECK_THROWS_WITH(parse("--window 3,3"), "this step has no option --window; see 99_step --help");
  step.support.predicate = false;
  refused(with_tiles(file("|b1", "(2, 3)", tiles.substr(0, 6))),
          "--tiles: this step has no such mask");
  step.support.window = false;
  refused("--window 3,3", "--window 3,3: this step has no such mask");
}

TEST_CASE("each option is shown where its step takes it, and nowhere else", "[cli]") {
  const auto shown = [&](const char* option, const fa::Step& step) {
    return parse("--help", step).text.find("\n  " + std::string(option) + " ") != std::string::npos;
  };
  struct Case {
    fa::Step step;
    std::vector<const char*> options;
  };
  const auto with = [](bool fa::Support::*what) {
    fa::Step step = some_step();
    step.support.*what = true;
    return step;
  };
  const auto adding = [](const std::vector<fa::StepOption>& options) {
    fa::Step step = some_step();
    step.options = options;
    return step;
  };
  using S = fa::Support;
  const Case cases[] = {{some_step(), {}},
                        {with(&S::gqa), {"--hkv"}},
                        {with(&S::cross), {"--nk"}},
                        {with(&S::smem), {"--smem"}},
                        {adding(fa::cache_options()), {"--lengths", "--page", "--table"}},
                        {adding(fa::mask_options({})),
                         {"--lengths", "--window", "--mask", "--cap", "--alibi", "--sinks"}},
                        {adding(fa::rank_options()), {"--limit"}}};
  for (const Case& c : cases) {
    for (const char* option : {"--hkv", "--nk", "--smem", "--lengths", "--page", "--table",
                               "--window", "--mask", "--cap", "--alibi", "--sinks", "--limit"}) {
      CAPTURE(option);
      const bool its = std::any_of(c.options.begin(), c.options.end(),
                                   [&](const char* each) { return std::string(each) == option; });
      CHECK(shown(option, c.step) == its);
    }
  }
  fa::Step step = some_step();
  CHECK((shown("--n", step) && !shown("--do", step)));
  step.variants[0].support = fa::Support{.cross = true};  // one variant is enough
  step.variants[1].backward = forward_bf16;
  CHECK((shown("--nk", step) && shown("--do", step)));
  for (const char* option : {"--analyse", "--workers", "--gpu", "--trace"}) {
    CHECK(shown(option, step) == fa::simulated());
  }
  for (const char* option : {"--iters", "--no-counters", "--only-hbm"}) {
    CHECK(shown(option, step) != fa::simulated());
  }
  CHECK_THAT(parse("--help", step).text, ContainsSubstring("99_step --n 512"));
  CHECK_THAT(fitting(parse("--help", decoding_step()).text), ContainsSubstring("99_step --nk 512"));
  CHECK_THAT(
      parse("--help", adding(fa::mask_options({{"strided", 64, {}}, {"round", 0, {}}}))).text,
      ContainsSubstring("a mask of the step: strided:64 round") &&
          ContainsSubstring("INT,...|F.npy"));
}
