/// \file
/// What a host program asks of the simulator: options, names, and what was counted.
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

/// What Options::workers = 0 takes at most.
constexpr int kDefaultWorkers = 16;

/// Read at each launch.
struct Options {
  int workers = 0;  ///< OS threads, up to fa::kMaxWorkers; 0 = one per core, up to kDefaultWorkers
  uint64_t block_order = 0;  ///< > 0: chooses an order in which blocks, or clusters, start
  bool requests = false;     ///< group the lanes of a warp: requests, sectors, bank wavefronts
  bool sites = false;        ///< with requests: a row per source line
  double l2_bytes = 0;       ///< > 0: model an L2 of this size, and with it DRAM traffic
  double l2_times = 1;     ///< with l2_bytes: so many problems like this one share launches and L2
  int sms = 132;           ///< what a kernel's host code is told
  int arch = 90;           ///< whose tensor cores add: 90 for sm_90
  int resident_sms = 132;  ///< all of the modelled GPU: blocks are resident on each of them
  fa::SmSpec sm;           ///< how many each of them holds, and its L1
  std::string gpu = "H200";                ///< whose latencies the clocks of the warps have
  size_t block_shared_bytes = 227 * 1024;  ///< shared memory that it gives to a block
  /// Races, and reads of what nobody wrote. By one worker, so that findings repeat exactly.
  bool analyse = false;
  bool trace = false;      ///< with requests: what every block did (trace.h; one worker)
  double watchdog_s = 30;  ///< a kernel that computes this long without a barrier is stopped
  size_t stack_bytes = 64 * 1024;  ///< of one CUDA thread
  /// Where a signal handler says that the running kernel is to stop at its next access; or null.
  const volatile std::sig_atomic_t* interrupted = nullptr;
  /// The process cannot go on (host code touches device memory, a kernel that nothing can stop):
  /// who hears of it and ends the process; null: it is told on stderr.
  void (*on_fatal)(fa::FaultKind, const std::string& sentence) = nullptr;
  /// Who hears of host code's loads and stores, once its block's stack_size lets them through.
  void (*on_host_access)(uintptr_t, unsigned size, Kind, const void* pc) = nullptr;
  int libraries = 0;  ///< > 0: host code computes what a GPU's library would, in device memory
  const char* library = "";  ///< which one
};
/// The one set of options of this process.
Options& options();

/// The name that tables and messages use for the buffer that holds `p`.
void name_buffer(const void* p, const std::string& name);
/// How a trace shows it; else as one row of bytes.
void shape_buffer(const void* p, const fa::Layout&);

/// Collects every launch, cudaMemset and device copy from construction to finish().
/// Not nested; launches outside a recording are counted but kept by nobody.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Ends the recording; what it saw, with `source` = "counted".
  fa::Counts finish();
};

/// What the search found in a launch that ran to its end.
struct FoundAtEnd : fa::KernelStopped {
  using KernelStopped::KernelStopped;
};

/// CUDA refuses a launch, before any block runs.
struct LaunchRefused : fa::KernelStopped {
  enum class Why { shape, bounds, shared_memory, registers, cluster, too_many_together } why;
  LaunchRefused(Why w, const std::string& text)
      : KernelStopped(fa::FaultKind::refused, text), why(w) {}
};

/// Fills device memory with 0xFF (NaN in every float type) and forgets that anybody wrote it, so
/// that a read before the first write is still found.
void poison(void* p, size_t bytes);

/// The host knows that the launches until now are over: no kernel launched early overlaps them.
void no_kernel_in_front();

/// Host memory that the simulated device may still take, in bytes.
size_t free_bytes();

}  // namespace sim
