// The whole program behind a step's main(): parse, allocate, check, count, time, print.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>

#include "common/clock/clock.h"
#include "common/harness/backend.h"
#include "common/harness/check.h"
#include "common/harness/cli.h"
#include "common/harness/format.h"
#include "common/harness/inputs.h"
#include "common/harness/npy.h"
#include "common/harness/output_file.h"
#include "common/program/program.h"
#include "common/harness/reference.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/screen.h"
#include "common/harness/step.h"
#include "common/harness/trace.h"

namespace fa {

namespace fs = std::filesystem;

void require_writable_outputs(const Options& o) {
  require_writable("--out", o.out);
  require_writable("--json", o.json);
  require_writable("--trace", o.trace);
  if (o.out_dir.empty()) return;
  std::error_code error;
  fs::create_directories(o.out_dir, error);
  if (error) {
    throw UsageError(
        fmt::format("--out-dir {}: cannot be created: {}", o.out_dir, error.message()));
  }
  for (const Tensor& t : all_tensors()) {
    const fs::path path = output_path(o.out_dir, t);
    if (t.output && (!t.there || fs::exists(path, error))) require_writable("--out-dir", path);
  }
}

Inputs make_inputs(const Options& o) {
  Inputs in = o.input == "normal" || o.files.all() ? normal_inputs(o.problem, o.seed)
              : o.input == "outliers"              ? outlier_inputs(o.problem, o.seed)
                                                   : real_inputs(o.problem, o.seed);
  if (o.files.any()) {
    load_inputs(o.files, o.problem, in);
    if (!in.note.empty()) in.note = "files input, the rest " + in.note;
  }
  if (o.problem.cache.page != 0) {
    in.table = o.table.empty() ? shuffled_table(o.problem, o.seed) : o.table;
  }
  return in;
}

namespace {

std::optional<ParentTraffic> parent_traffic(const Parent& parent, PredictFn traffic,
                                            const Problem& problem) {
  if (!traffic) return std::nullopt;
  Problem same = problem;
  if (!parent.support.smem) same.method.smem = 0;  // it has tiles of its own size
  same.cache.fp8 = parent.cache8;
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

}  // namespace

void write_outputs(const Options& o, const Outputs& out) {
  if (!o.out.empty()) write_npy(o.out, tensor_of("O").shape(o.problem), out.O);
  if (o.out_dir.empty()) return;
  for (const Tensor& t : all_tensors()) {
    if (!t.output || (out.*t.output).empty()) continue;
    write_npy(output_path(o.out_dir, t), t.shape(o.problem), out.*t.output);
  }
}

namespace {

void write_json(const std::string& path, const RunReport& report) {
  write_file(path, [&](std::ostream& file) { file << to_json(report).dump(2) << "\n"; });
}

}  // namespace

GpuSpec modelled_gpu(const Options& o, const Step& step) {
  const GpuSpec gpu = find_gpu(o.model_gpu);
  if (o.model_chosen && !simulated()) {
    throw UsageError("--gpu is for the simulator: here the kernels run on this machine's GPU");
  }
  const Variant& v = step.variants[o.variant];
  const auto refuse = [&](const std::string& what, const std::string& needs) {
    throw UsageError(fmt::format("--gpu {}: {} needs {}, and this GPU is {}", o.model_gpu, what,
                                 needs, gpu.arch));
  };
  if (!simulated()) return gpu;
  if (!runs_on(gpu.arch, step.needs)) refuse("this step", step.needs);
  if (!runs_on(gpu.arch, needs_of(step, v))) refuse("variant " + v.name, step.newer);
  return gpu;
}

std::string words_of(const Options& o) {
  return o.verbatim ? o.text : fitted(o.text, columns_of(STDOUT_FILENO));
}

int flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return 0;
  return errno == 0 ? EIO : errno;
}

/// A program whose output was lost has failed.
void require_printed(int error) {
  if (error == 0) return;
  throw ResourceError(fmt::format("standard output cannot be written: {}", std::strerror(error)));
}

namespace {

/// One run of one step, in the order in which things happen.
class Run {
 public:
  Run(const Step& step, const Options& options)
      : options_(options), problem_(options.problem), variant_(step.variants[options.variant]) {
    report_.model = modelled_gpu(options, step);
    report_.estimate_heads = static_cast<uint64_t>(options.estimate_heads);
    configure({.gpu = report_.model, .workers = options.workers, .times = times()});
    require_writable_outputs(options);
    report_.device = open_device(step.id, needs_of(step, variant_));
    report_.predicted_only = options.predict;
    if (options.analyse && !simulated()) {
      throw UsageError(fmt::format("{} works only in the simulator: cmake --preset sim",
                                   options.strict ? "--strict" : "--analyse"));
    }
    if (!options.trace.empty() && !simulated()) {
      throw UsageError("--trace works only in the simulator: cmake --preset sim");
    }
    if (!options.estimate.empty() && simulated()) {
      throw UsageError("--estimate needs a GPU, whose time the estimate is compared with");
    }
    if (times() != 1 && !simulated()) {
      throw UsageError("--estimate-heads works only in the simulator: cmake --preset sim");
    }
    if (!options.counters && simulated()) {
      throw UsageError("--no-counters needs a GPU: the simulator measures no time");
    }
    report_.memory = memory_need(problem_, variant_, options.table);
    if (!options.predict) require_memory(report_.memory);

    report_.step = step.id;
    report_.idea = step.idea;
    report_.variant = variant_.name;
    report_.variant_index = options.variant;
    report_.variant_idea = variant_.idea;
    report_.problem = problem_;
    report_.input = options.files.any() ? "files" : options.input;
    report_.seed = options.seed;
    if (variant_.prepare) {
      report_.prepare = predict(step, "prepare", options, variant_.prepare_traffic, 0);
    }
    report_.forward =
        predict(step, "forward", options, variant_.traffic, problem_.flops_forward(),
                variant_.parent.empty() ? variant_.forward_of : variant_.parent, &Parent::traffic);
    report_.forward_of = variant_.forward_of;
    if (variant_.backward) {
      report_.backward =
          predict(step, "backward", options, variant_.backward_traffic, problem_.flops_backward(),
                  variant_.backward_parent, &Parent::backward_traffic);
    }
    if (!options.estimate.empty()) read_estimates(options.estimate, report_);
  }

