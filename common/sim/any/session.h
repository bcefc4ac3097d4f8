/// \file
/// What the simulator records while a program runs, and how it is reported. Private to any/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/counts/estimate.h"
#include "common/sim/sim.h"

namespace sim {
struct Launch;
}

namespace sim::any {

/// All launches of one kernel, or all memsets or copies on the device.
struct KernelRecord {
  std::string name;
  uint64_t launches = 0;
  std::string shape;       ///< "(64,8) x 256", of the first launch
  bool same_shape = true;  ///< do all launches have it?
  fa::KernelCount count;   ///< summed; without the blocks' work
  std::map<std::string, fa::BufferCount> buffers;
  double estimated_s = 0;            ///< summed
  uint64_t stopped = 0;              ///< launches that did not end: their counts are partial
  bool arithmetic = true;            ///< do the estimates hold the plain arithmetic?
  std::map<fa::Part, double> parts;  ///< seconds: share of a launch times its estimate
};

/// The options of scripts/sim, in the environment as lines of "key value".
struct Wishes {
  bool analyse = false, lines = false, barriers = false, quiet = false;
  double limit_s = 0;      ///< > 0: end after the launch that runs then, ...
  double patience_s = 30;  ///< ... or this much later within it
  double reserve = 0;      ///< bytes: the run ends with less; 0: 1/8 of what is free, at most 1 GiB
  std::string gpu = "H200", json, program;
  std::string looks = "./scripts/sim --analyse";  ///< the command that looks for races
  std::vector<std::string> remarks;               ///< of the compiler
};

/// The work that a stream captures, in order.
using Work = std::vector<std::function<void()>>;

/// A finding, printed once, and in how many launches (or runtime calls) it occurred.
struct Told : fa::Finding {
  bool of_launches = false;
  uint64_t times = 0, latest = 0;  ///< latest: the number of the launch
};

/// A step of an mbarrier, and the barrier's state after it.
struct BarrierStep {
  std::string kernel, what;  ///< "init", "arrive", "wait", "pass", "bytes"
  std::string barrier;       ///< "full[0]"
  std::string line;          ///< "sums.cu:22"; none for bytes
  int thread = -1;           ///< -1: no thread, bytes that landed
  uint32_t phase = 0;        ///< the one that runs
  int arrivals = 0;          ///< that it lacks
  int64_t bytes = 0;         ///< that it lacks
};

/// One run of the program, from its first call of the runtime to its exit.
struct Session {
  Wishes wishes;
  fa::GpuSpec gpu;
  std::unique_ptr<Recording> recording;
  std::vector<KernelRecord> kernels;           ///< by first launch
  std::map<std::string, fa::SiteCount> sites;  ///< by line and operation
  std::vector<Told> findings;
  std::vector<BarrierStep> barriers;
  std::map<std::string, size_t> finding_at;  ///< by the common part of a loop's findings
  uint64_t launches = 0;                     ///< so far
  bool in_launch = false;
  std::vector<std::string> remarks;
  std::unique_ptr<Work> captured;       ///< not null: stream work is kept for a graph
  bool launch_refused = false;          ///< so its results are missing
  bool complete = true;                 ///< false: the program did not end by itself
  std::set<std::string> said;           ///< remarks, each printed once
  size_t more = 0;                      ///< findings at other lines, counted but not printed
  double estimated_s = 0;               ///< of all launches so far: what events read
  uint64_t to_host = 0, from_host = 0;  ///< bytes that the program copied
  std::function<void()> on_end;         ///< of an extension: called before stop() ends the program
  size_t allowed_smem = 48 * 1024;      ///< the most that cudaFuncSetAttribute allowed any kernel
  bool large_clusters = false;          ///< it allowed clusters of more than 8 blocks
};
Session& session();
/// The simulator has one device and one queue: host threads take turns.
std::recursive_mutex& device_in_use();

/// Adds what was recorded since the last call to the session.
/// \param stopped the launch did not end
void take_counts(const Launch*, bool stopped = false);
/// Makes what CUDA calls this refusal the last error.
void keep_error(LaunchRefused::Why);
/// The launch that ended used an address that is not in device memory.
void keep_illegal_address();
/// Records the steps of mbarriers from now on.
void watch_barriers(std::vector<BarrierStep>&);
/// Prints a finding and keeps it for the report. Repetitions at the same lines are only counted.
void note_finding(fa::FaultKind, const std::string& sentence);
/// Called by the hooks in host code for a device variable, or for unwritten bytes from a copy.
void look_at_host_access(uintptr_t, unsigned size, Kind, const void* pc);
void look_at_unwritten(uintptr_t, unsigned size, Kind, const void* pc);
/// Restores device variables that host code has overwritten: on a GPU it does not reach them.
void undo_host_stores();
/// Device memory grows by `allocated`: above some size, the run ends before system memory does.
void watch_memory(size_t allocated);
/// After a copy to the host: were any of its bytes unwritten?
/// \param pc the caller
void look_at_copy(const void* to, size_t to_pitch, const void* from, size_t from_pitch,
                  size_t width, size_t height, const void* pc);
/// Ends the program at once, with the report. What has not run is not known to be correct.
[[noreturn]] void stop(int status);
/// Forgets what was counted and found, and empties the modelled L2: the next call alone counts.
void begin_anew();
/// The report as JSON.
std::string json_text(const Session&);
/// Prints the report of each kernel to stderr, and writes it as JSON where requested.
/// \returns false where the JSON cannot be written
bool tell(const Session&);

}  // namespace sim::any
