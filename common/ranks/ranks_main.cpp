#include "common/ranks/ranks_main.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <set>
#include <thread>

#include "common/clock/clock.h"
#include "common/dialect/cuda.h"
#include "common/harness/backend.h"
#include "common/harness/check.h"
#include "common/harness/format.h"
#include "common/harness/output_file.h"
#include "common/program/program.h"
#include "common/harness/reference.h"
#include "common/harness/screen.h"
#include "common/ranks/ranks_report.h"
#include "common/ranks/sharding.h"
#include "common/ranks/world.h"

namespace fa {

namespace {

/// A sentence that all ranks end with.
struct Refused {
  std::string sentence;
  int status;
};

/// What went wrong here, in a form that other ranks can read; empty: nothing.
template <class F>
std::string caught(F&& f) {
  const auto say = [](int status, const std::string& sentence) {
    return std::to_string(status) + sentence;
  };
  try {
    f();
    return "";
  } catch (const UsageError& e) {
    return say(kBadUse, e.what());
  } catch (const ResourceError& e) {
    return say(kNoResource, e.what());
  } catch (const std::bad_alloc&) {
    return say(kNoResource, "not enough memory on the host: try a smaller problem");
  } catch (const std::exception& e) {
    return say(kWrong, e.what());
  }
}

/// Does `f` on every rank. \throws Refused on all when it failed on any.
template <class F>
void on_all(World& world, F&& f) {
  const std::vector<std::string> failed = world.tell_all(caught(f));
  for (size_t r = 0; r < failed.size(); ++r) {
    if (failed[r].empty()) continue;
    const bool everywhere = std::all_of(failed.begin(), failed.end(),
                                        [&](const std::string& f) { return f == failed[0]; });
    throw Refused{(everywhere ? "" : fmt::format("rank {}: ", r)) + failed[r].substr(1),
                  failed[r][0] - '0'};
  }
}

/// What all ranks must have been told alike, one "--flag value" a line.
std::string told(const Options& o, const Step& step, const World& world) {
  const Problem& p = o.problem;
  std::string text = fmt::format("{}\n--variant {}\n", step.id, step.variants[o.variant].name);
  for (const Size& size : kSizes) text += fmt::format("{} {}\n", size.flag, p.*size.of);
  return text + fmt::format(
                    "--causal {}\n--input {}\n--seed {}\n--q {}\n--k {}\n--v {}\n--do {}\n"
                    "--iters {}\n--predict {}\n--out-dir {}\nmessages by {}\n",
                    p.causal, o.input, o.seed, o.files.q, o.files.k, o.files.v, o.files.dO,
                    o.iters, o.predict, o.out_dir, world.carrier());
}

/// \throws Refused with the first difference from rank 0.
void require_alike(World& world, const std::string& mine) {
  const std::vector<std::string> all = world.tell_all(mine);
  const auto line = [](const std::string& text, size_t at) {
    return text.substr(at, text.find('\n', at) - at);
  };
  for (size_t r = 1; r < all.size(); ++r) {
    for (size_t a = 0, b = 0; a < all[0].size() && b < all[r].size();
         a = all[0].find('\n', a) + 1, b = all[r].find('\n', b) + 1) {
      if (line(all[0], a) == line(all[r], b)) continue;
      throw Refused{fmt::format("rank {} was started with {}, rank 0 with {}: give all ranks the "
                                "same problem",
                                r, line(all[r], b), line(all[0], a)),
                    kBadUse};
    }
  }
}

void require_one_rank(bool given, const char* flag) {
  if (given) throw UsageError(fmt::format("{} works with one rank: start it without mpirun", flag));
}

// --- rows of a sequence --------------------------------------------------------------------------

/// Calls f(row of the whole sequence, row of the rank) for each row that a rank has.
template <class F>
void for_rows(const std::vector<Rows>& ranges, F&& f) {
  int at = 0;
  for (const Rows& rows : ranges) {
    for (int r = rows.begin; r < rows.end; ++r) f(r, at++);
  }
}

/// A rank's rows of a tensor.
std::vector<float> cut(const std::vector<float>& whole, const std::vector<Rows>& ranges,
                       const Layout& all) {
  const size_t n = count_rows(ranges);
  std::vector<float> part(all.matrices * n * all.columns);
  for (size_t h = 0; h < all.matrices; ++h) {
    for_rows(ranges, [&](size_t from, size_t to) {
      std::copy_n(&whole[(h * all.rows + from) * all.columns], all.columns,
                  &part[(h * n + to) * all.columns]);
    });
  }
  return part;
}

/// The reverse.
void paste(const std::vector<float>& part, const std::vector<Rows>& ranges, const Layout& all,
           std::vector<float>& whole) {
  const size_t n = count_rows(ranges);
  whole.resize(all.matrices * all.rows * all.columns);
  for (size_t h = 0; h < all.matrices; ++h) {
    for_rows(ranges, [&](size_t to, size_t from) {
      std::copy_n(&part[(h * n + from) * all.columns], all.columns,
                  &whole[(h * all.rows + to) * all.columns]);
    });
  }
}

// --- the run -------------------------------------------------------------------------------------

class RankRun {
 public:
  RankRun(const Step& step, const Options& options, World& world)
      : step_(step),
        options_(options),
        world_(world),
        p_(options.problem),
        variant_(step.variants[options.variant]),
        sharding_(*variant_.sharding) {}

