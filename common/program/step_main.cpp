// The program of a step: parse, allocate, check, count, time, print.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "common/counts/backend.h"
#include "common/counts/estimate.h"
#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/harness/check.h"
#include "common/harness/cli.h"
#include "common/harness/inputs.h"
#include "common/harness/npy.h"
#include "common/harness/reference.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/step.h"
#include "common/harness/trace_file.h"
#include "common/program/program.h"

namespace fa {

namespace fs = std::filesystem;

namespace {

/// \throws UsageError when an output of the command line cannot be written. No file changes.
void require_writable_outputs(const Options& o) {
  require_writable("--out", o.out);
  require_writable("--json", o.json);
  require_writable("--trace", o.trace);
  if (o.out_dir.empty()) return;
  std::error_code error;
  fs::create_directories(o.out_dir, error);
  if (error) refuse("--out-dir {}: cannot be created: {}", o.out_dir, error.message());
  for (const Tensor& t : all_tensors()) {
    const fs::path path = output_path(o.out_dir, t);
    if (t.output && (!t.there || fs::exists(path, error))) require_writable("--out-dir", path);
  }
}

Inputs make_inputs(const Options& o, bool with_dO) {
  const auto make = o.input == "normal" || o.files.all() ? normal_inputs
                    : o.input == "outliers"              ? outlier_inputs
                                                         : real_inputs;
  Inputs in = make(o.problem, o.seed, with_dO);
  if (o.files.any()) {
    load_inputs(o.files, o.problem, in);
    if (!in.note.empty()) in.note = "files input, the rest " + in.note;
  }
  if (o.problem.cache.page != 0) {
    in.table = o.table.empty() ? shuffled_table(o.problem, o.seed) : o.table;
  }
  return in;
}

std::optional<ParentTraffic> parent_traffic(const Parent& parent, PredictFn traffic,
                                            const Problem& problem) {
  if (!traffic) return std::nullopt;
  Problem same = problem;
  if (!parent.support.smem) same.method.smem = 0;  // its tiles have another size
  same.cache.fp8 = parent.extras.cache8;
  try {
    validate(same, parent.support);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return ParentTraffic{parent.id, traffic(same).total()};
}

Pass predict(const Step& step, const char* name, const Options& o, PredictFn traffic, double flops,
             const std::string& parent = {}, PredictFn Parent::*parents = nullptr) {
  if (o.predict && !traffic) {
    throw UsageError(std::string("the step has no traffic formula for its ") + name);
  }
  Pass pass;
  pass.name = name;
  pass.flops = flops;
  pass.predicts = traffic && !o.no_predict;
  if (pass.predicts) {
    pass.predicted = traffic(o.problem);
    if (!parent.empty()) {
      const Parent before = parent_of(step, parent);
      pass.parent = parent_traffic(before, before.*parents, o.problem);
    }
  }
  return pass;
}

/// --out and --out-dir.
void write_outputs(const Options& o, const Outputs& out) {
  if (!o.out.empty()) write_npy(o.out, tensor_of("O").shape(o.problem), out.O);
  if (o.out_dir.empty()) return;
  for (const Tensor& t : all_tensors()) {
    if (!t.output || (out.*t.output).empty()) continue;
    write_npy(output_path(o.out_dir, t), t.shape(o.problem), out.*t.output);
  }
}

}  // namespace

GpuSpec modelled_gpu(const Options& o, const Step& step) {
  const GpuSpec gpu = find_gpu(o.model_gpu);
  if (o.model_chosen && !simulated()) {
    throw UsageError("--gpu is for the simulator: here the kernels run on this machine's GPU");
  }
  const Variant& v = step.variants[o.variant];
  const auto refuse = [&](const std::string& what, const std::string& needs) {
    fa::refuse("--gpu {}: {} needs {}, and this GPU is {}{}", o.model_gpu, what, needs, gpu.arch,
               given_up_by(gpu.arch, needs));
  };
  if (!simulated()) return gpu;
  if (!runs_on(gpu.arch, step.needs)) refuse("this step", step.needs);
  if (!runs_on(gpu.arch, needs_of(step, v))) refuse("variant " + v.name, step.newer);
  return gpu;
}

namespace {

/// \returns 0, or the errno that says why output was lost.
int flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return 0;
  return errno == 0 ? EIO : errno;
}

/// Is standard output a terminal, and colour not disabled (https://no-color.org)? A rank's output
/// counts as a terminal only where the rank runs alone: mpirun reads it through a pipe.
bool in_colour() {
  const char *const none = std::getenv("NO_COLOR"), *const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && !(none && *none) &&
         !(terminal && std::string(terminal) == "dumb");
}

/// A program whose output was lost has failed.
void require_printed(int error) {
  if (error == 0) return;
  throw ResourceError(fmt::format("standard output cannot be written: {}", std::strerror(error)));
}

/// Calls `f` on every rank. \throws Failure on all ranks when it failed on any.
void on_all(World& world, auto&& f) {
  const std::vector<Failure> all = world.all(failure_of(f));
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const Failure& each) { return each.status != kRight; });
  if (first == all.end()) return;
  const bool everywhere = std::count(all.begin(), all.end(), *first) == world.size();
  const std::string who = everywhere ? "" : fmt::format("rank {}: ", first - all.begin());
  throw Failure{first->status, who + first->sentence};
}

