// The steps of mbarriers, for the report as JSON (--barriers): who arrived, waited and passed, and
// where bytes landed, in the order in which the simulator ran the first block of each kernel.
#include <map>
#include <set>

#include "common/sim/any/session.h"
#include "common/sim/block.h"
#include "common/sim/instructions/async.h"
#include "common/sim/messages/symbols.h"
#include "common/sim/observers/watchers.h"

namespace sim::any {

namespace {

constexpr size_t kMostSteps = 100'000;

class BarrierSteps final : public Observer {
 public:
  BarrierSteps(std::vector<BarrierStep>& steps, std::set<std::string>& seen)
      : steps_(steps), seen_(seen) {}

  void begin_block(Block& b) override {
    home_ = b.linear == 0 && seen_.insert(kernel_name(*b.launch)).second ? &b : nullptr;
    open_.clear();
  }
  void end_block(Block& b) override {
    if (&b == home_) complete();
    home_ = nullptr;
  }

  // Precedes an init, an arrival, and a wait that may block.
  void access(Block& b, const Access& a) override {
    if (&b != home_ || a.home != &b || a.by != By::mbarrier) return;
    const bool init = a.kind == Kind::store;
    const auto* bar = reinterpret_cast<const void*>(b.shared_base + a.at);
    const auto frames = frames_of(a.pc);
    if (BarrierStep* step = add(b, init ? "init" : "wait", bar)) {
      step->thread = static_cast<int>(b.current->id);
      if (!frames.empty()) step->line = frames.front();
      open_[b.current->id] = steps_.size() - 1;
    }
  }
  void release(Block& b, const void* bar, uint32_t) override {
    if (BarrierStep* step = opened(b, bar)) step->what = "arrive";
  }
  void waited(Block& b, const void* bar, int, const Where&) override {
    BarrierStep* step = opened(b, bar);
    if (!step) return;
    if (step == &steps_.back()) {
      step->what = "pass";
      return;
    }
    const std::string line = step->line;  // add() moves the steps
    if (BarrierStep* passed = add(b, "pass", bar)) {
      passed->thread = static_cast<int>(b.current->id);
      passed->line = line;
    }
  }
  uint32_t issue_load(Block& b, const Access&, fa::Swizzle, const void*, const Where&,
                      const Sender&) override {
    return &b == home_;
  }
  void landed(Block& b, uint32_t, const void* bar, uint32_t) override {
    if (&b == home_) add(b, "bytes", bar);
  }

 private:
  // The step of the current thread that began at this barrier.
  BarrierStep* opened(Block& b, const void* bar) {
    if (&b != home_) return nullptr;
    const auto found = open_.find(b.current->id);
    return found != open_.end() && at_[found->second] == bar ? &steps_[found->second] : nullptr;
  }

  BarrierStep* add(Block& b, const char* what, const void* bar) {
    complete();
    if (steps_.size() == kMostSteps) return nullptr;
    const uint64_t offset = reinterpret_cast<uintptr_t>(bar) - b.shared_base;
    const SharedArray array = shared_array(b, offset);
    std::string name = array.name;
    if (!array.dimensions.empty()) {
      name += "[" + std::to_string((offset - array.offset) / sizeof(uint64_t)) + "]";
    }
    at_.resize(steps_.size());
    at_.push_back(bar);
    BarrierStep& step = steps_.emplace_back();
    step.kernel = kernel_name(*b.launch);
    step.what = what;
    step.barrier = name;
    return &step;
  }

  // The state after the latest step, which a hook precedes.
  void complete() {
    if (at_.size() != steps_.size() || at_.empty() || !at_.back()) return;
    const auto& all = async_of(const_cast<Block&>(*home_)).mbarriers;
    const auto found = all.find(at_.back());
    if (found == all.end()) return;
    BarrierStep& step = steps_.back();
    step.phase = found->second.phase;
    step.arrivals = found->second.pending;
    step.bytes = found->second.tx;
  }

  std::vector<BarrierStep>& steps_;
  std::set<std::string>& seen_;  // kernels
  const Block* home_ = nullptr;
  std::vector<const void*> at_;      // of each step, its barrier
  std::map<unsigned, size_t> open_;  // by thread: its latest step
};

class BarrierWatcher final : public Watcher {
 public:
  explicit BarrierWatcher(std::vector<BarrierStep>& steps) : steps_(steps) {}
  bool wanted() const override { return recording(); }
  bool alone() const override { return true; }
  void observe(Block& b) override {
    b.observers.push_back(std::make_unique<BarrierSteps>(steps_, seen_));
  }

 private:
  std::vector<BarrierStep>& steps_;
  std::set<std::string> seen_;
};

}  // namespace

void watch_barriers(std::vector<BarrierStep>& steps) {
  static BarrierWatcher watcher(steps);
  trace_watcher() = &watcher;
}

}  // namespace sim::any