  int operator()() {
    const std::vector<std::string> gpus = world_.tell_all(only_gpu());
    own_gpu_ = !gpus[0].empty() && std::set(gpus.begin(), gpus.end()).size() == gpus.size();
    on_all(world_, [&] { open(); });
    std::string mine;
    on_all(world_, [&] { mine = world_.open_own(); });
    const std::vector<std::string> all_own = world_.tell_all(mine);
    on_all(world_, [&] { world_.meet(all_own); });
    report_.carrier = world_.carrier();
    if (!options_.predict) {
      on_all(world_, [&] { allocate(); });
      run();
    }
    if (world_.rank() == 0) status_ = print();
    world_.close_peers();
    const std::vector<std::string> all = world_.tell_all(std::to_string(status_));
    return std::stoi(all[0]);
  }

 private:
  void open() {
    const Options& o = options_;
    report_.run.model = modelled_gpu(o, step_);
    // The cores are shared, too.
    const int cores = std::max(1u, std::thread::hardware_concurrency());
    configure({.gpu = report_.run.model,
               .workers = o.workers ? o.workers : std::max(1, cores / world_.local_size())});
    if (world_.rank() == 0) require_writable_outputs(o);
    const int gpu = own_gpu_ ? 0 : world_.local_rank(), of = own_gpu_ ? 1 : world_.local_size();
    report_.run.device = open_device_of(gpu, of, step_, variant_);
    if (!simulated() && o.analyse) require_one_rank(true, "--analyse in the simulator");
    report_.run.step = step_.id, report_.run.idea = step_.idea;
    report_.run.variant = variant_.name, report_.run.variant_idea = variant_.idea;
    report_.run.variant_index = o.variant;
    report_.run.problem = p_, report_.run.seed = o.seed;
    report_.run.input = o.files.any() ? "files" : o.input;
    report_.run.predicted_only = o.predict;
    report_.ranks.resize(world_.size());
    for (int r = 0; r < world_.size(); ++r) {
      report_.ranks[r].predicted = sharding_.predict(p_, r, world_.size());
      report_.ranks[r].rows = sharding_.rows(p_, r, world_.size());
    }
  }

  const std::vector<Rows>& rows() const { return report_.ranks[world_.rank()].rows; }

  void allocate() {
    inputs_ = make_inputs(options_);
    if (options_.files.any()) require_range(p_, inputs_, /*backward=*/true);
    report_.run.input_note = inputs_.note;
    Inputs mine;
    for (const Tensor& t : all_tensors()) {
      if (t.file) mine.*t.input = cut(inputs_.*t.input, rows(), t.layout(p_));
    }
    if (world_.rank() != 0) inputs_ = {};

    Problem local = p_;
    local.N = local.Nk = count_rows(rows());
    attention_ = sharding_.make(p_, world_);
    Variant v = variant_;  // of this rank's rows
    v.workspace = nullptr;
    v.forward = Runner(p_.dtype,
                       [this](const Problem&, const Tensors<void>& t) { attention_->forward(t); });
    if (v.backward) {
      v.backward = Runner(
          p_.dtype, [this](const Problem&, const Tensors<void>& t) { attention_->backward(t); });
    }
    session_ = std::make_unique<Session>(local, mine, v);
    memory_ = memory_need(local, v);
  }

  void run() {
    RankCount mine;
    try {
      mine.forward = pass([this] { session_->forward(); });
      if (variant_.backward) mine.backward = pass([this] { session_->backward(); });
      const Outputs first = session_->download();
      check(first);
      again(first);
      if (!simulated()) time();
    } catch (const KernelStopped& e) {
      world_.end_all(e.what(), kWrong);
    } catch (const ResourceError& e) {
      world_.end_all(e.what(), kNoResource);
    } catch (const std::exception& e) {
      world_.end_all(e.what(), kWrong);
    }
    mine.workspace = attention_->workspace_bytes();
    mine.memory = memory_.inputs + memory_.outputs;
    const std::vector<std::string> all = world_.tell_all(to_text(mine));
    for (int r = 0; r < world_.size(); ++r) report_.ranks[r].seen = from_text(all[r]);
  }

