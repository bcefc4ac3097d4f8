/// \file
/// The ranks of this run, as a program sees them. Whatever waits here for another rank waits no
/// longer than a limit; then one rank says so and MPI ends all.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/counts/backend.h"
#include "common/harness/ranks.h"
#include "common/harness/step.h"

namespace fa {

/// What a lane of the trace shows, in milliseconds since begin_trace().
struct Span {
  std::string lane;  ///< "compute" or "messages"
  std::string name;
  double begin_ms, end_ms;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, lane, name, begin_ms, end_ms)

/// The ranks of a program's run, and what it needs of them besides messages between kernels. This
/// one is alone; common/ranks has those that MPI starts.
class World : public Ranks {
 public:
  World() : Ranks(0, 1) {}

  /// Was it started without MPI?
  virtual bool alone() const { return true; }
  /// Seconds that this rank waits for another one.
  virtual void set_limit(double) {}
  /// How many ranks there are on this machine.
  virtual int local_size() const { return 1; }
  /// Each rank learns which GPUs the others see, before any opens one.
  virtual void look_for_gpus() {}
  /// Gives this rank a device of its own. \throws ResourceError as open_device() does, and when
  /// there are more ranks than GPUs.
  virtual Device open(const Step& step, const Variant& v) {
    return open_device(step.id, needs_of(step, v));
  }
  /// Opens what carries messages, once the device is open. What the other ranks must know of it:
  virtual std::string open_own() { return ""; }
  /// Meets the others, by what all ranks' open_own() gave.
  virtual void meet(const std::vector<std::string>&) {}
  /// Leaves the others' memory; all ranks do before any frees its own.
  virtual void close_peers() {}
  /// "NCCL 2.27" or "MPI, by way of host memory".
  virtual std::string carrier() const { return "nobody"; }

  /// Every rank's value, on every rank. T is what JSON can hold.
  template <class T>
  std::vector<T> all(const T& mine) {
    const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(nlohmann::json(mine));
    std::vector<T> values;
    for (const std::string& theirs : tell_all({bytes.begin(), bytes.end()})) {
      values.push_back(nlohmann::json::from_cbor(theirs).template get<T>());
    }
    return values;
  }
  /// Every rank's numbers, on rank 0; nothing on the others.
  virtual std::vector<std::vector<float>> gather(const std::vector<float>& mine) { return {mine}; }
  virtual void barrier() {}
  /// Waits for all kernels and messages.
  virtual void synchronize() {}
  /// Milliseconds from before `run` to the end of what it queued.
  virtual double time_run(const std::function<void()>& run) { return run(), 0; }
  /// Prints the sentence and ends all ranks with this status; returns where it is alone.
  virtual void end_all(const std::string&, int) {}

  /// From now on compute and messages are timed.
  virtual void begin_trace() {}
  /// What was timed; nothing where there is no such clock.
  virtual std::vector<Span> end_trace() { return {}; }

  void start(const std::string&, const std::vector<Message>&,
             const std::vector<Message>&) override {}
  void finish() override {}

 protected:
  using Ranks::Ranks;
  /// Every rank's bytes, on every rank.
  virtual std::vector<std::string> tell_all(const std::string& mine) { return {mine}; }
};

}  // namespace fa
