/// \file
/// The simulator's interface for host programs: options, names, and counts.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/counts/counts.h"
#include "common/counts/gpus.h"
#include "common/counts/trace.h"
#include "common/dialect/errors.h"

namespace sim {

enum class Kind : uint8_t;  // memory/memory.h

/// The most workers of Options::workers = 0.
constexpr int kDefaultWorkers = 16;

/// Read at each launch.
struct Options {
  int workers = 0;  ///< OS threads, up to fa::kMaxWorkers; 0: one per core, up to kDefaultWorkers
  uint64_t block_order = 0;  ///< > 0: selects an order in which blocks, or clusters, start
  bool requests = false;     ///< group the lanes of a warp: requests, sectors, bank wavefronts
  bool sites = false;        ///< with requests: a row per source line
  double l2_bytes = 0;       ///< > 0: model an L2 of this size, and DRAM traffic
  double l2_times = 1;       ///< with l2_bytes: number of such problems that share launches and L2
  int sms = 132;             ///< reported to a kernel's host code
  int arch = 90;             ///< of the tensor cores that add: 90 for sm_90
  int resident_sms = 132;    ///< of the modelled GPU: blocks are resident on each
  fa::SmSpec sm;             ///< what each SM holds, and its L1
  std::string gpu = "H200";  ///< for the latencies of the warps' clocks
  size_t block_shared_bytes = 227 * 1024;  ///< shared memory available to a block
  /// Races and uninitialised reads. One worker, so that findings repeat exactly.
  bool analyse = false;
  bool trace = false;              ///< with requests: what every block did (trace.h; one worker)
  double watchdog_s = 30;          ///< a kernel that runs this long without a barrier is stopped
  size_t stack_bytes = 64 * 1024;  ///< per CUDA thread
  /// Set by a signal handler to stop the running kernel at its next access; or null.
  const volatile std::sig_atomic_t* interrupted = nullptr;
  /// Called to end the process when it cannot continue; null: report on stderr.
  void (*on_fatal)(fa::FaultKind, const std::string& sentence) = nullptr;
  /// Called for host code's loads and stores, once its block's stack_size lets them through.
  void (*on_host_access)(uintptr_t, unsigned size, Kind, const void* pc) = nullptr;
  int libraries = 0;         ///< > 0: host code does a GPU library's work in device memory
  const char* library = "";  ///< its name
};
/// The options of this process.
Options& options();

/// The name that tables and messages use for the buffer that holds `p`.
void name_buffer(const void* p, const std::string& name);
/// Its layout in a trace; the default is one row of bytes.
void shape_buffer(const void* p, const fa::Layout&);

/// Collects every launch, cudaMemset and device copy from construction to finish(). Not nested.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Ends the recording. \returns its counts, with `source` = "counted"
  fa::Counts finish();
};

/// Findings in a launch that ran to its end.
struct FoundAtEnd : fa::KernelStopped {
  using KernelStopped::KernelStopped;
};

/// CUDA refuses a launch before any block runs.
struct LaunchRefused : fa::KernelStopped {
  enum class Why { shape, bounds, shared_memory, registers, cluster, too_many_together } why;
  LaunchRefused(Why w, const std::string& text)
      : KernelStopped(fa::FaultKind::refused, text), why(w) {}
};

/// Fills device memory with 0xFF (NaN in every float type) and marks it unwritten.
void poison(void* p, size_t bytes);

/// The host knows that all earlier launches have ended: no kernel launched early overlaps them.
void no_kernel_in_front();

/// Host memory that simulated device memory may still take, in bytes.
size_t free_bytes();

}  // namespace sim