/// The options that must be equal on all ranks, one "--flag value" each.
std::vector<std::string> told(const Options& o, const Step& step, const World& world) {
  const Problem& p = o.problem;
  std::vector<std::string> all = {step.id, "--variant " + step.variants[o.variant].name};
  const auto add = [&all](const char* flag, const auto& value) {
    all.push_back(fmt::format("{} {}", flag, value));
  };
  for (const Size& size : kSizes) add(size.flag, p.*size.of);
  add("--causal", p.causal);
  add("--input", o.input);
  add("--seed", o.seed);
  add("--q", o.files.q);
  add("--k", o.files.k);
  add("--v", o.files.v);
  add("--do", o.files.dO);
  add("--iters", o.iters);
  add("--predict", o.predict);
  add("--out-dir", o.out_dir);
  add("messages by", world.carrier());
  return all;
}

/// \throws Failure with the first difference from rank 0.
void require_alike(World& world, const std::vector<std::string>& mine) {
  const auto all = world.all(mine);
  for (size_t r = 1; r < all.size(); ++r) {
    const auto [first, other] = std::mismatch(all[0].begin(), all[0].end(), all[r].begin());
    if (first == all[0].end()) continue;
    throw Failure{kBadUse, fmt::format("rank {} was started with {}, rank 0 with {}: give all "
                                       "ranks the same problem",
                                       r, *other, *first)};
  }
}

void require_one_rank(bool given, const std::string& flag) {
  if (given) throw UsageError(flag + " works with one rank: start it without mpirun");
}

Options parse(int argc, const char* const* argv, const Step& step, const World& world) {
  const Options o = parse(argc, argv, step);
  if (!o.text.empty() || world.alone()) return o;
  const Variant& v = step.variants[o.variant];
  require_one_rank(!v.extras.sharding, "--variant " + v.name);
  require_one_rank(!o.trace.empty(), "--trace");
  require_one_rank(!o.estimate.empty(), "--estimate");
  v.extras.sharding->validate(o.problem, world.size());
  return o;
}

// --- rows of a sequence --------------------------------------------------------------------------

/// Calls f(row of the whole tensor, row of the rank's part) for each row of the rank.
void for_rows(const std::vector<Rows>& ranges, const Layout& whole, auto&& f) {
  size_t at = 0;
  for (size_t h = 0; h < whole.matrices; ++h) {
    for (const Rows& rows : ranges) {
      for (int r = rows.begin; r < rows.end; ++r) f(h * whole.rows + r, at++);
    }
  }
}

