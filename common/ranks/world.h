/// \file
/// The ranks of this run as MPI started them: what the program for several ranks needs besides
/// messages between kernels. Whatever waits here for another rank waits no longer than a limit;
/// then one rank says so and MPI ends all.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/backend.h"
#include "common/harness/step.h"
#include "common/ranks/ranks.h"

namespace fa {

/// How many ranks the environment says there are (Open MPI's mpirun, Slurm's srun, PMI); 0:
/// the program was started alone.
int started_ranks();
/// Was this program built with MPI?
extern const bool kHasMpi;

/// Gives this rank a device of its own: of `ranks` on this machine it is number `rank`.
/// \throws ResourceError when there are more ranks than GPUs. The simulator has one for each rank,
/// or as many as FLASH_STEPS_SIM_GPUS says.
Device open_device_of(int rank, int ranks, const Step&, const Variant&);

/// The identity of the GPU that this process sees, if it sees one: some launchers give each rank
/// its own. Else "".
std::string only_gpu();

/// What a lane of the trace shows, in milliseconds since begin_trace().
struct Span {
  std::string lane;  ///< "compute" or "messages"
  std::string name;
  double begin_ms, end_ms;
};

/// MPI's ranks. Messages go by way of host memory, unless the GPUs' own library moves them.
class World : public Ranks {
 public:
  using Ranks::Ranks;
  /// \param who the program, for sentences
  static std::unique_ptr<World> join(const std::string& who);
  /// Leaves MPI in order; all ranks must come here.
  ~World() override = default;

  /// Seconds that this rank waits for another one.
  virtual void set_limit(double seconds) = 0;
  /// Of this machine: this rank's number, and how many there are.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  /// Opens what carries messages, once the device is chosen. What the other ranks must know of it:
  virtual std::string open_own() { return ""; }
  /// Meets the others, by what all ranks' open_own() gave.
  virtual void meet(const std::vector<std::string>&) {}
  /// Leaves the others' memory; all ranks do before any frees its own.
  virtual void close_peers() {}
  /// "NCCL 2.27" or "MPI, by way of host memory".
  virtual std::string carrier() const = 0;

  /// Every rank's text, on every rank.
  virtual std::vector<std::string> tell_all(const std::string&) = 0;
  /// Every rank's numbers, on rank 0; nothing on the others.
  virtual std::vector<std::vector<float>> gather(const std::vector<float>&) = 0;
  virtual void barrier() = 0;
  /// Waits for all kernels and messages.
  virtual void synchronize() = 0;
  /// Milliseconds from before `run` to the end of what it queued.
  virtual double time_run(const std::function<void()>& run) = 0;
  /// Prints the sentence and ends all ranks with this status.
  [[noreturn]] virtual void end_all(const std::string& sentence, int status) = 0;

  /// From now on compute and messages are timed.
  virtual void begin_trace() {}
  /// What was timed; nothing where there is no such clock.
  virtual std::vector<Span> end_trace() { return {}; }
};

}  // namespace fa
