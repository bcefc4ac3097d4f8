#include "common/harness/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

#include "common/counts/backend.h"
#include "common/counts/estimate.h"
#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/counts/gpus.h"
#include "common/harness/inputs.h"

namespace fa {

const char* const kVersion = "0.1";

namespace {

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

constexpr size_t kHelpColumn = 28;  // where the descriptions of the options begin

template <class T>
bool takes(const Step& step, T Support::*what) {
  return std::any_of(step.variants.begin(), step.variants.end(),
                     [&](const Variant& v) { return support_of(step, v).*what; });
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

std::string title_of(const Step& step) {
  std::string title = wrapped(step.id + ": ", step.idea, 2);
  title.pop_back();  // CLI11 ends the line
  return title;
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

/// The options of a step's program: declared, read, and made into a problem that the step supports.
class CommandLine {
 public:
  explicit CommandLine(const Step& step)
      : step_(step),
        app_(title_of(step), step.id),
        see_help_(fmt::format("; see {} --help", step.id)),
        variant_name_(step.variants.back().name),
        values_(step.options.size()) {
    app_.set_help_flag("--help", "print this text and exit");
    app_.set_version_flag("--version", fmt::format("{} {}", step.id, kVersion),
                          "print the version");
    app_.add_flag("--describe", describes_, "print what the step is, as JSON, and exit");
    app_.get_formatter()->column_width(kHelpColumn);
    app_.footer(footer(step));
    o_.model_gpu = default_gpu(step, o_.model_gpu);
    if (few_queries_) o_.problem.N = 1;
    const std::vector<int>& sizes = step.support.d;
    if (std::find(sizes.begin(), sizes.end(), o_.problem.d) == sizes.end()) {
      o_.problem.d = sizes.front();
    }
    add_problem();
    add_inputs();
    add_outputs();
    add_run();
    for (size_t i = 0; i < step.options.size(); ++i) add(step.options[i], values_[i]);
  }
  CommandLine(const CommandLine&) = delete;  // app_ points into it
  CommandLine& operator=(const CommandLine&) = delete;

  Options parse(int argc, const char* const* argv) {
    require_values(argc, argv);
    if (!read(argc, argv)) return o_;
    check_run();
    set_sizes();
    for (size_t i = 0; i < values_.size(); ++i) {
      if (step_.options[i].text && !values_[i].empty()) step_.options[i].text(values_[i], o_);
    }
    choose_variant();
    for (size_t i = 0; i < values_.size(); ++i) {
      if (step_.options[i].file && !values_[i].empty()) step_.options[i].file(values_[i], o_);
    }
    set_estimate_heads();
    const Variant& v = step_.variants[o_.variant];
    if (!o_.files.dO.empty() && !v.backward) {
      refuse("--do {}: {} {} has no backward", o_.files.dO, step_.id, v.name);
    }
    return o_;
  }

 private:
  // --- declaration ---

  CLI::Option* option(const char* group, const char* name, auto& value, const char* type,
                      const std::string& what) {
    return app_.add_option(name, value, description(what))
        ->group(group)
        ->type_name(type)
        ->capture_default_str()
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  CLI::Option* flag(const char* group, const char* name, bool& value, const std::string& what) {
    return app_.add_flag(name, value, description(what))->group(group);
  }
  void add(const StepOption& o, std::string& value) {
    if (o.flag) {
      flag(o.group, o.name, o.flag(o_), o.help);
    } else if (o.integer) {
      option(o.group, o.name, o.integer(o_), o.type, o.help);
    } else if (o.real) {
      option(o.group, o.name, o.real(o_), o.type, o.help);
    } else {
      option(o.group, o.name, value, o.type, o.help);
    }
  }
  // Options that would be refused or useless are hidden, yet parsed, so that the refusal says why.
  static CLI::Option* shown_if(bool useful, CLI::Option* o) {
    if (!useful) o->group("");
    return o;
  }

  void add_problem() {
    Problem& p = o_.problem;
    option("Problem", "--b", p.B, "INT", "batch");
    option("Problem", "--h", p.H, "INT", "query heads");
    shown_if(takes(step_, &Support::gqa),
             option("Problem", "--hkv", p.Hkv, "INT", "key and value heads")->default_str("--h"));
    option("Problem", "--n", p.N, "INT", "queries");
    shown_if(
        takes(step_, &Support::cross),
        option("Problem", "--nk", p.Nk, "INT", "keys")->default_str(few_queries_ ? "1024" : "--n"));
    option("Problem", "--d", p.d, "INT", "head dimension: " + step_.support.list_d());
    flag("Problem", "--causal", p.causal, "queries do not see later keys");
  }

  void add_inputs() {
    InputFiles& files = o_.files;
    input_ = option("Input", "--input", o_.input, "NAME",
                    backward_ ? "where Q, K, V and dO come from" : "where Q, K and V come from")
                 ->check(CLI::IsMember({"real", "normal", "outliers"}));
    seed_ = option("Input", "--seed", o_.seed, "INT", "seed of the random numbers");
    option("Input", "--q", files.q, "F.npy", "Q [B, H, N, d]; files decide the sizes");
    option("Input", "--k", files.k, "F.npy", "K [B, Hkv, Nk, d]");
    shown_if(!latent_, option("Input", "--v", files.v, "F.npy", "V [B, Hkv, Nk, d]"));
    shown_if(backward_,
             option("Input", "--do", files.dO, "F.npy", "dO [B, H, N, d], for the backward"));
  }

  void add_outputs() {
    option("Output", "--out", o_.out, "F.npy", "write O");
    option("Output", "--out-dir", o_.out_dir, "DIR",
           backward_ ? "write O, LSE, dQ, dK, dV as .npy" : "write O and LSE as .npy");
    option("Output", "--json", o_.json, "F.json", "write the report as JSON (docs/json.md)");
    flag("Output", "--details", o_.details,
         "print the bytes of each buffer, errors, and what limits each kernel");
    shown_if(sim_, option("Output", "--trace", o_.trace, "F.json",
                          "write what each block reads and writes, in order (docs/json.md); "
                          "Perfetto opens the file"));
  }

  void add_run() {
    chosen_ = option("Run", "--variant", variant_name_, "NAME", "which of the step's variants");
    if (step_.support.smem) {
      option("Run", "--smem", smem_, "BYTES", "shared memory M per block; 0: the step's default");
    }
    shown_if(!sim_,
             option("Run", "--iters", o_.iters, "INT", "timed runs")->default_str("3 to 50"));
    model_ = shown_if(sim_, option("Run", "--gpu", o_.model_gpu, "NAME",
                                   "the GPU that the simulator models (common/data/gpus.json)"));
    shown_if(sim_, option("Run", "--estimate-heads", o_.estimate_heads, "INT",
                          "estimate the time for this many such heads; 0: for those that run. The "
                          "default fills a GPU, except where queries are few")
                       ->default_str(few_queries_ ? "0" : "128"));
    shown_if(!sim_, option("Run", "--estimate", o_.estimate, "F.json",
                           "a simulator's report, whose estimate stands beside the measured time"));
    flag("Run", "--predict", o_.predict,
         "print the formulas' predictions and run nothing; for any size");
    flag("Run", "--no-predict", o_.no_predict,
         "predict and compare nothing: for a kernel that has no formulas yet");
    shown_if(sim_, flag("Run", "--analyse", o_.analyse,
                        "find races and uninitialised reads; one row per source line"));
    shown_if(!sim_, flag("Run", "--no-counters", no_counters_,
                         "time only; reading the counters takes seconds"));
    shown_if(!sim_, flag("Run", "--only-hbm", o_.only_hbm, "of the counters those of HBM: faster"));
    shown_if(sim_,
             option("Run", "--workers", o_.workers, "INT",
                    "the simulator's OS threads; 0: one per core, up to 16; use 1 in a debugger"));
  }

  // --- reading ---

  /// \returns whether the program is to run, rather than to print a text
  bool read(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      o_.text = help();
      return false;
    } catch (const CLI::CallForVersion& e) {
      o_.text = std::string(e.what()) + "\n";
      return false;
    } catch (const CLI::ExtrasError&) {
      const std::string first = app_.remaining().front();
      if (!first.starts_with("--")) refuse("unknown argument {}{}", first, see_help_);
      refuse("this step has no option {}{}", first, see_help_);
    } catch (const CLI::ConversionError& e) {
      refuse_number(one_line(e.what()));
    } catch (const CLI::ParseError& e) {
      throw UsageError(one_line(e.what()) + see_help_);
    }
    read_seed();
    o_.model_chosen = !model_->empty();
    o_.n_given = given("--n"), o_.nk_given = given("--nk");
    o_.counters = !no_counters_;
    if (describes_) o_.text = describe(step_) + "\n", o_.verbatim = true;
    return !describes_;
  }

  std::string help() const {
    std::string text = app_.help();
    // CLI11 adds an empty line to the last group where only hidden options follow.
    const size_t at = text.find("\n\n\nVariants");
    if (at != text.npos) text.erase(at, 1);
    return text;
  }

  bool given(const char* flag) const { return app_.count(flag) > 0; }

  /// \param words  CLI11's: "Could not convert: --n = 64.5"
  [[noreturn]] void refuse_number(const std::string& words) const {
    const size_t option = words.find("--"), equals = words.find(" = ");
    if (equals == std::string::npos || option > equals) throw UsageError(words + see_help_);
    const std::string name = words.substr(option, equals - option);
    const CLI::Option* of = app_.get_option_no_throw(name);
    refuse("{} {}: must be a {}number, and not too large{}", name, words.substr(equals + 3),
           of && of->get_type_name() == "FLOAT" ? "" : "whole ", see_help_);
  }

  /// CLI11 lets a negative number or a larger one wrap.
  void read_seed() {
    if (seed_->empty()) return;
    const std::string& text = seed_->results().back();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, o_.seed);
    if (error != std::errc() || stop != end) {
      refuse("--seed {}: must be a whole number from 0 to 2^64 - 1{}", text, see_help_);
    }
  }

  // --- checks, and the problem ---

  void check_run() {
    const Options& o = o_;
    if (o.predict && (o.analyse || !o.out.empty() || !o.out_dir.empty() || !o.trace.empty())) {
      throw UsageError(
          "--predict runs nothing, so there is no output and nothing to analyse or to trace");
    }
    if (o.predict && o.no_predict) {
      throw UsageError(
          "--predict prints the formulas' predictions and --no-predict none: give one");
    }
    if (o.iters < 1 && given("--iters")) refuse("--iters {}: must be at least 1", o.iters);
    for (const StepOption& each : step_.options) {
      if (!each.integer || each.integer(o_) >= each.least) continue;
      refuse("{} {}: must be at least {}", each.name, each.integer(o_), each.least);
    }
    if (smem_ < 0) refuse("--smem {}: bytes cannot be negative", smem_);
    if (o.estimate_heads < 0) {
      refuse("--estimate-heads {}: must be 0 (as many as run) or a multiple of the heads that run",
             o.estimate_heads);
    }
    if (o.workers < 0 || o.workers > kMaxWorkers) {
      refuse("--workers {}: must be 0 to {}", o.workers, kMaxWorkers);
    }
  }

  void set_sizes() {
    Problem& p = o_.problem;
    p.method.smem = static_cast<size_t>(smem_);
    if (!given("--hkv")) p.Hkv = latent_ ? 1 : p.H;
    if (!o_.nk_given && !few_queries_) p.Nk = p.N;
    if (o_.files.any()) sizes_from_files(app_, o_);
  }

  void choose_variant() {
    Problem& p = o_.problem;
    o_.variant = chosen_->empty() ? default_variant(step_, find_gpu(o_.model_gpu).arch, p)
                                  : find_variant(step_, variant_name_);
    const Variant& v = step_.variants[o_.variant];
    if (latent_ && !o_.files.v.empty()) {
      refuse("--v {}: V is the first {} features of K, --k", o_.files.v, v.extras.latent);
    }
    require_files_apart(v);
    require_use(v);
    p = problem_for(v, p);
    validate(p, step_, v);
  }

  /// Refuses an output that would replace an input or another output.
  void require_files_apart(const Variant& v) const {
    struct Named {
      const char* flag;
      std::string path;
    };
    const Options& o = o_;
    std::vector<Named> inputs = {{"--q", o.files.q},
                                 {"--k", o.files.k},
                                 {"--v", o.files.v},
                                 {"--do", o.files.dO},
                                 {"--estimate", o.estimate}};
    for (size_t i = 0; i < values_.size(); ++i) {
      const StepOption& each = step_.options[i];
      if (std::string_view(each.type).ends_with("F.npy")) inputs.push_back({each.name, values_[i]});
    }
    for (const char* name : {"q.npy", "k.npy", "v.npy", "gpus.json"}) {
      inputs.push_back({"the program", data_file(name)});
    }
    std::vector<Named> outputs = {{"--out", o.out}, {"--json", o.json}, {"--trace", o.trace}};
    for (const Tensor* t : tensors_of(v, o.problem)) {
      if (t->output && !o.out_dir.empty()) {
        outputs.push_back({"--out-dir", output_path(o.out_dir, *t)});
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (const Named& in : inputs) {
        if (!same_file(outputs[i].path, in.path)) continue;
        refuse("{} {}: {} reads this file; give it another name", outputs[i].flag, outputs[i].path,
               in.flag);
      }
      for (size_t j = i + 1; j < outputs.size(); ++j) {
        if (!same_file(outputs[i].path, outputs[j].path)) continue;
        refuse("{} {}: {} writes the same file; give each its own", outputs[i].flag,
               outputs[i].path, outputs[j].flag);
      }
    }
  }

  /// Refuses options of generated inputs where files give all inputs.
  void require_use(const Variant& v) const {
    if (!o_.files.all()) return;
    if (!input_->empty()) refuse("--input {}: Q, K and V come from files; leave it out", o_.input);
    bool draws = v.backward && o_.files.dO.empty();
    for (size_t i = 0; i < values_.size(); ++i) {
      const StepOption& each = step_.options[i];
      draws = draws || (each.drawn && values_[i].empty() && each.drawn(o_.problem));
    }
    if (!seed_->empty() && !draws) {
      refuse("--seed {}: all input comes from files; leave it out", o_.seed);
    }
  }

  void set_estimate_heads() {
    const int64_t heads = static_cast<int64_t>(o_.problem.heads());
    if (simulated() && !given("--estimate-heads") && !few_queries_) {
      // The first multiple that fills a GPU. With few queries the splits of keys should do that.
      o_.estimate_heads = (int64_t(kFullGpuHeads) + heads - 1) / heads * heads;
    }
    if (o_.estimate_heads == 0) o_.estimate_heads = heads;
    if (o_.estimate_heads % heads != 0) {
      refuse("--estimate-heads {}: must be a multiple of the {} heads that run", o_.estimate_heads,
             heads);
    }
  }

  const Step& step_;
  const bool sim_ = simulated();
  const bool few_queries_ = step_.support.most_n != 0;  // a step for few queries has many keys
  const bool latent_ = step_.variants.back().extras.latent != 0;  // one K for all heads, and no V
  const bool backward_ = std::any_of(step_.variants.begin(), step_.variants.end(),
                                     [](const Variant& v) { return bool(v.backward); });
  CLI::App app_;
  const std::string see_help_;
  Options o_;
  std::string variant_name_;
  std::vector<std::string> values_;  // of Step::options that are texts or files; else empty
  int64_t smem_ = 0;                 // signed, so that -1 is refused as it was typed
  bool describes_ = false, no_counters_ = false;
  const CLI::Option *input_ = nullptr, *seed_ = nullptr, *chosen_ = nullptr, *model_ = nullptr;
};

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
  return CommandLine(step).parse(argc, argv);
}

}  // namespace fa
