// Connects the search for races with the simulator's events. Nothing is decided here.
#include "common/sim/messages/messages.h"
#include "common/sim/observers/races/findings.h"
#include "common/sim/observers/races/tensor_rules.h"
#include "common/sim/observers/watchers.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

using namespace races;

struct LaunchSearch : LaunchParts {
  std::string kernel;
  Findings findings;
  Words words{findings};
};

class RaceObserver final : public Observer {
 public:
  explicit RaceObserver(LaunchSearch& launch)
      : launch_(launch), own_{BlockClocks(launch.clocks), {}, Operations(launch.waits)} {}
  BlockParts& parts() { return own_; }

  bool wants_operands() const override { return true; }
  void merge(fa::Counts& counts, fa::KernelCount&) override { counts.analysed += seen_; }
  void begin_block(Block& b) override {
    const auto blocks = static_cast<unsigned>(b.cluster ? b.cluster->blocks.size() : 1);
    clocks_.begin(b.linear, b.rank, blocks, b.nthreads);
    own_.memory.begin(clocks_.begun(), b.shared_size, clocks_.entries() / 32);
    operations_.begin(b.shared_size);
    tensor_.begin_block();
    launch_.waited.clear();
  }
  void end_block(Block&) override {
    if (const Operation* load = operations_.without_wait(clocks_)) {
      launch_.words.left(*load, operations_.for_other_phase(*load));
    }
    rules_.end_block();
  }

  // Accesses.
  void access(Block& b, const Access& a) override {
    ++seen_;
    if (launch_.findings.has_pending() || b.early || b.cluster) [[unlikely]] {
      return access_with_more(b, a);
    }
    access(b, a, own_);
  }
  void begin_copy(Block& b, const Access& a) override { rules_.begin_copy(a, b.current->id); }
  void end_copy(Block&, const Access& a, uint32_t) override { rules_.end_copy(a); }

  // Order.
  void barrier(Block& b, ThreadSet met, const void* object) override {
    launch_.findings.compare();
    clocks_.barrier(met, b.member, object);
  }
  void warp_sync(Block&, unsigned warp, uint32_t lanes) override { clocks_.warp_sync(warp, lanes); }
  void release(Block& b, const void* object, uint32_t phase) override {
    clocks_.release(b.current->id, object, phase);
  }
  void release_relaxed(Block& b, const void* object, uint32_t phase) override {
    clocks_.release_relaxed(b.current->id, object, phase);
  }
  void acquire(Block& b, const void* object, uint32_t phase) override {
    early_ = clocks_.may_end_early(b.current->id, object, phase);
    const Clock* released = clocks_.acquire(b.current->id, object, phase);
    if (released) operations_.note_waited(object, *released);
  }
  void acquire_relaxed(Block& b, const void* object, uint32_t phase) override {
    clocks_.acquire(b.current->id, object, phase, true);
  }
  void waited(Block& b, const void* bar, int parity, const Where& where) override {
    if (early_) launch_.words.early_wait(parity, where);
    launch_.waits[bar] = {where, parity, launch_.clocks.now, clocks_[b.current->id].clock};
  }
  void fence(Block& b) override { clocks_.fence(b.current->id); }
  void wait_for_kernel(Block& b) override {
    const unsigned me = b.current->id;
    launch_.waited[clocks_.entry(me)] = clocks_[me].stamp;
  }

  // TMA and wgmma.
  void proxy_fence(Block& b, ProxyFence of) override {
    const unsigned me = b.current->id;
    const Stamp fence = clocks_.proxy_fence(me, of == ProxyFence::device);
    if (of != ProxyFence::device) operations_.show_inits(clocks_.entry(me), fence, false);
  }
  void init_barrier(Block& b, const void* bar, const Where& where) override {
    operations_.inits[bar] = {where, clocks_.entry(b.current->id)};
  }
  void init_fence(Block& b) override {
    const unsigned me = b.current->id;
    operations_.show_inits(clocks_.entry(me), clocks_.tick(me), true);
  }
  uint32_t issue_load(Block& b, const Access& a, fa::Swizzle swizzle, const void* bar,
                      const Where& where, const Sender& sender) override {
    Block& waits = *home_of(bar);
    const uint64_t at = reinterpret_cast<uintptr_t>(bar) - waits.shared_base;
    const Access signal = engine_access(waits, at, sizeof(uint64_t), Kind::atomic, nullptr);
    BlockParts& home = parts_of(b, {a, b.current->id, sender.into, &where});
    return async_.issue_load(home, observer_of<RaceObserver>(waits).parts(), a, signal, swizzle,
                             {b.current->id, bar, where, &sender});
  }
  void landed(Block&, uint32_t number, const void* bar, uint32_t phase) override {
    launch_.findings.compare();
    Operation& o = *operations_.find(number);
    clocks_.complete(o.past, o.channel, o.stamp, bar, phase);
    o.past.reset();
  }
  uint32_t issue_wgmma(Block& b, uint32_t number, const std::vector<uint32_t>& chunks,
                       const void* pc, const Where& where) override {
    const unsigned me = b.current->id;
    return async_.issue_wgmma(number, chunks, engine_access(b, 0, 16, Kind::load, pc),
                              {me, &b.threads[me / 128 * 128].state, where});
  }
  uint32_t issue_store(Block& b, const Access& a, const Where& where) override {
    return async_.issue_store(a, {b.current->id, &b.current->id, where});
  }
  void finished(Block& b, uint32_t number, bool written) override {
    async_.finished(number, written, b.current->id);
  }
  void leave_store(Block&, const Where& where) override { launch_.words.leave_store(where); }
  void touch_busy(Block&, RegisterUse use, size_t element, Kind kind, const void* pc,
                  const Where& user) override {
    launch_.words.touch_busy(use, element, kind, pc, user);
  }
  void remark(Block&, const Where& where, const std::string& sentence) override {
    launch_.words.remark(where, sentence);
  }

