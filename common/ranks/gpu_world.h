/// \file
/// World whose messages travel from GPU to GPU, on a stream next to the kernels' stream. MPI starts
/// the ranks and carries the messages of the hosts.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "common/ranks/mpi_world.h"

namespace fa {

class GpuWorld : public MpiWorld {
 public:
  using MpiWorld::MpiWorld;
  ~GpuWorld() override;

  std::string open_own() override;
  void start(const std::string& what, const std::vector<Message>& send,
             const std::vector<Message>& receive) override;
  void finish() override;
  void synchronize() override;
  double time_run(const std::function<void()>& run) override;

  void computing(const std::string&) override;
  void begin_trace() override;
  std::vector<Span> end_trace() override;

 protected:
  /// Begins an exchange. A World that need not wait for another rank's host calls move() here.
  virtual void queue(const std::vector<Message>& send, const std::vector<Message>& receive) = 0;
  /// The rest of the exchange, once the kernels that run in parallel are queued.
  virtual void queue_rest() {}
  /// Queues `copies` on stream().
  void move(const std::function<void()>& copies);
  /// Looks for errors while the host waits.
  virtual void look() {}

  cudaStream_t stream() const { return stream_; }
  const std::string& exchange() const { return exchange_; }  ///< its name

 private:
  struct Traced;  // a span between two events
  void begin_span(const char* lane, const std::string& name, cudaStream_t);
  void end_span(const char* lane, cudaStream_t);

  cudaStream_t stream_ = nullptr;  // of messages
  cudaEvent_t computed_ = nullptr, sent_ = nullptr, begin_ = nullptr, end_ = nullptr;
  std::string exchange_;  // the last one
  bool tracing_ = false;
  std::vector<std::shared_ptr<Traced>> traced_;
};

}  // namespace fa
