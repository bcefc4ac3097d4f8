// A launch: the grid's blocks over the OS workers, clusters in parallel, and the watchdog.
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>

#include "common/counts/backend.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/sim/messages/messages.h"
#include "common/sim/scheduler/residency.h"
#include "common/sim/scheduler/scheduler.h"
#include "common/sim/scheduler/stacks.h"
#include "common/sim/sim.h"

namespace sim {

static constinit thread_local bool launching_early = false, strictly = false;
EarlyLaunch::EarlyLaunch(bool strict) {
  launching_early = true;
  strictly = strict;
}
EarlyLaunch::~EarlyLaunch() { launching_early = false; }
bool launches_overlap() { return launching_early && !strictly; }

alignas(1024) constinit thread_local unsigned char dynamic_smem[kMaxDynamicSmem];

namespace {

// --- shared by all workers of a launch -----------------------------------------------------------

struct Grid {
  const Launch* launch;
  uint64_t blocks = 0;
  unsigned cluster = 1;
  std::vector<Watcher*> watchers;
  uint64_t order = 0;             // sim::Options::block_order
  bool early = false;             // launched while the preceding kernel runs, ...
  bool overlaps = false;          // ... as launches_overlap() says
  std::atomic<uint64_t> next{0};  // next cluster to place
  std::atomic<bool> stop{false};

  // The cluster that is placed as the i-th: each once; also defined beyond the last.
  uint64_t in_order(uint64_t i) const {
    const uint64_t clusters = blocks / cluster;
    if (order == 0 || i >= clusters) return i;
    uint64_t step = (order * 0x9e3779b9u) % clusters | 1;
    while (std::gcd(step, clusters) != 1) step += 2;
    return (i * (step % clusters) + order) % clusters;
  }
};

// --- errors of a thread's stack, which the hooks cannot see --------------------------------------

// A signal's context: program counter, stack pointer, operands of an integer division, the rest.
struct Registers {
  uintptr_t pc = 0, sp = 0;
  int64_t dividend = 0;
  std::array<uintptr_t, 34> all{};
  const void* caller = nullptr;  // the return address of a call at this moment
  explicit Registers([[maybe_unused]] void* context) {
    [[maybe_unused]] const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    pc = static_cast<uintptr_t>(registers.gregs[REG_RIP]);
    sp = static_cast<uintptr_t>(registers.gregs[REG_RSP]);
    dividend = registers.gregs[REG_RAX];
    std::copy(std::begin(registers.gregs), std::end(registers.gregs), all.begin());
    caller = is_from_host(pc) ? *reinterpret_cast<void**>(sp) : nullptr;
#elif defined(__aarch64__)
    pc = registers.pc;
    sp = registers.sp;
    std::copy(std::begin(registers.regs), std::end(registers.regs), all.begin());
    all.back() = pc;
    caller = reinterpret_cast<const void*>(registers.regs[30]);
#endif
  }
};

void on_fault(int number, siginfo_t* info, void* context) {
  const Block& b = *self;
  if (b.host || !b.current) {
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  const Registers at(context);
  if (number == SIGFPE) {
    const bool smallest =
        at.dividend == INT64_MIN || static_cast<int32_t>(at.dividend) == INT32_MIN;
    divided_by_zero(reinterpret_cast<const void*>(at.pc + 1), smallest);
  }
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const auto* after = is_from_host(at.pc) ? at.caller : reinterpret_cast<const void*>(at.pc + 1);
  const auto given = std::find_if(at.all.begin(), at.all.end(), is_from_host);
  if (given != at.all.end()) uses_host_address(*given, "access", after);
  const std::string place = source_of(after);
  // A growing frame touches each of its pages at the stack pointer, or 1 KiB above it (aarch64).
#ifdef __aarch64__
  constexpr uintptr_t kAbove = 1024;
#else
  constexpr uintptr_t kAbove = 0;
#endif
  const bool grows = b.stacks->is_guard(address) && address - (at.sp - 4096) <= 4096 + kAbove;
  const std::string sentence =
      here() +
      (grows ? " needs more than " + std::to_string(options().stack_bytes >> 10) +
                   " KiB for its local arrays and calls at " + place +
                   "; cudaDeviceSetLimit(cudaLimitStackSize, bytes) allows more"
             : " crashes at " + place + ": gdb shows its variables there (docs/debugging.md)");
  fail(FaultKind::out_of_bounds, sentence);  // leaves the signal's stack permanently
}

// At each launch: a test framework may have installed its own handler since the last one.
void catch_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(number, &action, nullptr);
}

// For the handler, which cannot run on the overflowed stack. One per OS thread.
void use_signal_stack() {
  thread_local std::vector<char> signal_stack(64 * 1024);
  stack_t alternate{};
  alternate.ss_sp = signal_stack.data();
  alternate.ss_size = signal_stack.size();
  sigaltstack(&alternate, nullptr);
}

// --- the position of a worker, sampled from outside ----------------------------------------------

std::atomic<const void*> sampled{nullptr};

void on_sample(int, siginfo_t*, void* context) {
  sampled = reinterpret_cast<const void*>(Registers(context).pc);
}

std::string place_of(pthread_t worker) {
  struct sigaction action {};
  action.sa_sigaction = on_sample;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGUSR2, &action, nullptr);
  pthread_kill(worker, SIGUSR2);
  for (int i = 0; i < 5000 && !sampled; ++i) usleep(1000);  // a busy machine may delay it
  return sampled ? source_of(sampled) : "a line that is not known";
}

// --- one worker ----------------------------------------------------------------------------------

// On the host thread, which can report a lack of memory to its caller.
void renew_stacks(Block& b, unsigned slots, bool guarded) {
  const size_t bytes = options().stack_bytes;
  if (b.stacks && b.stacks->are(bytes, slots, guarded)) return;
  b.stacks.reset();  // first free the old ones: both may not fit
  b.stacks = std::make_unique<Stacks>(bytes, slots, guarded);
  b.stack_base = b.stacks->base();
  b.stack_size = b.stacks->size();
}

void first_use(Block& b) {
  dl_iterate_phdr(  // the object's thread-local storage holds every __shared__ variable
      [](dl_phdr_info* info, size_t, void* p) {
        if (!is_own_object(*info)) return 0;
        Block& b = *static_cast<Block*>(p);
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          if (info->dlpi_phdr[k].p_type != PT_TLS) continue;
          b.shared_base = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
          b.shared_size = info->dlpi_phdr[k].p_memsz;
        }
        return 1;
      },
      &b);
  b.dynamic_base = reinterpret_cast<uintptr_t>(dynamic_smem);
  b.in_array = bytes_of_shared_arrays(b.shared_size);
  use_signal_stack();
}

}  // namespace

