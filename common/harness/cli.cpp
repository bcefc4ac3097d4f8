#include "common/harness/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <tuple>

#include "common/counts/backend.h"
#include "common/counts/estimate.h"
#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/counts/gpus.h"
#include "common/counts/screen.h"
#include "common/harness/npy.h"

namespace fa {

const char* const kVersion = "0.1";

namespace {

/// Refuses an output that would replace an input or another output. `table` is the file of --table.
void require_files_apart(const Options& o, const Variant& v, const std::string& table) {
  struct Named {
    const char* flag;
    std::string path;
  };
  std::vector<Named> inputs = {{"--q", o.files.q}, {"--k", o.files.k},
                               {"--v", o.files.v}, {"--do", o.files.dO},
                               {"--table", table}, {"--estimate", o.estimate}};
  for (const char* name : {"q.npy", "k.npy", "v.npy", "gpus.json"}) {
    inputs.push_back({"the program", data_file(name)});
  }
  std::vector<Named> outputs = {{"--out", o.out}, {"--json", o.json}, {"--trace", o.trace}};
  for (const Tensor* t : tensors_of(v, o.problem)) {
    if (t->output && !o.out_dir.empty())
      outputs.push_back({"--out-dir", output_path(o.out_dir, *t)});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Named& in : inputs) {
      if (!same_file(outputs[i].path, in.path)) continue;
      refuse("{} {}: {} reads this file; give it another name", outputs[i].flag, outputs[i].path,
             in.flag);
    }
    for (size_t j = i + 1; j < outputs.size(); ++j) {
      if (!same_file(outputs[i].path, outputs[j].path)) continue;
      refuse("{} {}: {} writes the same file; give each its own", outputs[i].flag, outputs[i].path,
             outputs[j].flag);
    }
  }
}

/// Refuses options of generated inputs where files give all inputs.
void require_use(const CLI::Option* input, const CLI::Option* seed, const Options& o,
                 const Variant& v, bool random_table) {
  if (!o.files.all()) return;
  if (!input->empty()) refuse("--input {}: Q, K and V come from files; leave it out", o.input);
  if (!seed->empty() && !(v.backward && o.files.dO.empty()) && !random_table) {
    refuse("--seed {}: all input comes from files; leave it out", o.seed);
  }
}

/// Files decide the sizes; a flag that contradicts them is an error.
void sizes_from_files(const CLI::App& app, Options& o) {
  Problem& p = o.problem;
  const Problem asked = p;
  p = problem_of(o.files, asked);

  const bool kv_file = !o.files.k.empty() || !o.files.v.empty();
  const bool q_file = !o.files.q.empty() || !o.files.dO.empty();
  for (const Size& size : kSizes) {
    if (app.count(size.flag) == 0) continue;
    // A size that no file gives is the flag's.
    const bool of_keys = size.of == &Problem::Nk || size.of == &Problem::Hkv;
    const bool of_queries = size.of == &Problem::N || size.of == &Problem::H;
    if ((of_keys && !kv_file) || (of_queries && !q_file)) p.*size.of = asked.*size.of;
    if (asked.*size.of == p.*size.of) continue;
    refuse("{} {} contradicts the .npy files, which say {}", size.flag, asked.*size.of, p.*size.of);
  }
}

size_t find_variant(const Step& step, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < step.variants.size(); ++i) {
    if (step.variants[i].name == name) return i;
    known += (i == 0 ? "" : ", ") + step.variants[i].name;
  }
  refuse("--variant {}: {} has {}", name, step.id, known);
}

/// The last variant that the modelled GPU runs for the problem, or runs at all, or the step's last.
size_t default_variant(const Step& step, const std::string& arch, const Problem& p) {
  std::optional<size_t> runs;
  for (size_t i = step.variants.size(); i-- > 0;) {
    const Variant& v = step.variants[i];
    if (!runs_on(arch, needs_of(step, v))) continue;
    if (!runs) runs = i;
    try {
      validate(problem_for(v, p), step, v);
      return i;
    } catch (const UsageError&) {
    }
  }
  return runs.value_or(step.variants.size() - 1);
}

/// The GPU to model where none is named: the usual one, or the table's first that runs the step.
std::string default_gpu(const Step& step, const std::string& usual) {
  if (runs_on(find_gpu(usual).arch, step.needs)) return usual;
  for (const GpuSpec& gpu : gpu_table()) {
    if (runs_on(gpu.arch, step.needs)) return gpu.name;
  }
  return usual;
}

