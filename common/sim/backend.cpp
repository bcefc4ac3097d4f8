// common/harness/backend.h for the simulator.
#include "common/harness/backend.h"

#include <sys/utsname.h>

#include <thread>

#include "common/sim/sim.h"

namespace fa {

namespace {

/// Launches outside count() run without observers, so options last for one count only.
class OptionsFor {
 public:
  explicit OptionsFor(const CountOptions& o) : saved_(sim::options()) {
    sim::Options& options = sim::options();
    options.requests = o.counters;
    options.l2_bytes = o.counters ? o.gpu.l2_bytes : 0;
    options.l2_sms = o.gpu.sms;
    options.l2_sm = o.gpu.sm;
    options.sites = o.analyse;
    options.races = o.analyse;
    options.uninitialised = o.analyse;
    // With one worker the blocks run in order, and a finding is the same one each time.
    options.workers = o.workers == 0 && o.analyse ? 1 : o.workers;
  }
  ~OptionsFor() { sim::options() = saved_; }
  OptionsFor(const OptionsFor&) = delete;
  OptionsFor& operator=(const OptionsFor&) = delete;

 private:
  sim::Options saved_;
};

}  // namespace

Device open_device(const std::string&, const std::string&) {
  utsname host{};
  uname(&host);
  const unsigned cores = std::thread::hardware_concurrency();
#ifdef FA_UCONTEXT
  const std::string slower = ", slower without Boost.Context";
#else
  const std::string slower;
#endif
  return {"sim",
          std::string("simulator (") + host.machine + ", " + std::to_string(cores) +
              (cores == 1 ? " core" : " cores") + slower + ")",
          "sim"};
}

void run_as(const GpuSpec& gpu) { sim::options().l2_sms = gpu.sms; }

size_t free_device_bytes() { return sim::free_bytes(); }

void name_device_memory(const void* p, const std::string& name) { sim::name_buffer(p, name); }

Counts count(const std::function<void()>& run, const CountOptions& o) {
  const OptionsFor options(o);
  try {
    sim::Recording recording;
    run();
    return recording.finish();
  } catch (const sim::Error& e) {
    throw Finding(e.what());
  }
}

std::optional<Timing> time_gpu(const std::function<void()>&, int, const std::function<void()>&) {
  return std::nullopt;
}

void run_unwatched(const std::function<void()>& run) {
  try {
    run();
  } catch (const sim::Error& e) {
    throw Finding(e.what());
  }
}

std::optional<Roofs> measured_roofs() { return std::nullopt; }

}  // namespace fa
