/// \file
/// The ranks of this run, as a program sees them. Waiting for another rank is limited; at the limit
/// one rank reports it and MPI ends all.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/counts/backend.h"
#include "common/harness/ranks.h"
#include "common/harness/step.h"

namespace fa {

/// A span of a trace lane, in milliseconds since begin_trace().
struct Span {
  std::string lane;  ///< "compute" or "messages"
  std::string name;
  double begin_ms, end_ms;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, lane, name, begin_ms, end_ms)

/// The ranks of a program's run, and what it needs of them besides messages between kernels. This
/// class is one rank alone; common/ranks has the ranks that MPI starts.
class World : public Ranks {
 public:
  World() : Ranks(0, 1) {}

  /// Was it started without MPI?
  virtual bool alone() const { return true; }
  /// Limits the seconds that this rank waits for another.
  virtual void set_limit(double) {}
  /// The number of ranks on this machine.
  virtual int local_size() const { return 1; }
  /// Tells each rank which GPUs the others see, before any rank opens one.
  virtual void look_for_gpus() {}
  /// Opens this rank's device. \throws ResourceError as open_device(), or for more ranks than GPUs.
  virtual Device open(const Step& step, const Variant& v) {
    return open_device(step.id, needs_of(step, v));
  }
  /// Opens the transport of messages after the device. \returns what other ranks must know of it
  virtual std::string open_own() { return ""; }
  /// Connects to the others, given the results of all ranks' open_own().
  virtual void meet(const std::vector<std::string>&) {}
  /// Closes other ranks' memory; all ranks do so before any frees its own.
  virtual void close_peers() {}
  /// "NCCL 2.27" or "MPI, by way of host memory".
  virtual std::string carrier() const { return "none"; }

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
  /// Milliseconds from before `run` to the end of the work that it queued.
  virtual double time_run(const std::function<void()>& run) { return run(), 0; }
  /// Prints the sentence and ends all ranks with this status; returns on a single rank.
  virtual void end_all(const std::string&, int) {}

  /// Starts timing compute and messages.
  virtual void begin_trace() {}
  /// The recorded spans; nothing without such a clock.
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
