/// \file
/// What differs between the simulator and a GPU. common/sim/backend.cpp and common/gpu/backend.cpp
/// implement this header; a program links exactly one of them.
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
  size_t free_bytes = 0;  ///< of a GPU's memory, before the program allocates any
};

/// \param needs "sm_90a" or empty
/// \param number of the GPU, where there are several
/// \throws ResourceError without a suitable GPU; the sentence names the simulator's command
Device open_device(const std::string& step_id, const std::string& needs, int number = 0);

/// Does this program run kernels in the simulator?
bool simulated();

/// The largest SimOptions::workers: each has about 2000 mappings; Linux allows a process 65530.
constexpr int kMaxWorkers = 24;

/// How the simulator runs kernels.
struct SimOptions {
  GpuSpec gpu = find_gpu("H200");  ///< modelled: its SMs (multiprocessors()) and its L2
  int workers = 0;                 ///< OS threads; 0: one per core (up to 16), one when analysing
  double watchdog_s = 30;          ///< a kernel that runs this long without a barrier is stopped
  /// Number of problems like this one that share the GPU: a kernel that starts one block per SM
  /// sees this problem's share of the SMs.
  double times = 1;
};
/// Applies from now on; call it before this_gpu(). Does nothing on a GPU.
void configure(const SimOptions&);

// --- device memory: see also device_memory.h ----------------------------------------------------

/// Bytes that can still be allocated on the device.
size_t free_device_bytes();

/// Names device memory for tables and messages. Does nothing on a GPU.
void name_device_memory(const void* p, const std::string& name);

/// Gives device memory its matrices, for a trace. Does nothing on a GPU.
void shape_device_memory(const void* p, const Layout&);

/// Sets all bits, a NaN in each element type. For the simulator these bytes are then unwritten.
void poison_device_memory(void* p, size_t bytes);

/// Zeroes device memory in stream order (OnStream).
void zero_device_memory(void* p, size_t bytes);

/// Copies host memory to the device in stream order (OnStream). Returns when `from` may change.
void upload_device_memory(void* to, const void* from, size_t bytes);

// --- the caller's stream, for a step's library ---------------------------------------------------

/// While an object lives, this thread's work is queued on that cudaStream_t instead of the default
/// stream. The simulator has no streams: it runs all work at once.
class OnStream {
 public:
  explicit OnStream(void* stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;
};

/// Does that stream record a CUDA graph? Then nothing can be allocated.
bool is_capturing();

/// Is this an error that CUDA reports from now on to each call of this process?
bool is_lasting(const CudaError&);

// --- count and time ------------------------------------------------------------------------------

/// Selects what count() records.
struct CountOptions {
  bool analyse = false;  ///< simulator: races, uninitialised reads, banks, a row per source line
  /// false: no counters on a GPU, and `note` says so; in the simulator only bytes, but faster.
  bool counters = true;
  bool only_hbm = false;  ///< GPU: only the counters of HBM, in a fifth of the time
  /// Simulator: number of problems like this one that run in the same launches and share the L2,
  /// which cannot hold them all: a launch finds none of the previous launch's data there.
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
/// \param ms the time of each run
inline Timing timing_of(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto quantile = [&ms](double q) { return ms[std::lround(q * double(ms.size() - 1))]; };
  return {quantile(0.5), quantile(0.1), quantile(0.9), int(ms.size())};
}
/// CUDA events around each of `iters` runs, L2 flushed before each, after a warm-up that lasts
/// until the clock is steady. Nothing in the simulator, which never pretends to a GPU time.
/// \param iters 0: as many as fit in half a second, 3 to 50
/// \param before_last runs before the last run and its flush, outside the events.
std::optional<Timing> time_gpu(
    const std::function<void()>& run, int iters, const std::function<void()>& before_last = [] {});

/// The rates that this card reaches, measured once per device and kept in the user's cache folder.
struct Roofs {
  double copy_bytes_per_s = 0;   ///< read + written
  double fp32_flops = 0;         ///< an FMA loop
  double bf16_flops = 0;         ///< cuBLAS 8192^3, 0 when cuBLAS cannot be loaded
  double fp32_matmul_flops = 0;  ///< cuBLAS fp32 8192^3 without TF32, 0 when it cannot be loaded
};
/// Nothing in the simulator.
std::optional<Roofs> measured_roofs();

}  // namespace fa