  PassCount pass(const std::function<void()>& run) {
    const uint64_t before = world_.bytes_sent();
    PassCount seen;
    if (simulated()) {
      // Times are estimated where they are asked for: bytes alone are counted faster.
      const double times = double(options_.estimate_heads) / double(p_.heads());
      const bool all = options_.analyse || times != 1;
      const Counts counts =
          count(run, {.analyse = options_.analyse, .counters = all, .times = times});
      if (counts.requested) seen.requested = counts.requested->total();
      if (const auto e = estimate(counts, report_.run.model, times)) {
        seen.estimated_ms = 1e3 * e->seconds;
      }
    } else {
      run();
    }
    world_.synchronize();
    seen.sent = world_.bytes_sent() - before;
    return seen;
  }

  Outputs whole(const Outputs& mine) {
    Outputs all;
    for (const Tensor* t : tensors_of(variant_, p_)) {
      const bool wanted = t->role == Role::output || report_.gradients_checked ||
                          !options_.out_dir.empty();
      if (!t->output || !wanted) continue;
      const std::vector<std::vector<float>> parts = world_.gather(mine.*t->output);
      for (size_t r = 0; r < parts.size(); ++r) {
        if (parts[r].empty()) continue;
        paste(parts[r], report_.ranks[r].rows, t->layout(p_), all.*t->output);
      }
    }
    std::string damage;
    for (const std::string& d : mine.damage) damage += d + "\n";
    const std::vector<std::string> damages = world_.tell_all(damage);
    for (size_t r = 0; r < damages.size(); ++r) {
      if (!damages[r].empty()) all.damage.push_back(fmt::format("rank {}: {}", r, damages[r]));
    }
    return all;
  }

  Outputs checked(Outputs all) const {
    if (!report_.gradients_checked) all.dQ = all.dK = all.dV = {};
    return all;
  }

  void check(const Outputs& mine) {
    // Gradients are checked by whole heads.
    constexpr double kMostScores = 5e7;  // of a head: a few seconds
    report_.gradients_checked = double(p_.N) * p_.N <= kMostScores;
    const Outputs all = whole(mine);
    if (world_.rank() != 0) return;
    checker_ = std::make_unique<Checker>(p_, inputs_, sample_of(p_, options_.seed));
    report_.run.check = (*checker_)(checked(all));
    write_outputs(options_, all);
  }

  /// A second run finds what the first one left; its forward must have the same bits.
  void again(const Outputs& first) {
    session_->poison();
    session_->forward();
    if (variant_.backward) session_->backward();
    world_.synchronize();
    const Outputs second = session_->download();
    const bool same = std::equal(first.O.begin(), first.O.end(), second.O.begin()) &&
                      std::equal(first.LSE.begin(), first.LSE.end(), second.LSE.begin());
    const std::vector<std::string> all = world_.tell_all(same ? "" : "x");
    std::string differ;
    for (size_t r = 0; r < all.size(); ++r) {
      if (!all[r].empty()) differ = fmt::format("rank {}: O or LSE has other bits", r);
    }
    const Outputs outputs = whole(second);
    if (world_.rank() != 0) return;
    for (const TensorCheck& t : (*checker_)(checked(outputs)).tensors) {
      if (!t.ok && !t.lost && differ.empty()) differ = t.message;
    }
    report_.run.again = differ;
  }

  // --- time: the slowest rank's, in each run ---

  void time() {
    const auto forward = [this] { session_->forward(); };
    report_.run.forward.time = time_runs(forward);
    if (!variant_.backward) return;
    const auto both = [this] {
      session_->forward();
      session_->backward();
    };
    report_.both = time_runs(both);
    world_.barrier();
    world_.begin_trace();
    both();
    world_.synchronize();
    std::string lanes;
    for (const Span& s : world_.end_trace()) {
      lanes += fmt::format("{}\t{}\t{}\t{}\n", s.lane, s.name, s.begin_ms, s.end_ms);
    }
    const std::vector<std::string> all = world_.tell_all(lanes);
    for (int r = 0; r < world_.size(); ++r) report_.ranks[r].lanes = spans_of(all[r]);
  }

