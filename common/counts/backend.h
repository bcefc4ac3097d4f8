/// \file
/// The few things that differ between the simulator and a GPU. common/sim/backend.cpp and
/// common/gpu/backend.cpp implement this header; a program links exactly one of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/counts/counts.h"
#include "common/counts/gpus.h"
#include "common/counts/trace.h"

namespace fa {

struct CudaError;  // dialect/cuda.h

/// Where the step runs.
struct Device {
  std::string kind;       ///< "sim" or "gpu"
  std::string name;       ///< "NVIDIA H200", or "simulator (x86-64, 2 cores)"
  std::string arch;       ///< "sm_90", "sim"
  int sms = 0;            ///< of a GPU
  size_t free_bytes = 0;  ///< of a GPU's memory, before the program takes any
};

/// \param needs "sm_90a" or empty. \throws ResourceError when there is no (suitable) GPU; the
/// sentence names the command that runs the step in the simulator.
/// \param number of the GPU, where there are several
Device open_device(const std::string& step_id, const std::string& needs, int number = 0);

/// Does this program run kernels in the simulator?
bool simulated();

/// The most of SimOptions::workers. Each has 1024 stacks with a guard page each, so about 2000
/// mappings; Linux allows a process 65530.
constexpr int kMaxWorkers = 24;

/// How the simulator runs kernels.
struct SimOptions {
  GpuSpec gpu = find_gpu("H200");  ///< modelled: its SMs (multiprocessors()) and its L2
  int workers = 0;                 ///< OS threads; 0 = one per core (up to 16), analysing one
  double watchdog_s = 30;  ///< a kernel that computes this long without a barrier is stopped
  /// So many problems like this one share the GPU: a kernel that starts a block for each SM is told
  /// of its share of them.
  double times = 1;
};
/// From now on; to be called ahead of this_gpu(). Does nothing on a GPU.
void configure(const SimOptions&);

// --- device memory: see also device_memory.h ----------------------------------------------------

/// Bytes that can still be allocated on the device.
size_t free_device_bytes();

/// Names device memory for tables and messages. Does nothing on a GPU.
void name_device_memory(const void* p, const std::string& name);

/// Its matrices, for a trace. Does nothing on a GPU.
void shape_device_memory(const void* p, const Layout&);

/// Sets all bits, which is a NaN in each element type. For the simulator nobody has written these
/// bytes then.
void poison_device_memory(void* p, size_t bytes);

/// Zeroes device memory, in the order of the stream (OnStream).
void zero_device_memory(void* p, size_t bytes);

/// Copies host memory to the device, in the order of the stream (OnStream). `from` may change once
/// this has returned.
void upload_device_memory(void* to, const void* from, size_t bytes);

// --- the caller's stream, for a step's library ---------------------------------------------------

/// What this thread queues while it lives goes to this cudaStream_t, else to the default stream.
/// The simulator has no streams: it runs everything where it stands.
class OnStream {
 public:
  explicit OnStream(void* stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;
};

/// Does that stream record a CUDA graph? Then nothing can be allocated.
bool is_capturing();

/// CUDA reports such an error from now on to each call of this process.
bool is_lasting(const CudaError&);

// --- count and time ------------------------------------------------------------------------------

/// What count() looks at.
struct CountOptions {
  bool analyse = false;  ///< simulator: races, uninitialised reads, banks, a row per source line
  /// false: on a GPU no counters, and `note` says so; in the simulator bytes alone, three times as
  /// fast as with requests, sectors and HBM.
  bool counters = true;
  bool only_hbm = false;  ///< GPU: of the counters those of HBM alone, in a fifth of the time
  /// Simulator: so many problems like this one run in the same launches and share the L2, too many
  /// for it to hold: a launch finds nothing there of what the one before left.
  double times = 1;
  bool trace = false;  ///< simulator: Counts::trace
};
/// Runs `run` once and reports what it moved. Simulator: counted. GPU: measured by CUPTI;
/// refused or missing counters leave the figures empty and say why in `note`.
/// \throws KernelStopped when the simulator stops a kernel.
Counts count(const std::function<void()>& run, const CountOptions&);

/// Milliseconds of one run, over `iters` runs.
struct Timing {
  double median_ms = 0;
  double p10_ms = 0;
  double p90_ms = 0;
  int iters = 0;
};
/// Of each run's time.
inline Timing timing_of(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto quantile = [&ms](double q) { return ms[std::lround(q * double(ms.size() - 1))]; };
  return {quantile(0.5), quantile(0.1), quantile(0.9), int(ms.size())};
}
/// CUDA events around each of `iters` runs, L2 flushed before each, after a warm-up that lasts
/// until the clock is steady. Nothing in the simulator: it never pretends a GPU time.
/// \param iters 0: as many as fit in half a second, 3 to 50
/// \param before_last called ahead of the last run and its flush, outside the events.
std::optional<Timing> time_gpu(
    const std::function<void()>& run, int iters, const std::function<void()>& before_last = [] {});

/// What this card reaches, measured once per device and kept in the user's cache folder.
struct Roofs {
  double copy_bytes_per_s = 0;   ///< read + written
  double fp32_flops = 0;         ///< an FMA loop
  double bf16_flops = 0;         ///< cuBLAS 8192^3, 0 when cuBLAS cannot be loaded
  double fp32_matmul_flops = 0;  ///< cuBLAS fp32 8192^3 without TF32, 0 when it cannot be loaded
};
/// Nothing in the simulator.
std::optional<Roofs> measured_roofs();

}  // namespace fa
