// A program's run, from its first call of the runtime to the end of the process.
#include "common/sim/any/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <thread>
#include <unordered_map>

#include "common/counts/format.h"
#include "common/dialect/errors.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/sim/any/program.h"
#include "common/sim/block.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/messages/messages.h"
#include "common/sim/sim.h"

// The program's device variables, if any: scripts/sim puts them in these sections.
#define SIM_SECTIONS(X)                \
  X(fa_device, device, false)          \
  X(fa_device_fixed, device, true)     \
  X(fa_constant, constant, false)      \
  X(fa_constant_fixed, constant, true) \
  X(fa_managed, managed, false)
#define SIM_SECTION(name, kind, fixed)                \
  extern char __start_##name[] __attribute__((weak)); \
  extern char __stop_##name[] __attribute__((weak));
SIM_SECTIONS(SIM_SECTION)
#undef SIM_SECTION

namespace sim::any {

namespace {

Wishes read_wishes() {
  Wishes w;
  const char* text = std::getenv("FLASH_STEPS_SIM");
  std::istringstream lines(text ? text : "");
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string value = space == line.npos ? "" : line.substr(space + 1);
    if (key == "analyse") w.analyse = true;
    if (key == "lines") w.lines = true;
    if (key == "barriers") w.barriers = true;
    if (key == "quiet") w.quiet = true;
    if (key == "gpu") w.gpu = value;
    if (key == "json") w.json = value;
    if (key == "limit") w.limit_s = std::atof(value.c_str());
    if (key == "patience") w.patience_s = std::atof(value.c_str());
    if (key == "program") w.program = value;
    if (key == "looks") w.looks = value;
    if (key == "remark") w.remarks.push_back(value);
    if (key == "reserve") w.reserve = std::atof(value.c_str());
    if (key == "workers") options().workers = std::atoi(value.c_str());
    if (key == "watchdog") options().watchdog_s = std::atof(value.c_str());
    if (key == "stack") options().stack_bytes = std::strtoull(value.c_str(), nullptr, 10);
  }
  return w;
}

std::string triple(dim3 d) {
  std::string text = std::to_string(d.x);
  if (d.y == 1 && d.z == 1) return text;
  text = "(" + text + "," + std::to_string(d.y);
  return text + (d.z == 1 ? "" : "," + std::to_string(d.z)) + ")";
}

void add(fa::KernelCount& to, const fa::KernelCount& k) {
  to.blocks += k.blocks;
  to.threads += k.threads;
  to.bytes += k.bytes;
  to.requests += k.requests;
  to.sectors += k.sectors;
  to.lines += k.lines;
  to.shared_read += k.shared_read;
  to.shared_write += k.shared_write;
  to.shared_atomic += k.shared_atomic;
  to.shared_requests += k.shared_requests;
  to.shared_wavefronts += k.shared_wavefronts;
  to.shared_ideal += k.shared_ideal;
  to.load_wavefronts += k.load_wavefronts;
  to.store_wavefronts += k.store_wavefronts;
  to.shuffles += k.shuffles;
  to.hbm += k.hbm;
}

KernelRecord& record_of(const std::string& name, const std::string& shape) {
  for (KernelRecord& k : session().kernels) {
    if (k.name != name) continue;
    k.same_shape &= k.shape == shape;
    return k;
  }
  session().kernels.push_back(
      {.name = name, .shape = shape, .count = {}, .buffers = {}, .parts = {}});
  return session().kernels.back();
}

void on_exit_of_program(int status, void*) {
  Session& s = session();
  std::fflush(stdout);
  take_counts(nullptr);
  s.recording.reset();
  const bool told = tell(s);
  if (!s.findings.empty() && status == 0) _exit(1);
  if (!told && status == 0) _exit(3);
}

volatile std::sig_atomic_t interrupted = 0;  // the signal's number
std::atomic<bool> out_of_patience{false}, out_of_memory{false};

// Once: report; twice, over a second apart: end a kernel that never touches memory.
void on_interrupt(int number) {
  static volatile time_t first = 0;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (interrupted && (number == SIGINT || now.tv_sec > first + 1)) {
    signal(number, SIG_DFL);
    raise(number);
  }
  if (!interrupted) first = now.tv_sec;
  interrupted = number;
}
void report_at_interrupt() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::string memory_sentence() {
  size_t used = 0;
  for (size_t k = 1; k < buffer_count(); ++k) used += buffers[k].end - buffers[k].begin;
  return "too little memory is left: " + fa::human_bytes(used) + " of device memory are in use" +
         (options().analyse
              ? ", and the search for races takes ten times what kernels touch of it; a smaller "
                "problem, or a run without --analyse, needs less"
              : "; a smaller problem needs less");
}

constexpr int kTimeIsUp = 124;  // as for timeout(1)

double seconds_since_begin() {
  using namespace std::chrono;
  static const auto begin = steady_clock::now();
  return duration<double>(steady_clock::now() - begin).count();
}

void end_where_asked(const char* where = "after a launch") {
  const double limit = session().wishes.limit_s;
  if (out_of_memory) {
    std::fputs(fa::wrapped("sim: ", memory_sentence(), 2).c_str(), stderr);
    stop(3);
  }
  if (interrupted && !out_of_patience) {
    std::fprintf(stderr, "sim: %s; the report is of what ran until now\n",
                 interrupted == SIGINT ? "interrupted" : "ended by SIGTERM");
    stop(128 + interrupted);
  }
  if (out_of_patience || (limit > 0 && seconds_since_begin() > limit)) {
    std::fprintf(
        stderr,
        "sim: ended after %.1f s, %s; %g s were asked for. The report is of what ran until "
        "then\n",
        seconds_since_begin(), out_of_patience ? "inside a launch" : where, limit);
    stop(session().findings.empty() ? kTimeIsUp : 1);
  }
}

void begin(Session& s) {
  s.wishes = read_wishes();
  s.remarks = s.wishes.remarks;
  seconds_since_begin();
  report_at_interrupt();
  try {
    s.gpu = fa::find_gpu(s.wishes.gpu);
  } catch (const fa::UsageError& e) {
    std::fprintf(stderr, "sim: %s\n", e.what());
    std::_Exit(2);
  }
  Options& o = options();
  o.requests = true;
  o.l2_bytes = s.gpu.l2_bytes;
  o.sms = o.resident_sms = s.gpu.sms;
  o.arch = s.gpu.arch_number();
  o.sm = s.gpu.sm;
  o.block_shared_bytes = std::min(s.gpu.block_shared_bytes(), kMaxDynamicSmem);
  o.analyse = s.wishes.analyse;
  o.sites = s.wishes.lines;
  if (s.wishes.barriers) watch_barriers(s.barriers);
  o.interrupted = &interrupted;
  if (const double limit = s.wishes.limit_s; limit > 0) {
    std::thread([end = limit + s.wishes.patience_s] {
      std::this_thread::sleep_for(std::chrono::duration<double>(end));
      out_of_patience = true;
      interrupted = SIGINT;
    }).detach();
  }
  o.on_fatal = [](FaultKind kind, const std::string& sentence) {
    if (interrupted) {  // the user's wish, not a fault of a slow kernel
      std::fprintf(stderr, "sim: %s\n", sentence.c_str());
      end_where_asked();
    }
    note_finding(kind, sentence);
    stop(1);
  };
  on_exit(on_exit_of_program, nullptr);
#define SIM_SECTION(name, kind, fixed) {Variables::kind, fixed, __start_##name, __stop_##name},
  const Section sections[] = {SIM_SECTIONS(SIM_SECTION)};
#undef SIM_SECTION
  try {
    place_variables(sections);
  } catch (const fa::ResourceError& e) {
    std::fprintf(stderr, "sim: %s\n", e.what());
    std::_Exit(3);
  }
  watch_host_addresses();
  s.recording = std::make_unique<Recording>();
}

// Watches the host's accesses to its variables from main() on, but not to the heap and the stacks.
void watch_variables() {
#define SIM_SECTION(name, kind, fixed)                                    \
  if (&__stop_##name[0] > &__start_##name[0]) {                           \
    begin = std::min(begin, reinterpret_cast<uintptr_t>(__start_##name)); \
    end = std::max(end, reinterpret_cast<uintptr_t>(__stop_##name));      \
  }
  uintptr_t begin = UINTPTR_MAX, end = 0;
  SIM_SECTIONS(SIM_SECTION)
#undef SIM_SECTION
  if (end == 0) return;
  variables_begin = begin;
  variables_size = end - begin;
  options().on_host_access = look_at_host_access;
  self->stack_base = std::max(self->stack_base, end);
  self->stack_size = ~self->stack_base;
}

}  // namespace

std::recursive_mutex& device_in_use() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

Session& session() {
  std::lock_guard lock(device_in_use());
  static Session& s = *new Session;  // outlives the program's static objects
  static bool begun = false;
  if (!begun) {
    begun = true;
    begin(s);
  }
  return s;
}

static std::atomic<bool> without_sync{false};

unsigned lanes_without_sync(Where where) {
  without_sync = true;
  return converged_lanes(where);
}

void take_counts(const Launch* launch, bool stopped) {
  Session& s = session();
  if (without_sync.exchange(false)) {
    const std::string remark =
        "shuffles or votes without _sync, which nvcc refuses since sm_70: here the lanes take part "
        "that reach the line together";
    if (s.said.insert(remark).second) s.remarks.push_back(remark);
  }
  fa::Counts* counts = recording();
  if (!counts) return;
  auto& rows = counts->kernels;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool is_launch = launch && i + 1 == rows.size();
    const std::string shape =
        is_launch ? triple(launch->config.grid) + " x " + triple(launch->config.block) : "";
    KernelRecord& k = record_of(rows[i].name, shape);
    k.launches += is_launch || rows[i].bytes.write > 0;  // a copy has two rows: read, written
    add(k.count, rows[i]);
    if (!is_launch) {
      k.buffers[rows[i].buffer].bytes += rows[i].bytes;
      // The buffer's other row is for the kernels.
      auto& b = counts->buffers[rows[i].buffer].bytes;
      b.read -= rows[i].bytes.read;
      b.write -= rows[i].bytes.write;
      continue;
    }
    k.stopped += stopped;
    fa::Counts alone;
    alone.kernels.push_back(std::move(rows[i]));
    if (const auto estimate = stopped ? std::nullopt : fa::estimate(alone, s.gpu)) {
      for (const fa::KernelEstimate& e : estimate->kernels) {
        k.estimated_s += e.seconds;
        s.estimated_s += e.seconds;
        k.arithmetic &= e.arithmetic;
        for (const fa::PartShare& p : e.parts) k.parts[p.part] += p.share * e.seconds;
      }
    }
    for (const auto& [name, b] : counts->buffers) {
      fa::BufferCount& to = k.buffers[name];
      to.bytes += b.bytes;
      to.requests += b.requests;
      to.sectors += b.sectors;
    }
  }
  for (const fa::SiteCount& site : counts->sites) {
    fa::SiteCount& to = s.sites[site.where + " " + site.what];
    to.where = site.where;
    to.what = site.what;
    to.requests += site.requests;
    to.transfers += site.transfers;
    to.ideal += site.ideal;
    to.clocks += site.clocks;
  }
  for (const std::string& remark : counts->remarks) {
    if (s.said.insert(remark).second) s.remarks.push_back(remark);
  }
  rows.clear();
  counts->buffers.clear();
  counts->sites.clear();
  counts->remarks.clear();
}

// The common part of the findings of a loop: lines and kinds of access, no bytes and threads.
static std::string in_common(FaultKind kind, const std::string& sentence) {
  const bool access = kind == FaultKind::race || kind == FaultKind::uninitialised;
  std::string text = access ? sentence.substr(0, sentence.find(':')) : sentence;
  for (char& c : text) c = std::isdigit(static_cast<unsigned char>(c)) ? '#' : c;
  for (const Place& p : places_in(sentence)) text += "\n" + p.file + ":" + std::to_string(p.line);
  return text;
}

void note_finding(FaultKind kind, const std::string& sentence) {
  Session& s = session();
  const auto [at, fresh] = s.finding_at.try_emplace(in_common(kind, sentence), s.findings.size());
  if (fresh) {
    std::fflush(stdout);
    s.findings.push_back({{kind, sentence}});
    std::fputs(fa::wrapped("finding: ", sentence, 2).c_str(), stderr);
  }
  Told& told = s.findings[at->second];
  if (fresh) told.of_launches = s.in_launch;
  if (fresh || !s.in_launch || told.latest != s.launches) ++told.times;
  told.latest = s.launches;
}

// Checks the remaining memory ten times a second, once it could run out.
void watch_memory(size_t allocated) {
  static size_t all = 0, at_first = free_bytes();
  static bool watching = false;
  Session& s = session();
  all += allocated;
  const double reserve =
      s.wishes.reserve > 0 ? s.wishes.reserve : std::min(at_first / 8.0, double{1 << 30});
  const double wanted = static_cast<double>(all) * (s.wishes.analyse ? 12 : 1);
  if (watching || wanted + reserve < static_cast<double>(at_first) / 2) return;
  watching = true;
  std::thread([reserve] {
    while (static_cast<double>(free_bytes()) > reserve) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    out_of_memory = true;
    interrupted = SIGINT;  // the running kernel ends at its next access
    while (static_cast<double>(free_bytes()) > reserve / 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    std::fputs(fa::wrapped("sim: ", memory_sentence(), 2).c_str(), stderr);
    _exit(3);
  }).detach();
}

[[noreturn]] static void not_supported(const std::string& what, const std::string& place) {
  std::fflush(stdout);
  std::fprintf(stderr, "sim: not supported: %s (%s)\n", what.c_str(), place.c_str());
  std::fflush(stderr);
  _exit(2);
}

Library::Library(const char* name) : on_host_(self->host) {
  if (!on_host_) return;
  device_in_use().lock();
  if (options().libraries++ > 0) return;  // by an enclosing object
  Session& s = session();
  undo_host_stores();
  options().library = name;
  if (s.captured) {
    not_supported(std::string(name) + " in the capture of a graph",
                  source_of(__builtin_return_address(0)));
  }
  const std::string remark = std::string("what ") + name + " computes is not counted";
  if (s.said.insert(remark).second) s.remarks.push_back(remark);
}
bool Library::reaches(const char* operand, const void* p, std::ptrdiff_t low, std::ptrdiff_t high) {
  const void* twin = device_address(p);
  const auto begin = reinterpret_cast<uintptr_t>(twin ? twin : p) - kHbmBase;
  const std::string call = std::string(options().library) + " at ";
  if (begin >= kHbmSpan) {
    note_finding(FaultKind::refused,
                 call + calling_source() + ": " + operand + " is memory of the host");
    return false;
  }
  const BufferInfo& b = buffers[page_owner[begin / kPage]];
  if (b.live && begin + low >= b.begin && begin + high <= b.end) return true;
  const std::string buffer =
      b.live ? b.name + ", which has " + std::to_string(b.end - b.begin) + " bytes"
             : "what is no buffer";
  note_finding(FaultKind::out_of_bounds,
               call + calling_source() + ": " + operand + " lies at bytes " +
                   std::to_string(static_cast<int64_t>(begin - b.begin) + low) + " to " +
                   std::to_string(static_cast<int64_t>(begin - b.begin) + high) + " of " + buffer);
  return false;
}
Library::~Library() {
  if (!on_host_) return;
  const bool enclosed = --options().libraries > 0;
  device_in_use().unlock();
  if (!enclosed) end_where_asked("after a library's call");
}

void begin_anew() {
  Session& s = session();
  s.recording.reset();
  s.kernels.clear();
  s.sites.clear();
  s.findings.clear();
  s.finding_at.clear();
  s.remarks.clear();
  s.said.clear();
  s.more = 0;
  s.to_host = s.from_host = 0;
  s.launch_refused = false;
  s.recording = std::make_unique<Recording>();
}

void stop(int status) {
  std::fflush(stdout);
  Session& s = session();
  s.complete = false;
  take_counts(nullptr);
  s.recording.reset();
  if (s.on_end) s.on_end();
  if (!tell(s) && status == 0) status = 3;
  std::fflush(stderr);
  _exit(status);
}

// A launch knows its kernel only by name, so one kernel's attribute serves all.
static void require_allowed_smem(const Launch& launch) {
  const size_t bytes = launch.config.smem, allowed = session().allowed_smem;
  if (bytes <= allowed || bytes > kMaxDynamicSmem) return;
  throw LaunchRefused(LaunchRefused::Why::shared_memory,
                      "kernel " + spoken(launch.name) + ": " + std::to_string(bytes) +
                          " B of dynamic shared memory; more than " + std::to_string(allowed) +
                          " needs cudaFuncSetAttribute(kernel, "
                          "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)");
}

// The __cluster_dims__ of kernels: each reports them when it begins, and is launched again.
static std::unordered_map<void (*)(void*), dim3> clusters;
static std::atomic<bool> wants_cluster{false};
static dim3 wanted_cluster;

// The same for __launch_bounds__ that the launch exceeds.
static std::atomic<unsigned> bound{0};
static Where bound_at;

void refuse_block(unsigned threads, Where where) {
  bound_at = where;
  bound = threads;
  fail(FaultKind::refused, "");
}

static void require_allowed_cluster(const Launch& launch) {
  if (launch.config.in_cluster() <= 8 || session().large_clusters) return;
  throw LaunchRefused(LaunchRefused::Why::cluster,
                      "kernel " + std::string(launch.name) + ": a cluster of " +
                          std::to_string(launch.config.in_cluster()) +
                          " blocks; more than 8 need cudaFuncSetAttribute(kernel, "
                          "cudaFuncAttributeNonPortableClusterSizeAllowed, 1)");
}

void need_cluster(unsigned x, unsigned y, unsigned z) {
  const dim3 now = self->launch->config.cluster;
  if (now.x == x && now.y == y && now.z == z) return;
  if (!wants_cluster.exchange(true)) wanted_cluster = {x, y, z};
  fail(FaultKind::refused, "");
}

void tma_load(int group, void* to, const TensorMap* map, const int* at, int rank, uint64_t* bar,
              unsigned blocks, Where where) {
  if (group == 1) return sim::tma_load(to, map, at, rank, bar, blocks, where);
  const Block* home = home_of(bar);
  if (!home) refuse("the TMA load", where, " signals an mbarrier outside shared memory");
  auto* mine = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(bar) - home->shared_base +
                                           self->shared_base);
  tma_load_of_pair(to, map, at, rank, mine, home->rank, where, blocks);
}

bool carry() { return self->carry; }
void set_carry(bool carry) { self->carry = carry; }

bool run(const Launch& given, Where where, bool early) {
  if (!self->host) not_supported("a kernel that launches " + std::string(given.name), at(where));
  std::lock_guard lock(device_in_use());
  if (session().captured) {
    const auto* bytes = static_cast<const unsigned char*>(given.closure);
    const auto room = std::make_shared<std::vector<std::max_align_t>>(
        given.closure_bytes / sizeof(std::max_align_t) + 1);
    std::memcpy(room->data(), bytes, given.closure_bytes);
    session().captured->push_back([given, room, where, early] {
      Launch again = given;
      again.closure = room->data();
      run(again, where, early);
    });
    return true;
  }
  take_counts(nullptr);
  undo_host_stores();
  Session& s = session();
  ++s.launches;
  s.in_launch = true;
  const std::unique_ptr<bool, void (*)(bool*)> ended(&s.in_launch, [](bool* in) { *in = false; });
  const auto refuse = [&](LaunchRefused::Why why, const std::string& what) {
    note_finding(FaultKind::refused, what + ", at " + at(where));
    s.launch_refused = true;
    keep_error(why);
    return false;
  };
  Launch launch = given;
  if (const auto known = clusters.find(launch.call); known != clusters.end()) {
    launch.config.cluster = known->second;
  }
  std::optional<EarlyLaunch> overlapping;
  if (early) overlapping.emplace(false);
  try {
    require_allowed_smem(launch);
    require_allowed_cluster(launch);
    run_grid(launch);
    take_counts(&launch);
  } catch (const LaunchRefused& refused) {
    return refuse(refused.why, refused.what());
  } catch (const fa::KernelStopped& stopped) {
    if (wants_cluster.exchange(false)) {
      if (fa::Counts* counts = recording()) counts->kernels.clear();
      clusters[launch.call] = wanted_cluster;
      overlapping.reset();
      return run(given, where, early);
    }
    if (const unsigned most = bound.exchange(0)) {
      if (fa::Counts* counts = recording()) counts->kernels.clear();
      const dim3 block = launch.config.block;
      return refuse(LaunchRefused::Why::bounds,
                    "kernel " + std::string(launch.name) + ": a block of " +
                        std::to_string(block.x * block.y * block.z) +
                        " threads; __launch_bounds__ at " + at(bound_at) + " allows " +
                        std::to_string(most));
    }
    const bool unfinished = !dynamic_cast<const FoundAtEnd*>(&stopped);
    take_counts(&launch, unfinished);
    end_where_asked();
    for (const fa::Finding& f : stopped.findings) note_finding(f.kind, f.text);
    s.more = std::max(s.more, stopped.more);
    if (used_host_address()) {  // as on a GPU the kernel ends here, and the host continues
      s.launch_refused = true;
      keep_illegal_address();
      return false;
    }
    if (unfinished) stop(1);
  } catch (const fa::ResourceError& e) {
    std::fprintf(stderr, "sim: %s\n", e.what());
    stop(3);
  }
  end_where_asked();
  return true;
}

void unsupported(const char* what, Where where) { not_supported(what, at(where)); }

void trap(Where where) { fail(FaultKind::refused, here() + " gives up: __trap() at " + at(where)); }

// A thread that asks repeatedly waits for time to pass: it passes ever faster.
long long ticks() {
  static thread_local long long now = 0, step = 0;
  static thread_local const Thread* last = nullptr;
  const Thread* me = self->current;
  step = me == last ? std::min(2 * step, 1ll << 40) : 100;
  last = me;
  return now += step;
}

}  // namespace sim::any

// What scripts/sim makes of main().
extern "C" int __real_main(int, char**, char**);
extern "C" int __wrap_main(int n, char** words, char** environment) {
  sim::any::watch_variables();
  return __real_main(n, words, environment);
}

uint64_t sim::state_of_barrier(const uint64_t* bar, bool* own) {
  *own = home_of(bar) == self;
  return *own ? *bar : 0;
}

// Called by the compiler at the start of each runtime function, which a kernel must not call.
extern "C" void __cyg_profile_func_enter(void* function, void* caller) {
  if (sim::self->host) return;
  const std::string name = sim::kernel_name({function, {}, nullptr, nullptr, 0});
  sim::any::not_supported("a kernel that calls " + name.substr(name.rfind(':') + 1),
                          sim::source_of(caller));
}
extern "C" void __cyg_profile_func_exit(void*, void*) {}

// Called by a .cu file for malloc() and new, which scripts/sim has renamed.
#define SIM_ALLOCATES(name, what, parameters, result)                               \
  extern "C" void* fa_##name parameters {                                           \
    if (!sim::self->host) {                                                         \
      sim::any::not_supported(what " in a kernel",                                  \
                              sim::source_and_caller(__builtin_return_address(0))); \
    }                                                                               \
    return result;                                                                  \
  }
SIM_ALLOCATES(malloc, "malloc", (size_t n), std::malloc(n))
SIM_ALLOCATES(calloc, "calloc", (size_t n, size_t bytes), std::calloc(n, bytes))
SIM_ALLOCATES(realloc, "realloc", (void* p, size_t n), std::realloc(p, n))
SIM_ALLOCATES(_Znwm, "new", (size_t n), ::operator new(n))
SIM_ALLOCATES(_Znam, "new", (size_t n), ::operator new[](n))

// assert() in a kernel; unchanged on the host.
extern "C" void __assert_fail(const char* what, const char* file, unsigned line,
                              const char* function) noexcept {
  if (sim::self->host) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, what);
    std::abort();
  }
  sim::fail(sim::FaultKind::refused,
            sim::here() + ": assertion \"" + what + "\" failed at " + sim::at({file, line}));
}