/// A rank's rows of a tensor.
std::vector<float> cut(const std::vector<float>& whole, const std::vector<Rows>& ranges,
                       const Layout& all) {
  std::vector<float> part(all.matrices * count_rows(ranges) * all.columns);
  for_rows(ranges, all, [&](size_t from, size_t to) {
    std::copy_n(&whole[from * all.columns], all.columns, &part[to * all.columns]);
  });
  return part;
}

void paste(const std::vector<float>& part, const std::vector<Rows>& ranges, const Layout& all,
           std::vector<float>& whole) {
  whole.resize(all.matrices * all.rows * all.columns);
  for_rows(ranges, all, [&](size_t to, size_t from) {
    std::copy_n(&part[from * all.columns], all.columns, &whole[to * all.columns]);
  });
}

struct Prepared {
  Options of;
  Inputs inputs;
  std::optional<Checker> checker;  ///< of rank 0

  /// Was it made with these options? Files may have changed since.
  bool serves(const Options& o, bool with_dO) const {
    const auto made_here = [](const Options& each) {
      return !each.files.any() && each.table.empty();
    };
    return made_here(of) && made_here(o) && of.problem == o.problem && of.input == o.input &&
           of.seed == o.seed && (!with_dO || !inputs.dO.empty());
  }
};

/// The last one that a single rank made: the next run of this process may need the same.
std::shared_ptr<Prepared>& kept() {
  static std::shared_ptr<Prepared> last;
  return last;
}

/// One run of one step, on one rank or on several, which share the problem by its Sharding.
class Run {
 public:
  Run(const Step& step, const Options& options, World& world)
      : step_(step),
        options_(options),
        world_(world),
        problem_(options.problem),
        variant_(step.variants[options.variant]),
        sharding_(world.alone() ? nullptr : variant_.extras.sharding.get()) {}

  int operator()() {
    world_.look_for_gpus();
    on_all(world_, [&] { open(); });
    std::string mine;
    on_all(world_, [&] { mine = world_.open_own(); });
    const std::vector<std::string> all_own = world_.all(mine);
    on_all(world_, [&] { world_.meet(all_own); });
    if (sharding_) report_.on_ranks->carrier = world_.carrier();
    if (!options_.predict) {
      on_all(world_, [&] { allocate(); });
      compute();
    }
    int status = kRight;
    if (world_.rank() == 0) {
      print();
      if (!options_.predict && !report_.ok()) {
        status = report_.not_checkable() ? kNotCheckable : kWrong;
      }
    }
    world_.close_peers();
    return world_.all(status)[0];
  }

 private:
  // --- before kernels run ---

  void open() {
    const Options& options = options_;
    report_.model = modelled_gpu(options, step_);
    report_.estimate_heads = static_cast<uint64_t>(options.estimate_heads);
    SimOptions sim{.gpu = report_.model, .workers = options.workers};
    if (!sharding_) sim.times = times();
    if (sharding_ && sim.workers == 0) {  // the cores are shared, too
      const int cores = std::max(1u, std::thread::hardware_concurrency());
      sim.workers = std::max(1, cores / world_.local_size());
    }
    configure(sim);
    if (world_.rank() == 0) require_writable_outputs(options);
    report_.device = world_.open(step_, variant_);
    options_.problem.gpu = problem_.gpu = this_gpu();
    report_.predicted_only = options.predict;
    refuse_what_does_nothing();
    report_.step = step_.id;
    report_.idea = step_.idea;
    report_.variant = variant_.name;
    report_.variant_index = options.variant;
    report_.variant_idea = variant_.idea;
    report_.problem = problem_;
    report_.input = options.files.any() ? "files" : options.input;
    report_.seed = options.seed;
    sharding_ ? predict_ranks() : predict_passes();
  }