// Selects the observers of each access.
void set_watch(Block& b) {
  b.log = nullptr;
  b.beside_log = nullptr;
  b.tell_operands = false;
  size_t others = 0;
  for (auto& o : b.observers) {
    b.tell_operands |= o->wants_operands();
    if (RequestLog* log = o->log()) {
      b.log = log;
    } else {
      b.beside_log = o.get();
      ++others;
    }
  }
  b.watch = b.observers.empty() ? Watch::none : !b.log || others > 1 ? Watch::all : Watch::log;
}

namespace {

void prepare(Block& b, const Grid& grid) {
  b.fault.reset();
  b.thrown = nullptr;
  if (!b.dynamic_base) first_use(b);
  b.launch = grid.launch;
  b.launched_early = grid.early;
  b.strictly_early = grid.early && !grid.overlaps;
  b.host = false;
  const dim3 block = grid.launch->config.block;
  b.nthreads = block.x * block.y * block.z;
  b.nwarps = (b.nthreads + 31) / 32;
  for (unsigned i = 0; i < b.nthreads; ++i) {
    b.threads[i].id = static_cast<uint16_t>(i);
    b.threads[i].idx = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
  b.hbm.assign(buffer_count(), {});
  std::memset(b.shared_bytes, 0, sizeof b.shared_bytes);
  b.blocks_done = b.tensor_flops = b.shuffles = b.wgmma_wavefronts = 0;
  b.mma = b.wgmma = b.wgmma_columns = 0;
  b.observers.clear();
  for (Watcher* w : grid.watchers) w->observe(b);
  b.stop = false;
  b.looked_at.clear();
  b.looks = 0;
  set_watch(b);
}

thread_local Grid* grid_of_worker = nullptr;

void work_alone(Block& b, Grid& grid) {
  grid_of_worker = &grid;
  b.cluster = nullptr;
  b.rank = 0;
  while (!grid.stop) {
    const uint64_t i = grid.next++;
    if (i >= grid.blocks) break;
    keep_exception(b, [&] {
      place_block(b, grid.in_order(i));
      run_placed_block(b);
    });
    if (b.fault) grid.stop = true;
  }
}

// A gang of workers runs one cluster at a time.
struct Gang {
  explicit Gang(unsigned size) : together(size) { cluster.blocks.resize(size); }
  Cluster cluster;
  std::barrier<> together;
  uint64_t current = 0;  // number of the cluster in the grid
};

void work_in_gang(Block& b, Grid& grid, Gang& gang, unsigned rank) {
  Cluster& c = gang.cluster;
  grid_of_worker = &grid;
  b.cluster = &c;
  b.rank = rank;
  c.blocks[rank] = &b;
  gang.together.arrive_and_wait();  // all are prepared, or grid.stop says that one failed
  for (;;) {
    if (rank == 0) {
      gang.current = grid.stop ? grid.blocks : grid.next++;
      c.turn = 0;
      c.aborted = false;
      c.deferred.clear();
    }
    gang.together.arrive_and_wait();
    if (gang.current * grid.cluster >= grid.blocks) break;
    keep_exception(b, [&] {
      std::lock_guard lock(c.mutex);  // observers may share state between workers
      place_block(b, grid.in_order(gang.current) * grid.cluster + rank);
    });
    if (b.fault) abort_cluster(c);
    gang.together.arrive_and_wait();  // all blocks are placed
    if (wait_for_turn(b)) {
      keep_exception(b, [&] {
        run_placed_block(b);
        retire_from_cluster(b);
      });
      if (b.fault) abort_cluster(c);
    }
    if (b.fault) grid.stop = true;
    gang.together.arrive_and_wait();  // all have left: rank 0 may prepare the next cluster
  }
  b.cluster = nullptr;
}

// --- the workers ---------------------------------------------------------------------------------

// A thread whose dynamic_smem is aligned to 256 KiB, as a GPU's window of shared memory is: code
// that takes a pointer's low bits for the address in a descriptor (ThunderKittens) is right. The
// thread's own storage lies at the same distance from each stack's end, so a first thread tells it.
class Worker {
 public:
  explicit Worker(std::function<void()> work) : Worker(std::move(work), shift()) {}
  ~Worker() {
    pthread_join(id_, nullptr);
    munmap(memory_, kBytes);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  pthread_t id() const { return id_; }

 private:
  static constexpr size_t kWindow = 1 << 18, kStack = 8 << 20, kBytes = kStack + 3 * kWindow;
  Worker(std::function<void()> work, size_t shift) : work_(std::move(work)) {
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::system_category());
    const uintptr_t from = reinterpret_cast<uintptr_t>(memory_) + 2 * kWindow;
    const uintptr_t stack = from / kWindow * kWindow + shift;
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    mprotect(reinterpret_cast<void*>(stack / page * page - page), page, PROT_NONE);  // overflows
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, reinterpret_cast<void*>(stack), kStack);
    const auto run = [](void* me) -> void* {
      static_cast<Worker*>(me)->work_();
      return nullptr;
    };
    const int error = pthread_create(&id_, &attributes, run, this);
    pthread_attr_destroy(&attributes);
    if (!error) return;
    munmap(memory_, kBytes);
    throw std::system_error(error, std::system_category());
  }
  static size_t shift() {
    static const size_t found = [] {
      uintptr_t at = 0;
      {
        Worker first([&at] { at = reinterpret_cast<uintptr_t>(dynamic_smem); }, 0);
      }
      return (0 - at) % kWindow;
    }();
    return found;
  }
  std::function<void()> work_;
  void* memory_;
  pthread_t id_;
};

class Pool {
 public:
  /// \throws fa::ResourceError when the system refuses a thread.
  explicit Pool(int n) {
    // All blocks before the first thread, which uses blocks_: it must not move then.
    for (int i = 0; i < n; ++i) blocks_.push_back(std::make_unique<Block>());
    try {
      for (int i = 0; i < n; ++i) {
        threads_.push_back(std::make_unique<Worker>([this, i] { loop(i); }));
      }
    } catch (const std::system_error&) {
      end_threads();
      throw fa::ResourceError(
          "the system refuses threads for the simulator's " + std::to_string(n) +
          " workers: 'ulimit -u' or the control group's pids.max must allow more");
    }
  }
  ~Pool() { end_threads(); }
  int size() const { return static_cast<int>(blocks_.size()); }
  Block& block(int i) { return *blocks_[i]; }

