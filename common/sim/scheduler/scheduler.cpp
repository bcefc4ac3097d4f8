// Fibers, run in cyclic order from the current thread on, so the lanes of a warp stay together.
#include "common/sim/scheduler/scheduler.h"
#include "common/sim/messages/messages.h"

#include "common/sim/scheduler/stacks.h"

// The CUDA built-ins. Kernels see them const; only the scheduler, under these names, writes them.
__thread uint3 sim_threadIdx asm("threadIdx");
__thread uint3 sim_blockIdx asm("blockIdx");
__thread uint3 sim_blockDim asm("blockDim");
__thread uint3 sim_gridDim asm("gridDim");

namespace sim {

Block::Block() : hbm(1) {}
Block::~Block() = default;

static Block host_block;
constinit thread_local Block* self = &host_block;

// --- switching -----------------------------------------------------------------------------------

namespace {

struct StackAllocator {
  Stacks* stacks;
  stack_context allocate() { return stacks->take(); }
  void deallocate(stack_context& s) noexcept { stacks->give_back(s); }
};

Thread* pick(Block& b, unsigned after) {
  unsigned warp = after / 32;
  const unsigned lane = after % 32;
  uint32_t candidates = lane == 31 ? 0 : b.ready[warp] & (~0u << (lane + 1));
  for (unsigned k = 0; k <= b.nwarps; ++k) {
    if (candidates) {
      const unsigned next = std::countr_zero(candidates);
      b.ready[warp] &= ~(1u << next);
      return &b.threads[warp * 32 + next];
    }
    warp = warp + 1 == b.nwarps ? 0 : warp + 1;
    candidates = b.ready[warp];
  }
  return nullptr;
}

[[gnu::noinline]] Thread& make_one_ready(Block& b, unsigned after) {
  for (;;) {
    if (Thread* t = pick(b, after)) return *t;
    if (let_converged_go(b)) continue;
    if (b.cluster) {
      pass_baton(b);
    } else {
      if (b.deferred.empty()) {
        if (let_tries_end(b)) continue;
        fail(FaultKind::deadlock, deadlock_report(b));
      }
      auto work = std::move(b.deferred.front());
      b.deferred.pop_front();
      work();
    }
  }
}

Thread& next_thread(Block& b, unsigned after) {
  Thread* t = pick(b, after);
  return t ? *t : make_one_ready(b, after);
}

[[gnu::noinline]] void leave_warp(Block& b, unsigned warp) {
  for (auto& o : b.observers) o->leave_warp(b, warp);
}

inline void become(Block& b, Thread& t) {
  Thread* me = b.current;
  if (me && me->id / 32 != t.id / 32) leave_warp(b, me->id / 32);
  b.progress.store(b.progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  b.previous = me;
  b.current = &t;
  t.state = State::running;
  sim_threadIdx = t.idx;
}

// First thing after every switch: the fiber that switched here left its continuation.
void landed(Block& b, fiber&& from) {
  (b.previous ? b.previous->fiber : b.worker) = std::move(from);
}

[[noreturn]] void leave_block(Block& b) {
  b.previous = b.current;
  b.current = nullptr;
  [[maybe_unused]] fiber never = std::move(b.worker).resume();
  __builtin_unreachable();
}

// Fills registers that the kernel has not set: they will be where this frame is.
[[gnu::noinline]] void unset_registers() {
  uint32_t words[2048];
  std::fill_n(words, std::size(words), kUnset);
  asm volatile("" : : "r"(words) : "memory");  // keeps the stores
}

// A fiber's life: one CUDA thread, and, while none waits, the next ones on the same stack.
fiber run_threads(fiber&& from) {
  Block& b = *self;
  landed(b, std::move(from));
  if (b.tell_operands) unset_registers();
  for (;;) {
    keep_exception(b, [&] {
      b.launch->call(b.launch->closure);
      if (b.async) thread_returned();
    });
    if (b.thrown) leave_block(b);
    Thread& me = *b.current;
    me.state = State::done;
    --b.live;
    b.alive[me.id / 32] &= ~(1u << (me.id % 32));
    if (b.cluster || b.async) cluster_thread_returned();
    if (b.live) keep_exception(b, [&] { stop_waiting_for_current(b); });
    if (b.thrown) leave_block(b);
    if (b.live == 0) {
      leave_warp(b, me.id / 32);
      b.previous = b.current;
      b.current = nullptr;
      return std::move(b.worker);
    }
    Thread& next = next_thread(b, me.id);
    const bool fresh = next.state == State::fresh;
    become(b, next);
    if (!fresh) return std::move(next.fiber);  // this stack is freed
  }
}

void switch_to(Block& b, Thread& t) {
  if (t.state == State::fresh) {
    t.fiber = fiber(std::allocator_arg, StackAllocator{b.stacks.get()}, run_threads);
  }
  become(b, t);
  landed(b, std::move(t.fiber).resume());
}

// The current thread leaves for another one, or continues.
inline void go_to(Block& b, Thread& t) { &t == b.current ? become(b, t) : switch_to(b, t); }

}  // namespace

// --- a block from start to end -------------------------------------------------------------------

void place_block(Block& b, uint64_t linear) {
  const dim3 grid = b.launch->config.grid;
  b.linear = linear;
  b.index = sim_blockIdx = b.launch->config.index(linear);
  const dim3 block = b.launch->config.block;
  sim_blockDim = {block.x, block.y, block.z};
  sim_gridDim = {grid.x, grid.y, grid.z};
  for (unsigned i = 0; i < b.nthreads; ++i) {
    b.threads[i].state = State::fresh;
    b.threads[i].early = b.launched_early;
  }
  b.early = b.launched_early ? b.nthreads : 0;
  for (unsigned w = 0; w < b.nwarps; ++w) {
    const unsigned lanes = std::min(32u, b.nthreads - w * 32);
    b.ready[w] = b.member[w] = b.alive[w] = lanes == 32 ? ~0u : (1u << lanes) - 1;
    for (WarpMeeting& m : b.meetings[w]) m.arrived = 0;
    b.at_end[w] = 0;
    b.converging[w] = 0;
  }
  for (Barrier& barrier : b.barriers) barrier = {};
  b.named_barriers = b.any_at_end = false;
  b.phase = 0;
  b.live = b.nthreads;
  b.current = b.previous = nullptr;
  b.deferred.clear();
  b.tries_in_vain = 0;
  b.async.reset();
  watch_registers(b, false);
  for (auto& o : b.observers) o->begin_block(b);
}

void run_placed_block(Block& b) {
  switch_to(b, *pick(b, b.nwarps * 32 - 1));
  // Here the last thread has returned, or fail() has abandoned the block or its cluster.
  if (!b.fault && b.live == 0) {
    while (!b.cluster && !b.deferred.empty()) {  // a copy that no thread waited for still happens
      auto work = std::move(b.deferred.front());
      b.deferred.pop_front();
      work();
    }
    for (auto& o : b.observers) o->end_block(b);
    ++b.blocks_done;
  }
}

void abandon_threads(Block& b) {
  for (Thread& t : b.threads) t.fiber = {};  // their kernel frames hold no resources
  if (b.stacks) b.stacks->reset();
}

// --- services ------------------------------------------------------------------------------------

void fail(FaultKind kind, const std::string& sentence) {
  Block& b = *self;
  if (b.host || !b.current) throw fa::KernelStopped(kind, sentence);
  if (!b.fault) b.fault = {kind, sentence};
  leave_block(b);
}

void remark(const Where& where, const std::string& sentence) {
  for (auto& o : self->observers) o->remark(*self, where, sentence);
}

void wait_here(const char* what, Where where) {
  Block& b = *self;
  Thread& me = *b.current;
  me.state = State::waiting;
  me.waits_for = what;
  me.where = where;
  go_to(b, next_thread(b, me.id));
}

void wake(Block& b, unsigned id) { b.ready[id / 32] |= 1u << (id % 32); }

bool let_tries_end(Block& b) {
  constexpr unsigned kInVain = 100;
  if (b.tries_in_vain == kInVain) return false;
  bool any = false;
  for (Thread& t : b.threads) {
    if (t.state != State::waiting || !t.tries) continue;
    wake(b, t.id);
    any = true;
  }
  b.tries_in_vain += any;
  return any;
}

void yield_from(unsigned first) {
  Block& b = *self;
  wake(b, b.current->id);
  go_to(b, *pick(b, first == 0 ? b.nwarps * 32 - 1 : first - 1));
}

void watch_registers(Block& b, bool on) {
  b.registers_watched = on;
  b.stack_size = on ? 0 : b.stacks->size();
}

void defer(std::function<void()> work) {
  Block& b = *self;
  (b.cluster ? b.cluster->deferred : b.deferred).push_back(std::move(work));
}

bool can_run(const Block& b) {
  for (unsigned w = 0; w < b.nwarps; ++w) {
    if (b.ready[w]) return true;
  }
  return false;
}

// --- clusters: one block at a time, on different OS threads --------------------------------------

unsigned cluster_size() {
  return self->cluster ? static_cast<unsigned>(self->cluster->blocks.size()) : 1;
}
Block& block_of_rank(unsigned rank) {
  if (rank >= cluster_size()) {
    fail(FaultKind::refused, here() + ": block " + std::to_string(rank) + " of a cluster of " +
                                 std::to_string(cluster_size()));
  }
  return self->cluster ? *self->cluster->blocks[rank] : *self;
}
void* map_shared_rank(const void* p, unsigned rank) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - self->shared_base;
  if (offset >= self->shared_size)
    fail(FaultKind::out_of_bounds, here() + ": mapa of an address outside shared memory");
  return reinterpret_cast<void*>(block_of_rank(rank).shared_base + offset);
}

// Finds a block that can run, in order after `b`; does deferred work when there is none. Returns
// null when every block has returned, or after a deadlock (recorded in `b.fault`).
static Block* next_block(Block& b) {
  Cluster& c = *b.cluster;
  const size_t n = c.blocks.size();
  for (;;) {
    for (size_t k = 1; k <= n; ++k) {
      Block* candidate = c.blocks[(b.rank + k) % n];
      if (can_run(*candidate)) return candidate;
    }
    if (c.deferred.empty()) {
      bool any = false;
      for (Block* waiting : c.blocks) any |= let_tries_end(*waiting);
      if (any) continue;
      return nullptr;
    }
    auto work = std::move(c.deferred.front());
    c.deferred.pop_front();
    work();
  }
}

static void hand_over(Cluster& c, unsigned rank) {
  std::lock_guard lock(c.mutex);
  c.turn = rank;
  c.handed_over.notify_all();
}

bool wait_for_turn(Block& b) {
  Cluster& c = *b.cluster;
  std::unique_lock lock(c.mutex);
  c.handed_over.wait(lock, [&] { return c.aborted || c.turn == b.rank; });
  return !c.aborted;
}

void pass_baton(Block& b) {
  Block* next = next_block(b);
  if (!next) fail(FaultKind::deadlock, deadlock_report(b));
  if (next == &b) return;
  hand_over(*b.cluster, next->rank);
  if (!wait_for_turn(b)) leave_block(b);
}

void retire_from_cluster(Block& b) {
  if (b.fault || !wait_for_turn(b)) return;  // it has the turn, or all leave
  if (Block* next = next_block(b)) {
    hand_over(*b.cluster, next->rank);
    return;
  }
  bool all_done = true;
  for (Block* other : b.cluster->blocks) all_done &= other->live == 0;
  if (!all_done) b.fault = {FaultKind::deadlock, deadlock_report(b)};
}

void abort_cluster(Cluster& c) {
  std::lock_guard lock(c.mutex);
  c.aborted = true;
  c.handed_over.notify_all();
}

}  // namespace sim