  /// \returns the exit status.
  int operator()() {
    if (options_.predict) {
      print();
      return kRight;
    }
    const Inputs inputs = make_inputs(options_);
    if (options_.files.any()) require_range(problem_, inputs, bool(variant_.backward));
    report_.input_note = inputs.note;
    Session session(problem_, inputs, variant_);
    Checker checker(problem_, inputs, sample_of(problem_, options_.seed));
    try {
      if (simulated()) {
        // The counted run is the checked one: simulating twice would take twice as long.
        count_passes(session);
        check_outputs(checker, session.download());
        if (report_.check.ok() && session.keeps_state()) {
          run_again(session);
          check_again(checker, session.download());
        }
      } else {
        for (const SessionPass& p : passes()) (session.*p.run)();
        check_outputs(checker, session.download());
        if (report_.check.ok()) {
          count_passes(session);
          time_passes(session);
          check_again(checker, session.download());
        }
      }
      report_.analysed = report_.forward.seen.analysed > 0;
      bound_passes();
    } catch (const KernelStopped& e) {
      report_.findings = e.sentences();
    }
    print();
    return report_.ok() ? kRight : report_.not_checkable() ? kNotCheckable : kWrong;
  }

 private:
  /// A pass, and what a session does for it.
  struct SessionPass {
    Pass& pass;
    void (Session::*run)();
    void (Session::*forget)();  ///< what it wrote
  };
  /// In the order in which they run.
  std::vector<SessionPass> passes() {
    std::vector<SessionPass> found;
    if (report_.prepare) {
      found.push_back({*report_.prepare, &Session::prepare, &Session::forget_prepare});
    }
    found.push_back({report_.forward, &Session::forward, &Session::forget_forward});
    if (report_.backward) {
      found.push_back({*report_.backward, &Session::backward, &Session::forget_backward});
    }
    return found;
  }

  void print() const {
    std::fputs(text(report_).c_str(), stdout);
    const int lost = flush_stdout();  // before a --json /dev/stdout
    if (!options_.json.empty()) write_json(options_.json, report_);
    if (!options_.trace.empty()) report_.findings.empty() ? write_trace() : drop_trace();
    require_printed(lost);
  }

  void write_trace() const {
    fa::write_trace(options_.trace, trace_, report_.step, report_.variant, report_.model.name,
                    problem_);
  }