  /// \throws fa::ResourceError when there is no room for the stacks of the first `n` workers.
  void take_stacks(int n, unsigned slots, bool guarded) {
    for (int i = 0; i < n; ++i) renew_stacks(*blocks_[i], slots, guarded);
  }

  void run(Grid& grid, int n) {
    std::vector<std::unique_ptr<Gang>> gangs;
    if (grid.cluster > 1) {
      for (int i = 0; i < n / static_cast<int>(grid.cluster); ++i) {
        gangs.push_back(std::make_unique<Gang>(grid.cluster));
      }
    }
    catch_faults();
    std::unique_lock lock(mutex_);
    grid_ = &grid;
    gangs_ = &gangs;
    active_ = running_ = n;
    ++epoch_;
    start_.notify_all();
    watch(lock);
    for (int i = 0; i < n; ++i) {
      if (blocks_[i]->fault || grid.stop) abandon_threads(*blocks_[i]);
    }
  }

 private:
  void end_threads() {
    {
      std::lock_guard lock(mutex_);
      quit_ = true;
    }
    start_.notify_all();
    threads_.clear();  // joins them
  }

  // The CPU seconds of each active worker. A wall clock would not stop for a debugger.
  std::vector<double> cpu_seconds() {
    std::vector<double> seconds;
    for (int i = 0; i < active_; ++i) {
      clockid_t clock;
      timespec t{};
      if (pthread_getcpuclockid(threads_[i]->id(), &clock) == 0) clock_gettime(clock, &t);
      seconds.push_back(static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec));
    }
    return seconds;
  }

