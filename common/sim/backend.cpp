// common/counts/backend.h for the simulator.
#include "common/counts/backend.h"

#include <sys/utsname.h>

#include <cmath>
#include <thread>

#include "common/dialect/cuda.h"
#include "common/sim/sim.h"

namespace fa {

namespace {

SimOptions& configured() {
  static SimOptions options;
  return options;
}

/// Launches outside count() run without observers: these options last for one count only.
class Watching {
 public:
  explicit Watching(const CountOptions& o) : saved_(sim::options()) {
    sim::Options& options = sim::options();
    options.requests = o.counters;
    options.l2_bytes = o.counters ? configured().gpu.l2_bytes : 0;
    options.sm = configured().gpu.sm;
    options.gpu = configured().gpu.name;
    options.l2_times = o.times;
    options.sites = options.analyse = o.analyse;
    options.trace = o.trace;
  }
  ~Watching() { sim::options() = saved_; }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  sim::Options saved_;
};

}  // namespace

Device open_device(const std::string&, const std::string&, int) {
  utsname host{};
  uname(&host);
  const unsigned cores = std::thread::hardware_concurrency();
  return {"sim",
          std::string("simulator (") + host.machine + ", " + std::to_string(cores) +
              (cores == 1 ? " core)" : " cores)"),
          "sim"};
}

bool simulated() { return true; }

void configure(const SimOptions& o) {
  configured() = o;
  sim::options().resident_sms = o.gpu.sms;
  sim::options().sms = std::max(1, static_cast<int>(std::lround(o.gpu.sms / o.times)));
  sim::options().arch = o.gpu.arch_number();
  sim::options().block_shared_bytes = std::min(o.gpu.block_shared_bytes(), sim::kMaxDynamicSmem);
  sim::options().workers = o.workers;
  sim::options().watchdog_s = o.watchdog_s;
}

size_t free_device_bytes() { return sim::free_bytes(); }

void name_device_memory(const void* p, const std::string& name) { sim::name_buffer(p, name); }

void shape_device_memory(const void* p, const Layout& layout) { sim::shape_buffer(p, layout); }

void poison_device_memory(void* p, size_t bytes) { sim::poison(p, bytes); }

void zero_device_memory(void* p, size_t bytes) { cuda_check(cudaMemset(p, 0, bytes)); }

void upload_device_memory(void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

OnStream::OnStream(void*) {}
OnStream::~OnStream() = default;

bool is_capturing() { return false; }

bool is_lasting(const CudaError&) { return false; }

Counts count(const std::function<void()>& run, const CountOptions& o) {
  const Watching watching(o);
  sim::Recording recording;
  run();
  return recording.finish();
}

std::optional<Timing> time_gpu(const std::function<void()>&, int, const std::function<void()>&) {
  return std::nullopt;
}

std::optional<Roofs> measured_roofs() { return std::nullopt; }

}  // namespace fa
