/// \file
/// The few things that differ between the simulator and a GPU. common/sim/backend.cpp and
/// common/gpu/backend.cpp implement this header; a program links exactly one of them.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "common/harness/gpus.h"
#include "common/harness/traffic.h"

namespace fa {

/// The simulator found a fault in a kernel: a race, an access out of bounds, a deadlock, ... The
/// message names kernel, block, thread and file:line; findings_of() (report.h) takes it apart.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the step runs.
struct Device {
  std::string kind;  ///< "sim" or "gpu"
  std::string name;  ///< "NVIDIA H200", or "simulator (x86-64, 2 cores)"
  std::string arch;  ///< "sm_90", "sim"
};

/// \param needs "sm_90a" or empty. \throws ResourceError when there is no (suitable) GPU; the
/// sentence names the command that runs the step in the simulator.
Device open_device(const std::string& step_id, const std::string& needs);

/// From now on the simulator runs kernels as on this GPU: as many blocks as it has SMs are
/// persistent (multiprocessors()). To be called before predictions are made. Does nothing on a GPU.
void run_as(const GpuSpec&);

/// Bytes that can still be allocated on the device.
size_t free_device_bytes();

/// Names device memory for tables and messages. Does nothing on a GPU.
void name_device_memory(const void* p, const std::string& name);

/// What count() looks at.
struct CountOptions {
  bool analyse = false;  ///< simulator: races, uninitialised reads, banks, a row per source line
  GpuSpec gpu;           ///< whose L2 is modelled
  int workers = 0;       ///< simulator: OS threads; 0 = one per core (up to 16), with `analyse` one
  /// false: on a GPU no counters, and `note` says so; in the simulator bytes alone, three times as
  /// fast as with requests, sectors and HBM.
  bool counters = true;
};
/// Runs `run` once and reports what it moved. Simulator: counted. GPU: measured by CUPTI;
/// refused or missing counters leave the figures empty and say why in `note`.
/// \throws Finding when the simulator stops a kernel.
Counts count(const std::function<void()>& run, const CountOptions&);

/// Milliseconds of one run, over `iters` runs.
struct Timing {
  double median_ms = 0;
  double p10_ms = 0;
  double p90_ms = 0;
  int iters = 0;
};
/// CUDA events around each of `iters` runs, L2 flushed before each, after a warm-up that lasts
/// until the clock is steady. Nothing in the simulator: it never pretends a GPU time.
/// \param before_last called ahead of the last run and its flush, outside the events.
std::optional<Timing> time_gpu(
    const std::function<void()>& run, int iters, const std::function<void()>& before_last = [] {});

/// Runs `run`, neither counted nor timed.
/// \throws Finding when the simulator stops a kernel.
void run_unwatched(const std::function<void()>& run);

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