  /// How many runs take so long: the same number on every rank.
  int runs_in(double all_ms, double one_ms) {
    return std::stoi(world_.tell_all(std::to_string(1 + int(all_ms / std::max(one_ms, 0.1))))[0]);
  }

  /// Runs that follow one another without a pause, as layers of a model do, share the time of a
  /// batch: the host is ahead of the GPU then, and its latency is in no run. Before them the GPUs
  /// are busy for so long that their clocks are steadier: H100s seem to lower them between 0.7 and
  /// 1 s after they began to work (steps/14_ring/worklog.md).
  Timing time_runs(const std::function<void()>& run) {
    constexpr double kWarmUpMs = 2000, kBatchMs = 20;
    double one = 0;
    for (int i = 0; i < 3; ++i) one = world_.time_run(run);
    const int warm_up = runs_in(kWarmUpMs, one), batch = runs_in(kBatchMs, one);
    for (int i = 0; i < warm_up; ++i) world_.time_run(run);
    std::vector<double> ms;
    for (int i = 0; i < options_.iters; ++i) {
      world_.barrier();
      ms.push_back(world_.time_run([&] {
        for (int k = 0; k < batch; ++k) run();
      }) / batch);
    }
    std::string mine;
    for (double x : ms) mine += fmt::format("{} ", x);
    for (const std::string& theirs : world_.tell_all(mine)) {
      const char* at = theirs.c_str();
      for (double& x : ms) {
        char* end;
        x = std::max(x, std::strtod(at, &end));
        at = end;
      }
    }
    std::sort(ms.begin(), ms.end());
    const auto quantile = [&](double q) { return ms[std::lround(q * double(ms.size() - 1))]; };
    return {quantile(0.5), quantile(0.1), quantile(0.9), options_.iters};
  }

  int print() {
    report_.run.forward.name = "forward";
    report_.run.forward.flops = p_.flops_forward();
    report_.run.forward.predicts = false;
    for (const RankReport& r : report_.ranks) {
      report_.run.memory.workspace = std::max(report_.run.memory.workspace, r.seen.workspace);
    }
    std::fputs(text(report_).c_str(), stdout);
    const int lost = flush_stdout();
    if (!options_.json.empty()) {
      write_file(options_.json,
                 [&](std::ostream& file) { file << to_json(report_).dump(2) << "\n"; });
    }
    require_printed(lost);
    if (options_.predict || report_.ok()) return kRight;
    return report_.not_checkable() ? kNotCheckable : kWrong;
  }

  const Step& step_;
  const Options& options_;
  World& world_;
  const Problem p_;
  const Variant& variant_;
  const Sharding& sharding_;
  bool own_gpu_ = false;  // each rank sees one GPU, another one
  RanksReport report_;
  Inputs inputs_;
  std::unique_ptr<RankAttention> attention_;
  std::unique_ptr<Session> session_;
  MemoryNeed memory_;
  std::unique_ptr<Checker> checker_;
  int status_ = kRight;
};

Options parse_for_ranks(int argc, const char* const* argv, const Step& step, int ranks) {
  const Options o = parse(argc, argv, step);
  if (!o.text.empty()) return o;
  const Variant& v = step.variants[o.variant];
  require_one_rank(!v.sharding, ("--variant " + v.name).c_str());
  require_one_rank(!o.trace.empty(), "--trace");
  require_one_rank(!o.estimate.empty(), "--estimate");
  v.sharding->validate(o.problem, ranks);
  return o;
}

}  // namespace

int ranks_main(int argc, char** argv, const Step& step) {
  const auto complain = [&](const std::string& sentence, int status) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", step.id.c_str(), sentence.c_str());
    return status;
  };
  std::unique_ptr<World> world;
  try {
    world = World::join(step.id);
  } catch (const ResourceError& e) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    return rank && std::string(rank) != "0" ? int(kNoResource) : complain(e.what(), kNoResource);
  }
  try {
    Options options;
    on_all(*world, [&] { options = parse_for_ranks(argc, argv, step, world->size()); });
    if (!options.text.empty()) {
      const std::string text = words_of(options);
      if (world->rank() == 0) std::fputs(text.c_str(), stdout);
      return kRight;
    }
    world->set_limit(options.limit_s);
    require_alike(*world, told(options, step, *world));
    return RankRun(step, options, *world)();
  } catch (const Refused& r) {
    return world->rank() == 0 ? complain(r.sentence, r.status) : r.status;
  } catch (const ResourceError& e) {
    world->end_all(e.what(), kNoResource);
  } catch (const std::exception& e) {
    world->end_all(e.what(), kWrong);
  }
  return kWrong;  // not reached: end_all() does not return
}

}  // namespace fa
