/// \file
/// World where NCCL moves messages from GPU to GPU, on a stream beside the kernels'. MPI starts the
/// ranks and carries what the host has to say.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>

#include "common/ranks/mpi_world.h"

namespace fa {

class NcclWorld : public MpiWorld {
 public:
  explicit NcclWorld(const std::string& who) : MpiWorld(who) {}
  ~NcclWorld() override;

  void open_device() override;
  std::string carrier() const override;
  int busy_sms() const override;
  void start(const std::string& what, const std::vector<Message>& send,
             const std::vector<Message>& receive) override;
  void finish() override;
  void synchronize() override;
  double time_run(const std::function<void()>& run) override;

  void computing(const std::string&) override;
  void begin_trace() override;
  std::vector<Span> end_trace() override;

 private:
  struct Traced;  // a span between two events
  void begin_span(const char* lane, const std::string& name, cudaStream_t);
  void end_span(const char* lane, cudaStream_t);

  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of messages
  cudaEvent_t computed_ = nullptr, arrived_ = nullptr, begin_ = nullptr, end_ = nullptr;
  std::string waits_for_;  // the last exchange
  bool tracing_ = false;
  std::vector<std::shared_ptr<Traced>> traced_;
};

}  // namespace fa
