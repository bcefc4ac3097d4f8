/// \file
/// What the simulator notes while somebody's program runs, and how it is told in the end. Private
/// to program/.
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
  bool stopped = false;              ///< the last launch did not end: its counts are partial
  bool arithmetic = true;            ///< do the estimates hold the plain arithmetic?
  std::map<fa::Part, double> parts;  ///< seconds: share of a launch times its estimate
};

/// What scripts/sim asks for, in the environment as lines of "key value".
struct Wishes {
  bool analyse = false, lines = false, quiet = false;
  double limit_s = 0;      ///< > 0: end behind the launch that runs then, ...
  double patience_s = 30;  ///< ... or so much later inside it
  double reserve = 0;      ///< bytes: with less the run ends; 0: 1/8 of what is free, at most 1 GiB
  std::string gpu = "H200", json, program;
  std::string looks = "./scripts/sim --analyse";  ///< the command that looks for races
  std::vector<std::string> remarks;               ///< of the compiler
};

/// What a stream captures, in its order.
using Work = std::vector<std::function<void()>>;

/// A finding, told once, and in how many launches (or calls of the runtime) it was found.
struct Told : fa::Finding {
  bool of_launches = false;
  uint64_t times = 0, latest = 0;  ///< latest: the number of the launch
};

/// One run of the program, from its first call of the runtime to its exit.
struct Session {
  Wishes wishes;
  fa::GpuSpec gpu;
  std::unique_ptr<Recording> recording;
  std::vector<KernelRecord> kernels;           ///< in the order of their first launch
  std::map<std::string, fa::SiteCount> sites;  ///< by line and what it does
  std::vector<Told> findings;
  std::map<std::string, size_t> finding_at;  ///< by what two of them have in common
  uint64_t launches = 0;                     ///< until now
  bool in_launch = false;
  std::vector<std::string> remarks;
  std::unique_ptr<Work> captured;   ///< not null: calls that a stream orders are kept for a graph
  bool launch_refused = false;      ///< so what it would have written is not there
  bool complete = true;             ///< false: the program did not reach its own end
  std::set<std::string> said;       ///< remarks, so that each is told once
  size_t more = 0;                  ///< findings at other lines, counted and not told
  double estimated_s = 0;           ///< of all launches so far: what events read
  size_t allowed_smem = 48 * 1024;  ///< the most that cudaFuncSetAttribute allowed to any kernel
  bool large_clusters = false;      ///< it allowed those of more than 8 blocks
};
Session& session();
/// The simulator has one device and one queue: host threads take turns.
std::recursive_mutex& device_in_use();

/// Takes what the recording has gathered since the last time into the session.
/// \param stopped the launch did not end
void take_counts(const Launch*, bool stopped = false);
/// Makes what CUDA calls this refusal the last error.
void keep_error(LaunchRefused::Why);
/// The launch that ended has used an address which is none of the device's.
void keep_illegal_address();
/// Prints a finding, and keeps it for the report. Of the same lines each further one is counted.
void note_finding(fa::FaultKind, const std::string& sentence);
/// What the compiler's hooks tell of host code: it uses a variable of the device, or bytes that a
/// copy has brought and no kernel has written.
void look_at_host_access(uintptr_t, unsigned size, Kind, const void* pc);
void look_at_unwritten(uintptr_t, unsigned size, Kind, const void* pc);
/// Gives the device's variables the values that host code has overwritten: on a GPU it does not
/// reach them.
void undo_host_stores();
/// Device memory grows by so much: from some size on, the run ends before the system's memory does.
void watch_memory(size_t allocated);
/// After a copy to the host: which of its bytes were never written?
/// \param pc who copies
void look_at_copy(const void* to, size_t to_pitch, const void* from, size_t from_pitch,
                  size_t width, size_t height, const void* pc);
/// Ends the program at once, with the report. What it has not run is not known to be right.
[[noreturn]] void stop(int status);
/// The report: what each kernel did, on stderr, and as JSON where that is wanted.
/// \returns false where the JSON cannot be written
bool tell(const Session&);

}  // namespace sim::any