  // Waits for the end. When a worker computes for watchdog_s seconds while no thread switches, ends
  // or meets another, the next accesses show whether the kernel makes progress (access.cpp). An
  // interrupted kernel must stop within three intervals of CPU time, or thirty of wall time.
  void watch(std::unique_lock<std::mutex>& lock) {
    const double limit = options().watchdog_s;
    const std::chrono::duration<double> interval(std::min(limit / 4, 1.0));
    uint64_t seen = 0;
    std::vector<double> since = cpu_seconds();
    bool told = false;
    int asked = 0;
    while (!done_.wait_for(lock, interval, [&] { return running_ == 0; })) {
      const std::vector<double> now = cpu_seconds();
      const bool interrupted = options().interrupted && *options().interrupted;
      if (interrupted) {
        order_stop();
        if (asked++ == 0) since = now;
      }
      double spun = 0;
      int busiest = 0;
      for (int i = 0; i < active_; ++i) {
        if (now[i] - since[i] <= spun) continue;
        spun = now[i] - since[i];
        busiest = i;
      }
      if (interrupted) {
        if (spun > 3 * interval.count() || asked > 30) give_up(busiest, " was ended at ", "");
        continue;
      }
      uint64_t progress = 0;
      for (int i = 0; i < active_; ++i) progress += blocks_[i]->progress.load();
      if (progress != seen) {
        seen = progress;
        since = now;
        told = false;
        continue;
      }
      if (spun < limit) continue;
      if (told) {
        give_up(busiest, " spins at ",
                " without a memory access; the simulator cannot stop it. If it is only slow, "
                "--watchdog allows more");
      }
      told = true;
      since = now;
      order_stop();
    }
  }

  // Only the end of the process can stop it.
  [[noreturn]] void give_up(int worker, const char* does, const char* why) {
    const std::string sentence = "kernel " + spoken(kernel_name(*grid_->launch)) + does +
                                 place_of(threads_[worker]->id()) + why;
    if (options().on_fatal) options().on_fatal(FaultKind::endless_loop, sentence);
    std::fprintf(stderr, "%s\n", sentence.c_str());
    std::_Exit(1);
  }

  void order_stop() {
    for (int i = 0; i < active_; ++i) {
      blocks_[i]->stop = true;
      blocks_[i]->watch = Watch::all;
    }
  }