  void refuse_what_does_nothing() const {
    const Options& o = options_;
    const auto refuse = [](bool given, bool useful, const std::string& sentence) {
      if (given && !useful) throw UsageError(sentence);
    };
    const auto in_simulator = [&](bool given, const char* flag) {
      refuse(given, simulated(),
             std::string(flag) + " works only in the simulator: cmake --preset sim");
    };
    in_simulator(o.analyse, "--analyse");
    in_simulator(!o.trace.empty(), "--trace");
    refuse(!o.estimate.empty(), !simulated(),
           "--estimate needs a GPU, whose time the estimate is compared with");
    in_simulator(times() != 1, "--estimate-heads");
    refuse(!o.counters, !simulated(), "--no-counters needs a GPU: the simulator measures no time");
    refuse(o.only_hbm, !simulated(), "--only-hbm needs a GPU, whose counters it chooses");
  }

  void predict_passes() {
    if (variant_.advice) report_.advice = variant_.advice(problem_);
    if (variant_.extras.cache) report_.cache = variant_.extras.cache(problem_);
    const Predicate& mask = problem_.mask.predicate;
    if (const double scores = double(problem_.N) * problem_.Nk; mask.sees && scores >= 1e8) {
      const std::string words =
          fmt::format("the host calls --mask {} for each of {:.1e} scores, several times",
                      text_of(mask), scores);
      std::fputs(wrapped("note: ", words, 2).c_str(), stderr);
    }
    report_.memory = memory_need(problem_, variant_, options_.table);
    if (!options_.predict) require_memory(report_.memory);
    if (variant_.prepare) {
      report_.prepare = predict(step_, "prepare", options_, variant_.prepare_traffic, 0);
    }
    report_.forward =
        predict(step_, "forward", options_, variant_.traffic, problem_.flops_forward(),
                variant_.parent.empty() ? variant_.forward_of : variant_.parent, &Parent::traffic);
    report_.forward_of = variant_.forward_of;
    if (variant_.backward) {
      report_.backward =
          predict(step_, "backward", options_, variant_.backward_traffic, problem_.flops_backward(),
                  variant_.backward_parent, &Parent::backward_traffic);
    }
    if (!options_.estimate.empty()) read_estimates(options_.estimate, report_);
  }

  void predict_ranks() {
    report_.forward.name = "forward";
    report_.forward.flops = problem_.flops_forward();
    report_.forward.predicts = false;
    const int n = world_.size();
    report_.on_ranks.emplace();
    for (int r = 0; r < n; ++r) {
      report_.on_ranks->ranks.push_back(
          {sharding_->predict(problem_, r, n), sharding_->rows(problem_, r, n), {}, {}});
    }
    if (options_.predict) return;
    // Gradients are checked in whole heads.
    constexpr double kMostScores = 5e7;  // per head: a few seconds
    report_.on_ranks->gradients_checked = double(problem_.N) * problem_.N <= kMostScores;
  }

  void allocate() {
    prepare();
    report_.input_note = prepared_->inputs.note;
    if (sharding_) {
      allocate_part();
    } else {
      session_.emplace(problem_, prepared_->inputs, variant_);
    }
  }

  void prepare() {
    const bool with_dO = variant_.backward || sharding_;
    if (world_.alone() && kept() && kept()->serves(options_, with_dO)) {
      prepared_ = kept();
      return;
    }
    if (world_.alone()) kept() = nullptr;  // before the next one takes as much memory
    prepared_ = std::make_shared<Prepared>();
    Prepared& p = *prepared_;
    p.of = options_;
    p.inputs = make_inputs(options_, with_dO);
    if (options_.files.any()) require_range(problem_, p.inputs, bool(variant_.backward));
    if (world_.rank() == 0) {
      p.checker.emplace(p.of.problem, p.inputs, sample_of(p.of.problem, p.of.seed));
    }
    if (world_.alone()) kept() = prepared_;
  }