std::vector<int> numbers_of(const std::string& text, const std::string& flag = "--lengths") {
  std::vector<int> numbers;
  const char *at = text.data(), *end = at + text.size();
  for (bool more = true; more;) {
    int number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    more = stop < end && *stop == ',';
    if (error != std::errc() || (stop < end && !more)) {
      refuse("{} {}: must be whole numbers with commas between them, such as 0,1,700", flag, text);
    }
    numbers.push_back(number);
    at = stop + 1;
  }
  return numbers;
}

/// Repeats the lengths until each batch entry has one; without --nk, Nk is the longest.
void spread_lengths(const std::string& text, bool nk_given, Problem& p) {
  const std::vector<int> given = numbers_of(text);
  if (given.size() > static_cast<size_t>(std::max(p.B, 0))) {
    refuse("--lengths {}: {} lengths for {} batch entries; give --b {}", text, given.size(), p.B,
           given.size());
  }
  const int entries = std::min(p.B, 1 << 16);  // validate() refuses more
  for (int b = 0; b < entries; ++b) p.cache.lengths.push_back(given[b % given.size()]);
  if (!nk_given) p.Nk = std::max(1, *std::max_element(given.begin(), given.end()));
}

void set_window(const std::string& text, Problem& p) {
  const std::vector<int> limits = numbers_of(text, "--window");
  if (limits.size() != 2) {
    refuse(
        "--window {}: must be two numbers, such as 256,0: how many keys "
        "a row sees before and after its position; -1 for no limit",
        text);
  }
  p.mask.left = limits[0], p.mask.right = limits[1];
}

/// Rows and keys of each document: "5,0,700", "5:9,700:700", or a file.
std::vector<std::pair<int64_t, int64_t>> lengths_of(const std::string& text) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  if (text.ends_with(".npy")) {
    const NpyIntegers npy = read_npy_integers(text);
    const size_t columns = npy.shape.size() == 2 ? npy.shape[1] : 1;
    if (npy.shape.empty() || npy.shape.size() > 2 || columns < 1 || columns > 2) {
      refuse("--lengths {}: its shape must be [documents], or [documents, 2] for rows and keys",
             text);
    }
    for (size_t i = 0; i < npy.data.size(); i += columns) {
      lengths.emplace_back(npy.data[i], npy.data[i + columns - 1]);
    }
    return lengths;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t colon = one.find(':');
    const int rows = numbers_of(one.substr(0, colon)).at(0);
    lengths.emplace_back(rows, colon == one.npos ? rows : numbers_of(one.substr(colon + 1)).at(0));
    at = end + 1;
  }
  return lengths;
}

/// Packed documents decide how many rows and keys there are.
void pack_documents(const std::string& text, const CLI::App& app, Problem& p) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  Mask& mask = p.mask;
  int64_t rows = 0, keys = 0;
  mask.row_starts = mask.key_starts = {0};
  for (const auto& [its_rows, its_keys] : lengths_of(text)) {
    if (its_rows < 0 || its_keys < 0 || its_rows > kMost - rows || its_keys > kMost - keys) {
      refuse("--lengths {}: each must be at least 0, and their sum an int", text);
    }
    rows += its_rows, keys += its_keys;
    mask.row_starts.push_back(static_cast<int>(rows));
    mask.key_starts.push_back(static_cast<int>(keys));
  }
  const std::tuple<const char*, int*, int64_t> sums[] = {{"--n", &p.N, rows},
                                                         {"--nk", &p.Nk, keys}};
  for (const auto& [flag, length, sum] : sums) {
    if (app.count(flag) > 0 && *length != sum) {
      refuse("{} {}: the documents of --lengths have {}; leave it out", flag, *length, sum);
    }
    *length = static_cast<int>(sum);
  }
}

constexpr size_t kHelpColumn = 28;  // where the descriptions of the options begin

template <class T>
bool takes(const Step& step, T Support::*what) {
  return std::any_of(step.variants.begin(), step.variants.end(),
                     [&](const Variant& v) { return support_of(step, v).*what; });
}

std::string masks_of(const Step& step) {
  std::string text = "a mask of the step:";
  for (const Predicate& each : step.predicates) text += " " + text_of(each);
  return text;
}

template <class T>
bool has(const Step& step, T Variant::*what) {
  return std::any_of(step.variants.begin(), step.variants.end(),
                     [&](const Variant& v) { return bool(v.*what); });
}

/// Wraps a description to the column at the right of the options' names.
std::string description(const std::string& words) {
  const std::string column(kHelpColumn, ' ');
  std::string text = wrapped(column, words, kHelpColumn);
  std::string out;
  for (size_t at = 0; at < text.size();) {  // CLI11 indents by itself
    const size_t end = text.find('\n', at);
    out += (at == 0 ? "" : "\n") + text.substr(at + kHelpColumn, end - at - kHelpColumn);
    at = end + 1;
  }
  return out;
}