  void loop(int i) {
    uint64_t seen = 0;
    Block& b = *blocks_[i];
    self = &b;
    for (;;) {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return quit_ || epoch_ != seen; });
      if (quit_) break;
      seen = epoch_;
      if (i >= active_) continue;
      Grid& grid = *grid_;
      lock.unlock();
      keep_exception(b, [&] { prepare(b, grid); });
      if (b.fault) grid.stop = true;
      const int gang = i / static_cast<int>(grid.cluster);
      if (grid.cluster == 1) {
        work_alone(b, grid);
      } else if (gang < static_cast<int>(gangs_->size())) {
        work_in_gang(b, grid, *(*gangs_)[gang], i % grid.cluster);
      }
      b.host = true;
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  Grid* grid_ = nullptr;
  std::vector<std::unique_ptr<Gang>>* gangs_ = nullptr;
  int active_ = 0, running_ = 0;
  uint64_t epoch_ = 0;
  bool quit_ = false;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Worker>> threads_;
};

Pool& pool_of(int n) {
  static std::unique_ptr<Pool> pool;
  if (!pool || pool->size() < n) {
    pool.reset();  // first end the old workers
    pool = std::make_unique<Pool>(n);
  }
  return *pool;
}

uint64_t resident_blocks(const LaunchConfig& config, const std::string& kernel, const Options& o) {
  const unsigned threads = config.block.x * config.block.y * config.block.z;
  const unsigned per_sm = blocks_per_sm(o.sm, threads, config.smem, resources_of(kernel));
  return uint64_t{per_sm} * static_cast<unsigned>(std::max(1, o.resident_sms));
}

void validate(const Launch& launch, const std::string& name) {
  const auto [grid, block, smem, cluster, together, shares_work] = launch.config;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const Options& o = options();
  using Why = LaunchRefused::Why;
  const auto refuse = [&name](Why why, const std::string& what) {
    throw LaunchRefused(why, "kernel " + spoken(name) + ": " + what);
  };
  if (threads == 0 || threads > 1024 || block.z > 64) {
    refuse(Why::shape, "a block of " + std::to_string(threads) +
                           " threads; CUDA allows 1 to 1024 (and 64 along z)");
  }
  const auto shape_of = [](dim3 d) {
    return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + ")";
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535) {
    refuse(Why::shape, "a grid of " + shape_of(grid) +
                           "; CUDA allows 1 to 2147483647 along x and 1 to 65535 along y and z");
  }
  if (smem > kMaxDynamicSmem) {
    refuse(Why::shared_memory, std::to_string(smem) +
                                   " B of dynamic shared memory; a block has at most " +
                                   std::to_string(kMaxDynamicSmem));
  }
  constexpr uint64_t kMaxStaticSmem = 48 * 1024;
  if (const StaticShared& most = most_static_shared(); most.bytes > kMaxStaticSmem) {
    refuse(Why::shared_memory, most.function + " has " + std::to_string(most.bytes) +
                                   " B of static shared memory; nvcc compiles no more than " +
                                   std::to_string(kMaxStaticSmem));
  }
  const unsigned together_in = launch.config.in_cluster();
  if (together_in == 0 || together_in > 16 || grid.x % cluster.x || grid.y % cluster.y ||
      grid.z % cluster.z) {
    refuse(Why::shape, "clusters of " + shape_of(cluster) + " blocks in a grid of " +
                           shape_of(grid) + "; the grid must be a multiple, a cluster at most 16");
  }
  if (together_in > 1 && together) {
    refuse(Why::cluster, "a cooperative launch with clusters, which the simulator does not have");
  }
  if (together_in > 1 && options().arch < 90) {
    refuse(Why::cluster, "a cluster of " + std::to_string(together_in) + " blocks; sm_" +
                             std::to_string(options().arch) + " has none");
  }
  // As ptxas compiled the kernel, known only for this project's kernels.
  const Resources own = resources_of(name);
  const unsigned per_warp = (own.registers * 32 + 255) / 256 * 256;
  if (const uint64_t registers = (threads + 31) / 32 * per_warp; registers > o.sm.registers) {
    refuse(Why::registers, "a block of " + std::to_string(threads) + " threads with " +
                               std::to_string(own.registers) + " registers each; an SM has " +
                               std::to_string(o.sm.registers));
  }
  if (const uint64_t fit = resident_blocks(launch.config, name, options());
      together && launch.config.blocks() > fit) {
    refuse(Why::too_many_together,
           "a cooperative launch of " + std::to_string(launch.config.blocks()) +
               " blocks; the modelled GPU holds " + std::to_string(fit) + " of them at a time");
  }
}

}  // namespace