  // Tensor memory: members of a thread stand for its, or its warp's, channels.
  void tensor_fence(Block& b, bool before) override { tensor_.fence(b.current->id, before); }
  void issue_product(Block& b, Block& home, std::span<const SharedOperand> operands,
                     std::span<const TensorAccess> uses, const void* pc, const Where& where,
                     const Sender& by) override {
    const Access a = engine_access(home, 0, 16, Kind::load, pc);
    BlockParts& parts = parts_of(b, {a, b.current->id, by.into, &where});
    tensor_.issue_product(parts, operands, uses, a,
                          {b.current->id, &b.current->waits_for, where, &by});
  }
  uint32_t commit_products(Block& b, const void*, const Where& where) override {
    return tensor_.commit({b.current->id, &b.current->waits_for, where, &kTensorSender[0]});
  }
  void move_tensor(Block& b, TensorUse use, const TensorAccess& a, const void*,
                   const Where& where) override {
    const Thread& first = b.threads[b.current->id / 32 * 32];
    const void* channel =
        use == TensorUse::load ? static_cast<const void*>(&first.converged) : &first.early;
    tensor_.move(use, a, {b.current->id, channel, where});
  }
  void finish_moves(Block& b, bool loads) override {
    tensor_.finish_moves(b.current->id / 32, loads);
  }

 private:
  void access(Block& b, const Access& a, BlockParts& home) {
    if (a.space != Space::shared) {
      rules_.access_device(a, b.current->id);
    } else if (a.by != By::engine) {  // a copy engine's accesses are operations
      rules_.access_shared(home, a, b.current->id);
    }
  }
  [[gnu::noinline]] void access_with_more(Block& b, const Access& a) {
    launch_.findings.compare();
    const unsigned me = b.current->id;
    const bool on_device = a.space != Space::shared;
    if (on_device && b.current->early && launch_.preceding) rules_.check_preceding(a, me);
    access(b, a, on_device || a.by == By::engine ? own_ : parts_of(b, {a, me}));
  }
  // Of the block whose shared memory is used, which must run if it is another one.
  BlockParts& parts_of(Block& b, const Use& use) {
    Block& home = *use.access.home;
    if (&home == &b) return own_;
    BlockParts& parts = observer_of<RaceObserver>(home).parts();
    rules_.check_neighbour(parts, use, home.live == 0);
    return parts;
  }

  LaunchSearch& launch_;
  BlockParts own_;
  BlockClocks& clocks_ = own_.clocks;
  Operations& operations_ = own_.operations;
  Rules rules_{own_, launch_, launch_.words, hbm_written};
  AsyncRules async_{own_, rules_, launch_.words};
  TensorRules tensor_{own_, async_, launch_.words};
  uint64_t seen_ = 0;   // accesses
  bool early_ = false;  // of the wait that acquire() has seen last
};

// Keeps the latest launch, because the next one may begin before it is over.
class RaceWatcher final : public Watcher {
 public:
  bool wanted() const override { return options().analyse; }
  bool alone() const override { return true; }
  void begin_launch(const Launch& launch, uint64_t) override {
    auto next = std::make_unique<LaunchSearch>();
    next->kernel = kernel_name(launch);
    if (!over_ && launches_overlap()) {
      next->words.preceding = latest_->kernel;
      next->preceding = std::move(latest_->device);
    }
    latest_ = std::move(next);
    over_ = false;
  }
  void copy(const char*, uint16_t, uint64_t, uint64_t, bool) override { host_has_waited(); }
  void observe(Block& b) override {
    b.observers.push_back(std::make_unique<RaceObserver>(*latest_));
  }
  void report(fa::Counts& counts, const std::optional<fa::Finding>& fault) override {
    latest_->findings.report(fault);
    for (const std::string& remark : latest_->findings.remarks()) add_remark(counts, remark);
  }
  void host_has_waited() { over_ = true; }

 private:
  std::unique_ptr<LaunchSearch> latest_;
  bool over_ = true;  // and the host or a copy has waited for it
};

RaceWatcher& the_watcher() {
  static RaceWatcher watcher;
  return watcher;
}

}  // namespace

Watcher& race_watcher() { return the_watcher(); }
void no_kernel_in_front() { the_watcher().host_has_waited(); }

}  // namespace sim