std::string footer(const Step& step) {
  std::string text = "Variants (the last one is the step's result, and the default):\n";
  for (const Variant& v : step.variants) {
    text += wrapped(fmt::format("  {:<13} ", v.name), v.idea, 16);
  }
  text += fmt::format(
      "\nExample:\n"
      "  {} {} 512 --causal --input outliers --json run.json\n"
      "\n",
      step.id, step.support.most_n == 0 ? "--n" : "--nk");
  text += wrapped("",
                  "Exit status: 0 right, 1 wrong result, 2 bad use, 3 no memory, device or disk "
                  "space, 4 not checkable: the scores lose their precision.",
                  2);
  text.pop_back();  // CLI11 ends the line
  return text;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace

std::string output_path(const std::string& folder, const Tensor& t) {
  return folder + "/" + t.name + ".npy";
}

void require_values(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i], before = i == 1 ? "" : argv[i - 1];
    const bool given =
        !word.empty() && !(word.starts_with("--") && word.find('=') + 1 == word.size());
    if (given) continue;
    const std::string_view flag = word.empty() ? before : word.substr(0, word.size() - 1);
    throw UsageError(flag.starts_with("--") ? fmt::format("{}: its value is empty", flag)
                                            : "an argument is empty");
  }
}

Options parse(int argc, const char* const* argv, const Step& step) {
  Options o;
  o.model_gpu = default_gpu(step, o.model_gpu);
  Problem& p = o.problem;
  std::string variant = step.variants.back().name;
  std::string lengths, table, window, predicate;
  int64_t smem = 0;  // signed, so that -1 is refused as it was typed

  std::string title = wrapped(step.id + ": ", step.idea, 2);
  title.pop_back();
  CLI::App app(title, step.id);
  app.set_help_flag("--help", "print this text and exit");
  app.set_version_flag("--version", fmt::format("{} {}", step.id, kVersion), "print the version");
  bool describes = false;
  app.add_flag("--describe", describes, "print what the step is, as JSON, and exit");
  app.get_formatter()->column_width(kHelpColumn);
  app.footer(footer(step));

  const auto option = [&app](const char* group, const char* name, auto& value, const char* type,
                             const std::string& what) {
    return app.add_option(name, value, description(what))
        ->group(group)
        ->type_name(type)
        ->capture_default_str()
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  const auto flag = [&app](const char* group, const char* name, bool& value,
                           const std::string& what) {
    return app.add_flag(name, value, description(what))->group(group);
  };
  // Options that would be refused or useless are hidden, yet parsed, so that the refusal says why.
  const auto shown_if = [](bool useful, CLI::Option* o) {
    if (!useful) o->group("");
    return o;
  };
  const bool backward = has(step, &Variant::backward), sim = simulated();
  // Hkv and Nk follow H and N unless given, so the help shows words for their defaults.
  const auto defaults_to = [](CLI::Option* o, const char* words) { return o->default_str(words); };

  // A step for few queries still has many keys.
  const bool few_queries = step.support.most_n != 0;
  if (few_queries) p.N = 1;

  option("Problem", "--b", p.B, "INT", "batch");
  option("Problem", "--h", p.H, "INT", "query heads");
  shown_if(takes(step, &Support::gqa),
           defaults_to(option("Problem", "--hkv", p.Hkv, "INT", "key and value heads"), "--h"));
  option("Problem", "--n", p.N, "INT", "queries");
  shown_if(takes(step, &Support::cross),
           defaults_to(option("Problem", "--nk", p.Nk, "INT", "keys"),
                       few_queries ? "1024, or the longest of --lengths" : "--n"));
  option("Problem", "--d", p.d, "INT", "head dimension: " + step.support.list_d());
  flag("Problem", "--causal", p.causal, "queries do not see later keys");
  const bool packs = takes(step, &Support::documents);
  const CLI::Option* lengths_flag = shown_if(
      packs || takes(step, &Support::lengths),
      option("Problem", "--lengths", lengths, packs ? "INT,...|F.npy" : "INT,INT,...",
             packs ? "documents one after another: rows of each, or rows:keys; a file: int32 or "
                     "int64, [documents] or [documents, 2]"
                   : "keys of each batch entry; a shorter list repeats. Without it: --nk"));
  const CLI::Option* window_flag =
      shown_if(takes(step, &Support::window),
               option("Problem", "--window", window, "L,R",
                      "a row sees L keys before its position and R after it; -1: no limit"));
  const CLI::Option* predicate_flag =
      shown_if(takes(step, &Support::predicate),
               option("Problem", "--mask", predicate, "NAME[:INT]", masks_of(step)));
  shown_if(takes(step, &Support::pages),
           option("Problem", "--page", p.cache.page, "INT",
                  "keys per page: 16, 32, 64, 128 or 256; 0: the cache is not paged"));

  const bool modifies = takes(step, &Support::score_mod);
  shown_if(modifies, option("Problem", "--cap", p.score_mod.cap, "FLOAT",
                            "a score s becomes cap * tanh(s / cap); 0: it stays"));
  shown_if(modifies, flag("Problem", "--alibi", p.score_mod.alibi,
                          "a score loses the key's distance times 2^(-8 (h + 1) / H)"));
  shown_if(modifies, flag("Problem", "--sinks", p.score_mod.sinks,
                          "each head has a number, e to which is in the softmax's sum"));

  const CLI::Option* input =
      option("Input", "--input", o.input, "NAME",
             backward ? "where Q, K, V and dO come from" : "where Q, K and V come from")
          ->check(CLI::IsMember({"real", "normal", "outliers"}));
  const CLI::Option* seed = option("Input", "--seed", o.seed, "INT", "seed of the random numbers");
  option("Input", "--q", o.files.q, "F.npy", "Q [B, H, N, d]; files decide the sizes");
  option("Input", "--k", o.files.k, "F.npy", "K [B, Hkv, Nk, d]");
  option("Input", "--v", o.files.v, "F.npy", "V [B, Hkv, Nk, d]");
  shown_if(takes(step, &Support::pages),
           option("Input", "--table", table, "F.npy",
                  "page table [B, pages], int32 or int64, with --page; else a shuffled one"));
  shown_if(backward,
           option("Input", "--do", o.files.dO, "F.npy", "dO [B, H, N, d], for the backward"));

  option("Output", "--out", o.out, "F.npy", "write O");
  option("Output", "--out-dir", o.out_dir, "DIR",
         backward ? "write O, LSE, dQ, dK, dV as .npy" : "write O and LSE as .npy");
  option("Output", "--json", o.json, "F.json", "write the report as JSON (docs/json.md)");
  flag("Output", "--details", o.details,
       "print the bytes of each buffer, errors, and what limits each kernel");
  shown_if(sim, option("Output", "--trace", o.trace, "F.json",
                       "write what each block reads and writes, in order (docs/json.md); "
                       "Perfetto opens the file"));

  const CLI::Option* chosen =
      option("Run", "--variant", variant, "NAME", "which of the step's variants");
  if (step.support.smem) {
    option("Run", "--smem", smem, "BYTES", "shared memory M per block; 0: the step's default");
  }
  shown_if(!sim, defaults_to(option("Run", "--iters", o.iters, "INT", "timed runs"), "3 to 50"));
  const CLI::Option* model =
      shown_if(sim, option("Run", "--gpu", o.model_gpu, "NAME",
                           "the GPU that the simulator models (common/data/gpus.json)"));
  shown_if(sim, defaults_to(option("Run", "--estimate-heads", o.estimate_heads, "INT",
                                   "estimate the time for this many such heads; 0: for those that "
                                   "run. The default fills a GPU, except where queries are few"),
                            few_queries ? "0" : "128"));
  shown_if(!sim, option("Run", "--estimate", o.estimate, "F.json",
                        "a simulator's report, whose estimate stands beside the measured time"));
  flag("Run", "--predict", o.predict,
       "print the formulas' predictions and run nothing; for any size");
  flag("Run", "--no-predict", o.no_predict,
       "predict and compare nothing: for a kernel that has no formulas yet");
  shown_if(sim, flag("Run", "--analyse", o.analyse,
                     "find races and uninitialised reads; one row per source line"));
  bool no_counters = false;
  shown_if(!sim, flag("Run", "--no-counters", no_counters,
                      "time only; reading the counters takes seconds"));
  shown_if(!sim, flag("Run", "--only-hbm", o.only_hbm, "of the counters those of HBM: faster"));
  shown_if(sim,
           option("Run", "--workers", o.workers, "INT",
                  "the simulator's OS threads; 0: one per core, up to 16; use 1 in a debugger"));

  if (has(step, &Variant::sharding)) {  // several ranks can share one
    option("Run", "--limit", o.limit_s, "INT",
           "seconds that a rank waits for another before the run ends");
  }

  const std::string see_help = fmt::format("; see {} --help", step.id);
  require_values(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    o.text = app.help();
    return o;
  } catch (const CLI::CallForVersion& e) {
    o.text = std::string(e.what()) + "\n";
    return o;
  } catch (const CLI::ExtrasError&) {
    throw UsageError("unknown argument " + app.remaining().front() + see_help);
  } catch (const CLI::ConversionError& e) {  // "Could not convert: --n = 64.5"
    const std::string words = one_line(e.what());
    const size_t option = words.find("--"), equals = words.find(" = ");
    if (equals == std::string::npos || option > equals) throw UsageError(words + see_help);
    const std::string name = words.substr(option, equals - option);
    const CLI::Option* of = app.get_option_no_throw(name);
    refuse("{} {}: must be a {}number, and not too large{}", name, words.substr(equals + 3),
           of && of->get_type_name() == "FLOAT" ? "" : "whole ", see_help);
  } catch (const CLI::ParseError& e) {
    throw UsageError(one_line(e.what()) + see_help);
  }
  if (!seed->empty()) {  // CLI11 lets a negative number or a larger one wrap
    const std::string& given = seed->results().back();
    const char* end = given.data() + given.size();
    const auto [stop, error] = std::from_chars(given.data(), end, o.seed);
    if (error != std::errc() || stop != end) {
      refuse("--seed {}: must be a whole number from 0 to 2^64 - 1{}", given, see_help);
    }
  }
  o.model_chosen = !model->empty();
  if (describes) {
    o.text = describe(step) + "\n", o.verbatim = true;
    return o;
  }

  if (o.predict && (o.analyse || !o.out.empty() || !o.out_dir.empty() || !o.trace.empty())) {
    throw UsageError(
        "--predict runs nothing, so there is no output and nothing to analyse or to trace");
  }
  if (o.predict && o.no_predict) {
    throw UsageError("--predict prints the formulas' predictions and --no-predict none: give one");
  }
  if (o.iters < 1 && app.count("--iters") > 0) refuse("--iters {}: must be at least 1", o.iters);
  if (o.limit_s < 1) refuse("--limit {}: must be at least 1", o.limit_s);
  if (smem < 0) refuse("--smem {}: bytes cannot be negative", smem);
  if (o.estimate_heads < 0) {
    refuse("--estimate-heads {}: must be 0 (as many as run) or a multiple of the heads that run",
           o.estimate_heads);
  }
  p.method.smem = static_cast<size_t>(smem);
  o.counters = !no_counters;
  if (o.workers < 0 || o.workers > kMaxWorkers) {
    refuse("--workers {}: must be 0 to {}", o.workers, kMaxWorkers);
  }
  const bool nk_given = app.count("--nk") > 0;
  if (app.count("--hkv") == 0) p.Hkv = p.H;
  if (!nk_given && !few_queries) p.Nk = p.N;
  if (o.files.any()) sizes_from_files(app, o);
  if (!window_flag->empty()) set_window(window, p);
  if (!predicate_flag->empty()) p.mask.predicate = predicate_of(step, predicate);
  if (!lengths_flag->empty() && packs) {
    pack_documents(lengths, app, p);
  } else if (!lengths_flag->empty()) {
    const bool kv_file = !o.files.k.empty() || !o.files.v.empty();
    spread_lengths(lengths, kv_file || nk_given, p);
  }
  o.variant = chosen->empty() ? default_variant(step, find_gpu(o.model_gpu).arch, p)
                              : find_variant(step, variant);
  const Variant& chosen_variant = step.variants[o.variant];
  require_files_apart(o, chosen_variant, table);
  require_use(input, seed, o, chosen_variant, p.cache.page != 0 && table.empty());
  p = problem_for(chosen_variant, p);
  validate(p, step, chosen_variant);
  if (!table.empty()) {
    if (p.cache.page == 0) refuse("--table {}: needs --page", table);
    o.table = load_table(table, p);
  }
  const int64_t heads = static_cast<int64_t>(p.heads());
  if (simulated() && app.count("--estimate-heads") == 0 && !few_queries) {
    // The first multiple that fills a GPU. With few queries the splits of the keys should do that.
    o.estimate_heads = (int64_t(kFullGpuHeads) + heads - 1) / heads * heads;
  }
  if (o.estimate_heads == 0) o.estimate_heads = heads;
  if (o.estimate_heads % p.heads() != 0) {
    refuse("--estimate-heads {}: must be a multiple of the {} heads that run", o.estimate_heads,
           p.heads());
  }
  if (!o.files.dO.empty() && !chosen_variant.backward) {
    refuse("--do {}: {} {} has no backward", o.files.dO, step.id, chosen_variant.name);
  }
  return o;
}

}  // namespace fa