uint3 LaunchConfig::index(uint64_t number) const {
  const dim3 n = cluster, clusters(grid.x / n.x, grid.y / n.y, grid.z / n.z);
  const auto rank = static_cast<unsigned>(number % in_cluster());
  const uint64_t c = number / in_cluster();
  return {static_cast<unsigned>(c % clusters.x) * n.x + rank % n.x,
          static_cast<unsigned>(c / clusters.x % clusters.y) * n.y + rank / n.x % n.y,
          static_cast<unsigned>(c / clusters.x / clusters.y) * n.z + rank / n.x / n.y};
}

std::optional<uint64_t> take_next_cluster() {
  Grid& grid = *grid_of_worker;
  const uint64_t i = grid.next++;
  if (i * grid.cluster >= grid.blocks) return {};
  return grid.in_order(i) * grid.cluster;
}

void run_grid(const Launch& launch) {
  const std::string name = kernel_name(launch);
  validate(launch, name);
  const Options& o = options();
  const dim3 g = launch.config.grid, block = launch.config.block;
  Grid grid;
  grid.launch = &launch;
  grid.blocks = uint64_t{g.x} * g.y * g.z;
  grid.cluster =
      launch.config.together ? static_cast<unsigned>(grid.blocks) : launch.config.in_cluster();
  grid.order = o.block_order;
  grid.early = launching_early;
  grid.overlaps = launches_overlap();
  grid.watchers = watchers();

  int n = o.workers > 0
              ? std::min(o.workers, fa::kMaxWorkers)
              : std::min(static_cast<int>(std::thread::hardware_concurrency()), kDefaultWorkers);
  for (const Watcher* w : grid.watchers) n = w->alone() ? 1 : n;
  const int c = static_cast<int>(grid.cluster);
  n = std::max(1, n / c) * c;

  Pool& pool = pool_of(n);
  // A cooperative grid may have many blocks at once: too many for guard pages.
  const bool together = launch.config.together;
  pool.take_stacks(n, together ? (block.x * block.y * block.z + 31) / 32 * 32 : 1024, !together);
  const uint64_t resident = resident_blocks(launch.config, name, o);
  for (Watcher* w : grid.watchers) w->begin_launch(launch, resident);
  pool.run(grid, n);
  for (Watcher* w : grid.watchers) w->end_launch();
  for (int i = 0; i < n; ++i) {
    if (auto thrown = std::exchange(pool.block(i).thrown, nullptr)) std::rethrow_exception(thrown);
  }

  fa::KernelCount kernel;
  kernel.name = name;
  for (Watcher* w : grid.watchers) w->count(kernel);
  kernel.resident =
      blocks_per_sm(o.sm, block.x * block.y * block.z, launch.config.smem, resources_of(name));
  kernel.persistent = launch.config.shares_work && grid.blocks == static_cast<uint64_t>(o.sms);
  kernel.threads = uint64_t{block.x} * block.y * block.z * grid.blocks;
  std::vector<BufferBytes> hbm(buffer_count());
  std::optional<fa::Finding> fault;
  fa::Counts unused;
  fa::Counts& counts = recording() ? *recording() : unused;
  for (int i = 0; i < n; ++i) {
    Block& b = pool.block(i);
    if (!fault) fault = b.fault;
    kernel.blocks += b.blocks_done;
    kernel.shared_read += b.shared_bytes[0];
    kernel.shared_write += b.shared_bytes[1];
    kernel.shared_atomic += b.shared_bytes[2];
    kernel.shuffles += b.shuffles;
    kernel.wgmma_wavefronts += b.wgmma_wavefronts;
    counts.tensor_flops = counts.tensor_flops.value_or(0) + b.tensor_flops;
    for (size_t k = 0; k < hbm.size(); ++k) {
      for (int kind = 0; kind < 3; ++kind) hbm[k].bytes[kind] += b.hbm[k].bytes[kind];
    }
    for (auto& observer : b.observers) observer->merge(counts, kernel);
    b.observers.clear();
  }
  for (size_t k = 1; k < hbm.size(); ++k) {
    const fa::Bytes bytes{hbm[k].bytes[0], hbm[k].bytes[1], hbm[k].bytes[2]};
    if (bytes.total() == 0) continue;
    counts.buffers[buffers[k].name].bytes += bytes;
    kernel.bytes += bytes;
  }
  counts.kernels.push_back(kernel);
  for (Watcher* w : grid.watchers) w->report(counts, fault);
  if (fault) throw fa::KernelStopped({*fault});
}

}  // namespace sim