  void allocate_part() {
    const std::vector<Rows>& rows = me().rows;
    Inputs mine;
    for (const Tensor& t : all_tensors()) {
      if (t.file) mine.*t.input = cut(prepared_->inputs.*t.input, rows, t.layout(problem_));
    }
    if (world_.rank() != 0) prepared_->inputs = {};
    Problem local = problem_;
    local.N = local.Nk = count_rows(rows);
    attention_ = sharding_->make(problem_, world_);
    Variant v = variant_;
    v.workspace = nullptr;
    v.forward = Runner(problem_.dtype,
                       [this](const Problem&, const Tensors<void>& t) { attention_->forward(t); });
    if (v.backward) {
      v.backward = Runner(problem_.dtype, [this](const Problem&, const Tensors<void>& t) {
        attention_->backward(t);
      });
    }
    session_.emplace(local, mine, v);
    const MemoryNeed need = memory_need(local, v);
    me().seen.memory = need.inputs + need.outputs;
  }

  // --- the sequence ---

  void compute() {
    try {
      // In the simulator the counted run is the checked one: twice would take twice as long.
      for (const SessionPass& p : passes()) {
        sharding_ ? part_of_pass(p) : simulated() ? count_pass(p) : (*session_.*p.run)();
      }
      Outputs first = session_->download();
      check_outputs(sharding_ ? whole(first) : std::move(first));
      if (sharding_) {
        again_with_same_bits(first);
        if (!simulated()) time_ranks();
        tell_counts();
      } else if (report_.check.ok() && (!simulated() || session_->keeps_state())) {
        simulated() ? run_again() : count_and_time();
        check_again(session_->download());
      }
      report_.analysed = !sharding_ && report_.forward.seen.analysed > 0;
      if (!sharding_) bound_passes();
    } catch (const KernelStopped& e) {
      if (sharding_) throw;
      report_.findings = e.sentences();
    }
  }

  struct SessionPass {
    Pass* pass;  ///< null: a rank's backward, of which the report has only the bytes
    void (Session::*run)();
    void (Session::*forget)();  ///< poisons what it wrote
    PassCount RankCount::*count = nullptr;
  };
  /// In execution order.
  std::vector<SessionPass> passes() {
    std::vector<SessionPass> found;
    if (report_.prepare) {
      found.push_back({&*report_.prepare, &Session::prepare, &Session::forget_prepare});
    }
    found.push_back(
        {&report_.forward, &Session::forward, &Session::forget_forward, &RankCount::forward});
    if (variant_.backward) {
      found.push_back({report_.backward ? &*report_.backward : nullptr, &Session::backward,
                       &Session::forget_backward, &RankCount::backward});
    }
    return found;
  }

  void check_outputs(const Outputs& all) {
    if (world_.rank() != 0) return;
    report_.check = check(all);
    write_outputs(options_, all);
  }

  /// Checks the last timed run, after NaN. The first one may be right by fresh memory alone.
  void check_again(const Outputs& all) {
    if (world_.rank() != 0) return;
    const CheckResult again = check(all);
    if (!report_.again) report_.again = "";
    for (const TensorCheck& t : again.tensors) {
      if (!t.ok && !t.lost && report_.again->empty()) report_.again = t.message;
    }
    if (!sharding_ && !again.damage.empty()) report_.again = again.damage[0];
  }

  void print() {
    const Screen screen{.details = options_.details, .colour = world_.alone() && in_colour()};
    std::fputs(text(report_, screen).c_str(), stdout);
    const int lost = flush_stdout();  // before a --json /dev/stdout
    if (!options_.json.empty()) {
      write_file(options_.json,
                 [&](std::ostream& file) { file << to_json(report_).dump(2) << "\n"; });
    }
    if (!options_.trace.empty() && !options_.predict) {
      report_.findings.empty() ? write_trace() : drop_trace();
    }
    require_printed(lost);
  }

  // --- one rank ---