  /// A kernel was stopped: there is no whole trace, and an older one must not pass for it.
  void drop_trace() const {
    std::error_code ignored;
    if (fs::is_regular_file(options_.trace, ignored)) {
      fs::remove(fs::canonical(options_.trace, ignored), ignored);
    }
    std::fprintf(stderr, "%s: --trace %s: not written, because of the finding\n",
                 report_.step.c_str(), options_.trace.c_str());
  }

  void count_pass(Pass& pass, const std::function<void()>& run) {
    const auto start = std::chrono::steady_clock::now();
    const bool crowded = times() * double(report_.memory.total()) > report_.model.l2_bytes;
    pass.seen = count(run, {options_.analyse, options_.counters, crowded ? times() : 1,
                            !options_.trace.empty(), options_.strict});
    if (pass.seen.trace) trace_.append(*std::exchange(pass.seen.trace, {}), pass.name);
    if (simulated()) {
      pass.estimate = estimate(pass.seen, report_.model, times());
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      pass.host_ms = took.count();
    }
  }

  void count_passes(Session& session) {
    for (const SessionPass& p : passes()) count_pass(p.pass, [&] { (session.*p.run)(); });
  }

  /// Problems like this one, for whose sum times are estimated.
  double times() const { return double(report_.estimate_heads) / problem_.heads(); }

  void check_outputs(Checker& checker, const Outputs& outputs) {
    report_.check = checker(outputs);
    write_outputs(options_, outputs);
  }

  /// Of the last timed run, whose outputs were NaN before it. The first run may be right only
  /// because it found fresh memory.
  void check_again(Checker& checker, const Outputs& outputs) {
    const CheckResult again = checker(outputs);
    report_.again = "";
    for (const TensorCheck& t : again.tensors) {
      if (!t.ok && !t.lost && report_.again->empty()) report_.again = t.message;
    }
    if (!again.damage.empty()) report_.again = again.damage[0];
  }

  /// What the timed runs are to a GPU.
  void run_again(Session& session) {
    for (const SessionPass& p : passes()) {
      (session.*p.forget)();
      (session.*p.run)();
    }
  }

  void time_passes(Session& session) {
    for (const SessionPass& p : passes()) {
      time_pass(
          p.pass, [&] { (session.*p.run)(); }, [&] { (session.*p.forget)(); });
    }
    report_.roofs = measured_roofs();
  }

  void time_pass(Pass& pass, const std::function<void()>& run,
                 const std::function<void()>& forget) {
    try {
      pass.time = time_gpu(run, options_.iters, forget);
    } catch (const ResourceError& e) {  // a checked result is worth printing without a time
      pass.seen.note += (pass.seen.note.empty() ? "" : "; ") + std::string(e.what());
    }
  }

  void bound_passes() {
    for (const SessionPass& p : passes()) bound_pass(p.pass);
  }

  /// Of the modelled GPU's data sheet in the simulator, of the measured roofs on a GPU.
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

  const Options options_;
  const Problem problem_;
  const Variant& variant_;
  RunReport report_;
  Trace trace_;
};

/// One line for scripts; in a terminal broken at spaces.
int complain(const Step& step, const char* sentence, ExitStatus status) {
  std::fflush(stdout);
  const std::string who = step.id + ": ";
  const std::string text = isatty(STDERR_FILENO)
                               ? fitted(wrapped(who, sentence, 2), columns_of(STDERR_FILENO))
                               : who + sentence + "\n";
  std::fputs(text.c_str(), stderr);
  return status;
}

/// Says that a .cuh of the step is newer than this program, which build/<folder>/steps/ holds: else
/// a change that is not built seems to do nothing.
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

int step_main(int argc, char** argv, const Step& step) try {
  const Options options = parse(argc, argv, step);
  if (!options.text.empty()) {
    std::fputs(words_of(options).c_str(), stdout);
    require_printed(flush_stdout());
    return kRight;
  }
  warn_if_stale();
  return Run(step, options)();
} catch (const UsageError& e) {
  return complain(step, e.what(), kBadUse);
} catch (const ResourceError& e) {
  return complain(step, e.what(), kNoResource);
} catch (const std::bad_alloc&) {
  return complain(step, "not enough memory on the host: try a smaller problem", kNoResource);
} catch (const std::exception& e) {
  return complain(step, e.what(), kWrong);
}

}  // namespace fa