  void write_trace() const {
    fa::write_trace(options_.trace, trace_, report_.step, report_.variant, report_.model.name,
                    problem_);
  }

  /// A kernel was stopped: the trace is incomplete, and an older one must not pass for it.
  void drop_trace() const {
    std::error_code ignored;
    if (fs::is_regular_file(options_.trace, ignored)) {
      fs::remove(fs::canonical(options_.trace, ignored), ignored);
    }
    std::fprintf(stderr, "%s: --trace %s: not written, because of the finding\n",
                 report_.step.c_str(), options_.trace.c_str());
  }

  void count_pass(const SessionPass& p) {
    Pass& pass = *p.pass;
    const auto start = std::chrono::steady_clock::now();
    const bool crowded = times() * double(report_.memory.total()) > report_.model.l2_bytes;
    pass.seen = count([&] { (*session_.*p.run)(); }, {.analyse = options_.analyse,
                                                      .counters = options_.counters,
                                                      .only_hbm = options_.only_hbm,
                                                      .times = crowded ? times() : 1,
                                                      .trace = !options_.trace.empty()});
    if (pass.seen.trace) trace_.append(*std::exchange(pass.seen.trace, {}), pass.name);
    if (simulated()) {
      pass.estimate = estimate(pass.seen, report_.model, times());
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      pass.host_ms = took.count();
    }
  }

  /// Number of problems like this one over which times are estimated.
  double times() const { return double(options_.estimate_heads) / double(problem_.heads()); }

  void run_again() {
    for (const SessionPass& p : passes()) {
      (*session_.*p.forget)();
      (*session_.*p.run)();
    }
  }

  void count_and_time() {
    for (const SessionPass& p : passes()) count_pass(p);
    for (const SessionPass& p : passes()) {
      try {
        p.pass->time = time_gpu([&] { (*session_.*p.run)(); }, options_.iters,
                                [&] { (*session_.*p.forget)(); });
      } catch (const ResourceError& e) {  // print a checked result even without a time
        std::string& note = p.pass->seen.note;
        note += (note.empty() ? "" : "; ") + std::string(e.what());
      }
    }
    report_.roofs = measured_roofs();
  }

  void bound_passes() {
    for (const SessionPass& p : passes()) bound_pass(*p.pass);
  }

  /// By the modelled GPU's data sheet in the simulator, by the measured roofs on a GPU.
  void bound_pass(Pass& pass) {
    const DType t = problem_.dtype;
    const GpuSpec& gpu = report_.model;
    double bytes_per_s = 0, flops_per_s = 0;
    if (simulated()) {
      bytes_per_s = gpu.hbm_bytes_per_s;
      flops_per_s = problem_.method.fp8 ? gpu.fp8_flops
                    : t == DType::f32   ? gpu.fp32_flops
                                        : gpu.bf16_flops;
    } else if (report_.roofs) {
      bytes_per_s = report_.roofs->copy_bytes_per_s;
      flops_per_s = problem_.method.fp8 ? 0
                    : t == DType::f32   ? report_.roofs->fp32_flops
                                        : report_.roofs->bf16_flops;
    }
    if (!pass.seen.hbm && !pass.predicts) return;
    const Bytes hbm = pass.seen.hbm.value_or(pass.predicted.hbm);
    pass.bound =
        roofline(double(hbm.total()), double(pass.flops_executed()), bytes_per_s, flops_per_s);
  }

  // --- several ranks ---

  RankReport& me() { return report_.on_ranks->ranks[world_.rank()]; }

  void part_of_pass(const SessionPass& p) {
    const uint64_t before = world_.bytes_sent();
    PassCount& seen = me().seen.*p.count;
    const auto run = [&] { (*session_.*p.run)(); };
    if (simulated()) {
      // Counting only bytes is faster.
      const bool all = options_.analyse || times() != 1;
      const Counts counts =
          count(run, {.analyse = options_.analyse, .counters = all, .times = times()});
      if (counts.requested) seen.requested = counts.requested->total();
      if (const auto e = estimate(counts, report_.model, times())) {
        seen.estimated_ms = 1e3 * e->seconds;
        seen.limited_by = name_of(e->limit());
      }
    } else {
      run();
    }
    world_.synchronize();
    seen.sent = world_.bytes_sent() - before;
  }

  /// All ranks' outputs, on rank 0.
  Outputs whole(const Outputs& mine) {
    Outputs all;
    for (const Tensor* t : tensors_of(variant_, problem_)) {
      const bool wanted = t->role == Role::output || report_.on_ranks->gradients_checked ||
                          !options_.out_dir.empty();
      if (!t->output || !wanted) continue;
      const std::vector<std::vector<float>> parts = world_.gather(mine.*t->output);
      for (size_t r = 0; r < parts.size(); ++r) {
        if (parts[r].empty()) continue;
        paste(parts[r], report_.on_ranks->ranks[r].rows, t->layout(problem_), all.*t->output);
      }
    }
    const std::vector<std::vector<std::string>> damages = world_.all(mine.damage);
    for (size_t r = 0; r < damages.size(); ++r) {
      for (const std::string& damage : damages[r]) {
        all.damage.push_back(fmt::format("rank {}: {}", r, damage));
      }
    }
    return all;
  }

  CheckResult check(const Outputs& all) {
    if (!sharding_ || report_.on_ranks->gradients_checked) return (*prepared_->checker)(all);
    Outputs some = all;
    some.dQ = some.dK = some.dV = {};
    return (*prepared_->checker)(some);
  }

  /// A second run finds the memory that the first one left; its forward must give the same bits.
  void again_with_same_bits(const Outputs& first) {
    session_->poison();
    session_->forward();
    if (variant_.backward) session_->backward();
    world_.synchronize();
    const Outputs second = session_->download();
    const bool same = std::equal(first.O.begin(), first.O.end(), second.O.begin()) &&
                      std::equal(first.LSE.begin(), first.LSE.end(), second.LSE.begin());
    const std::vector<int> all = world_.all(int(same));
    report_.again = "";
    for (size_t r = 0; r < all.size(); ++r) {
      if (!all[r]) report_.again = fmt::format("rank {}: O or LSE has other bits", r);
    }
    check_again(whole(second));
  }

  void tell_counts() {
    me().seen.workspace = attention_->workspace_bytes();
    const std::vector<RankCount> all = world_.all(me().seen);
    for (size_t r = 0; r < all.size(); ++r) {
      report_.on_ranks->ranks[r].seen = all[r];
      report_.memory.workspace = std::max<size_t>(report_.memory.workspace, all[r].workspace);
    }
  }

  /// The slowest rank's, in each run.
  void time_ranks() {
    const auto forward = [this] { session_->forward(); };
    report_.forward.time = time_runs(forward);
    if (!variant_.backward) return;
    const auto both = [this] {
      session_->forward();
      session_->backward();
    };
    report_.on_ranks->both = time_runs(both);
    world_.barrier();
    world_.begin_trace();
    both();
    world_.synchronize();
    const std::vector<std::vector<Span>> all = world_.all(world_.end_trace());
    for (size_t r = 0; r < all.size(); ++r) report_.on_ranks->ranks[r].lanes = all[r];
  }

  /// The number of runs that take this long, the same on every rank.
  int runs_in(double all_ms, double one_ms) {
    return world_.all(1 + int(all_ms / std::max(one_ms, 0.1)))[0];
  }

  /// Runs that follow one another without a pause, as the layers of a model do, share the time of a
  /// batch: the host is ahead of the GPU, so no run contains its latency. Before them the GPUs stay
  /// busy until their clocks are steady: H100s seem to lower them between 0.7 and 1 s after they
  /// start to work (steps/14_ring/worklog.md).
  Timing time_runs(const std::function<void()>& run) {
    constexpr double kWarmUpMs = 2000, kBatchMs = 20;
    const int iters = options_.iters > 0 ? options_.iters : 50;
    double one = 0;
    for (int i = 0; i < 3; ++i) one = world_.time_run(run);
    const int warm_up = runs_in(kWarmUpMs, one), batch = runs_in(kBatchMs, one);
    for (int i = 0; i < warm_up; ++i) world_.time_run(run);
    std::vector<double> ms;
    for (int i = 0; i < iters; ++i) {
      world_.barrier();
      ms.push_back(world_.time_run([&] {
        for (int k = 0; k < batch; ++k) run();
      }) / batch);
    }
    for (const std::vector<double>& theirs : world_.all(ms)) {
      for (size_t i = 0; i < ms.size(); ++i) ms[i] = std::max(ms[i], theirs[i]);
    }
    return timing_of(std::move(ms));
  }

  const Step& step_;
  Options options_;
  World& world_;
  Problem problem_;
  const Variant& variant_;
  const Sharding* sharding_;  // null: this rank has the whole problem
  RunReport report_;
  Trace trace_;
  std::shared_ptr<Prepared> prepared_;
  std::unique_ptr<RankAttention> attention_;
  std::optional<Session> session_;
};

/// The system clears pages of new allocations, which takes longer than the host's computation.
void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

/// Warns when a .cuh of the step is newer than this program in build/<folder>/steps/.
void warn_if_stale() {
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  const fs::path steps = program.parent_path(), preset = steps.parent_path();
  const fs::path sources = preset.parent_path().parent_path() / "steps" / program.filename();
  const auto built = fs::last_write_time(program, none);
  if (none || steps.filename() != "steps") return;
  for (fs::directory_iterator file(sources, none), end; !none && file != end;
       file.increment(none)) {
    const auto changed = file->last_write_time(none);
    if (none || file->path().extension() != ".cuh" || changed <= built) continue;
    const std::string source = program.filename() / file->path().filename();
    const std::string note =
        wrapped("note: ", "steps/" + source + " is newer than this program; build it again:", 2);
    std::fputs(note.c_str(), stderr);
    std::fprintf(stderr, "  cmake --build build/%s --target %s\n", preset.filename().c_str(),
                 program.filename().c_str());
    return;
  }
}

}  // namespace

int complain(const Step& step, const Failure& failure) {
  std::fflush(stdout);
  const std::string who = step.id + ": ";
  const std::string text =
      isatty(STDERR_FILENO) ? fitted(wrapped(who, failure.sentence, 2), columns_of(STDERR_FILENO))
                            : who + failure.sentence + "\n";
  std::fputs(text.c_str(), stderr);
  return failure.status;
}

int run_program(int argc, char** argv, const Step& step, World& world) try {
  Options options;
  on_all(world, [&] { options = parse(argc, argv, step, world); });
  if (!options.text.empty()) {
    if (world.rank() != 0) return kRight;
    const std::string words =
        options.verbatim ? options.text : fitted(options.text, columns_of(STDOUT_FILENO));
    std::fputs(words.c_str(), stdout);
    require_printed(flush_stdout());
    return kRight;
  }
  if (world.rank() == 0) warn_if_stale();
  if (!simulated()) keep_freed_memory();
  world.set_limit(options.limit_s);
  require_alike(world, told(options, step, world));
  return Run(step, options, world)();
} catch (const Failure& failure) {  // of all ranks
  return world.rank() == 0 ? complain(step, failure) : failure.status;
} catch (...) {
  const Failure failure = failure_of([] { throw; });
  if (world.alone()) return complain(step, failure);
  world.end_all(failure.sentence, failure.status);
  return failure.status;
}

int step_main(int argc, char** argv, const Step& step) {
  World alone;
  return run_program(argc, argv, step, alone);
}

}  // namespace fa
